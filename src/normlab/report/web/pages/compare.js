/** Compare: which cell of a sweep is best, by how much, how sure that is, and what differs inside. */

import { drawn, keys, span } from "../cells.js";
import { choice, figure, h, number, table } from "../elements.js";
import { intervals } from "../intervals.js";
import { list, panel, sentences, word } from "../panels.js";
import { linkTo } from "./list.js";

const AT_ONCE = 5; // sentences of the verdict
const WRONG = ["diverged", "collapsed", "untrained", "failed", "lost"];

/** Outlives a change of language and newer data. */
const state = { against: "difference", curve: "heldout", more: false };

/** @typedef {import("../elements.js").Context} Context */
/** @typedef {{mean: number | null, low: number | null, high: number | null} | null | undefined} Estimate */

/**
 * A mean and its interval.
 * @param {Estimate} of
 * @param {number} places
 * @param {boolean} [signed]
 */
function shown(of, places, signed = false) {
  if (!of || of.mean === null) return "–";
  const text = (/** @type {number} */ v) => `${signed && v > 0 ? "+" : ""}${v.toFixed(places)}`.replace("-", "−");
  return of.low === null || of.high === null ? text(of.mean) : `${text(of.mean)} [${text(of.low)}, ${text(of.high)}]`;
}

/** @param {import("../elements.js").Child[]} children */
const note = (...children) => h("small", {}, ...children);

/**
 * A difference in the table: how sure it is, or what would make it so.
 * @param {Context} context
 * @param {any} d
 */
function difference({ t, data: view }, d) {
  if (!d) return "–";
  const open = !d.seeds_needed ? t("compare.open") : d.seeds_needed >= view.most_seeds || !d.seeds_low || !d.seeds_high ? t("compare.open.many", { n: view.most_seeds })
    : t(d.seeds_high < view.most_seeds ? "compare.open.seeds" : "compare.open.over", { n: d.seeds_needed, low: d.seeds_low, high: Math.min(d.seeds_high, view.most_seeds) });
  return h("span", {}, shown(d, d.decimals, true), d.p === null ? null : note(`p = ${number(d.p, 2)}`), d.equal ? note(t("compare.equal", { margin: number(view.margin) })) : !d.decided && note(open));
}

/**
 * @param {Context} context
 * @param {string} unit
 */
function ranking(context, unit) {
  const { t, data: view } = context, places = view.decimals;
  return table(t("compare.ranking"), [t("compare.cell"), t("compare.rank"), t("compare.loss", { unit }), t("compare.against.difference"), t("compare.against.behind_best"), t("compare.rate"), t("compare.stable"), t("compare.broke")],
    view.cells.map((/** @type {any} */ c) => [
      h("span", {}, h("b", { translate: "no" }, c.cell), c.is_best && note(t("compare.mark.best")), c.is_baseline && note(t("compare.mark.baseline")), c.tied && note(t("compare.mark.tied")), c.chosen && note(t("compare.mark.chosen"))),
      c.rank !== null && c.mean !== null ? c.rank : "–",
      c.mean === null ? t("compare.no_loss") : h("span", {}, shown(c, places), note(t("compare.n", { n: c.n })), c.cross_fitted === null ? null : note(t("compare.cross", { loss: c.cross_fitted.toFixed(places) }))),
      difference(context, c.difference), difference(context, c.behind_best),
      h("span", {}, c.best_lr === null ? "–" : number(c.best_lr), c.best_at_edge && note(t(`compare.edge.${c.best_at_edge}`))),
      c.largest_stable_lr === null ? t("compare.none") : `${c.stable_up_to_edge ? "≥ " : ""}${number(c.largest_stable_lr)}`,
      h("span", {}, t("list.of", { trials: c.broken, planned: c.trials }), c.failed ? note(t("compare.failed", { n: c.failed })) : null)]));
}

/**
 * Accuracy, time, memory and what else the trials measured.
 * @param {Context} context
 * @param {string} unit
 */
function figures({ t, language, data: view }, unit) {
  const named = (/** @type {any} */ m) => { const of = m.unit ? m.unit[language] : unit, title = m.title[language]; return of && of !== title ? `${title}, ${of}` : title; };
  const value = (/** @type {any} */ of) => h("span", { class: "whole" }, shown(of, of?.decimals ?? 0));
  return table(t("compare.figures"), [t("compare.cell"), ...view.metrics.map(named)], view.cells.map((/** @type {any} */ c) => [h("b", { translate: "no" }, c.cell), ...view.metrics.map((/** @type {any} */ m) => value(c.figures[m.name]))]));
}

/** @param {Context} context */
function map(context) {
  const { t, data: view } = context, scale = view.map, low = scale.low ?? 0, high = scale.high ?? 1;
  const square = (/** @type {any} */ one) => {
    if (!one) return h("td", { class: "none" }, t("compare.not_run"));
    const share = one.mean === null ? 0 : Math.min(1, Math.max(0, (one.mean - low) / (high - low || 1)));
    const cell = h("td", { class: `square${one.best ? " best" : ""}${one.mean === null ? " none" : share > 0.55 ? " deep" : ""}` }, one.mean === null ? "" : one.mean.toFixed(view.decimals),
      ...WRONG.filter((name) => one[name]).map((name) => h("small", {}, t("compare.wrong", { k: one[name], n: one.tried, what: name === "lost" ? t("compare.lost") : word(context, name) }))),
      scale.uneven || one.skipped ? h("small", {}, t("compare.rests", { n: one.tried })) : null);
    if (one.mean !== null) cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
    return cell;
  };
  return h("div", { class: "scroll edge", tabindex: 0, role: "region", "aria-label": t("compare.map") }, h("table", { class: "squares" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("compare.cell")), ...scale.rates.map((/** @type {number} */ rate) => h("th", { scope: "col" }, number(rate))))),
    h("tbody", {}, ...scale.rows.map((/** @type {any} */ row) => h("tr", {}, h("th", { scope: "row", translate: "no" }, row.cell), ...row.squares.map(square))))));
}

/**
 * @param {Context} context
 * @param {string} unit
 */
function curves({ t, data: view }, unit) {
  const figure = panel(t, t("compare.curves"), 300);
  const draw = () => {
    const shownCells = drawn(view), all = view.curves[state.curve].filter((/** @type {any} */ c) => shownCells.has(c.cell));
    // What lies above a blind predictor has learned nothing, however far; without one, the middle of where the cells began.
    const firsts = all.map((/** @type {any} */ c) => c.mean[0]).sort((/** @type {number} */ a, /** @type {number} */ b) => a - b), learned = typeof view.blind === "number" && all.some((/** @type {any} */ c) => c.mean.at(-1) < view.blind);
    const top = learned ? 1.1 * view.blind : 1.2 * (firsts[firsts.length >> 1] ?? 1);
    const cut = all.some((/** @type {any} */ c) => Math.max(...c.high) > top), blind = typeof view.blind === "number" && state.curve === "heldout", width = state.curve === "train" ? Math.max(1, ...all.map((/** @type {any} */ c) => (c.steps[1] ?? 1) - c.steps[0])) : 1;
    figure.draw({
      lines: all.map((/** @type {any} */ c) => ({ ...shownCells.get(c.cell), label: c.cell, broken: c.lost.length > 0, points: c.steps.map((/** @type {number} */ step, /** @type {number} */ i) => [step, c.mean[i]]), band: c.n > 1 ? c.steps.map((/** @type {number} */ step, /** @type {number} */ i) => [step, c.low[i], c.high[i]]) : undefined })),
      x: t("step"), y: t("run.loss.axis", { unit }), across: blind ? [view.blind] : [], top: cut ? top : undefined,
    }, all.length ? sentences(t("compare.curves.read", { n: span(all.map((/** @type {any} */ c) => c.n)) }), width > 1 && t("compare.binned", { width }), blind && t("run.blind"), cut && t("compare.cut", { top: number(top) }), view.not_opened > 0 && t("compare.not_opened", { n: view.not_opened })) : t("run.losses.none"));
  };
  const parts = [choice(t("compare.shown"), ["heldout", "train"].map((value) => ({ value, text: t(`run.${value}`) })), state.curve, (value) => { state.curve = value; draw(); }), keys(t, view, draw), figure.element];
  return { parts, draw };
}

/**
 * @param {Context} context
 * @param {string} unit
 */
function differences({ t, language, data: view }, unit) {
  const chart = h("div"), ways = ["difference", "behind_best"].filter((way) => view.cells.some((/** @type {any} */ c) => c[way]));
  if (ways.length && !ways.includes(state.against)) state.against = ways[0];
  const draw = () => {
    const rows = view.cells.filter((/** @type {any} */ c) => c[state.against]).map((/** @type {any} */ c) => ({ name: c.cell, ...c[state.against] }));
    const zero = state.against === "difference" ? view.baseline : view.best, picture = intervals(150, t("compare.axis", { what: view.compared.title[language], unit: view.compared.unit?.[language] ?? unit }), String(zero ?? ""));
    const decided = rows.filter((/** @type {any} */ r) => r.decided).length;
    chart.replaceChildren(rows.length ? figure(t(`compare.${state.against}`, { cell: String(zero ?? "–") }), picture.element, t("compare.read", { decided, open: rows.length - decided, n: span(rows.map((/** @type {any} */ r) => r.n).filter(Boolean)) })).element : h("p", { class: "quiet" }, t("compare.no_difference")));
    picture.draw(rows);
  };
  const parts = [ways.length > 1 ? choice(t("compare.against"), ways.map((value) => ({ value, text: t(`compare.against.${value}`) })), state.against, (value) => { state.against = value; draw(); }) : null, chart];
  return { parts, draw };
}

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
function mount(root, context) {
  const { t, language, data: view, address } = context, unit = view.unit ? word(context, view.unit) : t("run.no_unit");
  root.append(h("div", { class: "intro" }, h("h1", { translate: "no" }, view.title)));
  if (!view.complete) root.append(h("p", { class: "reading bad" }, !view.planned ? t("compare.begun", { ended: view.ended }) : view.ended >= view.planned ? t("compare.some_failed", { n: view.failed }) : t("compare.incomplete", { ended: view.ended, planned: view.planned })));
  const reasons = view.why.map((/** @type {any} */ one) => one[language]), verdict = view.verdict[language].filter((/** @type {string} */ sentence) => !reasons.some((/** @type {string} */ one) => sentence.startsWith(one))); // reasons stand with the winner
  const said = verdict.map((/** @type {string} */ sentence) => h("p", {}, sentence)), rest = said.splice(AT_ONCE);
  const more = h("details", { open: state.more, toggle: () => { state.more = more.open; } }, h("summary", {}, t("compare.more", { n: rest.length })), ...rest);
  if (said.length) root.append(h("div", { class: "reading verdict" }, ...said, rest.length ? more : null));
  if (view.cells.length) {
    const best = view.cells.find((/** @type {any} */ c) => c.is_best), tied = view.cells.filter((/** @type {any} */ c) => c.tied).map((/** @type {any} */ c) => c.cell), apart = differences(context, unit), lines = curves(context, unit);
    if (best) root.append(h("section", { class: "winner" }, h("h2", {}, t("compare.best"), h("span", { translate: "no" }, best.cell)),
      h("p", {}, t("compare.best.read", { loss: shown(best, view.decimals), unit, rate: best.best_lr === null ? "–" : number(best.best_lr), n: best.n }), tied.length ? ` ${t("compare.tied", { cells: tied.join(", ") })}` : ""),
      ...(view.why.length ? [h("h3", {}, t("compare.why")), ...reasons.map((/** @type {string} */ one) => h("p", {}, one)), h("p", { class: "quiet" }, t("compare.why.read"))] : [h("p", { class: "quiet" }, t("compare.why.none"))])));
    root.append(h("section", {}, h("h2", {}, t("compare.differences")), .../** @type {Node[]} */ (apart.parts.filter(Boolean))),
      h("h2", {}, t("compare.ranking")), ranking(context, unit),
      h("p", { class: "quiet" }, sentences(t("compare.ranking.read"), view.metric !== "loss" && t("compare.metric", { metric: view.compared.title[language] }), typeof view.target_loss === "number" && t("compare.target", { target: view.target_loss.toFixed(view.decimals) }))),
      ...view.choices.map((/** @type {any} */ one) => h("p", { class: "quiet" }, h("b", { translate: "no" }, one.cells.join(", ")), t("compare.colon"), one[language])),
      ...(view.metrics.length ? [h("h2", {}, t("compare.figures")), figures(context, unit), h("p", { class: "quiet" }, sentences(t("compare.figures.read"), typeof view.common_target === "number" && t("compare.figures.target", { target: view.common_target.toFixed(view.decimals) })))] : []),
      h("h2", {}, t("compare.map")), map(context), h("p", { class: "quiet" }, t("compare.map.read", { unit })),
      h("h2", {}, t("compare.curves")), ...lines.parts);
    apart.draw();
    lines.draw();
  }
  const at = decodeURIComponent(address.get("sweep") ?? "");
  if (at && view.trials.length) root.append(h("h2", {}, t("list.trials")), h("details", {}, h("summary", {}, t("compare.trials", { n: view.trials.length })), table(t("list.trials"), [t("list.name"), t("compare.cell"), t("compare.rate"), t("ran.seed"), t("ran.outcome"), t("ran.loss")],
    view.trials.map((/** @type {any} */ one) => [h("a", { href: linkTo(address, "run", at === "." ? one.folder : `${at}/${one.folder}`), translate: "no" }, one.name), h("span", { translate: "no" }, one.cell), one.lr === null ? "–" : number(one.lr), one.seed ?? "–", word(context, one.outcome), one.loss === null ? "–" : number(one.loss, 4)]))));
  const ran = view.ran, empty = (/** @type {any} */ value) => typeof value === "object" && value !== null && !Array.isArray(value) && !Object.keys(value).length;
  root.append(h("h2", {}, t("ran.title")), list([["task", ran.task], ["unit", unit], ["trials", ran.trials], ["steps", ran.steps], ["equal", ran.equal && word(context, ran.equal)], ["seeds", ran.seeds], ["parameters", ran.parameters], ["baseline", ran.baseline], ["blind", ran.blind], ["created", ran.created], ["machine", ran.machine], ["versions", ran.versions], ["data", ran.data]].map(([key, value]) => [t(`ran.${key}`), empty(value) ? null : value])),
    h("details", {}, h("summary", {}, t("ran.settings.common")), list(Object.entries(ran.settings ?? {}))));
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const compare = { id: "run-compare", mount };
