/** Depth: what a run's blocks do to the stream, at any recorded step. */

import { h, number, slider, tick } from "../elements.js";
import { gaps, overSteps, panel, quantity, sentences, silence, whose } from "../panels.js";

const SHOWN = ["stream_rms", "stream_grad", "param_grad", "update_ratio", "branch_share", "angle"];
const SHARES = ["branch_share", "angle"]; // on a straight axis; the others span magnitudes

/** Outlives a change of language and newer data. null: the newest step. */
const state = { step: /** @type {number | null} */ (null), first: true };

/** @param {any} view */
const present = (view) => SHOWN.filter((name) => quantity(view, name));
/** @param {any} view */
const shape = (view) => JSON.stringify(present(view).map((name) => [name, quantity(view, name)?.sites.length]));

/**
 * Blocks of one stack each: no path leads from one into the next.
 * @param {import("../panels.js").Quantity} of
 * @param {number} column
 */
function stacks(of, column) {
  /** @type {Map<string, [number, number][]>} */
  const found = new Map();
  of.sites.forEach((site, i) => {
    const name = site.slice(0, Math.max(0, site.lastIndexOf("."))), value = of.values[i][column];
    if (!found.has(name)) found.set(name, []);
    if (typeof value === "number") found.get(name)?.push([i + 1, value]);
  });
  return [...found.values()].filter((points) => points.length);
}

/**
 * What theory expects at this step: a band, or a line where both of its borders are one.
 * @param {any} expected
 * @param {number} column
 * @returns {import("../charts.js").Line[]}
 */
function theory(expected, column) {
  if (!expected || column < 0) return [];
  const rows = expected.low.map((/** @type {(number | null)[]} */ low, /** @type {number} */ i) => [i + 1, low[column], expected.high[i][column]]).filter((/** @type {any[]} */ row) => row[1] !== null && row[2] !== null);
  return [{ name: "", kind: "theory", points: rows.map((/** @type {number[]} */ row) => [row[0], row[1]]), band: rows }];
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data, follow }) {
  root.append(h("div", { class: "intro" }, h("h1", {}, t("depth.title")), h("p", { class: "lead" }, t("depth.lead"))));
  const names = present(data);
  if (!names.length) {
    root.append(silence(t("depth.none")));
    return () => {};
  }
  const panels = new Map(names.map((name) => [name, panel(t, t(`quantity.${name}`))]));
  const effective = quantity(data, "effective_depth") ? panel(t, t("quantity.effective_depth"), 200) : null;
  const controls = h("div", { class: "row long" });
  let view = data;

  const steps = () => [...new Set(names.flatMap((name) => quantity(view, name)?.steps ?? []))].sort((a, b) => a - b);
  const draw = () => {
    const all = steps(), step = state.step !== null && all.includes(state.step) ? state.step : all[all.length - 1];
    for (const [name, drawn] of panels) {
      const of = quantity(view, name);
      if (!of) continue;
      const column = of.steps.indexOf(step), now = column < 0 ? [] : stacks(of, column), start = state.first && of.steps[0] !== step ? stacks(of, 0) : [];
      const points = now.flat(), expected = view.theory.find((/** @type {any} */ one) => one.quantity === name);
      drawn.draw({
        lines: [...theory(expected, column), ...start.map((line) => ({ name: "", kind: "b", points: line, label: t("depth.then", { step: of.steps[0] }) })), ...now.map((line) => ({ name: "", kind: "a", points: line, label: t("depth.now", { step }) }))],
        x: t("block"), whole: true, y: t(`quantity.${name}.axis`), log: !SHARES.includes(name), xRange: [1, Math.max(2, of.sites.length)], yRange: SHARES.includes(name) ? [0, 0] : undefined,
      }, sentences(points.length ? t("depth.read", { step, low: number(points[0][1]), high: number(points[points.length - 1][1]), blocks: of.sites.length }) : t("depth.missing", { step }), state.first && start.length ? t("depth.dashed", { step: of.steps[0] }) : "", expected && column >= 0 ? t(`depth.theory.${expected.of}`) : "", whose(t, view), gaps(t, of)));
    }
    const of = quantity(view, "effective_depth");
    if (effective && of) effective.draw({ lines: of.sites.map((site, i) => ({ name: "", kind: i ? "b" : "a", points: overSteps(of, site), label: of.sites.length > 1 ? site : t("quantity.effective_depth") })), x: t("step"), y: t("quantity.effective_depth.axis"), mark: step, yRange: [0, 1] }, sentences(t("depth.effective"), whose(t, view)));
  };
  const control = () => {
    const all = steps(), step = state.step !== null && all.includes(state.step) ? state.step : all[all.length - 1];
    controls.replaceChildren(
      slider(t("depth.step"), all, step, (value) => t("depth.shown", { step: value }), (value) => { state.step = value === all[all.length - 1] ? null : value; draw(); }),
      tick(t("depth.first"), state.first, (value) => { state.first = value; draw(); }));
  };
  root.append(controls, h("div", { class: "charts" }, ...[...panels.values()].map((p) => p.element), effective?.element ?? ""));
  control();
  draw();
  follow((newer) => {
    view = newer;
    if (!controls.contains(document.activeElement)) control(); // not under somebody's hand
    draw();
  });
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const depth = { id: "run-depth", mount, shape };
