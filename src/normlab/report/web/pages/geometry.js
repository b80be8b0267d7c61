/** Geometry: how long and how alike tokens are after the norms of a run, and who is near whom where that was asked. */

import { choice, h, menu, number, s, slider } from "../elements.js";
import { gaps, overSteps, panel, quantity, sentences, silence, whose } from "../panels.js";

const SHOWN = ["length", "length_spread", "anisotropy", "mean_angle", "kurtosis_out", "neighbours_kept"];
const FORMS = ["before", "plain", "after"];
const FAINT = 40, SIDE = 380;

/** Outlives a change of language and newer data. */
const state = { site: "", snapshot: -1, form: "after", token: 0 };

/** @param {any} view */
const present = (view) => SHOWN.filter((name) => quantity(view, name));
/** @param {any} view */
const sites = (view) => [...new Set(present(view).flatMap((name) => quantity(view, name)?.sites ?? []))];

/**
 * A token as text: its byte where the task counts bytes, else its number.
 * @param {any} view
 * @param {any} snapshot
 * @param {number} i
 */
function token(view, snapshot, i) {
  const id = snapshot.tokens?.[i];
  if (id === undefined) return `#${i + 1}`;
  return view.token_bytes && id > 32 && id < 127 ? `“${String.fromCharCode(id)}”` : `#${id}`;
}

/**
 * Tokens on their first two principal axes; the chosen one and its nearest stand out.
 * @param {any} view
 * @param {any} snapshot
 * @param {any} cloud
 * @param {number} chosen
 * @param {string} label
 */
function map(view, snapshot, cloud, chosen, label) {
  const reach = Math.max(1e-9, ...cloud.points.flatMap((/** @type {number[]} */ p) => [Math.abs(p[0]), Math.abs(p[1])])) * 1.1;
  const at = (/** @type {number} */ v) => SIDE / 2 + (v / reach) * (SIDE / 2);
  const near = cloud.near[chosen] ?? [];
  const all = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, class: "cloud", role: "img", "aria-label": label });
  all.append(s("path", { class: "axis-line", d: `M0 ${SIDE / 2}H${SIDE}M${SIDE / 2} 0V${SIDE}` }));
  const place = (/** @type {number} */ i) => ({ x: at(cloud.points[i][0]), y: SIDE - at(cloud.points[i][1]) });
  for (const i of near) {
    const from = place(chosen), to = place(i);
    all.append(s("path", { class: "tie", d: `M${from.x} ${from.y}L${to.x} ${to.y}` }));
  }
  cloud.points.forEach((/** @type {number[]} */ _, /** @type {number} */ i) => {
    const { x, y } = place(i), kind = i === chosen ? "chosen" : near.includes(i) ? "near" : "";
    all.append(s("circle", { class: `token ${kind}`, cx: x, cy: y, r: kind ? 6 : 3.5 }));
    if (kind) all.append(s("text", { x: Math.min(x + 9, SIDE - 34), y: Math.max(12, y - 7) }, token(view, snapshot, i)));
  });
  return all;
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, { t, data, follow }) {
  root.append(h("div", { class: "intro" }, h("h1", {}, t("geometry.title")), h("p", { class: "lead" }, t("geometry.lead"))));
  const names = present(data), all = sites(data);
  if (!names.length) root.append(silence(t("geometry.none")));
  if (!all.includes(state.site)) state.site = all[all.length - 1] ?? "";
  const panels = names.map((name) => ({ name, drawn: panel(t, t(`quantity.${name}`)) }));
  let view = data;
  const draw = () => panels.forEach(({ name, drawn }) => {
    const of = quantity(view, name);
    if (!of) return;
    const faint = of.sites.filter((other) => other !== state.site).slice(0, FAINT).map((other) => ({ name: "", kind: "a", faint: true, points: overSteps(of, other) }));
    const points = overSteps(of, state.site);
    drawn.draw({ lines: [...faint, { name: "", kind: "a", points, label: state.site }], x: t("step"), y: t(`quantity.${name}.axis`), yRange: [0, 0] },
      sentences(t(`geometry.${name}`), points.length ? t("geometry.read", { site: state.site, first: number(points[0][1]), last: number(points[points.length - 1][1]) }) : t("stats.absent", { site: state.site }), faint.length ? t("stats.faint") : "", whose(t, view), gaps(t, of)));
  });
  if (all.length) root.append(h("div", { class: "row" }, menu(t("stats.norm"), all.map((site) => ({ value: site, text: site })), state.site, (site) => { state.site = site; draw(); })));
  root.append(h("div", { class: "charts" }, ...panels.map(({ drawn }) => drawn.element)));
  draw();
  follow((newer) => { view = newer; draw(); });

  root.append(h("h2", {}, t("geometry.tokens")));
  const snapshots = data.snapshots;
  if (!snapshots.length) {
    root.append(silence(t("geometry.tokens.none")));
    return () => {};
  }
  if (!snapshots[state.snapshot]) state.snapshot = snapshots.length - 1;
  const controls = h("div", { class: "row" }), stage = h("div", { class: "split" });
  const show = () => {
    const snapshot = snapshots[state.snapshot], count = snapshot.before.points.length;
    state.token = Math.min(state.token, count - 1);
    const cloud = snapshot[state.form], names = (/** @type {string} */ form) => (snapshot[form].near[state.token] ?? []).map((/** @type {number} */ i) => token(view, snapshot, i)).join(" ");
    const chosen = token(view, snapshot, state.token), near = t("geometry.near", { token: chosen, near: names(state.form) });
    stage.replaceChildren(
      h("figure", {}, h("h3", {}, t(`geometry.form.${state.form}`)), map(view, snapshot, cloud, state.token, near), h("figcaption", {}, t("geometry.map", { explained: cloud.explained === null ? "–" : number(100 * cloud.explained, 2), cosine: cloud.mean_cosine === null ? "–" : number(cloud.mean_cosine) }))),
      h("div", {}, h("p", { class: "reading", "aria-live": "polite" }, near), h("dl", {}, ...FORMS.flatMap((form) => [h("dt", {}, t(`geometry.form.${form}`)), h("dd", { translate: "no" }, names(form))]))));
  };
  controls.append(
    menu(t("geometry.snapshot"), snapshots.map((/** @type {any} */ one, /** @type {number} */ i) => ({ value: String(i), text: t("geometry.at", { site: one.site, step: one.step }) })), String(state.snapshot), (i) => { state.snapshot = Number(i); show(); }),
    choice(t("geometry.form"), FORMS.map((form) => ({ value: form, text: t(`geometry.form.${form}`) })), state.form, (form) => { state.form = form; show(); }),
    slider(t("geometry.token"), snapshots[state.snapshot].before.points.map((/** @type {any} */ _, /** @type {number} */ i) => i), state.token, (i) => token(view, snapshots[state.snapshot], i), (i) => { state.token = i; show(); }));
  root.append(controls, stage);
  show();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const geometry = { id: "run-geometry", mount, shape: (view) => JSON.stringify([sites(view), view.snapshots.length]) };
