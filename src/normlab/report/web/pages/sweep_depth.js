/** Depth, of a sweep: what the blocks of each cell do to the stream at the end of training. */

import { drawn, keys, span } from "../cells.js";
import { h, number } from "../elements.js";
import { panel, sentences, silence } from "../panels.js";

const SHARES = ["angle"]; // on a straight axis; the others span magnitudes

/**
 * Blocks of one stack each: no path leads from one into the next.
 * @param {any} line
 */
function stacks(line) {
  /** @type {Map<string, number[]>} */
  const found = new Map();
  line.stacks.forEach((/** @type {string} */ name, /** @type {number} */ i) => found.set(name, [...(found.get(name) ?? []), i]));
  return [...found.values()];
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data: view }) {
  root.append(h("div", { class: "intro" }, h("h1", {}, t("depth.title")), h("p", { class: "lead" }, t("sweep.depth.lead"))));
  if (!view.depth.length) {
    root.append(silence(t("depth.none")));
    return () => {};
  }
  const panels = view.depth.map((/** @type {any} */ of) => ({ of, figure: panel(t, t(`quantity.${of.quantity}`), 260) }));
  const draw = () => {
    const shown = drawn(view);
    for (const { of, figure } of panels) {
      const lines = of.lines.filter((/** @type {any} */ line) => shown.has(line.cell)), log = !SHARES.includes(of.quantity), ends = lines.flatMap((/** @type {any} */ line) => line.step);
      figure.draw({
        lines: lines.flatMap((/** @type {any} */ line) => stacks(line).map((blocks, i, all) => ({
          ...shown.get(line.cell), name: i === all.length - 1 ? shown.get(line.cell)?.name : "", label: line.cell,
          points: blocks.map((b) => [b + 1, line.mean[b]]), band: line.n > 1 ? blocks.map((b) => [b + 1, line.low[b], line.high[b]]) : undefined }))),
        x: t("block"), whole: true, y: t(`quantity.${of.quantity}.axis`), log, xRange: [1, Math.max(2, ...lines.map((/** @type {any} */ line) => line.sites.length))], yRange: log ? undefined : [0, 0],
      }, lines.length ? sentences(t("sweep.depth.read", { n: span(lines.map((/** @type {any} */ line) => line.n)) }), t("sweep.depth.step", { step: span(ends) }), log && t("sweep.depth.log")) : t("sweep.depth.missing"));
    }
  };
  const rates = view.cells.filter((/** @type {any} */ c) => c.shown_lr !== null).map((/** @type {any} */ c) => `${c.cell}${t("compare.colon")}${number(c.shown_lr)}`);
  root.append(keys(t, view, draw), h("div", { class: "charts" }, ...panels.map((/** @type {any} */ p) => p.figure.element)),
    h("p", { class: "quiet" }, sentences(t("sweep.depth.rates", { rates: rates.join(t("sweep.comma")) }), view.not_opened > 0 && t("compare.not_opened", { n: view.not_opened }))));
  draw();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const sweepDepth = { id: "sweep-depth", mount };
