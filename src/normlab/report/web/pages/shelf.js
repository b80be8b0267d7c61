/**
 * A shelf of books: which values of a tensor share one statistic. Sets, and the shape that averaging leaves, come from the
 * package (data/sets.json); this page colors and counts them.
 */

import { choice, figure, h, s, slider, tick } from "../elements.js";

/** @typedef {{labels: number[], left: number[]}} Sets */
/** @typedef {"images" | "text" | "marks"} Kind */

const COLORS = 8;
const CELL = 16, GAP = 2;
const MARKS = [[88, 92, 61, 70], [54, 60, 58, 95], [73, 81, 77, 66], [96, 90, 99, 52], [62, 45, 70, 83]];
/** @type {Record<Kind, string[]>} */
const NORMS = { images: ["batch", "layer", "last", "instance", "group", "rms", "power"], text: ["batch", "last", "layer", "instance", "group", "rms", "power"], marks: ["batch", "layer"] };

/** Outlives a change of language. */
const state = {
  /** @type {Kind} */ kind: "images",
  norm: "batch", groups: 2, chosen: 0, masked: true,
  /** @type {Record<Kind, number[]>} */
  shape: { images: [3, 4, 3, 4], text: [3, 5, 4], marks: [5, 4] },
};

/** @param {number} set */
const color = (set) => `set-${set % COLORS}${Math.floor(set / COLORS) % 2 ? " second" : ""}`;

/** @param {number[]} shape @returns {number} */
const product = (shape) => shape.reduce((a, b) => a * b, 1);

/**
 * Tokens of each sentence that are real: every sentence is shorter than the one before.
 * @param {number[]} shape
 */
const lengths = ([sentences, tokens]) => Array.from({ length: sentences }, (_, i) => Math.max(1, tokens - i));

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data }) {
  const controls = h("div", { class: "panel" }), stage = h("div", { class: "stage" }), said = h("p", { class: "reading", "aria-live": "polite" });

  /** @returns {Sets} */
  const sets = () => data.sets[state.kind][state.shape[state.kind].join("-")][state.norm === "group" ? `group-${state.groups}` : state.norm];
  const channels = () => state.shape[state.kind][state.kind === "images" ? 1 : 2];
  const divisors = () => Object.keys(data.sets[state.kind][state.shape[state.kind].join("-")]).filter((name) => name.startsWith("group-")).map((name) => Number(name.slice(6)));

  /** @param {number} cell index into the tensor */
  const padded = (cell) => {
    if (state.kind !== "text") return false;
    const [, tokens, features] = state.shape.text, token = Math.floor(cell / features) % tokens;
    return token >= lengths(state.shape.text)[Math.floor(cell / (features * tokens))];
  };

  // ---- drawing -------------------------------------------------------------------------------------------------------
  /** @type {SVGElement[][]} */
  let members = [];
  /** @param {number} set @param {Record<string, any>} at */
  const square = (set, at) => {
    const element = s("rect", { ...at, rx: 1.5, class: `cell ${color(set)}`, pointerenter: () => light(set), click: () => light(set) });
    (members[set] ??= []).push(element);
    return element;
  };
  /**
   * Books side by side: pages below each other, lines of characters on a page.
   * @param {number[]} shape books, pages, lines, characters
   * @param {(book: number, page: number, line: number, character: number) => number} setOf
   * @param {string} label
   */
  const books = ([count, pages, lines, characters], setOf, label) => {
    const width = characters * CELL, height = lines * CELL, inner = 6, stepX = width + 2 * inner + 20, stepY = height + 9;
    const all = s("svg", { viewBox: `0 0 ${count * stepX} ${pages * stepY + 2 * inner + 18}`, width: count * stepX, role: "img", "aria-label": label });
    for (let b = 0; b < count; b++) {
      const x = b * stepX + 2;
      all.append(s("rect", { class: "book", x, y: 16, width: width + 2 * inner + 6, height: pages * stepY + 2 * inner - 6, rx: 3 }),
        s("line", { class: "spine", x1: x + 5, x2: x + 5, y1: 18, y2: 16 + pages * stepY + 2 * inner - 8 }),
        s("text", { x: x + (width + 2 * inner + 6) / 2, y: 11, "text-anchor": "middle", class: "small" }, String(b + 1)));
      for (let p = 0; p < pages; p++)
        for (let l = 0; l < lines; l++)
          for (let c = 0; c < characters; c++)
            all.append(square(setOf(b, p, l, c), { x: x + inner + 5 + c * CELL, y: 16 + inner + p * stepY + l * CELL, width: CELL - GAP, height: CELL - GAP }));
    }
    return all;
  };
  /**
   * The same values as a block: books to the right, characters of a page downwards, pages into the depth.
   * @param {number[]} shape
   * @param {number[]} labels
   */
  const cube = ([n, c, height, width], labels) => {
    const cells = height * width, w = 24, d = 13, v = 14, all = s("svg", { viewBox: `-4 -4 ${n * w + c * d + 50} ${cells * v + c * d + 30}`, width: n * w + c * d + 50, role: "img", "aria-label": t("shelf.cube") });
    const at = (/** @type {number} */ book, /** @type {number} */ page, /** @type {number} */ cell) => labels[(book * c + page) * cells + cell];
    const face = (/** @type {number} */ set, /** @type {string} */ path) => {
      const element = s("path", { d: path, class: `cell edge ${color(set)}`, pointerenter: () => light(set), click: () => light(set) });
      (members[set] ??= []).push(element);
      all.append(element);
    };
    const top = c * d;
    for (let b = 0; b < n; b++) for (let i = 0; i < cells; i++) face(at(b, 0, i), `M${b * w} ${top + i * v}h${w}v${v}h${-w}z`);
    for (let b = 0; b < n; b++) for (let p = 0; p < c; p++) face(at(b, p, 0), `M${b * w + p * d} ${top - p * d}h${w}l${d} ${-d}h${-w}z`);
    for (let p = 0; p < c; p++) for (let i = 0; i < cells; i++) face(at(n - 1, p, i), `M${n * w + p * d} ${top - p * d + i * v}l${d} ${-d}v${v}l${-d} ${d}z`);
    all.append(s("text", { x: (n * w) / 2, y: top + cells * v + 14, "text-anchor": "middle", class: "small" }, "N"),
      s("text", { x: n * w + (c * d) / 2 + 8, y: top + cells * v - (c * d) / 2 + 14, class: "small" }, "C"),
      s("text", { x: n * w + c * d + 6, y: (cells * v) / 2, class: "small" }, "H, W"));
    return all;
  };
  /**
   * Sentences below each other; a token is a column of features.
   * @param {number[]} shape
   * @param {(sentence: number, token: number, feature: number) => number} setOf
   * @param {string} label
   * @param {boolean} padding whether there is any
   */
  const sentences = ([count, tokens, features], setOf, label, padding) => {
    const stepX = CELL + 9, stepY = features * CELL + 16;
    const all = s("svg", { viewBox: `-2 -2 ${tokens * stepX + 8} ${count * stepY}`, width: tokens * stepX + 8, role: "img", "aria-label": label });
    for (let b = 0; b < count; b++)
      for (let l = 0; l < tokens; l++) {
        all.append(s("rect", { class: "book", x: l * stepX - 1, y: b * stepY - 1, width: CELL + 4, height: features * CELL + 3, rx: 3 }));
        for (let f = 0; f < features; f++) {
          const at = { x: l * stepX + 2, y: b * stepY + 1.5 + f * CELL, width: CELL - GAP, height: CELL - GAP };
          if (padding && padded((b * tokens + l) * features + f) && state.masked) all.append(s("rect", { ...at, rx: 1.5, class: "cell padding" }));
          else all.append(square(setOf(b, l, f), at));
        }
        if (padding && padded((b * tokens + l) * features)) all.append(s("path", { class: "strike", d: `M${l * stepX} ${b * stepY + features * CELL + 1}L${l * stepX + CELL + 1} ${b * stepY}` }));
      }
    return all;
  };
  const marks = (/** @type {number[]} */ labels) => {
    const table = h("table", { class: "marks" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("marks.student")), ...[0, 1, 2, 3].map((i) => h("th", { scope: "col" }, t(`marks.subject.${i}`))))));
    const body = h("tbody", {});
    MARKS.forEach((row, r) => body.append(h("tr", {}, h("th", { scope: "row" }, String(r + 1)), ...row.map((mark, c) => {
      const set = labels[r * 4 + c], cell = h("td", { class: `cell ${color(set)}`, pointerenter: () => light(set), click: () => light(set) }, String(mark));
      (members[set] ??= []).push(/** @type {any} */ (cell));
      return cell;
    }))));
    table.append(body);
    return table;
  };

  // ---- what is said --------------------------------------------------------------------------------------------------
  /** @param {number} set */
  const light = (set) => {
    state.chosen = set;
    const { labels } = sets(), total = Math.max(...labels) + 1;
    members.forEach((elements, i) => elements.forEach((e) => e.classList.toggle("off", i !== set)));
    const inside = labels.map((label, cell) => (label === set ? cell : -1)).filter((cell) => cell >= 0);
    const real = state.masked ? inside.filter((cell) => !padded(cell)).length : inside.length;
    const picker = /** @type {HTMLInputElement | null} */ (controls.querySelector(".pick input"));
    if (picker && picker.value !== String(set)) {
      picker.value = String(set);
      const output = controls.querySelector(".pick output");
      if (output) output.textContent = t("shelf.of", { set: set + 1, total });
    }
    const { kind, norm } = state, [n, c, height, width] = state.kind === "images" ? state.shape.images : [0, 0, 0, 0];
    const [b, l, d] = state.kind === "text" ? state.shape.text : [0, 0, 0];
    const values = { count: inside.length, total, n, c, h: height, w: width, b, l, d, g: state.groups, share: channels() / state.groups };
    said.replaceChildren(h("strong", {}, t(`shelf.${kind}.${norm}.count`, values)), " ", t(`shelf.${kind}.${norm}.read`, values), " ",
      state.kind === "text" ? (real < inside.length ? t("shelf.masked", { real, all: inside.length }) : inside.some(padded) ? t("shelf.unmasked") : "") : "");
  };

  const draw = () => {
    members = [];
    const { labels, left } = sets(), shape = state.shape[state.kind];
    state.chosen = Math.min(state.chosen, Math.max(...labels));
    if (state.kind === "images") {
      const [, c, height, width] = shape;
      stage.replaceChildren(
        figure(t("shelf.books"), books(shape, (b, p, l, i) => labels[((b * c + p) * height + l) * width + i], t("shelf.books.label")), t("shelf.books.read")).element,
        figure(t("shelf.left"), books(left, (b, p, l, i) => ((b * left[1] + p) * left[2] + l) * left[3] + i, t("shelf.left.label")), t("shelf.left.read", { count: product(left) })).element,
        figure(t("shelf.cube"), cube(shape, labels), t("shelf.cube.read")).element);
    } else if (state.kind === "text") {
      const [, l, d] = shape;
      stage.replaceChildren(
        figure(t("shelf.sentences"), sentences(shape, (b, i, f) => labels[(b * l + i) * d + f], t("shelf.sentences.label"), true), t("shelf.sentences.read")).element,
        figure(t("shelf.left"), sentences(left, (b, i, f) => (b * left[1] + i) * left[2] + f, t("shelf.left.label"), false), t("shelf.left.read", { count: product(left) })).element);
    } else stage.replaceChildren(figure(t("shelf.marks"), marks(labels), t("shelf.marks.read")).element);
    light(state.chosen);
  };

  const rebuild = () => {
    const again = () => { rebuild(); draw(); };
    const set = (/** @type {Partial<typeof state>} */ part) => { Object.assign(state, part, { chosen: 0 }); again(); };
    const resized = (/** @type {number} */ axis, /** @type {number} */ value) => {
      state.shape[state.kind] = state.shape[state.kind].map((old, i) => (i === axis ? value : old));
      if (!divisors().includes(state.groups)) state.groups = 1;
      state.chosen = 0;
      again();
    };
    if (!divisors().includes(state.groups) && state.kind !== "marks") state.groups = 2;
    const total = Math.max(...sets().labels) + 1, shape = state.shape[state.kind];
    const sizes = state.kind === "images"
      ? [slider(t("shelf.size.n"), [2, 3, 4], shape[0], String, (v) => resized(0, v)), slider(t("shelf.size.c"), [2, 4, 6], shape[1], String, (v) => resized(1, v))]
      : state.kind === "text" ? [slider(t("shelf.size.b"), [2, 3, 4], shape[0], String, (v) => resized(0, v)), slider(t("shelf.size.l"), [3, 5], shape[1], String, (v) => resized(1, v)), slider(t("shelf.size.d"), [4, 6], shape[2], String, (v) => resized(2, v))] : [];
    const focused = document.activeElement instanceof HTMLInputElement ? [...controls.querySelectorAll("input")].indexOf(document.activeElement) : -1;
    const picker = slider(t("shelf.set"), Array.from({ length: total }, (_, i) => i), Math.min(state.chosen, total - 1), (v) => t("shelf.of", { set: v + 1, total }), light);
    picker.classList.add("pick");
    controls.replaceChildren(
      choice(t("shelf.kind"), (/** @type {Kind[]} */ (["images", "text", "marks"])).map((kind) => ({ value: kind, text: t(`shelf.kind.${kind}`) })), state.kind, (kind) => set({ kind: /** @type {Kind} */ (kind), norm: NORMS[/** @type {Kind} */ (kind)].includes(state.norm) ? state.norm : "batch" })),
      choice(t("norm"), NORMS[state.kind].map((norm) => ({ value: norm, text: t(`shelf.norm.${state.kind}.${norm}`) })), state.norm, (norm) => set({ norm })),
      h("div", { class: "row" }, ...sizes,
        state.norm === "group" ? slider(t("shelf.groups"), divisors(), state.groups, String, (groups) => set({ groups })) : null, picker,
        state.kind === "text" ? tick(t("shelf.mask"), state.masked, (masked) => set({ masked })) : null));
    if (focused >= 0) controls.querySelectorAll("input")[focused]?.focus();
  };

  root.append(h("div", { class: "intro" }, h("h1", {}, t("shelf.title")), h("p", { class: "lead" }, t("shelf.lead"))), controls, said, stage);
  rebuild();
  draw();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const shelf = { id: "shelf", mount };
