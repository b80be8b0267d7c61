/** Scaling: a real column as it is, between 0 and 1, and standardized; and gradient descent on each. All numbers come from Python. */

import { Plot } from "../charts.js";
import { figure, h, number, s } from "../elements.js";

const WAYS = /** @type {const} */ (["raw", "minmax", "standard"]);

/**
 * @param {{low: number, high: number, counts: number[], mean: number, deviation: number}} histogram
 * @param {number} width
 * @param {number} height
 */
function bars({ low, high, counts, mean, deviation }, width, height) {
  const top = Math.max(...counts), step = width / counts.length, floor = height - 20, at = (/** @type {number} */ v) => ((v - low) / (high - low)) * width;
  const label = (/** @type {number} */ v, /** @type {string} */ anchor) => s("text", { x: Math.max(0, Math.min(width, at(v))), y: height - 4, "text-anchor": anchor, class: "small" }, number(v));
  return s("svg", { viewBox: `0 0 ${width} ${height}`, class: "bars", "aria-hidden": "true" },
    ...counts.map((count, i) => s("rect", { x: i * step + 0.5, y: floor - (count / top) * (floor - 8), width: step - 1, height: (count / top) * (floor - 8) })),
    s("line", { class: "axis-line", x1: 0, x2: width, y1: floor, y2: floor }),
    s("path", { class: "mean", d: `M${at(mean)} 2V${floor}` }),
    s("path", { class: "spread", d: `M${Math.max(0, at(mean - deviation))} 5H${Math.min(width, at(mean + deviation))}` }),
    label(low, "start"), label(high, "end"));
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data: { scaling } }) {
  const plot = new Plot(300), curves = figure(t("scaling.descent"), plot.element, t("scaling.descent.read"));
  root.append(
    h("div", { class: "intro" }, h("h1", {}, t("scaling.title")), h("p", { class: "lead" }, t("scaling.lead"))),
    h("div", { class: "charts three" }, ...WAYS.map((way) => {
      const moments = scaling.histograms[way];
      return figure(t(`scaling.${way}`), bars(moments, 360, 170), t("scaling.moments", { mean: number(moments.mean), deviation: number(moments.deviation), skew: number(moments.skew), kurtosis: number(moments.kurtosis) })).element;
    })),
    h("p", { class: "reading" }, t("scaling.same")),
    h("div", { class: "split" }, curves.element, h("section", { class: "notes" },
      h("table", { class: "plain" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("scaling.way")), h("th", { scope: "col" }, t("scaling.condition")), h("th", { scope: "col" }, t("scaling.after", { steps: scaling.steps })))),
        h("tbody", {}, ...WAYS.map((way, i) => h("tr", {}, h("th", { scope: "row" }, h("span", { class: `key ${"abc"[i]}`, "aria-hidden": "true" }, "ABC"[i]), ` ${t(`scaling.${way}`)}`), h("td", {}, number(scaling.descent[way].condition, 2)), h("td", {}, scaling.descent[way].excess.length > scaling.steps ? number(scaling.descent[way].excess[scaling.steps], 2) : `< ${number(scaling.least)}`))))),
      ...["problem", "trees", "words"].map((name) => h("p", {}, t(`scaling.notes.${name}`))),
      h("p", {}, t("scaling.source", { rows: scaling.rows }), " ", h("span", { translate: "no" }, `${scaling.source}: ${scaling.column}, ${scaling.other}`)))));
  plot.draw({
    lines: WAYS.map((way, i) => ({ name: "ABC"[i], kind: "abc"[i], points: scaling.descent[way].excess.map((/** @type {number} */ v, /** @type {number} */ x) => [x, v]) })),
    x: t("step"), y: t("scaling.excess"), log: true, xRange: [0, scaling.steps],
  });
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const scaling = { id: "scaling", mount };
