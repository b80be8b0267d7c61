/** Diagnosis: how a run goes, what is wrong in it, why, what to do, and the window it was seen in. */

import { h, number } from "../elements.js";
import { explained, list, overSteps, panel, quantity, sentences, whose, word } from "../panels.js";

const FAINT = 40;

/**
 * The loss curves, with windows of findings.
 * @param {import("../elements.js").Context} context
 * @param {any} view
 * @param {[number, number][]} spans
 * @returns {import("../charts.js").Chart}
 */
function losses(context, view, spans) {
  const { t } = context, { train, heldout } = view.curves;
  const curve = (/** @type {any} */ c) => c.steps.map((/** @type {number} */ step, /** @type {number} */ i) => [step, c.mean[i]]);
  const lines = [];
  if (train[0]) lines.push({ name: "A", kind: "a", points: curve(train[0]), label: t("run.train"), broken: train[0].lost.length > 0 });
  if (view.fresh?.length) lines.push({ name: "", kind: "a", faint: true, points: view.fresh, label: t("run.fresh") });
  if (heldout[0]) lines.push({ name: "B", kind: "b", points: curve(heldout[0]), label: t("run.heldout") });
  const first = train[0]?.mean[0] ?? 1, blind = view.blind;
  const values = lines.flatMap((line) => line.points.map((/** @type {number[]} */ p) => p[1])), top = Math.max(2 * (blind ?? 0), 1.2 * first);
  return { lines, x: t("step"), y: t("run.loss.axis", { unit: view.unit ? word(context, view.unit) : t("run.no_unit") }), across: typeof blind === "number" ? [blind] : [], spans, top: values.some((v) => v > top) && values.some((v) => v < top) ? top : undefined };
}

/**
 * The curve that shows a finding: its quantity at its site, other sites faintly, its window shaded.
 * @param {import("../elements.js").Context} context
 * @param {any} view
 * @param {any} finding
 */
function evidence(context, view, finding) {
  const { t } = context, name = finding.evidence.find((/** @type {string} */ q) => q === "loss" || quantity(view, q));
  if (!name) return null;
  const drawn = panel(t, t(`quantity.${name}`), 190), window = /** @type {[number, number]} */ (finding.steps);
  const read = t("diagnosis.window", { first: window[0], last: window[1] });
  if (name === "loss") drawn.draw(losses(context, view, [window]), sentences(read, whose(t, view)));
  else {
    const of = quantity(view, name);
    if (!of) return null;
    const site = of.sites.includes(finding.site) ? finding.site : of.sites[0];
    const faint = of.sites.filter((other) => other !== site).slice(0, FAINT).map((other) => ({ name: "", kind: "a", faint: true, points: overSteps(of, other) }));
    drawn.draw({ lines: [...faint, { name: "", kind: "a", points: overSteps(of, site), label: site }], x: t("step"), y: t(`quantity.${name}.axis`), log: ["stream_grad", "stream_rms", "param_grad", "update_ratio"].includes(name), spans: [window] },
      sentences(read, faint.length ? t("diagnosis.others", { site }) : "", whose(t, view)));
  }
  return drawn.element;
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, context) {
  const { t, language, data, follow } = context;
  let view = data;
  const status = h("p", { class: "status", "aria-live": "off" });
  const loss = panel(t, t("run.losses"), 280), { findings, recorded, enough } = view.findings[0];
  const spans = () => view.findings[0].findings.filter((/** @type {any} */ f) => f.evidence.includes("loss")).map((/** @type {any} */ f) => f.steps);
  const draw = () => {
    const last = view.fresh?.at(-1)?.[1] ?? view.curves.train[0]?.mean.at(-1);
    status.textContent = t("run.status", { status: word(context, view.ran.status), step: view.last_step, loss: last === undefined ? "–" : number(last, 4) });
    const train = view.curves.train[0], width = train && train.steps.length > 1 ? train.steps[1] - train.steps[0] : 1;
    loss.draw(losses(context, view, spans()), sentences(train || view.curves.heldout[0] ? t("run.losses.read") : t("run.losses.none"), width > 1 ? t("run.binned", { width }) : "", typeof view.blind === "number" ? t("run.blind") : "", spans().length ? t("diagnosis.shaded") : "", whose(t, view)));
  };
  const articles = findings.map((/** @type {any} */ f) => h("article", { class: `finding ${f.severity}` },
    h("h3", {}, h("span", { class: "severity" }, word(context, f.severity)), ` ${word(context, f.rule)}`),
    h("p", { class: "what" }, f.verdict[language]),
    h("div", { class: "split" },
      explained(context, f),
      evidence(context, view, f) ?? h("p", { class: "quiet" }, t("diagnosis.undrawn")))));
  const ran = view.ran;
  root.append(
    h("div", { class: "intro" }, h("h1", { translate: "no" }, view.title), status), loss.element,
    h("h2", {}, t("diagnosis.title")),
    ...(articles.length ? articles : [h("p", { class: "reading" }, t("diagnosis.none"))]),
    h("p", { class: "quiet" }, enough ? t("diagnosis.silence") : t("diagnosis.few", { recorded, few: data.few })),
    h("h2", {}, t("ran.title")),
    list([["task", ran.task], ["outcome", word(context, ran.outcome)], ["steps", ran.steps], ["seed", ran.seed], ["loss", ran.loss], ["accuracy", ran.accuracy], ["cause", ran.cause], ["error", ran.error], ["created", ran.created], ["seconds", ran.seconds], ["machine", ran.machine], ["versions", ran.versions], ["data", ran.data]].map(([key, value]) => [t(`ran.${key}`), typeof value === "object" && value !== null && !Object.keys(value).length ? null : value])),
    h("details", {}, h("summary", {}, t("ran.settings")), list(Object.entries(ran.settings ?? {}))));
  draw();
  follow((newer) => { view = newer; draw(); });
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const diagnosis = { id: "run-diagnosis", mount, shape: (view) => JSON.stringify([view.ran.status, view.findings[0].findings.map((/** @type {any} */ f) => [f.rule, f.site])]) };
