/**
 * The playground: two deep residual networks trained side by side in the page, on the same data and from the same seed.
 * The trainings outlive a change of language; any other change of a setting starts both anew.
 */

import { Plot } from "../charts.js";
import { dataOf } from "../datasets.js";
import { figure, h, menu, number, slider } from "../elements.js";
import { CHOICES, PRESETS, presetOf, readExperiment, writeExperiment } from "../settings.js";
import { EVERY, Training } from "../training.js";
import { Field } from "./field.js";

/** @typedef {import("../settings.js").Experiment} Experiment */
/** @typedef {"a" | "b"} SideName */

/** @type {SideName[]} */
const SIDES = ["a", "b"];
const STEPS = 6; // of each side in one frame, at most
const BUDGET = 14; // milliseconds of training in one frame
const REDRAW = 250; // milliseconds between charts
const POINTS = 160; // of a curve

/** What goes on behind the page. */
const state = {
  /** @type {Experiment | null} */ experiment: null,
  /** @type {Record<SideName, Training> | null} */ trainings: null,
  playing: false,
  preset: "deepnorm",
};

/** @param {Experiment} experiment */
function restart(experiment) {
  const { data, noise, seed } = experiment.common, points = dataOf(data, noise, seed);
  state.experiment = experiment;
  state.trainings = { a: new Training(experiment.a, points, seed), b: new Training(experiment.b, points, seed) };
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, address, remember }) {
  const asked = readExperiment(address);
  if (!state.experiment || JSON.stringify(asked) !== JSON.stringify(state.experiment)) {
    restart(asked);
    state.preset = Object.keys(PRESETS).find((name) => JSON.stringify(presetOf(name)) === JSON.stringify(asked)) ?? "";
  }
  let experiment = /** @type {Experiment} */ (state.experiment);
  let frame = 0, drawn = 0, alive = true;
  const trainings = () => /** @type {Record<SideName, Training>} */ (state.trainings);
  const fields = { a: new Field(t), b: new Field(t) };
  const status = { a: h("p", { class: "status" }), b: h("p", { class: "status" }) };
  const live = h("p", { class: "hidden", role: "status" });
  const plots = { loss: new Plot(220), gradient: new Plot(220), stream: new Plot(220), angle: new Plot(220), batch: new Plot(220) };

  /** @param {Experiment} next */
  const begin = (next, preset = "") => {
    experiment = next;
    restart(next);
    state.preset = preset;
    remember(writeExperiment(next));
    live.textContent = "";
    draw();
  };
  /** @type {(side: SideName, name: string, value: string | number) => void} */
  const set = (side, name, value) => {
    begin({ ...experiment, [side]: { ...experiment[side], [name]: value } });
    marks();
  };

  // ---- controls ------------------------------------------------------------------------------------------------------
  const play = h("button", { type: "button", class: "play", click: () => (state.playing ? pause() : start()) });
  const presets = Object.keys(PRESETS).map((name) => ({ name, button: h("button", { type: "button", click: () => { begin(presetOf(name), name); rebuild(); start(); } }, t(`preset.${name}`)) }));
  const claim = h("p", { class: "claim", "aria-live": "polite" });
  const marks = () => {
    for (const { name, button } of presets) button.setAttribute("aria-pressed", String(name === state.preset));
    claim.textContent = state.preset ? t(`preset.${state.preset}.look`) : t("preset.own");
    play.textContent = state.playing ? t("pause") : t("play");
  };
  const start = () => {
    state.playing = true;
    marks();
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(run);
  };
  const pause = () => {
    state.playing = false;
    cancelAnimationFrame(frame);
    marks();
    draw();
    live.textContent = SIDES.map((side) => `${side.toUpperCase()}: ${status[side].textContent}`).join(" ");
  };
  /** @type {(name: string, value: string | number) => string} */
  const shown = (name, value) => (typeof value === "number" ? (name === "warmup" && value === 0 ? t("none") : number(value)) : t(`${name}.${value}`));
  /** @type {(side: SideName, name: keyof import("../settings.js").Side) => HTMLElement} */
  const listed = (side, name) => {
    const values = CHOICES[name], value = experiment[side][name];
    if (typeof value === "number" && values.length > 6)
      return slider(t(name), /** @type {number[]} */ (values), value, (v) => shown(name, v), (v) => set(side, name, v));
    return menu(t(name), values.map((v) => ({ value: String(v), text: shown(name, v) })), String(value), (text) => set(side, name, values[values.map(String).indexOf(text)]));
  };
  const panels = { a: h("div", { class: "controls" }), b: h("div", { class: "controls" }) };
  const shared = h("div", { class: "shared" });
  const rebuild = () => {
    for (const side of SIDES)
      panels[side].replaceChildren(...(/** @type {(keyof import("../settings.js").Side)[]} */ (["norm", "placement", "depth", "rate", "batch", "optimizer", "width", "warmup", "eps"])).map((name) => listed(side, name)));
    const { common } = experiment, change = (/** @type {Partial<import("../settings.js").Common>} */ part) => { begin({ ...experiment, common: { ...experiment.common, ...part } }); marks(); };
    shared.replaceChildren(
      menu(t("data"), CHOICES.data.map((v) => ({ value: String(v), text: t(`data.${v}`) })), common.data, (data) => change({ data })),
      menu(t("noise"), CHOICES.noise.map((v) => ({ value: String(v), text: v ? number(Number(v)) : t("none") })), String(common.noise), (noise) => change({ noise: Number(noise) })),
      h("label", { class: "field" }, h("span", {}, t("seed")), h("input", { type: "number", min: 1, max: 999, value: String(common.seed),
        change: (/** @type {Event} */ event) => change({ seed: Math.max(1, Math.min(999, Math.round(Number(/** @type {HTMLInputElement} */ (event.target).value)) || 1)) }) })));
    marks();
  };

  // ---- the loop ------------------------------------------------------------------------------------------------------
  /** @param {number} now */
  const run = (now) => {
    if (!alive || !state.playing) return;
    const due = now - drawn > REDRAW, until = performance.now() + BUDGET;
    for (let i = 0; i < STEPS; i++) {
      for (const side of SIDES) trainings()[side].advance(due && i === 0);
      if (performance.now() > until) break;
    }
    for (const side of SIDES) fields[side].refine(trainings()[side], 5);
    if (due) {
      drawn = now;
      charts();
    }
    if (SIDES.every((side) => trainings()[side].divergedAt !== null)) pause();
    else frame = requestAnimationFrame(run);
  };
  const draw = () => {
    for (const side of SIDES) fields[side].refine(trainings()[side], Infinity);
    charts();
  };

  // ---- what is shown -------------------------------------------------------------------------------------------------
  const texts = {
    loss: figure(t("loss.title"), plots.loss.element, t("loss.read")), gradient: figure(t("gradient.title"), plots.gradient.element, ""),
    stream: figure(t("stream.title"), plots.stream.element, ""), angle: figure(t("angle.title"), plots.angle.element, ""),
    batch: figure(t("statistics.title"), plots.batch.element, ""),
  };
  const charts = () => {
    const now = trainings(), chance = Math.log(now.a.data.classes);
    const steps = Math.max(50, now.a.step, now.b.step);
    for (const side of SIDES) {
      const { divergedAt, step, heldOut } = now[side], last = heldOut[heldOut.length - 1];
      status[side].textContent = divergedAt !== null ? t("status.diverged", { step: divergedAt })
        : t("status", { step, accuracy: Math.round(100 * last.accuracy), loss: number(last.loss, 2) });
      status[side].classList.toggle("bad", divergedAt !== null);
    }
    plots.loss.draw({
      lines: SIDES.flatMap((side) => [
        { name: "", kind: side, faint: true, points: thinned(now[side].losses) },
        { name: side.toUpperCase(), kind: side, broken: now[side].divergedAt !== null, points: now[side].heldOut.map((e) => /** @type {const} */ ([e.step, e.loss])) }]),
      x: t("step"), y: t("loss"), across: [chance], xRange: [0, steps], yRange: [0, 1.15 * chance], top: 2 * chance,
    });
    const depth = Math.max(experiment.a.depth, experiment.b.depth);
    /** @type {(name: "stream" | "gradient" | "angle", label: string, log: boolean) => void} */
    const byDepth = (name, label, log) => plots[name].draw({
      lines: SIDES.map((side) => ({ name: side.toUpperCase(), kind: side, points: (now[side].depths[name]).map((v, i) => /** @type {const} */ ([name === "angle" ? i + 1 : i, v])) })),
      x: t("block"), y: label, log, xRange: [0, depth], yRange: [0, 0.1],
    });
    byDepth("gradient", t("gradient.axis"), true);
    byDepth("stream", t("stream.axis"), true);
    byDepth("angle", t("angle.axis"), false);
    plots.batch.draw({
      lines: SIDES.map((side) => ({ name: side.toUpperCase(), kind: side, points: (now[side].depths.meanDistance).map((v, i) => /** @type {const} */ ([i + 1, v])) })),
      x: t("norm.number"), y: t("statistics.axis"), xRange: [0, Math.max(2, ...SIDES.map((side) => now[side].depths.meanDistance.length))], yRange: [0, 0.5],
    });
    texts.batch.element.hidden = experiment.a.norm !== "batch" && experiment.b.norm !== "batch";
    for (const name of /** @type {const} */ (["gradient", "stream", "angle", "batch"])) texts[name].say(SIDES.map((side) => read(name, side, now[side])).join(" "));
  };
  /** @type {(name: "gradient" | "stream" | "angle" | "batch", side: SideName, training: Training) => string} */
  const read = (name, side, { depths, side: { depth, norm } }) => {
    const values = { side: side.toUpperCase(), depth };
    if (name === "angle") return t("angle.read", { ...values, effective: number(depths.effective, 3) });
    if (name === "batch") return norm === "batch" ? t("statistics.read", { ...values, mean: number(median(depths.meanDistance), 2), deviation: number(median(depths.deviationDistance), 2) }) : t("statistics.absent", values);
    return t(`${name}.read`, { ...values, first: number(depths[name][0], 2), last: number(depths[name][depth], 2) });
  };

  const column = (/** @type {SideName} */ side) => h("section", { class: `side ${side}`, "aria-label": t("side", { side: side.toUpperCase() }) },
    h("h2", {}, h("span", { class: `badge ${side}`, "aria-hidden": "true" }, side.toUpperCase()), status[side]), fields[side].element, panels[side]);
  root.append(
    h("div", { class: "intro" }, h("h1", {}, t("playground.title")), h("p", { class: "lead" }, t("playground.lead"))),
    h("div", { class: "presets", role: "group", "aria-label": t("presets") }, ...presets.map((p) => p.button)), claim,
    h("div", { class: "toolbar" }, h("div", { class: "buttons" }, play,
      h("button", { type: "button", click: () => { state.playing = false; cancelAnimationFrame(frame); for (const side of SIDES) trainings()[side].advance(true); marks(); draw(); } }, t("advance")),
      h("button", { type: "button", click: () => { const on = state.playing; begin(experiment, state.preset); marks(); if (on) start(); } }, t("reset"))), shared),
    live,
    h("div", { class: "sides" }, column("a"), column("b")),
    h("div", { class: "charts" }, texts.loss.element, texts.gradient.element, texts.stream.element, texts.angle.element, texts.batch.element),
    h("section", { class: "notes" }, h("h2", {}, t("notes")), ...["network", "same", "deepnorm", "evaluation", "diverged"].map((name) => h("p", {}, t(`notes.${name}`, { every: EVERY })))));
  rebuild();
  draw();
  if (state.playing) start();
  return () => {
    alive = false;
    cancelAnimationFrame(frame);
  };
}

/**
 * A curve of at most POINTS points: means of equal parts.
 * @param {number[]} losses
 * @returns {[number, number][]}
 */
function thinned(losses) {
  const width = Math.ceil(losses.length / POINTS) || 1;
  /** @type {[number, number][]} */
  const found = [];
  for (let i = 0; i < losses.length; i += width) {
    const part = losses.slice(i, i + width);
    found.push([i + part.length, part.reduce((a, b) => a + b, 0) / part.length]);
  }
  return found;
}

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length % 2 ? sorted[(sorted.length - 1) / 2] : (sorted[sorted.length / 2 - 1] + sorted[sorted.length / 2]) / 2;
}

/** @type {import("../elements.js").Page} */
export const playground = { id: "playground", mount };
