/** Statistics: what a norm's statistics do in training, over the recorded steps of a run. */

import { h, menu } from "../elements.js";
import { gaps, overSteps, panel, quantity, sentences, silence, whose } from "../panels.js";

/** What is drawn together: up to two quantities of the norm shown, the other norms' first one faintly behind. */
const FIGURES = [
  { id: "batch", quantities: ["batch_mean_distance", "batch_var_distance"], others: true, of: "norm" },
  { id: "padding", quantities: ["batch_mean_distance", "batch_mean_distance_padded"], needs: "batch_mean_distance_padded", others: false, of: "norm" },
  { id: "share", quantities: ["padding_share"], others: false, of: "norm" },
  { id: "through", quantities: ["grad_through_mean", "grad_through_var"], others: false, of: "norm" },
  { id: "gap", quantities: ["inference_gap"], others: true, of: "norm" },
  { id: "loss", quantities: ["running_statistics_loss", "batch_statistics_loss"], others: false, of: "model" },
];
const FAINT = 40; // other norms

/** Outlives a change of language and newer data. */
const state = { site: "" };

/** @param {any} view */
const present = (view) => FIGURES.filter((f) => (f.needs ? [f.needs] : f.quantities).some((name) => quantity(view, name)));
/** @param {any} view */
const sites = (view) => [...new Set(present(view).filter((f) => f.of === "norm").flatMap((f) => f.quantities.flatMap((name) => quantity(view, name)?.sites ?? [])))];

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data, follow }) {
  root.append(h("div", { class: "intro" }, h("h1", {}, t("stats.title")), h("p", { class: "lead" }, t("stats.lead"))));
  const shown = present(data), all = sites(data);
  if (!shown.length) {
    root.append(silence(t("stats.none")));
    return () => {};
  }
  if (!all.includes(state.site)) state.site = all[all.length - 1] ?? "";
  const panels = shown.map((f) => ({ f, drawn: panel(t, t(`stats.${f.id}`)) }));
  let view = data;
  const draw = () => panels.forEach(({ f, drawn }) => {
    const held = f.quantities.map((name) => quantity(view, name)).filter((q) => q !== undefined);
    const site = f.of === "model" ? "model" : state.site, first = held[0];
    const lines = held.map((q, i) => ({ name: "AB"[i], kind: "ab"[i], points: overSteps(q, site), label: t(`quantity.${q.quantity}`) }));
    const faint = f.others && first ? first.sites.filter((other) => other !== site).slice(0, FAINT).map((other) => ({ name: "", kind: "a", faint: true, points: overSteps(first, other) })) : [];
    drawn.draw({ lines: [...faint, ...lines], x: t("step"), y: t(`stats.${f.id}.axis`), yRange: [0, 0] },
      sentences(t(`stats.${f.id}.read`), f.of === "norm" && !lines.some((line) => line.points.length) ? t("stats.absent", { site }) : "", faint.length ? t("stats.faint") : "", whose(t, view), first ? gaps(t, first) : ""));
  });
  if (all.length) root.append(h("div", { class: "row" }, menu(t("stats.norm"), all.map((site) => ({ value: site, text: site })), state.site, (site) => { state.site = site; draw(); })));
  root.append(h("div", { class: "charts" }, ...panels.map(({ drawn }) => drawn.element)));
  draw();
  follow((newer) => { view = newer; draw(); });
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const statistics = { id: "run-statistics", mount, shape: (view) => JSON.stringify([present(view).map((f) => f.id), sites(view)]) };
