/** Text against images: batch statistics against their running average, and their gradients, from recorded runs (data/batches.json). */

import { Plot } from "../charts.js";
import { figure, h, number } from "../elements.js";

const KINDS = /** @type {const} */ (["images", "masked", "unmasked"]);
const QUANTITIES = ["batch_mean_distance", "batch_var_distance", "mean_grad_norm", "var_grad_norm"];

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data: { batches } }) {
  const figures = QUANTITIES.map((quantity) => {
    const plot = new Plot(240);
    /** @type {Record<string, string>} */
    const facts = {};
    const lines = KINDS.map((kind, i) => {
      const [middle, tail] = batches.kinds[kind].facts[quantity];
      facts["abc"[i]] = number(middle, 2);
      facts[`t${"abc"[i]}`] = number(tail, 2);
      return { name: "ABC"[i], kind: "abc"[i], points: batches.kinds[kind][quantity].map((/** @type {number[]} */ v, /** @type {number} */ x) => [batches.first + x, v[0]]),
        band: batches.kinds[kind][quantity].map((/** @type {number[]} */ v, /** @type {number} */ x) => [batches.first + x, v[1], v[2]]) };
    });
    const distance = quantity.startsWith("batch");
    return { plot, chart: { lines, x: t("step"), y: t(`batches.${quantity}.axis`), xRange: /** @type {[number, number]} */ ([batches.first, batches.steps]), log: !distance, yRange: /** @type {[number, number]} */ ([0, 0.1]) },
      element: figure(t(`batches.${quantity}`), plot.element, t("batches.read", facts)).element };
  });
  root.append(
    h("div", { class: "intro" }, h("h1", {}, t("batches.title")), h("p", { class: "lead" }, t("batches.lead"))),
    h("ul", { class: "keys", "aria-label": t("batches.key") }, ...KINDS.map((kind, i) => h("li", {}, h("span", { class: `key ${"abc"[i]}` }, "ABC"[i]), ` ${t(`batches.${kind}`)}`))),
    h("div", { class: "charts" }, ...figures.map((f) => f.element)),
    h("section", { class: "notes" }, h("p", {}, t("batches.notes.claim")), h("p", {}, t("batches.notes.caution")),
      h("p", {}, t("batches.measured", { seeds: batches.seeds, first: batches.first, steps: batches.steps, layers: batches.layers, dim: batches.dim, batch: batches.batch, rate: number(batches.rate), padding: Math.round(100 * batches.kinds.masked.padding), date: batches.date }), " ",
        h("span", { translate: "no" }, `${batches.machine}, torch ${batches.torch}, ${batches.command}`))));
  for (const { plot, chart } of figures) plot.draw(chart);
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const batches = { id: "batches", mount };
