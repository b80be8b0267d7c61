/** All that lies in the folder of a server: sweeps, runs of claims, benchmarks, runs. */

import { h, number, table } from "../elements.js";
import { silence, word } from "../panels.js";

/** Outlives a change of language and newer data. */
const state = { search: "" };
const MOST = 500; // rows drawn; searching finds the others

/**
 * The address of a run or a sweep.
 * @param {Map<string, string>} address
 * @param {string} kind
 * @param {string} key
 */
export function linkTo(address, kind, key) {
  const kept = ["lang", "theme"].filter((name) => address.has(name)).map((name) => `${name}=${address.get(name)}`);
  return `#${[`${kind}=${encodeURIComponent(key)}`, ...kept].join("&")}`;
}

/**
 * @param {HTMLElement} root
 * @param {import("../elements.js").Context} context
 */
function mount(root, context) {
  const { t, data, address, follow } = context;
  let view = data;
  const places = h("div"), count = h("p", { class: "quiet", "aria-live": "polite" });
  const draw = () => {
    const asked = state.search.toLowerCase(), found = view.entries.filter((/** @type {any} */ e) => `${e.key} ${e.task ?? ""} ${e.status ?? ""}`.toLowerCase().includes(asked));
    const link = (/** @type {any} */ e) => h("a", { href: linkTo(address, e.kind, e.key), translate: "no" }, e.key === "." ? view.folder : e.key);
    const problem = (/** @type {any} */ e) => h("span", { class: "bad" }, e.problem);
    const part = (/** @type {string} */ kind, /** @type {string[]} */ head, /** @type {(e: any) => import("../elements.js").Child[]} */ row) => {
      const these = found.filter((/** @type {any} */ e) => e.kind === kind);
      return these.length ? [h("h2", {}, t(`list.${kind}`, { n: these.length })), table(t(`list.${kind}`, { n: these.length }), head, these.slice(0, MOST).map((/** @type {any} */ e) => [link(e), ...(e.problem ? [problem(e), ...head.slice(2).map(() => "")] : row(e))]))] : [];
    };
    places.replaceChildren(
      ...part("sweep", [t("list.name"), t("list.trials"), t("ran.task"), t("ran.created")], (e) => [e.planned ? t("list.of", { trials: e.trials, planned: e.planned }) : String(e.trials), e.task ?? "–", e.created ?? "–"]),
      ...part("claims", [t("list.name"), t("list.decided"), t("list.budget"), t("ran.created")], (e) => [t("list.of", { trials: e.trials, planned: e.planned }), word(context, e.task) || "–", e.created ?? "–"]),
      ...part("kernels", [t("list.name")], () => []),
      ...part("run", [t("list.name"), t("list.status"), t("ran.task"), t("list.loss"), t("ran.created")], (e) => [[e.status, e.outcome].filter(Boolean).map((name) => word(context, name)).join(", "), e.task ?? "–", e.loss === null ? "–" : `${number(e.loss, 4)} ${word(context, e.unit)}`, e.created ?? "–"]));
    count.textContent = [found.length ? "" : t("list.nothing"), found.length > MOST ? t("list.first", { n: MOST }) : "", view.more ? t("list.more", { n: view.more }) : "", view.unnamed ? t("list.unnamed", { n: view.unnamed }) : ""].filter(Boolean).join(" ");
  };
  const search = h("input", { type: "text", value: state.search, input: () => { state.search = search.value; draw(); } });
  root.append(h("div", { class: "intro" }, h("h1", { translate: "no" }, view.folder)));
  if (view.entries.length) root.append(h("div", { class: "row" }, h("label", { class: "field" }, h("span", {}, t("list.search")), search)), places, count);
  else root.append(silence(t("list.empty")));
  draw();
  follow((newer) => { view = newer; draw(); });
  return () => {};
}

/** @type {import("../elements.js").Page} */
export const runList = { id: "run-list", mount, shape: (view) => String(view.entries.length > 0) };

/** Before there is data, or in its place. */
/** @type {import("../elements.js").Page} */
export const waiting = {
  id: "run-waiting",
  mount: (root, { t, data }) => {
    root.append(h("div", { class: "intro" }, h("h1", {}, t(data.problem ? "waiting.problem" : "waiting.title"))), data.problem ? h("p", { class: "reading bad", translate: "no" }, data.problem) : "");
    return () => {};
  },
};
