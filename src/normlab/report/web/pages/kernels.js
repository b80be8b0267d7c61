/** Kernels: what `normlab bench` measured, each number beside the one that matters: equal speed, or the limit of the machine. */

import { ticks } from "../charts.js";
import { figure, h, number, s, table } from "../elements.js";
import { list, word } from "../panels.js";

const ROW = 22, TOP = 24, RIGHT = 16, MARKS = ["a", "b", "c", "s3"];

/**
 * A row for each case, a mark for each rival, and the line that they are compared with.
 * @param {{name: string, values: number[]}[]} rows
 * @param {string} axis
 * @param {string} line what stands at 1
 * @param {boolean} log
 */
function marks(rows, axis, line, log) {
  const element = h("div", { class: "plot" }), scale = (/** @type {number} */ v) => (log ? Math.log2(v) : v);
  const draw = () => {
    const width = element.clientWidth;
    if (width < 80) return;
    const left = Math.min(230, width * 0.46), bottom = TOP + rows.length * ROW, height = bottom + 34, all = rows.flatMap((row) => row.values).map(scale);
    const low = Math.min(log ? -0.5 : 0, ...all), high = Math.max(log ? 0.5 : scale(1), ...all), wide = high - low || 1;
    const px = (/** @type {number} */ v) => left + ((scale(v) - low) / wide) * (width - RIGHT - left);
    const root = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }), axes = s("g", { class: "axis" });
    const values = log ? ticks(low, high, width < 500 ? 3 : 6).filter(Number.isInteger).map((power) => 2 ** power) : ticks(low, high, 4);
    for (const v of values) axes.append(s("line", { x1: px(v), x2: px(v), y1: TOP - 4, y2: bottom }), s("text", { x: px(v), y: bottom + 14, "text-anchor": "middle" }, log ? number(v) : `${number(100 * v)} %`));
    axes.append(s("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end", class: "name" }, axis), s("text", { x: px(1), y: 12, "text-anchor": px(1) > width / 2 ? "end" : "start", class: "name" }, line));
    root.append(axes, s("line", { class: "zero", x1: px(1), x2: px(1), y1: TOP - 4, y2: bottom }));
    rows.forEach((row, i) => {
      const y = TOP + i * ROW + ROW / 2, room = Math.floor(left / 6.6);
      root.append(s("text", { x: 0, y: y + 4, translate: "no" }, row.name.length > room ? `${row.name.slice(0, room - 1)}…` : row.name));
      row.values.forEach((v, j) => root.append(shape(j, px(v), y)));
    });
    element.replaceChildren(root);
  };
  new ResizeObserver(draw).observe(element);
  return { element, draw };
}

/**
 * Told apart without color, too.
 * @param {number} which
 * @param {number} x
 * @param {number} y
 */
function shape(which, x, y) {
  const kind = `dot ${MARKS[which % MARKS.length]}`;
  if (which % 4 === 0) return s("circle", { class: kind, cx: x, cy: y, r: 4.5 });
  if (which % 4 === 1) return s("rect", { class: kind, x: x - 4, y: y - 4, width: 8, height: 8 });
  return s("path", { class: kind, d: which % 4 === 2 ? `M${x} ${y - 6}l6 6l-6 6l-6-6z` : `M${x} ${y - 5}l6 10h-12z` });
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, context) {
  const { t, language, data: view } = context, said = (/** @type {string} */ name) => word(context, name);
  root.append(h("div", { class: "intro" }, h("h1", { translate: "no" }, view.title), h("p", { class: "lead" }, t("kernels.lead")), view.quick ? h("p", { class: "reading bad" }, t("kernels.quick")) : ""));
  const drawings = view.figures.map((/** @type {any} */ of) => {
    const ratio = of.what === "ratios", cases = new Set(of.lines.map((/** @type {any} */ line) => line.case)), name = (/** @type {any} */ line) => [cases.size > 1 && said(line.case), line.shape, line.dtype].filter(Boolean).join(" ");
    const picture = marks(of.lines.map((/** @type {any} */ line) => ({ name: name(line), values: line.values })), t(ratio ? "kernels.times" : "kernels.share"), t(ratio ? "kernels.equal" : "kernels.limit"), ratio);
    const drawn = figure([of.family, ...[...cases].slice(0, 2)].map(said).join(" · "), picture.element, t(ratio ? "kernels.ratio.read" : "kernels.limit.read"));
    const shown = (/** @type {number} */ v) => (ratio ? `${number(v)} ×` : `${number(100 * v)} %`);
    drawn.element.querySelector("h3")?.setAttribute("translate", "no");
    drawn.element.append(h("p", { class: "keys", translate: "no" }, ...of.rivals.map((/** @type {string} */ rival, /** @type {number} */ i) => h("span", { class: "tick" }, s("svg", { width: 14, height: 14, "aria-hidden": "true" }, shape(i, 7, 7)), said(rival)))),
      h("details", { class: "numbers" }, h("summary", {}, t("run.numbers")), table(said(of.family), [t("kernels.case"), ...of.rivals.map(said)], of.lines.map((/** @type {any} */ line) => [h("span", { translate: "no" }, name(line)), ...line.values.map(shown)]))));
    return { element: drawn.element, draw: picture.draw };
  });
  root.append(h("div", { class: "charts" }, ...drawings.map((/** @type {any} */ d) => d.element)));
  drawings.forEach((/** @type {any} */ d) => d.draw());
  if (view.goals.length)
    root.append(h("h2", {}, t("kernels.goals")), table(t("kernels.goals"), [t("kernels.goal"), t("kernels.measured"), t("kernels.target"), t("kernels.met")],
      view.goals.map((/** @type {any} */ g) => [h("span", { class: "short" }, g.what[language]), `${number(g.measured)} ${g.unit}`, `${g.at_most ? "≤" : "≥"} ${number(g.target)} ${g.unit}`, h("b", { class: g.met ? "outcome holds" : "outcome fails" }, t(g.met ? "kernels.yes" : "kernels.no"))])));
  root.append(h("h2", {}, t("ran.machine")), list(Object.entries(view.machine)));
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const kernels = { id: "run-kernels", mount };
