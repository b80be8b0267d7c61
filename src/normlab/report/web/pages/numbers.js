/**
 * Number by number: a small batch of tokens whose values can be edited, and every step of one set's normalization beside it.
 * The wrong ways of tutorials and narrow types are a choice away, with the right answer next to them.
 */

import { stepsOf } from "../arithmetic.js";
import { choice, h, menu, number, tick } from "../elements.js";

/** @typedef {import("../arithmetic.js").Steps} Steps */

const ROWS = 4, COLUMNS = 4;
const EPS = [0, 1e-12, 1e-8, 1e-5, 1e-3, 0.1];
/** @type {import("../arithmetic.js").VarianceRule[]} */
const RULES = ["two-pass", "uncentered", "one-pass"];
/** @type {import("../arithmetic.js").Precision[]} */
const PRECISIONS = ["float64", "float32", "bfloat16", "float16"];

const PLAIN = [[2, 5, 3, 4], [1, 4, 4, 7], [6, 2, 5, 3], [0, 0, 0, 0]];
const plain = () => ({
  norm: /** @type {"batch" | "layer" | "rms"} */ ("layer"), eps: 1e-5, rule: RULES[0], precision: PRECISIONS[0], masked: true,
  values: PLAIN.map((row) => [...row]), real: [true, true, true, false], gain: [1, 1, 1, 1], bias: [0, 0, 0, 0], row: 0, column: 1,
});

/** What goes wrong, as changes of the plain case. */
/** @type {Record<string, Partial<ReturnType<typeof plain>>>} */
const FAULTS = {
  plain: {},
  padding: { norm: "batch", masked: false },
  uncentered: { rule: "uncentered", precision: "float64" },
  cancel: { values: PLAIN.map((row, r) => row.map((v) => (r < 3 ? 10000 + v / 8 : 0))), rule: "one-pass", precision: "float32" },
  eps: { values: [[1000, 1000.0001, 1000, 1000], ...PLAIN.slice(1)], eps: 1e-12, precision: "float32" },
  narrow: { values: PLAIN.map((row, r) => row.map((v) => (r < 3 ? 100 * v : 0))), norm: "rms", precision: "float16" },
};

/** Outlives a change of language. */
const state = { fault: "plain", ...plain() };

/** @param {number} r @param {number} c @returns {[number, number][]} the cells of a cell's set that count */
function setOf(r, c, masked = state.masked) {
  if (state.norm === "batch") return Array.from({ length: ROWS }, (_, i) => /** @type {[number, number]} */ ([i, c])).filter(([i]) => !masked || state.real[i]);
  return Array.from({ length: COLUMNS }, (_, i) => /** @type {[number, number]} */ ([r, i]));
}

/** @param {[number, number][]} cells @param {boolean} right @returns {Steps} */
function stepsFor(cells, right) {
  return stepsOf(cells.map(([r, c]) => state.values[r][c]), {
    centered: state.norm !== "rms", eps: state.eps, gain: cells.map(([, c]) => state.gain[c]), bias: cells.map(([, c]) => (state.norm === "rms" ? 0 : state.bias[c])),
    rule: right ? "two-pass" : state.norm === "rms" ? "two-pass" : state.rule, precision: right ? "float64" : state.precision,
  });
}

/** @param {boolean} right @returns {(number | null)[][]} null: padding that is left out */
function output(right) {
  const masked = right || state.masked;
  return state.values.map((row, r) => row.map((_, c) => {
    if (masked && !state.real[r]) return null;
    const cells = setOf(r, c, masked), at = cells.findIndex(([i, j]) => i === r && j === c);
    return at < 0 ? null : stepsFor(cells, right).out[at];
  }));
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t }) {
  const faults = h("div", { class: "presets", role: "group", "aria-label": t("numbers.faults") }), told = h("p", { class: "claim", "aria-live": "polite" });
  const controls = h("div", { class: "row" }), tables = h("div", { class: "tables" }), list = h("ol", { class: "steps" }), verdict = h("p", { class: "reading", "aria-live": "polite" });

  const change = (/** @type {Partial<typeof state>} */ part) => {
    Object.assign(state, part, { fault: "" });
    build();
  };
  const input = (/** @type {number} */ value, /** @type {string} */ label, /** @type {(v: number) => void} */ set) => {
    const box = h("input", { type: "number", step: "any", value: String(value), "aria-label": label, class: "entry",
      input: () => { const v = Number(box.value); if (box.value !== "" && Number.isFinite(v)) { set(v); state.fault = ""; refresh(); } } });
    return box;
  };

  /** @type {HTMLElement[][]} */
  let shown = [];
  /** @type {HTMLElement[][]} */
  let entered = [];
  const build = () => {
    faults.replaceChildren(...Object.keys(FAULTS).map((name) => h("button", { type: "button", "aria-pressed": String(state.fault === name), click: () => { Object.assign(state, plain(), structuredClone(FAULTS[name]), { fault: name }); build(); } }, t(`numbers.fault.${name}`))));
    controls.replaceChildren(
      choice(t("norm"), (/** @type {const} */ (["layer", "rms", "batch"])).map((v) => ({ value: v, text: t(`norm.${v}`) })), state.norm, (v) => change({ norm: /** @type {typeof state.norm} */ (v) })),
      menu(t("eps"), EPS.map((v) => ({ value: String(v), text: number(v) })), String(state.eps), (v) => change({ eps: Number(v) })),
      ...(state.norm === "rms" ? [] : [menu(t("numbers.rule"), RULES.map((v) => ({ value: v, text: t(`numbers.rule.${v}`) })), state.rule, (v) => change({ rule: /** @type {typeof state.rule} */ (v) }))]),
      menu(t("numbers.precision"), PRECISIONS.map((v) => ({ value: v, text: t(`numbers.precision.${v}`) })), state.precision, (v) => change({ precision: /** @type {typeof state.precision} */ (v) })),
      tick(t("shelf.mask"), state.masked, (v) => change({ masked: v })));
    const head = (/** @type {string} */ corner) => h("thead", {}, h("tr", {}, h("th", { scope: "col" }, corner), ...[1, 2, 3, 4].map((c) => h("th", { scope: "col" }, t("numbers.feature", { number: c })))));
    entered = [];
    shown = [];
    const pick = (/** @type {number} */ row, /** @type {number} */ column) => { state.row = row; state.column = column; refresh(); };
    const inputs = h("table", { class: "grid" }, head(t("numbers.in")), h("tbody", {}, ...state.values.map((row, r) => {
      entered.push([]);
      return h("tr", {}, h("th", { scope: "row" }, tick(t("numbers.token", { number: r + 1 }), state.real[r], (v) => change({ real: state.real.map((old, i) => (i === r ? v : old)) }))),
        ...row.map((v, c) => {
          const box = input(v, t("numbers.value", { row: r + 1, column: c + 1 }), (now) => { state.values[r][c] = now; });
          box.addEventListener("focus", () => pick(r, c));
          const cell = h("td", {}, box);
          entered[r].push(cell);
          return cell;
        }));
    }), ...(/** @type {const} */ (["gain", "bias"])).filter((name) => name === "gain" || state.norm !== "rms").map((name) => h("tr", { class: "own" }, h("th", { scope: "row" }, t(`numbers.${name}`)),
      ...state[name].map((v, c) => h("td", {}, input(v, t(`numbers.${name}.value`, { column: c + 1 }), (now) => { state[name][c] = now; })))))));
    const outputs = h("table", { class: "grid" }, head(t("numbers.out")), h("tbody", {}, ...state.values.map((row, r) => {
      shown.push([]);
      return h("tr", {}, h("th", { scope: "row" }, t("numbers.token", { number: r + 1 })), ...row.map((_, c) => {
        const button = h("button", { type: "button", class: "value", click: () => pick(r, c) }), cell = h("td", {}, button);
        shown[r].push(cell);
        return cell;
      }));
    })));
    tables.replaceChildren(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("numbers.in") }, inputs), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("numbers.out") }, outputs));
    refresh();
  };

  const refresh = () => {
    told.textContent = state.fault ? t(`numbers.fault.${state.fault}.look`) : t("numbers.own");
    for (const button of faults.children) button.setAttribute("aria-pressed", String(button === faults.children[Object.keys(FAULTS).indexOf(state.fault)]));
    const now = output(false), right = output(true), members = setOf(state.row, state.column);
    let worst = 0, at = "";
    now.forEach((row, r) => row.forEach((v, c) => {
      const cell = shown[r][c], truth = right[r][c], inside = members.some(([i, j]) => i === r && j === c);
      const off = v !== null && truth !== null && !(Math.abs(v - truth) <= 1e-3 * Math.max(1, Math.abs(truth)));
      /** @type {HTMLElement} */ (cell.firstElementChild).textContent = v === null ? "·" : number(v);
      /** @type {HTMLElement} */ (cell.firstElementChild).setAttribute("aria-label", t("numbers.result", { row: r + 1, column: c + 1, value: v === null ? t("numbers.padding") : number(v) }));
      for (const target of [cell, entered[r][c]]) {
        target.classList.toggle("member", inside);
        target.classList.toggle("picked", r === state.row && c === state.column);
        target.classList.toggle("pad", !state.real[r]);
      }
      cell.classList.toggle("wrong", off);
      const error = v === null || truth === null ? 0 : Math.abs(v - truth);
      if (error > worst || Number.isNaN(error)) {
        worst = Number.isNaN(error) ? Infinity : error;
        at = t("numbers.where", { row: r + 1, column: c + 1, got: number(/** @type {number} */ (v)), right: number(/** @type {number} */ (truth)) });
      }
    }));
    verdict.textContent = worst > 1e-3 ? t("numbers.off", { at }) : t("numbers.exact");
    verdict.classList.toggle("bad", worst > 1e-3);
    explain(members);
  };

  /** @param {[number, number][]} cells */
  const explain = (cells) => {
    const at = cells.findIndex(([r, c]) => r === state.row && c === state.column);
    if (!cells.length || at < 0 || (state.norm !== "batch" && state.masked && !state.real[state.row])) {
      list.replaceChildren(h("li", {}, t("numbers.left_out")));
      return;
    }
    const steps = stepsFor(cells, false), values = cells.map(([r, c]) => state.values[r][c]), centered = state.norm !== "rms", rule = centered ? state.rule : "uncentered";
    const joined = (/** @type {number[]} */ list, digits = 4) => list.map((v) => number(v, digits)).join(", ");
    const line = (/** @type {string} */ name, /** @type {string} */ formula, /** @type {string} */ result) => h("li", {}, h("span", { class: "what" }, t(`numbers.step.${name}`)), h("code", { translate: "no" }, formula), h("output", {}, result));
    const c = cells[at][1];
    list.replaceChildren(
      line("values", "x", joined(values, 8)),
      ...(centered ? [line("mean", `μ = (1/${steps.count}) Σ x`, number(steps.mean, 6)), line("deviation", "x − μ", joined(steps.deviations))] : []),
      line(centered ? "variance" : "square", rule === "two-pass" ? `σ² = (1/${steps.count}) Σ (x − μ)²` : rule === "uncentered" ? `(1/${steps.count}) Σ x²` : `(1/${steps.count}) Σ x² − μ²`, number(steps.variance, 6)),
      line("root", centered ? "√(σ² + ε)" : "√(mean(x²) + ε)", number(steps.root, 6)),
      line("normalized", centered ? "x̂ = (x − μ) / √(σ² + ε)" : "x̂ = x / √(mean(x²) + ε)", joined(steps.normalized)),
      line("affine", centered ? `y = γ x̂ + β = ${number(state.gain[c])} · ${number(steps.normalized[at], 4)} + ${number(state.bias[c])}` : `y = γ x̂ = ${number(state.gain[c])} · ${number(steps.normalized[at], 4)}`, number(steps.out[at], 5)));
  };

  root.append(h("div", { class: "intro" }, h("h1", {}, t("numbers.title")), h("p", { class: "lead" }, t("numbers.lead"))), faults, told, controls,
    h("div", { class: "split" }, h("div", {}, tables, verdict), h("div", {}, h("h2", {}, t("numbers.steps")), list)));
  build();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const numbers = { id: "numbers", mount };
