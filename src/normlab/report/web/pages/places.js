/**
 * Where it sits: every placement as a drawing of its residual, and what was measured of the stream and the gradient by depth.
 * The norm of the drawing can be dragged from place to place. Formulas and measurements come from Python (data/depth.json).
 */

import { Plot } from "../charts.js";
import { figure, h, menu, number, s } from "../elements.js";
import { DRAWINGS } from "./drawings.js";

/** @typedef {import("./drawings.js").Part} Part */

const STEP = 184, MAIN = 150, BRANCH = 62;

/** Outlives a change of language. */
const state = { place: "pre", other: "post", late: 0 };

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data: { depth } }) {
  const names = Object.keys(depth.placements);
  const drawing = h("div", { class: "residual" }), formula = h("p", { class: "formula" }), controls = h("div", { class: "row" });
  const plots = { stream_rms: new Plot(240), stream_grad: new Plot(240) };
  const figures = { stream_rms: figure(t("stream.title"), plots.stream_rms.element, ""), stream_grad: figure(t("gradient.title"), plots.stream_grad.element, "") };

  // ---- the drawing, from below to above ------------------------------------------------------------------------------
  /** @param {string} place */
  const drawn = (place) => {
    const { parts, start, end, second, bridge, once } = DRAWINGS[place];
    const height = parts.reduce((sum, part) => sum + STEP - (part.post ? 0 : 35), 0) + (start ? 44 : 0) + (end ? 40 : 0) + (second ? 56 : 0) + 46;
    const all = s("svg", { viewBox: `0 0 300 ${height}`, width: 300, height, role: "img", "aria-label": t("places.drawing", { place }) });
    all.append(s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0L8 4L0 8z", class: "tip" }))));
    const line = (/** @type {string} */ d, tip = false) => all.append(s("path", { class: "wire", d, "marker-end": tip ? "url(#tip)" : null }));
    const box = (/** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ text, /** @type {string} */ kind, wide = 56) => {
      const group = s("g", { class: `box ${kind}` }, s("rect", { x: x - wide / 2, y: y - 14, width: wide, height: 28, rx: 6 }), s("text", { x, y: y + 4.5, "text-anchor": "middle" }, text));
      all.append(group);
      return group;
    };
    let y = height - 14;
    all.append(s("text", { x: MAIN, y: height - 1, "text-anchor": "middle", class: "small" }, "x"));
    if (start) {
      line(`M${MAIN} ${y}V${y - 30}`);
      y -= 30;
      box(MAIN, y, "N", "norm");
      y -= 14;
    }
    const bottom = y;
    parts.forEach((part) => {
      const low = y, sum = y - STEP + 46, split = low - 14, upper = part.post ? sum - 34 : sum;
      line(`M${MAIN} ${low}V${sum + 12}`, true);
      line(`M${MAIN} ${split}H${BRANCH}V${sum}H${MAIN - 12}`, true);
      if (part.weight) label(MAIN + 8, (low + sum) / 2, part.weight);
      const middle = (split + sum) / 2;
      const stops = [part.before && "before", "sub", part.inside && "inside", part.after && "after"].filter(Boolean);
      const space = (split - sum - 8) / (stops.length + 1);
      stops.forEach((stop, i) => {
        const at = split - 4 - space * (i + 1);
        if (stop === "sub") box(BRANCH, at, part.name, "sub", 40);
        else draggable(box(BRANCH, at, stop === "before" && part.scale ? `N${part.scale}` : "N", "norm", part.scale && stop === "before" ? 64 : 40), place);
      });
      if (part.gate) label(BRANCH + 12, sum - 6, part.gate);
      if (part.note) label(MAIN + 22, middle, t(part.note));
      all.append(s("circle", { class: "sum", cx: MAIN, cy: sum, r: 11 }), s("path", { class: "wire", d: `M${MAIN - 5} ${sum}h10m-5 -5v10` }));
      if (part.post) {
        line(`M${MAIN} ${sum - 11}V${upper + 14}`);
        draggable(box(MAIN, upper, "N", "norm"), place);
        y = upper - 14;
      } else y = sum - 11;
    });
    if (!once) all.prepend(s("rect", { class: "repeat", x: 22, y: y + 3, width: second || bridge ? 256 : 210, height: bottom - y - 8, rx: 10 }), s("text", { class: "factor", x: 30, y: y + 20 }, "× L"));
    if (bridge) line(`M${MAIN} ${bottom - 4}H${MAIN + 96}V${y + 54}H${MAIN + 13}`, true);
    if (second) {
      line(`M${MAIN} ${bottom - 4}H${MAIN + 96}V${y - 2}`);
      label(MAIN + 42, (bottom + y) / 2 - 8, "r + S(x)");
      box(MAIN + 96, y - 16, "N", "norm", 40);
      line(`M${MAIN + 96} ${y - 30}V${y - 40}H${MAIN + 13}`, true);
      line(`M${MAIN} ${y}V${y - 28}`, true);
      all.append(s("circle", { class: "sum", cx: MAIN, cy: y - 40, r: 11 }), s("path", { class: "wire", d: `M${MAIN - 5} ${y - 40}h10m-5 -5v10` }));
      y -= 51;
    }
    if (end) {
      line(`M${MAIN} ${y}V${y - 8}`);
      y -= 22;
      box(MAIN, y, "N", "norm end");
      y -= 14;
    }
    line(`M${MAIN} ${y}V6`, true);
    /** @param {number} x @param {number} at @param {string} text */
    function label(x, at, text) {
      all.append(s("text", { x, y: at + 4, class: "factor" }, text));
    }
    return all;
  };
  /**
   * Dragging a norm: to the left of the stream it stands before or after the sub-layer, on the stream after the sum.
   * @param {SVGGElement} group
   * @param {string} place
   */
  const draggable = (group, place) => {
    if (!["pre", "post", "reordered", "sandwich", "deepnorm"].includes(place)) return;
    group.classList.add("drag");
    let from = { x: 0, y: 0 };
    group.addEventListener("pointerdown", (e) => { from = { x: e.clientX, y: e.clientY }; group.setPointerCapture(e.pointerId); e.preventDefault(); });
    group.addEventListener("pointermove", (e) => { if (group.hasPointerCapture(e.pointerId)) group.setAttribute("transform", `translate(${e.clientX - from.x} ${e.clientY - from.y})`); });
    group.addEventListener("pointerup", (e) => {
      const frame = drawing.querySelector("svg")?.getBoundingClientRect();
      if (!frame) return;
      const x = e.clientX - frame.left, lower = frame.bottom - e.clientY;
      if (Math.hypot(e.clientX - from.x, e.clientY - from.y) < 12) group.removeAttribute("transform");
      else choose(x > (MAIN + BRANCH) / 2 ? "post" : lower % STEP < STEP / 2 ? "pre" : "reordered");
    });
  };

  /** @param {string} place */
  const choose = (place) => {
    if (place === state.other) state.other = state.place;
    state.place = place;
    show();
  };
  const show = () => {
    controls.replaceChildren(
      menu(t("places.shown"), names.map((name) => ({ value: name, text: t(`places.${name}`) })), state.place, choose),
      menu(t("places.against"), names.filter((name) => name !== state.place).map((name) => ({ value: name, text: t(`places.${name}`) })), state.other, (name) => { state.other = name; show(); }),
      menu(t("places.when"), [0, 1].map((when) => ({ value: String(when), text: t(when ? "places.last" : "places.first", { steps: depth.steps }) })), String(state.late), (when) => { state.late = Number(when); show(); }));
    const shown = depth.placements[state.place];
    drawing.replaceChildren(drawn(state.place));
    formula.replaceChildren(h("code", { translate: "no" }, shown.formula), " ", h("span", { class: "quiet" }, t("places.paper", { paper: shown.paper, year: shown.year })));
    for (const quantity of /** @type {const} */ (["stream_rms", "stream_grad"])) {
      const line = (/** @type {string} */ place, /** @type {"a" | "b"} */ kind) => ({ name: kind.toUpperCase(), kind, points: depth.placements[place][quantity][state.late].map((/** @type {number[]} */ v, /** @type {number} */ i) => [i + 1, v[0]]),
        band: depth.placements[place][quantity][state.late].map((/** @type {number[]} */ v, /** @type {number} */ i) => [i + 1, v[1], v[2]]) });
      const range = (/** @type {string} */ place) => { const all = depth.placements[place][quantity][state.late]; return [number(all[0][0], 2), number(all[all.length - 1][0], 2)]; };
      plots[quantity].draw({ lines: [line(state.place, "a"), line(state.other, "b")], x: t("block"), y: t(quantity === "stream_rms" ? "stream.axis" : "gradient.axis"), log: true, xRange: [1, depth.layers] });
      const [a, b] = [range(state.place), range(state.other)];
      figures[quantity].say(t("places.read", { a: t(`places.${state.place}`), b: t(`places.${state.other}`), a0: a[0], a1: a[1], b0: b[0], b1: b[1], layers: depth.layers }));
    }
  };

  root.append(h("div", { class: "intro" }, h("h1", {}, t("places.title")), h("p", { class: "lead" }, t("places.lead"))), controls,
    h("div", { class: "split places" }, h("figure", {}, drawing, h("figcaption", {}, t("places.legend"))), h("div", {}, formula, figures.stream_rms.element, figures.stream_grad.element)),
    h("section", { class: "notes" }, h("p", {}, t("places.measured", { layers: depth.layers, dim: depth.dim, seeds: depth.seeds, steps: depth.steps, rate: number(depth.rate), date: depth.date }), " ", h("span", { translate: "no" }, `${depth.machine}, torch ${depth.torch}, ${depth.command}`))));
  show();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const places = { id: "places", mount };
