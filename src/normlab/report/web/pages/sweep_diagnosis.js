/** Diagnosis, of a sweep: what is wrong inside its cells, which trials did not train and why, what was refused or could not be read. */

import { h, number, table } from "../elements.js";
import { explained, word } from "../panels.js";

/** @typedef {import("../elements.js").Context} Context */

/**
 * @param {Context} context
 * @param {any} f
 */
function finding(context, f) {
  const { language } = context;
  return h("details", { class: `finding ${f.severity}` }, h("summary", {}, h("span", { class: "severity" }, word(context, f.severity)), h("b", {}, ` ${word(context, f.rule)} `), f.verdict[language]),
    explained(context, f));
}

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
function mount(root, context) {
  const { t, language, data: view } = context, found = view.findings.filter((/** @type {any} */ f) => f.findings.length);
  root.append(h("div", { class: "intro" }, h("h1", {}, t("diagnosis.title")), h("p", { class: "lead" }, t("sweep.diagnosis.lead"))));
  for (const f of found)
    root.append(h("h2", { translate: "no" }, f.cell), h("p", { class: "quiet" }, f.seed === null ? t("sweep.diagnosis.at", { rate: f.lr === null ? "–" : number(f.lr) }) : t("sweep.diagnosis.of", { rate: f.lr === null ? "–" : number(f.lr), seed: f.seed })),
      ...f.findings.map((/** @type {any} */ one) => finding(context, one)), ...(f.enough ? [] : [h("p", { class: "quiet" }, t("diagnosis.few", { recorded: f.recorded, few: view.few }))]));
  for (const enough of [true, false]) {
    const silent = view.findings.filter((/** @type {any} */ f) => !f.findings.length && f.enough === enough).map((/** @type {any} */ f) => f.cell);
    if (silent.length) root.append(h("p", { class: "reading" }, enough ? t("sweep.diagnosis.none") : t("sweep.diagnosis.none.few", { few: view.few }), h("span", { translate: "no" }, silent.join(", "))));
  }
  const bare = !view.findings.length && !view.failures.length && !view.refused.length && !view.unreadable.length;
  root.append(h("p", { class: "quiet" }, bare ? t("sweep.diagnosis.nothing") : t("diagnosis.silence")));
  if (view.failures.length)
    root.append(h("h2", {}, t("compare.failures")), table(t("compare.failures"), [t("compare.cell"), t("compare.rate"), t("ran.outcome"), t("compare.seeds"), t("step"), t("ran.cause")],
      view.failures.map((/** @type {any} */ f) => [h("span", { translate: "no" }, f.cell), f.lr === null ? "–" : number(f.lr), word(context, f.outcome), f.seeds.join(", "), f.steps.join(", ") || "–",
        h("span", { class: "long" }, f.cause ? f.cause[language] : "–", ...f.findings.map((/** @type {any} */ one) => h("small", {}, one[language])))])),
    h("p", { class: "quiet" }, t("sweep.failures.read"), view.failures_left_out ? ` ${t("sweep.failures.more", { n: view.failures_left_out })}` : ""));
  if (view.refused.length) root.append(h("h2", {}, t("compare.refused")), table(t("compare.refused"), [t("compare.cell"), t("compare.reason")], view.refused.map((/** @type {any} */ r) => [h("span", { translate: "no" }, r.cell), h("span", { class: "long" }, r.reason[language])])));
  if (view.unreadable.length) root.append(h("h2", {}, t("compare.unreadable")), h("ul", { translate: "no" }, ...view.unreadable.map((/** @type {any} */ u) => h("li", {}, `${u.trial}: ${u.reason}`))));
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const sweepDiagnosis = { id: "sweep-diagnosis", mount };
