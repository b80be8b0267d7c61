/** Parts that the pages over runs share: a figure with its numbers as a table, lines of a recorded quantity, words for names. */

import { Plot } from "./charts.js";
import { figure, h, number, table } from "./elements.js";

/** @typedef {import("./elements.js").Context} Context */
/** @typedef {{quantity: string, sites: string[], steps: number[], values: (number | null)[][], recorded: number, left_out: number, broken: number | null}} Quantity */

const ROWS = 60; // of a table of numbers

/**
 * A chart whose numbers can also be read: a caption with its facts, and a table that is made when it is opened.
 * @param {Context["t"]} t
 * @param {string} title
 * @param {number} [height]
 */
export function panel(t, title, height = 230) {
  const plot = new Plot(height), drawn = figure(title, plot.element, "");
  /** @type {import("./charts.js").Chart | null} */
  let last = null;
  const details = h("details", { class: "numbers", toggle: () => fill() }, h("summary", {}, t("run.numbers")));
  drawn.element.append(details);
  function fill() {
    details.querySelector("div")?.remove();
    if (!details.open || !last) return;
    const lines = last.lines.filter((line) => line.label && line.points.length), xs = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))].sort((a, b) => a - b);
    const stride = Math.max(1, Math.ceil(xs.length / ROWS)), at = lines.map((line) => new Map(line.points));
    const rows = xs.filter((_, i) => (xs.length - 1 - i) % stride === 0).map((x) => [number(x, 6), ...at.map((values) => { const v = values.get(x); return v === undefined || v === null ? "–" : number(v, 4); })]);
    details.append(table(title, [last.x, ...lines.map((line) => line.label ?? "")], rows));
  }
  return {
    element: drawn.element,
    /**
     * @param {import("./charts.js").Chart} chart
     * @param {string} caption
     */
    draw(chart, caption) {
      last = chart;
      plot.draw(chart);
      drawn.say(caption);
      fill();
    },
  };
}

/**
 * @param {any} view
 * @param {string} name
 * @returns {Quantity | undefined}
 */
export const quantity = (view, name) => view.quantities.find((/** @type {Quantity} */ q) => q.quantity === name);

/**
 * One site of a quantity over the recorded steps.
 * @param {Quantity} of
 * @param {string} site
 * @returns {[number, number][]}
 */
export function overSteps(of, site) {
  const row = of.values[of.sites.indexOf(site)] ?? [];
  return /** @type {[number, number][]} */ (of.steps.map((step, i) => [step, row[i]]).filter((point) => typeof point[1] === "number"));
}

/**
 * A name out of data in the language shown, where there is a word for it.
 * @param {Context} context
 * @param {string | null | undefined} name
 */
export const word = ({ data, language }, name) => (name ? (data.words[name]?.[language] ?? name) : "");

/**
 * Whose numbers these are: every figure of a run says it.
 * @param {Context["t"]} t
 * @param {any} view
 */
export const whose = (t, view) => (typeof view.ran.seed === "number" || typeof view.ran.settings?.seed === "number" ? t("run.whose.seed", { seed: view.ran.settings?.seed ?? view.ran.seed }) : t("run.whose"));

/**
 * Sentences one after another, as the language shown sets them; empty ones left out.
 * @param {(string | false | null)[]} parts
 */
export const sentences = (...parts) => parts.filter(Boolean).join(document.documentElement.lang.startsWith("zh") ? "" : " ");

/**
 * Where readings were left out or were not finite.
 * @param {Context["t"]} t
 * @param {Quantity} of
 */
export const gaps = (t, of) => sentences(of.recorded > of.steps.length && t("run.thinned", { kept: of.steps.length, all: of.recorded }), of.broken !== null && t("run.broken", { step: of.broken }));

/**
 * A sentence in place of figures that a run has no readings for.
 * @param {string} text
 */
export const silence = (text) => h("p", { class: "reading" }, text);

/**
 * Of a finding: why, what to do next, and where it was seen.
 * @param {Context} context
 * @param {any} f
 */
export function explained({ t, language }, f) {
  return h("dl", {}, h("dt", {}, t("diagnosis.why")), h("dd", {}, f.why[language]),
    ...(f.try.length ? [h("dt", {}, t("diagnosis.next")), h("dd", {}, h("ul", {}, ...f.try.map((/** @type {any} */ one) => h("li", {}, one[language]))))] : []),
    h("dt", {}, t("diagnosis.where")), h("dd", {}, h("span", { translate: "no" }, f.site ?? t("diagnosis.whole")), `, ${f.steps[0] === f.steps[1] ? t("diagnosis.step", { step: f.steps[0] }) : t("diagnosis.steps", { first: f.steps[0], last: f.steps[1] })}`, f.source ? h("span", { class: "quiet", translate: "no" }, ` ${f.source}`) : null));
}

/**
 * Facts by name, nested ones as lines.
 * @param {[string, any][]} rows
 */
export function list(rows) {
  const shown = (/** @type {any} */ value) => (typeof value === "number" ? number(value, 6) : Array.isArray(value) ? value.join(", ") : String(value));
  return h("dl", {}, ...rows.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [h("dt", {}, name),
    h("dd", { translate: "no" }, ...(typeof value === "object" && !Array.isArray(value) ? Object.entries(value).map(([key, inner]) => h("div", {}, key ? h("span", { class: "quiet" }, `${key} `) : null, shown(inner))) : [shown(value)]))]));
}
