/** Line charts in SVG: axes, lines told apart by color, dash and a letter at their end, and a mark where one broke off. */

import { h, number, s } from "./elements.js";

/**
 * @typedef {object} Line
 * @property {string} name the letter at its end
 * @property {string} kind a class of the style sheet: a, b or another
 * @property {(readonly [number, number])[]} points
 * @property {boolean} [broken] marked with a cross at its end
 * @property {boolean} [faint]
 * @property {(readonly [number, number, number])[]} [band] x, lowest, highest
 * @property {string} [label] its name in the reading under the pointer; without one it is not read
 */
/**
 * @typedef {object} Chart
 * @property {Line[]} lines
 * @property {string} x label
 * @property {string} y label
 * @property {boolean} [log] of the vertical axis
 * @property {number[]} [across] horizontal lines for comparison
 * @property {[number, number]} [xRange]
 * @property {[number, number]} [yRange] at least this much is shown (log: not used)
 * @property {number} [top] values above it are cut off
 * @property {(readonly [number, number])[]} [spans] windows on the horizontal axis
 * @property {number} [mark] a vertical line
 * @property {boolean} [whole] the horizontal axis counts
 */

const EDGE = { left: 52, right: 22, top: 26, bottom: 34 };

export class Plot {
  /** @param {number} height */
  constructor(height) {
    this.height = height;
    this.element = h("div", { class: "plot" });
    /** @type {Chart | null} */
    this.last = null;
    this.watcher = new ResizeObserver(() => this.last && this.draw(this.last));
    this.watcher.observe(this.element);
    this.element.addEventListener("pointermove", (event) => this.read(event));
    this.element.addEventListener("pointerleave", () => this.element.querySelector(".under")?.remove());
  }

  /** @param {Chart} chart */
  draw(chart) {
    this.last = chart;
    const width = this.element.clientWidth;
    if (width < 80) return;
    this.scale = scales(chart, width, this.height);
    this.element.replaceChildren(drawn(chart, width, this.height, this.scale));
  }

  /**
   * The values under the pointer; whoever has none finds them in the table below the figure.
   * @param {PointerEvent} event
   */
  read(event) {
    this.element.querySelector(".under")?.remove();
    const lines = this.last?.lines.filter((line) => line.label && line.points.length) ?? [], scale = this.scale;
    if (!lines.length || !scale) return;
    const frame = this.element.getBoundingClientRect(), at = scale.x(event.clientX - frame.left);
    const near = (/** @type {Line} */ line) => line.points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
    const x = lines.map((line) => near(line)[0]).reduce((best, now) => (Math.abs(now - at) < Math.abs(best - at) ? now : best));
    const rows = lines.map((line) => ({ line, point: near(line) })).filter(({ point }) => point[0] === x);
    const left = scale.px(x), box = h("div", { class: `under${left > frame.width / 2 ? " left" : ""}`, "aria-hidden": "true" }, h("b", {}, `${this.last?.x} ${number(x, 6)}`),
      ...rows.map(({ line, point }) => h("span", { class: line.kind }, `${line.label} ${number(point[1], 4)}`)));
    box.style.left = `${left}px`;
    this.element.append(box);
  }
}

/**
 * From numbers to places on the drawing, and back.
 * @param {Chart} chart
 * @param {number} width
 * @param {number} height
 */
function scales(chart, width, height) {
  const all = chart.lines.flatMap((line) => [...line.points, ...(line.band ?? []).flatMap(([x, low, high]) => /** @type {[number, number][]} */ ([[x, low], [x, high]]))].filter((point) => usable(chart, point)));
  const xs = chart.xRange ?? [all.reduce((least, p) => Math.min(least, p[0]), 0), all.reduce((most, p) => Math.max(most, p[0]), 1)];
  const [low, high] = vertical([...all.map((p) => p[1]), ...(chart.across ?? [])], chart);
  const right = width - EDGE.right, bottom = height - EDGE.bottom, wide = xs[1] - xs[0] || 1;
  const scale = (/** @type {number} */ y) => (chart.log ? Math.log10(y) : y);
  return {
    xs, low, high, right, bottom,
    px: (/** @type {number} */ x) => EDGE.left + ((x - xs[0]) / wide) * (right - EDGE.left),
    x: (/** @type {number} */ px) => xs[0] + ((px - EDGE.left) / (right - EDGE.left)) * wide,
    py: (/** @type {number} */ y) => bottom - ((scale(Math.min(Math.max(y, chart.log ? 1e-300 : low), chart.top ?? Infinity)) - low) / (high - low || 1)) * (bottom - EDGE.top),
  };
}

/**
 * @param {Chart} chart
 * @param {readonly [number, number]} point
 */
const usable = (chart, [x, y]) => Number.isFinite(x) && Number.isFinite(y) && (!chart.log || y > 0);

/**
 * @param {Chart} chart
 * @param {number} width
 * @param {number} height
 * @param {ReturnType<typeof scales>} scale
 */
function drawn(chart, width, height, { xs, low, high, right, bottom, px, py }) {
  const across = chart.across ?? [];
  const root = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true", focusable: "false" });
  const axes = s("g", { class: "axis" });
  for (const y of chart.log ? decades(low, high) : ticks(low, high, 4)) {
    const at = py(y);
    axes.append(s("line", { x1: EDGE.left, x2: right, y1: at, y2: at }), s("text", { x: EDGE.left - 6, y: at + 4, "text-anchor": "end" }, number(y)));
  }
  for (const x of ticks(xs[0], xs[1], width < 420 ? 4 : 6).filter((v) => !chart.whole || Number.isInteger(v))) axes.append(s("text", { x: px(x), y: bottom + 15, "text-anchor": "middle" }, number(x, 4)));
  axes.append(s("text", { x: right, y: height - 4, "text-anchor": "end", class: "name" }, chart.x), s("text", { x: 0, y: 11, class: "name" }, chart.y));
  root.append(axes);
  for (const [first, last] of chart.spans ?? []) {
    const left = Math.max(px(first), EDGE.left), wide = Math.max(3, Math.min(px(last), right) - left);
    root.append(s("rect", { class: "span", x: left, y: EDGE.top, width: wide, height: bottom - EDGE.top }));
  }
  if (chart.mark !== undefined) root.append(s("line", { class: "mark-line", x1: px(chart.mark), x2: px(chart.mark), y1: EDGE.top, y2: bottom }));
  for (const y of across) root.append(s("line", { class: "across", x1: EDGE.left, x2: right, y1: py(y), y2: py(y) }));
  for (const { band, kind } of chart.lines)
    if (band?.length) {
      const edge = (/** @type {1 | 2} */ side) => band.map((b) => `${px(b[0]).toFixed(1)} ${py(b[side]).toFixed(1)}`);
      root.append(s("path", { class: `band ${kind}`, d: `M${[...edge(1), ...edge(2).reverse()].join("L")}z` }));
    }
  /** @type {number[]} */
  const taken = [];
  for (const line of chart.lines) {
    const points = line.points.filter((point) => usable(chart, point));
    if (!points.length) continue;
    const path = points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    const [lastX, lastY] = points[points.length - 1];
    root.append(s("path", { class: `line ${line.kind}${line.faint ? " faint" : ""}`, d: path }));
    if (points.length === 1) root.append(s("circle", { class: `dot ${line.kind}`, cx: px(lastX), cy: py(lastY), r: 3 }));
    if (line.broken) root.append(s("path", { class: `cross ${line.kind}`, d: `M${px(lastX) - 5} ${py(lastY) - 5}l10 10m0 -10l-10 10` }));
    if (!line.faint && line.name) {
      let at = py(lastY) + 4;
      const away = at > height / 2 ? -1 : 1; // one direction only, or two letters could chase each other forever
      while (taken.some((other) => Math.abs(other - at) < 13)) at += away;
      taken.push(at);
      root.append(s("text", { class: `letter ${line.kind}`, x: px(lastX) + 7, y: at }, line.name));
    }
  }
  return root;
}

/**
 * The range of the vertical axis, in decades if it is logarithmic.
 * @param {number[]} values
 * @param {Chart} chart
 * @returns {[number, number]}
 */
function vertical(values, chart) {
  if (chart.log) {
    const powers = values.filter((v) => v > 0).map(Math.log10);
    if (!powers.length) return [-1, 1];
    const low = Math.min(...powers), high = Math.max(...powers), pad = Math.max(0.08 * (high - low), (1 - (high - low)) / 2);
    return [low - pad, high + pad]; // at least a decade: equal values are to look equal
  }
  const low = Math.min(...values, chart.yRange?.[0] ?? Infinity), high = Math.min(Math.max(...values, chart.yRange?.[1] ?? -Infinity), chart.top ?? Infinity);
  return Number.isFinite(low) && Number.isFinite(high) ? [low, high > low ? high + 0.04 * (high - low) : low + 1] : [0, 1];
}

/**
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw) ?? raw;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/**
 * @param {number} low
 * @param {number} high
 */
function decades(low, high) {
  const first = Math.ceil(low), last = Math.floor(high);
  if (last - first < 2)
    return [first - 1, first, last, last + 1].flatMap((power) => [1, 2, 5].map((m) => Number((m * 10 ** power).toPrecision(3))))
      .filter((v, i, all) => v >= 10 ** low && v <= 10 ** high && all.indexOf(v) === i);
  const step = Math.ceil((last - first + 1) / 5);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 10 ** (first + i * step));
}
