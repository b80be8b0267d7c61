/** Cells of a sweep in figures: which are drawn, on every page of it, and how they are told apart (color, dash, and their number at the line's end). */

import { h } from "./elements.js";

const FIRST = 8; // drawn before the reader picks others
const KINDS = 8; // of the style sheet

/** Outlives a change of page and language; begins anew with another sweep. */
const state = { of: "", hidden: new Set() };

/** @typedef {{cell: string, name: string, kind: string}} Drawn */

/**
 * @param {any} view
 * @returns {Drawn[]}
 */
function all(view) {
  return view.cells.map((/** @type {any} */ c, /** @type {number} */ i) => ({ cell: c.cell, name: String(i + 1), kind: `s${i % KINDS}` }));
}

/** @param {any} view */
function hidden(view) {
  if (state.of !== view.title) {
    state.of = view.title;
    state.hidden = new Set(view.cells.slice(FIRST).filter((/** @type {any} */ c) => !c.is_baseline).map((/** @type {any} */ c) => c.cell));
  }
  return state.hidden;
}

/**
 * Those that are drawn, by name.
 * @param {any} view
 * @returns {Map<string, Drawn>}
 */
export const drawn = (view) => new Map(all(view).filter((one) => !hidden(view).has(one.cell)).map((one) => [one.cell, one]));

/**
 * Boxes to tick, which are the legend as well.
 * @param {import("./elements.js").Context["t"]} t
 * @param {any} view
 * @param {() => void} draw
 */
export function keys(t, view, draw) {
  const off = hidden(view);
  return h("fieldset", { class: "keys" }, h("legend", {}, t(view.cells.length > FIRST ? "cells.some" : "cells.shown", { n: FIRST })), ...all(view).map(({ cell, name, kind }) => {
    const box = h("input", { type: "checkbox", checked: !off.has(cell), change: () => { if (box.checked) off.delete(cell); else off.add(cell); draw(); } });
    return h("label", { class: "tick" }, box, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), h("b", { class: kind }, name), h("span", { translate: "no" }, cell));
  }));
}

/**
 * How many, as one number or from the least to the most.
 * @param {number[]} counts
 */
export const span = (counts) => (counts.length ? [...new Set([Math.min(...counts), Math.max(...counts)])].join("–") : "–");
