/** Compare: which cell of a sweep is best, by how much, how sure that is, and what differs inside. */

import { Plot } from "../charts.js";
import { choice, figure, h, number, table } from "../elements.js";
import { intervals } from "../intervals.js";
import { list, word } from "../panels.js";
import { linkTo } from "./list.js";

const LINES = 8; // cells whose curves are drawn at once
const WRONG = ["diverged", "collapsed", "untrained", "failed", "lost"];

/** Outlives a change of language and newer data. */
const state = { against: "difference", curve: "heldout", hidden: new Set() };

/**
 * A mean and its interval, with digits that tell its ends apart.
 * @param {{mean: number, low: number | null, high: number | null} | null} of
 * @param {boolean} [signed]
 */
function shown(of, signed = false) {
  if (!of || of.mean === null) return "–";
  const half = of.low !== null && of.high !== null && of.high > of.low ? (of.high - of.low) / 2 : 0.001, places = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(half))));
  const text = (/** @type {number} */ v) => `${signed && v > 0 ? "+" : ""}${v.toFixed(places)}`.replace("-", "−");
  return of.low === null || of.high === null ? text(of.mean) : `${text(of.mean)} [${text(of.low)}, ${text(of.high)}]`;
}

/**
 * How many, as one number or from the least to the most.
 * @param {number[]} counts
 */
const span = (counts) => (counts.length ? [...new Set([Math.min(...counts), Math.max(...counts)])].join("–") : "–");

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, context) {
  const { t, language, data: view, address } = context, unit = view.unit ? word(context, view.unit) : t("run.no_unit");
  root.append(h("div", { class: "intro" }, h("h1", { translate: "no" }, view.title)));
  if (!view.complete) root.append(h("p", { class: "reading bad" }, view.planned ? t("compare.incomplete", { ended: view.ended, planned: view.planned }) : t("compare.begun", { ended: view.ended })));
  const verdict = view.verdict[language];
  if (verdict.length) root.append(h("div", { class: "reading verdict" }, ...verdict.map((/** @type {string} */ sentence) => h("p", {}, sentence))));
  if (!view.cells.length) return () => {};

  // ---- the winner and why
  const best = view.cells.find((/** @type {any} */ c) => c.is_best), tied = view.cells.filter((/** @type {any} */ c) => c.tied).map((/** @type {any} */ c) => c.cell);
  if (best) root.append(h("section", { class: "winner" }, h("h2", {}, t("compare.best"), h("span", { translate: "no" }, best.cell)),
    h("p", {}, t("compare.best.read", { loss: shown(best), unit, rate: number(best.best_lr), n: best.n }), tied.length ? ` ${t("compare.tied", { cells: tied.join(", ") })}` : ""),
    ...(view.why.length ? [h("h3", {}, t("compare.why")), ...view.why.map((/** @type {any} */ one) => h("p", {}, one[language])), h("p", { class: "quiet" }, t("compare.why.read"))] : [h("p", { class: "quiet" }, t("compare.why.none"))])));

  // ---- differences
  const chart = h("div"), differences = h("section", {}, h("h2", {}, t("compare.differences")));
  const drawDifferences = () => {
    const rows = view.cells.filter((/** @type {any} */ c) => c[state.against]).map((/** @type {any} */ c) => ({ name: c.cell, ...c[state.against] }));
    const zero = state.against === "difference" ? view.baseline : view.best, drawn = intervals(150, t("compare.axis", { what: view.compared.title[language], unit: view.compared.unit?.[language] ?? unit }), String(zero ?? ""));
    const decided = rows.filter((/** @type {any} */ r) => r.decided).length, pairs = rows.map((/** @type {any} */ r) => r.n).filter(Boolean);
    chart.replaceChildren(rows.length ? figure(t(`compare.${state.against}`, { cell: String(zero ?? "–") }), drawn.element, t("compare.read", { decided, open: rows.length - decided, n: span(pairs) })).element : h("p", { class: "quiet" }, t("compare.no_difference")));
    drawn.draw(rows);
  };
  differences.append(choice(t("compare.against"), ["difference", "behind_best"].map((value) => ({ value, text: t(`compare.against.${value}`) })), state.against, (value) => { state.against = value; drawDifferences(); }), chart);
  root.append(differences);
  drawDifferences();

  // ---- the table
  root.append(h("h2", {}, t("compare.ranking")), table(t("compare.ranking"),
    [t("compare.cell"), t("compare.rank"), t("compare.loss", { unit }), t("compare.against.difference"), t("compare.p"), t("compare.rate"), t("compare.stable"), t("compare.broke"), t("compare.speed")],
    view.cells.map((/** @type {any} */ c) => [h("span", { translate: "no" }, c.cell), c.rank ?? "–", c.n ? `${shown(c)} (n = ${c.n})` : "–", c.is_baseline ? t("compare.baseline") : `${shown(c.difference, true)}${c.difference && !c.difference.decided ? ` ${t(c.difference.equal ? "compare.equal" : "compare.open")}` : ""}`,
      c.difference?.p === null || c.difference?.p === undefined ? "–" : number(c.difference.p, 2), c.best_lr === null ? "–" : number(c.best_lr), c.largest_stable_lr === null ? "–" : `${c.stable_up_to_edge ? "≥ " : ""}${number(c.largest_stable_lr)}`, t("list.of", { trials: c.broken, planned: c.trials }), c.tokens_per_second === null ? "–" : number(c.tokens_per_second, 3)])),
    h("p", { class: "quiet" }, t("compare.ranking.read")));

  // ---- the map
  const scale = view.map, low = scale.low ?? 0, high = scale.high ?? 1;
  const square = (/** @type {any} */ one) => {
    if (!one) return h("td", { class: "none" }, "–");
    const share = one.mean === null ? 0 : Math.min(1, Math.max(0, (one.mean - low) / (high - low || 1))), tried = one.trained + one.collapsed + one.diverged + one.untrained + one.failed;
    const cell = h("td", { class: `square${one.best ? " best" : ""}${one.mean === null ? " none" : share > 0.55 ? " deep" : ""}` }, one.mean === null ? "" : number(one.mean, 4),
      ...WRONG.filter((name) => one[name]).map((name) => h("small", {}, t("compare.wrong", { k: one[name], n: tried, what: name === "lost" ? t("compare.lost") : word(context, name) }))));
    if (one.mean !== null) cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
    return cell;
  };
  root.append(h("h2", {}, t("compare.map")), h("div", { class: "scroll edge", tabindex: 0, role: "region", "aria-label": t("compare.map") }, h("table", { class: "squares" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("compare.cell")), ...scale.rates.map((/** @type {number} */ rate) => h("th", { scope: "col" }, number(rate))))),
    h("tbody", {}, ...scale.rows.map((/** @type {any} */ row) => h("tr", {}, h("th", { scope: "row", translate: "no" }, row.cell), ...row.squares.map(square)))))), h("p", { class: "quiet" }, t("compare.map.read", { unit })));

  // ---- curves
  const plot = new Plot(300), curves = figure(t("compare.curves"), plot.element, ""), keys = h("div", { class: "keys" });
  const drawCurves = () => {
    const all = view.curves[state.curve].filter((/** @type {any} */ c) => !state.hidden.has(c.cell)).slice(0, LINES), seeds = all.map((/** @type {any} */ c) => c.n);
    const firsts = all.map((/** @type {any} */ c) => c.mean[0]).sort((/** @type {number} */ a, /** @type {number} */ b) => a - b), top = Math.max(2 * (view.blind ?? 0), 1.2 * (firsts[firsts.length >> 1] ?? 1));
    plot.draw({
      lines: all.map((/** @type {any} */ c) => ({ name: "", kind: `s${kinds.get(c.cell)}`, label: c.cell, broken: c.lost.length > 0, points: c.steps.map((/** @type {number} */ step, /** @type {number} */ i) => [step, c.mean[i]]), band: c.n > 1 ? c.steps.map((/** @type {number} */ step, /** @type {number} */ i) => [step, c.low[i], c.high[i]]) : undefined })),
      x: t("step"), y: t("run.loss.axis", { unit }), across: typeof view.blind === "number" && state.curve === "heldout" ? [view.blind] : [], top,
    });
    curves.say(all.length ? t("compare.curves.read", { n: span(seeds) }) : t("run.losses.none"));
  };
  const kinds = new Map(view.cells.map((/** @type {any} */ c, /** @type {number} */ i) => [c.cell, i % 8]));
  view.cells.forEach((/** @type {any} */ c, /** @type {number} */ i) => { if (i >= LINES && !c.is_baseline) state.hidden.add(c.cell); });
  keys.append(...view.cells.map((/** @type {any} */ c) => {
    const box = h("input", { type: "checkbox", checked: !state.hidden.has(c.cell), change: () => { if (box.checked) state.hidden.delete(c.cell); else state.hidden.add(c.cell); drawCurves(); } });
    return h("label", { class: "tick" }, box, h("span", { class: `swatch s${kinds.get(c.cell)}`, "aria-hidden": "true" }), h("span", { translate: "no" }, c.cell));
  }));
  root.append(h("h2", {}, t("compare.curves")), choice(t("compare.shown"), ["heldout", "train"].map((value) => ({ value, text: t(`run.${value}`) })), state.curve, (value) => { state.curve = value; drawCurves(); }), keys, curves.element);
  drawCurves();

  // ---- what did not work, and what ran
  if (view.failures.length) root.append(h("h2", {}, t("compare.failures")), table(t("compare.failures"), [t("compare.cell"), t("compare.rate"), t("facts.outcome"), t("compare.seeds"), t("facts.cause")],
    view.failures.map((/** @type {any} */ f) => [h("span", { translate: "no" }, f.cell), f.lr === null ? "–" : number(f.lr), word(context, f.outcome), f.seeds.join(", "), f.cause ? f.cause[language] : "–"])));
  if (view.refused.length) root.append(h("h2", {}, t("compare.refused")), table(t("compare.refused"), [t("compare.cell"), t("compare.reason")], view.refused.map((/** @type {any} */ r) => [h("span", { translate: "no" }, r.cell), r.reason[language]])));
  if (view.unreadable.length) root.append(h("h2", {}, t("compare.unreadable")), h("ul", { translate: "no" }, ...view.unreadable.map((/** @type {any} */ u) => h("li", {}, `${u.trial}: ${u.reason}`))));
  const at = decodeURIComponent(address.get("sweep") ?? "");
  if (at && view.trials.length) root.append(h("h2", {}, t("list.trials")), h("details", {}, h("summary", {}, t("compare.trials", { n: view.trials.length })), table(t("list.trials"), [t("list.name"), t("compare.cell"), t("compare.rate"), t("facts.seed"), t("facts.outcome"), t("facts.loss")],
    view.trials.map((/** @type {any} */ one) => [h("a", { href: linkTo(address, "run", at === "." ? one.folder : `${at}/${one.folder}`), translate: "no" }, one.name), h("span", { translate: "no" }, one.cell), one.lr === null ? "–" : number(one.lr), one.seed ?? "–", word(context, one.outcome), one.loss === null ? "–" : number(one.loss, 4)]))));
  const facts = view.facts;
  root.append(h("h2", {}, t("facts.title")), list([["task", facts.task], ["trials", facts.trials], ["steps", facts.steps], ["seeds", facts.seeds], ["parameters", facts.parameters], ["created", facts.created], ["machine", facts.machine], ["versions", facts.versions], ["data", facts.data]].map(([key, value]) => [t(`facts.${key}`), typeof value === "object" && value !== null && !Array.isArray(value) && !Object.keys(value).length ? null : value])),
    h("details", {}, h("summary", {}, t("facts.settings")), list(Object.entries(facts.settings ?? {}))));
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const compare = { id: "run-compare", mount };
