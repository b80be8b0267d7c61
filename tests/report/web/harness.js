/** What the tests ask of the page's arithmetic: the same answers in node and in a browser. */

import { ROUND, layoutOf, normalize, normalizeBackward, stepsOf } from "./arithmetic.js";
import { Network, deepnormScales } from "./network.js";
import { dataOf } from "./datasets.js";
import { DRAWINGS } from "./pages/drawings.js";
import { PRESETS, CHOICES, presetOf, readExperiment, writeExperiment } from "./settings.js";
import { merge } from "./source.js";
import { Training } from "./training.js";

const plain = (network) => Object.fromEntries([...network.parameters.values()].map((p) => [p.name, { shape: p.shape, value: [...p.value], grad: [...p.grad] }]));

/** Weights as torch gets them, logits, gradients, and the weights after five steps. */
export function trained({ shape, seed, gains, points, labels, optimizer, rate, steps, evaluated }) {
  const network = new Network(shape, seed);
  // Gains of one and biases of zero would hide whether they are used.
  for (const [name, value] of Object.entries(gains)) network.parameter(name).value.set(value);
  const before = plain(network), x = Float64Array.from(points), y = Uint8Array.from(labels);
  const logits = [...network.forward(x, true)], loss = network.backward(x, y);
  const first = plain(network), gradients = [...network.memory(y.length).gradients];
  const losses = [];
  for (let i = 0; i < steps; i++) {
    network.forward(x, true);
    losses.push(network.backward(x, y));
    network.follow(y.length);
    network.update({ optimizer, rate });
  }
  const running = network.normsWith(y.length).map(({ norm }) => [[...norm.mean], [...norm.square]]);
  return { before, logits, loss, first, gradients, losses, after: plain(network), running, evaluated: [...network.forward(Float64Array.from(evaluated), false)] };
}

/** Names of the parameters of a network. */
export function names({ shape, seed }) {
  return Object.fromEntries(Object.entries(plain(new Network(shape, seed))).map(([name, p]) => [name, p.shape]));
}

export function normed({ norm, rows, width, x, g, eps }) {
  const layout = layoutOf(norm, rows, width), size = rows * width;
  const xhat = new Float64Array(size), dx = new Float64Array(size), mean = new Float64Array(layout.sets), square = new Float64Array(layout.sets);
  normalize(Float64Array.from(x), xhat, layout, norm !== "rms", eps, mean, square);
  normalizeBackward(Float64Array.from(g), xhat, dx, layout, norm !== "rms", eps, square);
  return { xhat: [...xhat], dx: [...dx], mean: [...mean], square: [...square] };
}

export const steps = ({ values, how }) => stepsOf(values, how);
export const rounded = ({ values, precision }) => values.map((v) => String(ROUND[precision](v)));
export const scales = ({ depths }) => depths.map(deepnormScales);
export const presets = () => Object.fromEntries(Object.keys(PRESETS).map((name) => [name, presetOf(name)]));
export const choices = () => CHOICES;
export const drawings = () => DRAWINGS;
export const address = ({ text }) => readExperiment(new Map(text.split("&").map((part) => part.split("="))));
export const written = ({ experiment }) => writeExperiment(experiment);
export const data = ({ name, noise, seed }) => {
  const { train, heldOut, classes } = dataOf(name, noise, seed);
  return { classes, train: [...train.points], labels: [...train.labels], heldOut: [...heldOut.points] };
};

/** A whole training, measured at its last step. */
export function training({ side, common, steps: count }) {
  const run = new Training(side, dataOf(common.data, common.noise, common.seed), common.seed);
  const rates = [];
  for (let i = 0; i < count && run.divergedAt === null; i++) {
    rates.push(run.rate);
    run.advance(i === count - 1);
  }
  const m = run.network.memory(side.batch);
  return { step: run.step, divergedAt: run.divergedAt, losses: run.losses, heldOut: run.heldOut, depths: run.depths, rates,
    norms: run.network.normsWith(side.batch).map(({ norm, kept }) => [norm.mean, norm.square, kept.mean, kept.square].map((v) => [...v])),
    streams: [m.start, ...m.blocks.map((b) => b.out)].map((x) => [...x]) };
}

/** Steps a second, after so many that the compiler has seen the code. */
export function pace({ side, common, seconds }) {
  const run = new Training(side, dataOf(common.data, common.noise, common.seed), common.seed);
  for (let i = 0; i < 60; i++) run.advance(true);
  const start = performance.now();
  let count = 0;
  while (performance.now() - start < 1000 * seconds) {
    run.advance(count % 8 === 0);
    count++;
  }
  return count / ((performance.now() - start) / 1000);
}

/** A view with lines put into it. */
export function merged({ view, lines }) {
  merge(view, lines);
  return view;
}

export const answers = (questions) => questions.map(({ ask, ...rest }) => ({ trained, names, normed, steps, rounded, scales, presets, choices, drawings, address, written, data, training, pace, merged })[ask](rest));
