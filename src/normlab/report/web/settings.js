/**
 * What a playground experiment is made of, as data: names, ranges, presets, and how they are written into the address, so
 * that a link repeats the experiment. What stands in an address may come from anyone: a value that is not in a range here
 * is replaced by the default.
 */

import { DATASETS } from "./datasets.js";

/** @typedef {{norm: import("./arithmetic.js").NormName, placement: import("./network.js").PlacementName, depth: number, width: number,
 *   rate: number, batch: number, optimizer: "sgd" | "adam", warmup: number, eps: number}} Side */
/** @typedef {{data: string, noise: number, seed: number}} Common */
/** @typedef {{common: Common, a: Side, b: Side}} Experiment */

/** @type {Record<string, (string | number)[]>} */
export const CHOICES = {
  norm: ["none", "batch", "layer", "rms"],
  placement: ["pre", "post", "deepnorm", "sandwich"],
  depth: Array.from({ length: 64 }, (_, i) => i + 1),
  width: [8, 16, 24, 32],
  rate: [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3],
  batch: [2, 4, 8, 16, 32, 64, 128],
  optimizer: ["sgd", "adam"],
  warmup: [0, 50, 100, 200, 500],
  eps: [1e-12, 1e-8, 1e-5, 1e-3, 0.1],
  data: Object.keys(DATASETS),
  noise: [0, 0.02, 0.05, 0.1],
  seed: Array.from({ length: 999 }, (_, i) => i + 1),
};

/** @type {Side} */
export const SIDE = { norm: "layer", placement: "pre", depth: 8, width: 16, rate: 0.003, batch: 64, optimizer: "adam", warmup: 0, eps: 1e-5 };
/** @type {Common} */
export const COMMON = { data: "spiral", noise: 0.02, seed: 1 };

/** Claims of tutorials, as two sides that differ in what the claim is about. */
/** @type {Record<string, {common?: Partial<Common>, a: Partial<Side>, b: Partial<Side>}>} */
export const PRESETS = {
  warmup: { a: { placement: "post", depth: 32, rate: 0.003 }, b: { placement: "post", depth: 32, rate: 0.003, warmup: 500 } },
  deepnorm: { a: { placement: "post", depth: 32, rate: 0.003 }, b: { placement: "deepnorm", depth: 32, rate: 0.003 } },
  effective: { a: { placement: "pre", depth: 32, rate: 0.001 }, b: { placement: "deepnorm", depth: 32, rate: 0.001 } },
  small_batch: { a: { norm: "batch", batch: 2, rate: 0.001 }, b: { norm: "layer", batch: 2, rate: 0.001 } },
  large_rate: { a: { norm: "none", depth: 16, rate: 0.1, optimizer: "sgd" }, b: { norm: "layer", depth: 16, rate: 0.1, optimizer: "sgd" } },
};

/**
 * @param {string} name
 * @returns {Experiment}
 */
export function presetOf(name) {
  const { common, a, b } = PRESETS[name];
  return { common: { ...COMMON, ...common }, a: { ...SIDE, ...a }, b: { ...SIDE, ...b } };
}

/**
 * @template {Record<string, string | number>} T
 * @param {string | null} text
 * @param {T} defaults
 * @returns {T}
 */
function parsed(text, defaults) {
  /** @type {Record<string, string | number>} */
  const found = { ...defaults };
  for (const part of (text ?? "").split(",")) {
    const [name, value] = part.split(":");
    if (!Object.hasOwn(found, name)) continue;
    const match = CHOICES[name].find((choice) => String(choice) === value);
    if (match !== undefined) found[name] = match;
  }
  return /** @type {T} */ (found);
}

/** @param {Record<string, string | number>} values */
const written = (values) => Object.entries(values).map(([name, value]) => `${name}:${value}`).join(",");

/**
 * @param {Map<string, string>} address
 * @returns {Experiment}
 */
export function readExperiment(address) {
  const first = presetOf("deepnorm");
  return { common: parsed(address.get("run") ?? null, first.common), a: parsed(address.get("a") ?? null, first.a), b: parsed(address.get("b") ?? null, first.b) };
}

/**
 * @param {Experiment} experiment
 * @returns {Record<string, string>}
 */
export function writeExperiment({ common, a, b }) {
  return { run: written(common), a: written(a), b: written(b) };
}
