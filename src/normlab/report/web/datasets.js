/** Points of the plane in two or three classes, drawn from a seed; all within about -1 to 1. */

import { normal, uniform } from "./random.js";

/** @typedef {{points: Float64Array, labels: Uint8Array}} Sample */
/** @typedef {{train: Sample, heldOut: Sample, classes: number}} Data */
/** @typedef {(draw: () => number, label: number) => [number, number]} Shape */

/** @type {Record<string, {classes: number, shape: Shape}>} */
export const DATASETS = {
  spiral: { classes: 2, shape: arm(2, 1.25) },
  spiral3: { classes: 3, shape: arm(3, 0.85) },
  rings: {
    classes: 2,
    shape: (draw, label) => polar((label ? 0.85 : 0.4) + 0.1 * (draw() - 0.5), 2 * Math.PI * draw()),
  },
  moons: {
    classes: 2,
    shape: (draw, label) => {
      const [x, y] = polar(0.62, Math.PI * draw());
      return label ? [0.31 - x, 0.16 - y] : [x - 0.31, y - 0.16];
    },
  },
  board: {
    classes: 2,
    shape: (draw, label) => {
      for (;;) {
        const x = draw(), y = draw();
        if ((Math.floor(x * 4) + Math.floor(y * 4)) % 2 === label) return [1.8 * x - 0.9, 1.8 * y - 0.9];
      }
    },
  },
};

/**
 * @param {number} radius
 * @param {number} angle
 * @returns {[number, number]}
 */
function polar(radius, angle) {
  return [radius * Math.cos(angle), radius * Math.sin(angle)];
}

/**
 * @param {number} arms
 * @param {number} turns
 * @returns {Shape}
 */
function arm(arms, turns) {
  return (draw, label) => {
    const t = 0.08 + 0.92 * Math.sqrt(draw());
    return polar(0.95 * t, 2 * Math.PI * (turns * t + label / arms));
  };
}

/**
 * @param {string} name
 * @param {number} noise standard deviation added to both coordinates
 * @param {number} seed
 * @param {number} [size] of the training part; as many are held out
 * @returns {Data}
 */
export function dataOf(name, noise, seed, size = 420) {
  const { classes, shape } = DATASETS[name];
  const part = (/** @type {number} */ stream) => {
    const draw = uniform(seed, stream), push = normal(draw);
    const points = new Float64Array(2 * size), labels = new Uint8Array(size);
    for (let i = 0; i < size; i++) {
      labels[i] = i % classes;
      const [x, y] = shape(draw, labels[i]);
      points[2 * i] = x + noise * push();
      points[2 * i + 1] = y + noise * push();
    }
    return { points, labels };
  };
  return { train: part(11), heldOut: part(12), classes };
}
