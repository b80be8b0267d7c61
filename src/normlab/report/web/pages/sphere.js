/**
 * On the sphere: vectors of three features before and after LayerNorm and RMSNorm, to be turned by hand. LayerNorm puts them on
 * a circle in the plane of mean 0, RMSNorm on a sphere, both of radius sqrt(3); a gain makes it an ellipse, a bias moves it.
 */

import { layoutOf, normalize } from "../arithmetic.js";
import { choice, figure, h, menu, number, slider } from "../elements.js";
import { normal, uniform } from "../random.js";

const COUNT = 220, REACH = 3.3, SIZE = 460;
const GAINS = [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5], BIASES = [-1, -0.5, 0, 0.5, 1];
const EPS = [1e-5, 0.01, 0.1, 1];

/** A cloud away from the origin and longer in one direction than in the others. */
const POINTS = (() => {
  const draw = normal(uniform(4, 31)), found = new Float64Array(3 * COUNT);
  for (let i = 0; i < COUNT; i++) {
    const along = draw();
    found.set([0.7 + 0.9 * along + 0.5 * draw(), 0.2 + 0.5 * along + 0.6 * draw(), -0.1 - 0.4 * along + 0.5 * draw()], 3 * i);
  }
  return found;
})();

/** Outlives a change of language. */
const state = { norm: /** @type {"none" | "layer" | "rms"} */ ("layer"), gain: [1, 1, 1], bias: [0, 0, 0], eps: 1e-5, turn: -0.35, tilt: 0.3 };

/** @param {Float64Array} x @returns {Float64Array} through the chosen norm, gain and bias */
function through(x) {
  const rows = x.length / 3, xhat = Float64Array.from(x);
  if (state.norm !== "none") normalize(x, xhat, layoutOf(state.norm, rows, 3), state.norm === "layer", state.eps, new Float64Array(rows), new Float64Array(rows));
  return placed(xhat);
}

/** @param {Float64Array} xhat */
function placed(xhat) {
  return xhat.map((v, i) => v * state.gain[i % 3] + (state.norm === "rms" ? 0 : state.bias[i % 3]));
}

/** Where normalized vectors can lie: circles, as lists of points. @returns {Float64Array[]} */
function guides() {
  const radius = Math.sqrt(3), around = Array.from({ length: 73 }, (_, i) => (2 * Math.PI * i) / 72);
  const circle = (/** @type {number[]} */ u, /** @type {number[]} */ v, shift = [0, 0, 0], r = radius) => Float64Array.from(around.flatMap((a) => u.map((_, k) => r * (Math.cos(a) * u[k] + Math.sin(a) * v[k]) + shift[k])));
  if (state.norm === "layer") return [circle([1 / Math.SQRT2, -1 / Math.SQRT2, 0], [1 / Math.sqrt(6), 1 / Math.sqrt(6), -2 / Math.sqrt(6)])].map(placed);
  if (state.norm === "none") return [];
  const rings = [];
  for (let i = 0; i < 6; i++) rings.push(circle([Math.cos((i * Math.PI) / 6), Math.sin((i * Math.PI) / 6), 0], [0, 0, 1]));
  for (let i = -2; i <= 2; i++) rings.push(circle([1, 0, 0], [0, 1, 0], [0, 0, radius * Math.sin((i * Math.PI) / 6)], radius * Math.cos((i * Math.PI) / 6)));
  return rings.map(placed);
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t }) {
  const canvas = h("canvas", { width: 2 * SIZE, height: 2 * SIZE, tabindex: 0, role: "img", class: "space" });
  const shown = figure(t("sphere.figure"), canvas, "");
  const controls = h("div", { class: "row" });

  const project = (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ z) => {
    const ct = Math.cos(state.turn), st = Math.sin(state.turn), cp = Math.cos(state.tilt), sp = Math.sin(state.tilt);
    const right = ct * x - st * y, deep = st * x + ct * y;
    return { x: SIZE + (SIZE / REACH) * right, y: SIZE - (SIZE / REACH) * (cp * z - sp * deep), near: -(cp * deep + sp * z) };
  };
  const draw = () => {
    const on = canvas.getContext("2d"), style = getComputedStyle(canvas), color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    if (!on) return;
    on.clearRect(0, 0, canvas.width, canvas.height);
    on.font = "26px system-ui, sans-serif";
    const path = (/** @type {ArrayLike<number>} */ list) => {
      on.beginPath();
      for (let i = 0; i < list.length; i += 3) {
        const p = project(list[i], list[i + 1], list[i + 2]);
        if (i) on.lineTo(p.x, p.y);
        else on.moveTo(p.x, p.y);
      }
      on.stroke();
    };
    on.strokeStyle = color("--strong");
    on.fillStyle = color("--quiet");
    on.lineWidth = 2;
    [[2.6, 0, 0], [0, 2.6, 0], [0, 0, 2.6]].forEach((axis, k) => {
      path([0, 0, 0, ...axis]);
      const end = project(axis[0] * 1.08, axis[1] * 1.08, axis[2] * 1.08);
      on.fillText(`x${"₁₂₃"[k]}`, end.x - 12, end.y + 8);
    });
    if (state.norm === "layer") {
      // The plane of mean 0, as gain and bias leave it.
      on.save();
      on.globalAlpha = 0.1;
      on.fillStyle = color("--mark");
      on.beginPath();
      const [ring] = guides();
      for (let i = 0; i < ring.length; i += 3) {
        const p = project(ring[i] * 1.35 - 0.35 * state.bias[0], ring[i + 1] * 1.35 - 0.35 * state.bias[1], ring[i + 2] * 1.35 - 0.35 * state.bias[2]);
        on.lineTo(p.x, p.y);
      }
      on.fill();
      on.restore();
    }
    on.strokeStyle = color("--mark");
    on.lineWidth = state.norm === "layer" ? 2.5 : 1;
    guides().forEach(path);
    const now = through(POINTS), dots = Array.from({ length: COUNT }, (_, i) => ({ ...project(now[3 * i], now[3 * i + 1], now[3 * i + 2]), i })).sort((a, b) => a.near - b.near);
    for (const { x, y, near, i } of dots) {
      on.globalAlpha = 0.45 + 0.5 / (1 + Math.exp(-1.5 * near));
      on.fillStyle = color(`--class-${POINTS[3 * i] > 1.2 ? 1 : POINTS[3 * i + 1] > 0.2 ? 0 : 2}`);
      on.beginPath();
      on.arc(x, y, 6.5, 0, 2 * Math.PI);
      on.fill();
    }
    on.globalAlpha = 1;
    const lengths = Array.from({ length: COUNT }, (_, i) => Math.hypot(now[3 * i], now[3 * i + 1], now[3 * i + 2]));
    const means = Array.from({ length: COUNT }, (_, i) => Math.abs(now[3 * i] + now[3 * i + 1] + now[3 * i + 2]) / 3);
    const text = t(`sphere.read.${state.norm}`, { low: number(Math.min(...lengths)), high: number(Math.max(...lengths)), mean: number(Math.max(...means) < 1e-9 ? 0 : Math.max(...means), 2) });
    shown.say(`${text} ${t("sphere.turn")}`);
    canvas.setAttribute("aria-label", text);
  };
  const rebuild = () => {
    const again = (/** @type {Partial<typeof state>} */ part) => { Object.assign(state, part); draw(); };
    const axes = (/** @type {"gain" | "bias"} */ name, /** @type {number[]} */ values) => h("fieldset", { class: "triple" }, h("legend", {}, t(`sphere.${name}`)),
      ...[0, 1, 2].map((k) => slider(`${{ gain: "γ", bias: "β" }[name]}${"₁₂₃"[k]}`, values, state[name][k], (v) => number(v), (v) => again({ [name]: state[name].map((old, i) => (i === k ? v : old)) }))));
    controls.replaceChildren(
      choice(t("norm"), (/** @type {const} */ (["none", "layer", "rms"])).map((v) => ({ value: v, text: t(`norm.${v}`) })), state.norm, (v) => { again({ norm: /** @type {typeof state.norm} */ (v) }); rebuild(); }),
      ...(state.norm === "none" ? [] : [menu(t("eps"), EPS.map((v) => ({ value: String(v), text: number(v) })), String(state.eps), (v) => again({ eps: Number(v) }))]),
      axes("gain", GAINS), ...(state.norm === "rms" ? [] : [axes("bias", BIASES)]),
      h("button", { type: "button", click: () => { again({ gain: [1, 1, 1], bias: [0, 0, 0], eps: 1e-5 }); rebuild(); } }, t("reset")));
  };

  let from = { x: 0, y: 0, on: false };
  canvas.addEventListener("pointerdown", (e) => { from = { x: e.clientX, y: e.clientY, on: true }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", (e) => {
    if (!from.on) return;
    state.turn += (e.clientX - from.x) / 140;
    state.tilt = Math.max(-1.5, Math.min(1.5, state.tilt + (e.clientY - from.y) / 140));
    from = { x: e.clientX, y: e.clientY, on: true };
    draw();
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { from.on = false; });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: [-0.12, 0], ArrowRight: [0.12, 0], ArrowUp: [0, -0.12], ArrowDown: [0, 0.12] }[e.key];
    if (!step) return;
    e.preventDefault();
    state.turn += step[0];
    state.tilt = Math.max(-1.5, Math.min(1.5, state.tilt + step[1]));
    draw();
  });
  root.append(h("div", { class: "intro" }, h("h1", {}, t("sphere.title")), h("p", { class: "lead" }, t("sphere.lead"))), controls,
    h("div", { class: "split" }, shown.element, h("section", { class: "notes" }, ...["layer", "rms", "gain", "unit"].map((name) => h("p", {}, t(`sphere.notes.${name}`))))));
  rebuild();
  draw();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const sphere = { id: "sphere", mount };
