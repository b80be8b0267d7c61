/** Random numbers from a seed, the same in every browser. Math.random cannot be seeded. */

/** @typedef {() => number} Uniform numbers from 0 up to, not including, 1 */

/**
 * Mulberry32. Streams of one seed that serve different ends (data, weights, batches) get different names.
 * @param {number} seed
 * @param {number} stream
 * @returns {Uniform}
 */
export function uniform(seed, stream) {
  let state = (Math.imul(seed, 0x9e3779b1) ^ Math.imul(stream + 1, 0x85ebca6b)) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * Standard normal numbers (Box and Muller).
 * @param {Uniform} draw
 * @returns {() => number}
 */
export function normal(draw) {
  return () => Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());
}
