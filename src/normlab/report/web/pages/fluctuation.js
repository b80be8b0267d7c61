/** Text against images: how far batch statistics stray from running ones in training, and what flows back through them; from recorded runs. */

import { choice, h } from "../elements.js";
import { panel, sentences } from "../panels.js";

const ARMS = [["masked", "A", "a"], ["counted", "B", "b"], ["images", "C", "c"]];
const FIGURES = {
  statistics: ["batch_mean_distance", "batch_var_distance"],
  gradients: ["mean_grad_norm", "var_grad_norm", "mean_grad_outlier", "var_grad_outlier"],
};

/** Outlives a change of language. */
const state = { shown: "statistics" };

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data: { fluctuation }, address, remember }) {
  const asked = address.get("flow"), places = h("div", { class: "charts" });
  if (asked && asked in FIGURES) state.shown = asked;
  root.append(h("div", { class: "intro" }, h("h1", {}, t("flow.title")), h("p", { class: "lead" }, t("flow.lead"))),
    choice(t("flow.shown"), Object.keys(FIGURES).map((value) => ({ value, text: t(`flow.${value}`) })), state.shown, (value) => { state.shown = value; remember({ flow: value }); draw(); }),
    h("p", { class: "reading" }, ...ARMS.flatMap(([arm, letter, kind], i) => [i ? " " : "", h("b", { class: kind }, letter), ` ${t(`flow.arm.${arm}`)}`])), places);
  const draw = () => {
    const names = FIGURES[/** @type {keyof typeof FIGURES} */ (state.shown)], panels = names.map((name) => panel(t, t(`flow.${name}`), 250));
    places.replaceChildren(...panels.map((p) => p.element));
    names.forEach((name, i) => panels[i].draw({
      lines: ARMS.map(([arm, letter, kind]) => ({
        name: letter, kind, label: t(`flow.arm.${arm}`), points: fluctuation.recorded.map((/** @type {number} */ step, /** @type {number} */ k) => [step, fluctuation.arms[arm][name][k][0]]),
        band: fluctuation.recorded.map((/** @type {number} */ step, /** @type {number} */ k) => [step, fluctuation.arms[arm][name][k][1], fluctuation.arms[arm][name][k][2]]) })),
      x: t("step"), y: t(`flow.${name}.axis`), log: true,
    }, sentences(t(`flow.${name}.read`), t("flow.spread", { n: fluctuation.seeds }))));
  };
  draw();
  root.append(h("section", { class: "notes" }, h("h2", {}, t("flow.notes")), h("p", {}, t("flow.measured", { layers: fluctuation.layers, dim: fluctuation.dim, seeds: fluctuation.seeds, steps: fluctuation.recorded[fluctuation.recorded.length - 1], date: fluctuation.date }), " ", h("span", { translate: "no" }, `${fluctuation.machine}, torch ${fluctuation.torch}, ${fluctuation.command}`))));
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const fluctuation = { id: "fluctuation", mount };
