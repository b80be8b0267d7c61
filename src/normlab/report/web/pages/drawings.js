/**
 * What stands where in each placement, as data for the drawings. Tests compute with it and compare with the package's classes.
 */

/**
 * @typedef {object} Part One residual sum.
 * @property {string} name of the sub-layer: S any, A attention, F feed-forward
 * @property {boolean} [before] a norm in front of the sub-layer
 * @property {boolean} [inside] a norm before the sub-layer's last matrix
 * @property {boolean} [after] a norm on the branch, after the sub-layer
 * @property {boolean} [post] a norm after the sum
 * @property {string} [weight] factor of the stream
 * @property {string} [gate] factor of the branch
 * @property {string} [scale] factor of the norm in front
 * @property {string} [note] key of a text beside it
 */
/**
 * @typedef {{parts: Part[], start?: boolean, end?: boolean, second?: boolean, bridge?: boolean, once?: boolean}} Drawing
 * second: another stream, of the branches alone; bridge: the input once more; once: not one block that is repeated
 */

/** @type {Record<string, Drawing>} */
export const DRAWINGS = {
  none: { parts: [{ name: "S" }] },
  post: { parts: [{ name: "S", post: true }] },
  pre: { parts: [{ name: "S", before: true }], end: true },
  deepnorm: { parts: [{ name: "S", post: true, weight: "× a" }] },
  sandwich: { parts: [{ name: "S", before: true, after: true }], end: true },
  peri: { parts: [{ name: "S", before: true, after: true }], start: true, end: true },
  "sub-ln": { parts: [{ name: "S′", before: true, inside: true }], end: true },
  normformer: { parts: [{ name: "A", before: true, after: true }, { name: "F′", before: true, inside: true }], end: true },
  "residual-dual": { parts: [{ name: "S", post: true }], second: true },
  b2t: { parts: [{ name: "A", post: true }, { name: "F", post: true }], bridge: true },
  "mix-ln": { parts: [{ name: "S", post: true, note: "places.lower" }, { name: "S", before: true, note: "places.upper" }], end: true, once: true },
  "hybrid-norm": { parts: [{ name: "A", post: true, note: "places.qkv" }, { name: "F" }], end: true },
  "layernorm-scaling": { parts: [{ name: "S", before: true, scale: " / √l" }], end: true },
  reordered: { parts: [{ name: "S", after: true }], end: true },
  admin: { parts: [{ name: "S", post: true, weight: "× w" }] },
  rezero: { parts: [{ name: "S", gate: "× a" }] },
};
