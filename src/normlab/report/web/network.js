/**
 * The playground's network: points of the plane -> linear -> residual blocks -> linear -> cross entropy, with its
 * gradient and two optimizers, in plain loops over flat arrays. A block is S(u) = W2 relu(W1 u + b1) + b2 around a stream:
 *
 *     none       x + S(x)                  post       N(x + S(x))
 *     pre        x + S(N(x)); N at the end deepnorm   N(a x + S(x)), W1 and W2 start b times smaller
 *     sandwich   x + N(S(N(x))); N at the end
 *
 * Without a norm N is the identity. A layer of the DeepNet paper holds two sub-layers, a block here one: for its N layers
 * take depth / 2, so a = depth^(1/4) and b = (4 depth)^(-1/4).
 *
 * Weights are those of torch's Linear: (out, in). float64 throughout, so that a comparison with torch is not about rounding.
 */

import { layoutOf, normalize, normalizeBackward, normalizeGiven } from "./arithmetic.js";
import { normal, uniform } from "./random.js";

/** @typedef {"pre" | "post" | "deepnorm" | "sandwich"} PlacementName */
/** @typedef {{norm: import("./arithmetic.js").NormName, placement: PlacementName, depth: number, width: number, classes: number, eps: number}} Shape */
/** @typedef {{name: string, shape: number[], value: Float64Array, grad: Float64Array}} Parameter */
/** @typedef {{weight: Parameter | null, bias: Parameter | null, mean: Float64Array, square: Float64Array}} Norm running statistics in mean and square */
/** @typedef {{xhat: Float64Array, out: Float64Array, mean: Float64Array, square: Float64Array}} NormMemory */
/** @typedef {{before: NormMemory | null, after: NormMemory | null, input: Float64Array, hidden: Float64Array, branch: Float64Array, sum: Float64Array, out: Float64Array}} BlockMemory */

export const MOMENTUM = 0.1; // of running statistics, as in torch
const BETAS = [0.9, 0.999], ADAM_EPS = 1e-8;

/**
 * @param {number} depth
 * @returns {{alpha: number, beta: number}}
 */
export function deepnormScales(depth) {
  return { alpha: depth ** 0.25, beta: (4 * depth) ** -0.25 };
}

/**
 * y = x W^T + b for every row.
 * @param {Float64Array} x
 * @param {Float64Array} weight
 * @param {Float64Array} bias
 * @param {Float64Array} y
 * @param {number} rows
 * @param {number} inner
 * @param {number} outer
 */
function linear(x, weight, bias, y, rows, inner, outer) {
  for (let r = 0; r < rows; r++) {
    const at = r * inner;
    for (let o = 0; o < outer; o++) {
      let sum = bias[o];
      for (let i = 0, w = o * inner; i < inner; i++) sum += x[at + i] * weight[w + i];
      y[r * outer + o] = sum;
    }
  }
}

/**
 * Adds to the gradients of weight and bias; writes dx unless it is null.
 * @param {Float64Array} g
 * @param {Float64Array} x
 * @param {Parameter} weight
 * @param {Parameter} bias
 * @param {Float64Array | null} dx
 * @param {number} rows
 * @param {number} inner
 * @param {number} outer
 */
function linearBackward(g, x, weight, bias, dx, rows, inner, outer) {
  const W = weight.value, dW = weight.grad, db = bias.grad;
  for (let r = 0; r < rows; r++) {
    const at = r * inner;
    if (dx) dx.fill(0, at, at + inner);
    for (let o = 0; o < outer; o++) {
      const slope = g[r * outer + o], w = o * inner;
      if (slope === 0) continue;
      db[o] += slope;
      for (let i = 0; i < inner; i++) dW[w + i] += slope * x[at + i];
      if (dx) for (let i = 0; i < inner; i++) dx[at + i] += slope * W[w + i];
    }
  }
}

export class Network {
  /**
   * @param {Shape} shape
   * @param {number} seed
   */
  constructor(shape, seed) {
    const { norm, placement, depth, width, classes } = shape;
    this.shape = shape;
    this.alpha = placement === "deepnorm" ? deepnormScales(depth).alpha : 1;
    /** @type {[string, number[]][]} */
    const layout = [["input.weight", [width, 2]], ["input.bias", [width]]];
    const normed = (/** @type {string} */ name) => {
      if (norm === "none") return;
      layout.push([`${name}.weight`, [width]]);
      if (norm !== "rms") layout.push([`${name}.bias`, [width]]);
    };
    for (let l = 0; l < depth; l++) {
      normed(`blocks.${l}.norm`);
      for (const part of ["first", "second"]) layout.push([`blocks.${l}.${part}.weight`, [width, width]], [`blocks.${l}.${part}.bias`, [width]]);
      if (placement === "sandwich") normed(`blocks.${l}.after`);
    }
    this.hasEnd = placement === "pre" || placement === "sandwich";
    if (this.hasEnd) normed("final");
    layout.push(["output.weight", [classes, width]], ["output.bias", [classes]]);

    const size = layout.reduce((sum, [, s]) => sum + s.reduce((a, b) => a * b), 0);
    this.values = new Float64Array(size);
    this.grads = new Float64Array(size);
    this.first = new Float64Array(size); // Adam's moments
    this.second = new Float64Array(size);
    /** @type {Map<string, Parameter>} */
    this.parameters = new Map();
    let at = 0;
    for (const [name, dims] of layout) {
      const count = dims.reduce((a, b) => a * b);
      this.parameters.set(name, { name, shape: dims, value: this.values.subarray(at, at + count), grad: this.grads.subarray(at, at + count) });
      at += count;
    }
    this.steps = 0;
    this.started(seed);
    const normOf = (/** @type {string} */ name) => this.normCalled(name);
    this.blocks = Array.from({ length: depth }, (_, l) => ({
      norm: normOf(`blocks.${l}.norm`), after: placement === "sandwich" ? normOf(`blocks.${l}.after`) : null,
      W1: this.parameter(`blocks.${l}.first.weight`), b1: this.parameter(`blocks.${l}.first.bias`),
      W2: this.parameter(`blocks.${l}.second.weight`), b2: this.parameter(`blocks.${l}.second.bias`),
    }));
    this.final = this.hasEnd ? normOf("final") : null;
    /** @type {Map<number, Memory>} */
    this.memories = new Map();
  }

  /** @param {string} name */
  parameter(name) {
    const found = this.parameters.get(name);
    if (!found) throw new Error(name);
    return found;
  }

  /**
   * @param {string} name
   * @returns {Norm | null}
   */
  normCalled(name) {
    const { norm, width } = this.shape;
    if (norm === "none") return null;
    return { weight: this.parameter(`${name}.weight`), bias: this.parameters.get(`${name}.bias`) ?? null,
      mean: new Float64Array(width), square: new Float64Array(width).fill(1) };
  }

  /**
   * Xavier's normal initialization, biases 0, gains 1; DeepNorm's matrices in blocks beta times smaller.
   * @param {number} seed
   */
  started(seed) {
    const { placement, depth } = this.shape;
    const beta = placement === "deepnorm" ? deepnormScales(depth).beta : 1;
    for (const { name, shape, value } of this.parameters.values()) {
      const gain = /(norm|after|final)\.weight$/.test(name);
      if (shape.length === 1) {
        value.fill(gain ? 1 : 0);
        continue;
      }
      const scale = Math.sqrt(2 / (shape[0] + shape[1])) * (name.startsWith("blocks.") ? beta : 1);
      // A stream of random numbers for each matrix: the same weights in two networks that differ in their norms.
      const draw = normal(uniform(seed, [...name].reduce((h, c) => (Math.imul(h, 31) + c.charCodeAt(0)) | 0, 7)));
      for (let i = 0; i < value.length; i++) value[i] = draw() * scale;
    }
  }

  /**
   * @param {number} rows
   * @returns {Memory}
   */
  memory(rows) {
    let found = this.memories.get(rows);
    if (!found) this.memories.set(rows, (found = new Memory(rows, this)));
    return found;
  }

  /**
   * @param {Norm | null} norm
   * @param {NormMemory | null} kept
   * @param {Float64Array} x
   * @param {number} rows
   * @param {boolean} training
   * @returns {Float64Array}
   */
  applyNorm(norm, kept, x, rows, training) {
    if (!norm || !kept) return x;
    const { norm: kind, width, eps } = this.shape, layout = layoutOf(kind, rows, width);
    if (kind === "batch" && !training) normalizeGiven(x, kept.xhat, layout, eps, norm.mean, norm.square);
    else normalize(x, kept.xhat, layout, kind !== "rms", eps, kept.mean, kept.square);
    const gain = /** @type {Parameter} */ (norm.weight).value, shift = norm.bias && norm.bias.value;
    for (let i = 0, end = rows * width; i < end; i += width)
      for (let j = 0; j < width; j++) kept.out[i + j] = kept.xhat[i + j] * gain[j] + (shift ? shift[j] : 0);
    return kept.out;
  }

  /**
   * The gradient of a norm's input, in g's place.
   * @param {Norm | null} norm
   * @param {NormMemory | null} kept
   * @param {Float64Array} g
   * @param {number} rows
   */
  normBackward(norm, kept, g, rows) {
    if (!norm || !kept) return;
    const { norm: kind, width, eps } = this.shape;
    const weight = /** @type {Parameter} */ (norm.weight), gain = weight.value, dgain = weight.grad, dshift = norm.bias && norm.bias.grad;
    for (let i = 0, end = rows * width; i < end; i += width)
      for (let j = 0; j < width; j++) {
        dgain[j] += g[i + j] * kept.xhat[i + j];
        if (dshift) dshift[j] += g[i + j];
        g[i + j] *= gain[j];
      }
    normalizeBackward(g, kept.xhat, g, layoutOf(kind, rows, width), kind !== "rms", eps, kept.square);
  }

  /**
   * Logits (rows, classes); what backward needs stays in the memory for this number of rows.
   * @param {Float64Array} points (rows, 2)
   * @param {boolean} training batch statistics instead of running ones
   * @returns {Float64Array}
   */
  forward(points, training) {
    const { placement, width, classes } = this.shape, rows = points.length / 2, m = this.memory(rows);
    linear(points, this.parameter("input.weight").value, this.parameter("input.bias").value, m.start, rows, 2, width);
    /** @type {Float64Array} */
    let x = m.start;
    const normFirst = this.hasEnd;
    this.blocks.forEach((block, l) => {
      const kept = m.blocks[l];
      kept.input = normFirst ? this.applyNorm(block.norm, kept.before, x, rows, training) : x;
      linear(kept.input, block.W1.value, block.b1.value, kept.hidden, rows, width, width);
      for (let i = 0; i < kept.hidden.length; i++) if (kept.hidden[i] < 0) kept.hidden[i] = 0;
      linear(kept.hidden, block.W2.value, block.b2.value, kept.branch, rows, width, width);
      const branch = placement === "sandwich" ? this.applyNorm(block.after, kept.after, kept.branch, rows, training) : kept.branch;
      for (let i = 0; i < kept.sum.length; i++) kept.sum[i] = this.alpha * x[i] + branch[i];
      kept.out = normFirst ? kept.sum : this.applyNorm(block.norm, kept.before, kept.sum, rows, training);
      x = kept.out;
    });
    m.end = this.applyNorm(this.final, m.final, x, rows, training);
    linear(m.end, this.parameter("output.weight").value, this.parameter("output.bias").value, m.logits, rows, width, classes);
    return m.logits;
  }

  /**
   * Mean cross entropy and its gradient; gradients are set, not added. Also the size of the stream's gradient by depth.
   * @param {Float64Array} points
   * @param {Uint8Array} labels
   * @returns {number} the loss
   */
  backward(points, labels) {
    const { placement, width, classes } = this.shape, rows = labels.length, m = this.memory(rows);
    this.grads.fill(0);
    const loss = crossEntropy(m.logits, labels, classes, m.slope);
    const g = m.gradient, turned = m.turned;
    linearBackward(m.slope, m.end, this.parameter("output.weight"), this.parameter("output.bias"), g, rows, width, classes);
    this.normBackward(this.final, m.final, g, rows);
    for (let l = this.blocks.length - 1; l >= 0; l--) {
      const block = this.blocks[l], kept = m.blocks[l];
      m.gradients[l + 1] = length(g);
      if (!this.hasEnd) this.normBackward(block.norm, kept.before, g, rows);
      turned.set(g);
      if (placement === "sandwich") this.normBackward(block.after, kept.after, turned, rows);
      linearBackward(turned, kept.hidden, block.W2, block.b2, m.inner, rows, width, width);
      for (let i = 0; i < m.inner.length; i++) if (kept.hidden[i] <= 0) m.inner[i] = 0;
      linearBackward(m.inner, kept.input, block.W1, block.b1, turned, rows, width, width);
      if (this.hasEnd) this.normBackward(block.norm, kept.before, turned, rows);
      for (let i = 0; i < g.length; i++) g[i] = this.alpha * g[i] + turned[i];
    }
    m.gradients[0] = length(g);
    linearBackward(g, points, this.parameter("input.weight"), this.parameter("input.bias"), null, rows, 2, width);
    return loss;
  }

  /**
   * BatchNorm's running statistics take in the batch that was last seen in training, with the unbiased variance.
   * @param {number} rows
   */
  follow(rows) {
    if (this.shape.norm !== "batch") return;
    for (const { norm, kept } of this.normsWith(rows)) {
      for (let j = 0; j < norm.mean.length; j++) {
        norm.mean[j] += MOMENTUM * (kept.mean[j] - norm.mean[j]);
        norm.square[j] += MOMENTUM * ((kept.square[j] * rows) / (rows - 1) - norm.square[j]);
      }
    }
  }

  /**
   * Norms in the order of the stream, with what they remember of a batch of this size.
   * @param {number} rows
   * @returns {{norm: Norm, kept: NormMemory}[]}
   */
  normsWith(rows) {
    const m = this.memory(rows);
    /** @type {[Norm | null, NormMemory | null][]} */
    const pairs = this.blocks.flatMap((b, l) => /** @type {[Norm | null, NormMemory | null][]} */ ([[b.norm, m.blocks[l].before], [b.after, m.blocks[l].after]]));
    pairs.push([this.final, m.final]);
    return pairs.flatMap(([norm, kept]) => (norm && kept ? [{ norm, kept }] : []));
  }

  /**
   * @param {{optimizer: "sgd" | "adam", rate: number}} how
   */
  update({ optimizer, rate }) {
    const { values, grads, first, second } = this;
    this.steps += 1;
    if (optimizer === "sgd") {
      for (let i = 0; i < values.length; i++) values[i] -= rate * grads[i];
      return;
    }
    const size = rate / (1 - BETAS[0] ** this.steps), root = Math.sqrt(1 - BETAS[1] ** this.steps);
    for (let i = 0; i < values.length; i++) {
      const g = grads[i];
      first[i] += (1 - BETAS[0]) * (g - first[i]);
      second[i] += (1 - BETAS[1]) * (g * g - second[i]);
      values[i] -= (size * first[i]) / (Math.sqrt(second[i]) / root + ADAM_EPS);
    }
  }
}

/** What a network remembers of a batch with this many rows. */
class Memory {
  /**
   * @param {number} rows
   * @param {Network} network
   */
  constructor(rows, { shape: { norm, placement, depth, width, classes }, hasEnd }) {
    const cells = () => new Float64Array(rows * width);
    const sets = layoutOf(norm, rows, width).sets;
    /** @returns {NormMemory | null} */
    const kept = () => (norm === "none" ? null : { xhat: cells(), out: cells(), mean: new Float64Array(sets), square: new Float64Array(sets) });
    this.rows = rows;
    this.start = cells();
    /** @type {Float64Array} */
    this.end = this.start;
    /** @type {BlockMemory[]} */
    this.blocks = Array.from({ length: depth }, () => {
      const sum = cells();
      return { before: kept(), after: placement === "sandwich" ? kept() : null, input: this.start, hidden: cells(), branch: cells(), sum, out: sum };
    });
    this.final = hasEnd ? kept() : null;
    this.logits = new Float64Array(rows * classes);
    this.slope = new Float64Array(rows * classes);
    this.gradient = cells();
    this.turned = cells();
    this.inner = cells();
    this.gradients = new Float64Array(depth + 1); // |dL/d(stream)| at the start and after each block
  }
}

/**
 * @param {Float64Array} logits
 * @param {Uint8Array} labels
 * @param {number} classes
 * @param {Float64Array | null} slope gets the gradient of the mean
 * @returns {number}
 */
export function crossEntropy(logits, labels, classes, slope) {
  const rows = labels.length;
  let loss = 0;
  for (let r = 0; r < rows; r++) {
    const at = r * classes;
    let top = -Infinity, sum = 0;
    for (let c = 0; c < classes; c++) top = Math.max(top, logits[at + c]);
    for (let c = 0; c < classes; c++) sum += Math.exp(logits[at + c] - top);
    loss += top + Math.log(sum) - logits[at + labels[r]];
    if (slope) for (let c = 0; c < classes; c++) slope[at + c] = (Math.exp(logits[at + c] - top) / sum - (c === labels[r] ? 1 : 0)) / rows;
  }
  return loss / rows;
}

/** @param {Float64Array} x */
export function length(x) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * x[i];
  return Math.sqrt(sum);
}
