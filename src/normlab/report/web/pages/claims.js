/** Claims: what each says, how it came out, and every number beside the range that the claim gives it. */

import { h, menu, s, table, tick } from "../elements.js";

/** Outlives a change of language. */
const state = { verdicts: new Set(), source: "", search: "", open: new Set() };

/** @typedef {import("../elements.js").Context} Context */

/**
 * A number (diamond) with its interval, and the range as claimed (shaded). Where the parts lie was computed before.
 * @param {any} d
 * @param {number} width
 */
function drawing(d, width) {
  return s("svg", { class: "against", viewBox: `0 0 ${width} 18`, width, height: 18, "aria-hidden": "true" },
    s("rect", { class: "range", x: d.range_from, y: 0, width: Math.max(1, d.range_to - d.range_from), height: 18 }),
    s("line", { x1: d.low, x2: d.high, y1: 9, y2: 9 }), s("path", { d: `M${d.at} 3l5 6l-5 6l-5-6z` }));
}

/**
 * @param {Context} context
 * @param {any} row
 */
function body({ t, language, data }, row) {
  return [
    h("dl", {}, h("dt", {}, t("claims.how")), h("dd", {}, row.how[language]),
      ...row.designs.flatMap((/** @type {any} */ d) => [h("dt", {}, t("claims.design")), h("dd", {}, h("code", { translate: "no" }, d.name), ` ${d.about[language]}`)]),
      ...(row.literature ? [h("dt", {}, t("claims.literature")), h("dd", {}, row.literature[language])] : []),
      h("dt", {}, t("claims.again")), h("dd", {}, h("code", { translate: "no" }, row.command))),
    row.checks.length && table(row.id, [t("claims.number"), t("claims.measured"), "", t("claims.claimed"), t("claims.outcome")], row.checks.map((/** @type {any} */ c) => [
      h("span", { class: "wrap" }, c.what[language], !c.core && h("span", { class: "tag" }, t("claims.reach"))), c.measured[language], c.drawn && drawing(c.drawn, data.width), c.claimed[language], c.outcome[language]])),
    row.further_seeds !== null && h("p", { class: "quiet" }, t("claims.seeds", { n: row.further_seeds }))];
}

/**
 * @param {HTMLElement} root
 * @param {Context} context
 */
function mount(root, context) {
  const { t, language, data, address } = context, count = h("p", { class: "quiet", id: "count", "aria-live": "polite" }), places = h("div");
  const named = address.get("claim");
  if (named) state.open.add(named);
  /** @type {{row: any, element: HTMLElement, text: string}[]} */
  const all = data.rows.map((/** @type {any} */ row) => {
    const inner = h("div", { class: "claim-body" });
    const fill = () => { if (!inner.childNodes.length) inner.append(.../** @type {Node[]} */ (body(context, row).filter(Boolean))); };
    const details = h("details", { open: state.open.has(row.id), toggle: () => { if (details.open) { fill(); state.open.add(row.id); } else state.open.delete(row.id); } },
      h("summary", {}, h("span", { class: "claim-id" }, row.id), h("span", {}, row.says[language], h("span", { class: "quiet" }, ` ${row.source}, ${row.kind[language]}`)),
        h("b", { class: `outcome ${row.verdict}` }, data.verdicts[row.verdict][language]), h("span", { class: "decides" }, row.deciding[language])), inner);
    if (details.open) fill();
    return { row, element: h("article", { id: row.id, class: "claim-row" }, details), text: JSON.stringify(row, (key, value) => (key === "drawn" || key === (language === "en" ? "zh" : "en") ? undefined : value)).toLowerCase() };
  });
  const filter = () => {
    const wanted = state.search.trim().toLowerCase(), fits = all.filter(({ row, text }) => (!state.verdicts.size || state.verdicts.has(row.verdict)) && (!state.source || row.source.split(" ").includes(state.source)) && text.includes(wanted));
    for (const one of all) one.element.hidden = !fits.includes(one);
    count.textContent = fits.length ? t("claims.shown", { n: fits.length, all: all.length }) : t("claims.none");
  };
  const search = h("input", { type: "text", value: state.search, input: () => { state.search = search.value; filter(); } });
  root.append(
    h("div", { class: "intro" }, h("h1", {}, t("claims.title")), h("p", { class: "lead" }, data.summary[language]), h("p", { class: "quiet" }, data.about[language]), h("p", { class: "quiet" }, t("claims.read"))),
    h("fieldset", { class: "keys" }, h("legend", {}, t("claims.verdict")), ...Object.entries(data.counts).map(([verdict, n]) => tick(`${data.verdicts[verdict][language]} (${n})`, state.verdicts.has(verdict), (on) => { if (on) state.verdicts.add(verdict); else state.verdicts.delete(verdict); filter(); }))),
    h("div", { class: "row" }, menu(t("claims.source"), [{ value: "", text: t("claims.all") }, ...Object.entries(data.sources).map(([value, text]) => ({ value, text: text[language] }))], state.source, (value) => { state.source = value; filter(); }),
      h("label", { class: "field" }, h("span", {}, t("claims.search")), search)),
    count, places);
  places.append(...all.map((one) => one.element));
  filter();
  if (named) document.getElementById(named)?.scrollIntoView();
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const claims = { id: "run-claims", mount };
