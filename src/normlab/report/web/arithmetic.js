/**
 * The formulas of the page, once: normalization forward and backward, its moments step by step, and rounding to
 * narrow types. The playground, the number-by-number view and the sphere compute through this module and nowhere else;
 * tests hold it against kernels/reference.py and torch.
 *
 * As in the reference, batch, layer and RMS normalization are one operation over different sets of values. A layout says
 * which values of a flat array make up a set: set s holds the values s * setStep + i * cellStep, for i below size.
 */

/** @typedef {{sets: number, size: number, setStep: number, cellStep: number}} Layout */
/** @typedef {"none" | "batch" | "layer" | "rms"} NormName */

/**
 * The sets of a norm over a matrix of rows (samples or tokens) and columns (features).
 * @param {NormName} norm
 * @param {number} rows
 * @param {number} width
 * @returns {Layout}
 */
export function layoutOf(norm, rows, width) {
  return norm === "batch"
    ? { sets: width, size: rows, setStep: 1, cellStep: width }
    : { sets: rows, size: width, setStep: width, cellStep: 1 };
}

/**
 * xhat = (x - mean) / sqrt(square + eps) set by set; mean and square are written too.
 * @param {Float64Array} x
 * @param {Float64Array} xhat
 * @param {Layout} layout
 * @param {boolean} centered without it the mean is left at 0 and square is the mean of the squares
 * @param {number} eps
 * @param {Float64Array} mean
 * @param {Float64Array} square
 */
export function normalize(x, xhat, layout, centered, eps, mean, square) {
  const { sets, size, setStep, cellStep } = layout;
  for (let s = 0; s < sets; s++) {
    const start = s * setStep, end = start + size * cellStep;
    let sum = 0;
    if (centered) for (let i = start; i < end; i += cellStep) sum += x[i];
    const middle = sum / size;
    let squares = 0;
    for (let i = start; i < end; i += cellStep) squares += (x[i] - middle) * (x[i] - middle);
    mean[s] = middle;
    square[s] = squares / size;
    const inverse = 1 / Math.sqrt(square[s] + eps);
    for (let i = start; i < end; i += cellStep) xhat[i] = (x[i] - middle) * inverse;
  }
}

/**
 * The same with given statistics, as BatchNorm does outside of training.
 * @param {Float64Array} x
 * @param {Float64Array} xhat
 * @param {Layout} layout
 * @param {number} eps
 * @param {Float64Array} mean
 * @param {Float64Array} square
 */
export function normalizeGiven(x, xhat, layout, eps, mean, square) {
  const { sets, size, setStep, cellStep } = layout;
  for (let s = 0; s < sets; s++) {
    const inverse = 1 / Math.sqrt(square[s] + eps), start = s * setStep, end = start + size * cellStep;
    for (let i = start; i < end; i += cellStep) xhat[i] = (x[i] - mean[s]) * inverse;
  }
}

/**
 * dx = (g - mean(g) - xhat * mean(g * xhat)) / sqrt(square + eps), set by set; without centering mean(g) is left out.
 * @param {Float64Array} g gradient of xhat
 * @param {Float64Array} xhat
 * @param {Float64Array} dx
 * @param {Layout} layout
 * @param {boolean} centered
 * @param {number} eps
 * @param {Float64Array} square
 */
export function normalizeBackward(g, xhat, dx, layout, centered, eps, square) {
  const { sets, size, setStep, cellStep } = layout;
  for (let s = 0; s < sets; s++) {
    const start = s * setStep, end = start + size * cellStep;
    let straight = 0, along = 0;
    for (let i = start; i < end; i += cellStep) {
      straight += g[i];
      along += g[i] * xhat[i];
    }
    straight = centered ? straight / size : 0;
    along /= size;
    const inverse = 1 / Math.sqrt(square[s] + eps);
    for (let i = start; i < end; i += cellStep) dx[i] = (g[i] - straight - xhat[i] * along) * inverse;
  }
}

/** @typedef {"two-pass" | "uncentered" | "one-pass"} VarianceRule */
/** @typedef {"float64" | "float32" | "float16" | "bfloat16"} Precision */

/**
 * @typedef {object} Steps One set, step by step.
 * @property {number} count
 * @property {number} sum
 * @property {number} mean
 * @property {number[]} deviations
 * @property {number} variance what the chosen rule takes for the variance (RMS: the mean of the squares)
 * @property {number} root sqrt(variance + eps)
 * @property {number[]} normalized
 * @property {number[]} out
 */

/**
 * Every step of one set's normalization, each rounded to a type, sums included: what a kernel does that accumulates in it.
 * Rules for the variance: two-pass is right; one-pass (mean of squares minus square of the mean) cancels; uncentered
 * forgets the mean altogether.
 * @param {number[]} values
 * @param {{centered: boolean, eps: number, gain?: number[], bias?: number[], rule?: VarianceRule, precision?: Precision}} how
 * @returns {Steps}
 */
export function stepsOf(values, { centered, eps, gain, bias, rule = "two-pass", precision = "float64" }) {
  const round = ROUND[precision], n = values.length;
  const x = values.map(round);
  const total = (/** @type {number[]} */ list) => list.reduce((sum, v) => round(sum + v), 0);
  const sum = total(x);
  const mean = centered ? round(sum / n) : 0;
  const deviations = x.map((v) => round(v - mean));
  const squares = total((rule === "two-pass" ? deviations : x).map((v) => round(v * v)));
  let variance = round(squares / n);
  if (centered && rule === "one-pass") variance = round(variance - round(mean * mean));
  const root = round(Math.sqrt(round(variance + eps)));
  const normalized = deviations.map((v) => round(v / root));
  const out = normalized.map((v, i) => round(round(v * (gain ? gain[i] : 1)) + (bias ? bias[i] : 0)));
  return { count: n, sum, mean, deviations, variance, root, normalized, out };
}

/**
 * To the nearest value of a binary type with this many bits of fraction and this range, ties to even.
 * @param {number} x
 * @param {number} bits
 * @param {number} lowest exponent of the smallest normal number
 * @param {number} highest exponent of the largest number
 */
function narrowed(x, bits, lowest, highest) {
  if (x === 0 || !Number.isFinite(x)) return x;
  const exponent = Math.max(lowest, Math.floor(Math.log2(Math.abs(x))));
  // log2 of a value just below a power of two may round up to it: the step would be twice too wide.
  const exact = Math.abs(x) < 2 ** exponent ? Math.max(lowest, exponent - 1) : exponent;
  const step = 2 ** (exact - bits), units = Math.abs(x) / step, below = Math.floor(units), rest = units - below;
  const nearest = rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
  const value = nearest * step;
  return Math.sign(x) * (value >= 2 ** (highest + 1) ? Infinity : value);
}

/** @type {Record<Precision, (x: number) => number>} */
export const ROUND = {
  float64: (x) => x,
  float32: Math.fround,
  float16: (x) => narrowed(x, 10, -14, 15),
  bfloat16: (x) => narrowed(x, 7, -126, 127),
};
