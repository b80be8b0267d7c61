/** Differences as intervals: a row for each, a point for its mean, a line for its interval, and the zero that decides. */

import { ticks } from "./charts.js";
import { h, number, s } from "./elements.js";

/** @typedef {{name: string, mean: number, low: number | null, high: number | null, decided: boolean}} Interval */

const ROW = 26, TOP = 22, RIGHT = 14;

/**
 * @param {number} narrow width of the names
 * @param {string} axis
 * @param {string} zero what stands at zero
 */
export function intervals(narrow, axis, zero) {
  const element = h("div", { class: "plot intervals" });
  /** @type {Interval[]} */
  let last = [];
  const draw = () => {
    const width = element.clientWidth;
    if (width < 80) return;
    const left = Math.min(narrow, width * 0.42), bottom = TOP + last.length * ROW, height = bottom + 34;
    // An interval far wider than the others would press them flat; it is drawn to the edge.
    const ends = last.flatMap((d) => [d.low ?? d.mean, d.high ?? d.mean, d.mean]), means = last.map((d) => d.mean), reach = 3 * Math.max(1e-12, ...means.map(Math.abs));
    const low = Math.max(Math.min(0, ...ends), -reach), high = Math.min(Math.max(0, ...ends), reach), wide = high - low || 1;
    const px = (/** @type {number} */ v) => left + ((Math.min(Math.max(v, low), high) - low) / wide) * (width - RIGHT - left);
    const all = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
    const axes = s("g", { class: "axis" });
    for (const v of ticks(low, high, width < 500 ? 3 : 6)) axes.append(s("line", { x1: px(v), x2: px(v), y1: TOP - 4, y2: bottom }), s("text", { x: px(v), y: bottom + 14, "text-anchor": "middle" }, number(v)));
    axes.append(s("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end", class: "name" }, axis), s("text", { x: px(0), y: 12, "text-anchor": px(0) > width / 2 ? "end" : "start", class: "name", translate: "no" }, zero));
    all.append(axes, s("line", { class: "zero", x1: px(0), x2: px(0), y1: TOP - 4, y2: bottom }));
    last.forEach((d, i) => {
      const y = TOP + i * ROW + ROW / 2, kind = d.decided ? (d.mean < 0 ? "better" : "worse") : "open";
      all.append(s("text", { x: 0, y: y + 4, translate: "no" }, d.name.length > left / 7 ? `${d.name.slice(0, Math.floor(left / 7) - 1)}…` : d.name));
      if (d.low !== null && d.high !== null) all.append(s("path", { class: `whisker ${kind}`, d: `M${px(d.low)} ${y}H${px(d.high)}M${px(d.low)} ${y - 5}v10M${px(d.high)} ${y - 5}v10` }));
      all.append(s("circle", { class: `middle ${kind}`, cx: px(d.mean), cy: y, r: 4.5 }));
    });
    element.replaceChildren(all);
  };
  new ResizeObserver(draw).observe(element);
  return { element, draw: (/** @type {Interval[]} */ rows) => { last = rows; draw(); } };
}
