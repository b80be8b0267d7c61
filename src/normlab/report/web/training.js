/** One network in training: batches, warm-up, what is measured on the way, and where it ended if it diverged. */

import { Network, crossEntropy, length } from "./network.js";
import { uniform } from "./random.js";

/** @typedef {import("./settings.js").Side} Side */
/**
 * @typedef {object} Depths What was measured at the last step; entry 0 is the input of the first block.
 * @property {number[]} stream rms after each block
 * @property {number[]} gradient |dL/d(stream)|
 * @property {number[]} angle by block, as a share of half a turn
 * @property {number} effective (sum of angles)^2 / sum of angles^2: blocks that turn the stream
 * @property {number[]} meanDistance by norm: mean over features of |running mean - batch mean| / batch deviation
 * @property {number[]} deviationDistance mean over features of |running deviation / batch deviation - 1|
 */

export const EVERY = 10; // steps between held-out evaluations

export class Training {
  /**
   * @param {Side} side
   * @param {import("./datasets.js").Data} data
   * @param {number} seed
   */
  constructor(side, data, seed) {
    this.side = side;
    this.data = data;
    this.network = new Network({ norm: side.norm, placement: side.placement, depth: side.depth, width: side.width, classes: data.classes, eps: side.eps }, seed);
    this.draw = uniform(seed, 21);
    this.points = new Float64Array(2 * side.batch);
    this.labels = new Uint8Array(side.batch);
    /** @type {number[]} */
    this.losses = []; // of every step
    /** @type {{step: number, loss: number, accuracy: number}[]} */
    this.heldOut = [];
    /** @type {number | null} */
    this.divergedAt = null;
    this.evaluate();
    this.choose(uniform(seed, 22)); // a batch of its own: measuring the start leaves the batches of the training as they are
    this.network.forward(this.points, true);
    this.network.backward(this.points, this.labels);
    this.depths = this.measure();
  }

  get step() {
    return this.losses.length;
  }

  /** The learning rate of the next step. */
  get rate() {
    const { rate, warmup } = this.side;
    return warmup > 0 ? rate * Math.min(1, (this.step + 1) / warmup) : rate;
  }

  /** @param {boolean} measured whether to fill depths */
  advance(measured) {
    if (this.divergedAt !== null) return;
    const { batch, optimizer } = this.side;
    this.choose(this.draw);
    this.network.forward(this.points, true);
    const loss = this.network.backward(this.points, this.labels);
    // What float32 cannot hold would have been lost there, too.
    if (!Number.isFinite(Math.fround(loss))) {
      this.divergedAt = this.step + 1;
      return;
    }
    if (measured) this.depths = this.measure();
    this.network.follow(batch);
    this.network.update({ optimizer, rate: this.rate });
    this.losses.push(loss);
    if (this.step % EVERY === 0) this.evaluate();
  }

  /** @param {() => number} draw */
  choose(draw) {
    const { points, labels } = this.data.train;
    for (let i = 0; i < this.labels.length; i++) {
      const at = Math.floor(draw() * labels.length);
      this.points[2 * i] = points[2 * at];
      this.points[2 * i + 1] = points[2 * at + 1];
      this.labels[i] = labels[at];
    }
  }

  /** Held-out loss and accuracy, with running statistics where there are any. */
  evaluate() {
    const { points, labels } = this.data.heldOut, { classes } = this.data;
    const logits = this.network.forward(points, false);
    let right = 0;
    for (let r = 0; r < labels.length; r++) if (best(logits, r * classes, classes) === labels[r]) right++;
    this.heldOut.push({ step: this.step, loss: crossEntropy(logits, labels, classes, null), accuracy: right / labels.length });
  }

  /** @returns {Depths} */
  measure() {
    const { batch, width } = this.side, m = this.network.memory(batch), cells = batch * width;
    const streams = [m.start, ...m.blocks.map((b) => b.out)];
    const angle = m.blocks.map((b, l) => meanAngle(streams[l], b.out, width));
    const turns = angle.reduce((a, b) => a + b, 0), squares = angle.reduce((a, b) => a + b * b, 0);
    /** @type {number[]} */
    const meanDistance = [], deviationDistance = [];
    if (this.side.norm === "batch")
      for (const { norm, kept } of this.network.normsWith(batch)) {
        let mean = 0, deviation = 0;
        for (let j = 0; j < width; j++) {
          const spread = Math.sqrt(kept.square[j] + this.side.eps);
          mean += Math.abs(norm.mean[j] - kept.mean[j]) / spread / width;
          deviation += Math.abs(Math.sqrt(norm.square[j] + this.side.eps) / spread - 1) / width;
        }
        meanDistance.push(mean);
        deviationDistance.push(deviation);
      }
    return {
      stream: streams.map((x) => length(x) / Math.sqrt(cells)), gradient: [...m.gradients], angle,
      effective: turns ** 2 / (squares + 1e-30), meanDistance, deviationDistance,
    };
  }

  /**
   * The most likely class of points, and how likely it is.
   * @param {Float64Array} points
   * @returns {{label: number, sure: number}[]}
   */
  classify(points) {
    const { classes } = this.data, logits = this.network.forward(points, false);
    return Array.from({ length: points.length / 2 }, (_, r) => {
      const at = r * classes, label = best(logits, at, classes);
      let sum = 0;
      for (let c = 0; c < classes; c++) sum += Math.exp(logits[at + c] - logits[at + label]);
      return { label, sure: 1 / sum };
    });
  }
}

/**
 * @param {Float64Array} logits
 * @param {number} at
 * @param {number} classes
 */
function best(logits, at, classes) {
  let label = 0;
  for (let c = 1; c < classes; c++) if (logits[at + c] > logits[at + label]) label = c;
  return label;
}

/**
 * @param {Float64Array} before
 * @param {Float64Array} after
 * @param {number} width
 */
function meanAngle(before, after, width) {
  const rows = before.length / width;
  let sum = 0;
  for (let r = 0; r < before.length; r += width) {
    let dot = 0, a = 0, b = 0;
    for (let i = r; i < r + width; i++) {
      dot += before[i] * after[i];
      a += before[i] * before[i];
      b += after[i] * after[i];
    }
    sum += Math.acos(Math.max(-1, Math.min(1, dot / (Math.sqrt(a * b) + 1e-30)))) / Math.PI;
  }
  return sum / rows;
}
