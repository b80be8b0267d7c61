/** The shell of every page: what is shown, in which language and theme. All of it stands in the address, after the #. */

import { h } from "./elements.js";

/** @typedef {"en" | "zh"} Language */
/**
 * @typedef {object} Site
 * @property {() => import("./elements.js").Page[]} pages those that can be shown now, the first by default
 * @property {() => any} data what they are given
 * @property {string} footer key of its text
 * @property {(t: import("./elements.js").Context["t"]) => (Node | null)[]} [place] where in the site this is
 * @property {(address: Map<string, string>) => void} [moved] the address changed
 */

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** In place of the address, where a page may not change it (a frame without one, as in a notebook). */
let kept = "";

/** @returns {Map<string, string>} */
export function address() {
  const parts = (location.hash || kept).slice(1).split("&").filter((part) => part.includes("="));
  return new Map(parts.map((part) => /** @type {[string, string]} */ ([part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)])));
}

/**
 * @param {Record<string, Record<string, string>>} texts
 * @param {Site} site
 * @param {string} [asked] settings to begin with, as in an address
 */
export function start(texts, site, asked = "") {
  kept = `#${asked}`;
  /** @type {(() => void) | null} */
  let leave = null;
  let shown = "";
  /** @type {((data: any) => void)[]} */
  let followers = [];
  /** @type {{page: import("./elements.js").Page, shape: string} | null} */
  let now = null;

  /** @param {Record<string, string | null>} settings null removes one */
  function remember(settings) {
    const all = address();
    for (const [key, value] of Object.entries(settings)) {
      if (value === null) all.delete(key);
      else all.set(key, value);
    }
    shown = `#${[...all].map(([key, value]) => `${key}=${value}`).join("&")}`;
    if (location.protocol === "about:") kept = shown;
    else history.replaceState(null, "", shown);
  }

  /** @returns {Language} */
  function language() {
    const asked = address().get("lang");
    if (asked === "en" || asked === "zh") return asked;
    return (navigator.language ?? "").toLowerCase().startsWith("zh") ? "zh" : "en";
  }

  /** @returns {"light" | "dark"} */
  function theme() {
    const asked = address().get("theme");
    return asked === "light" || asked === "dark" ? asked : dark.matches ? "dark" : "light";
  }

  function show() {
    leave?.();
    followers = [];
    const settings = address(), tongue = language(), pages = site.pages(), page = pages.find((p) => p.id === settings.get("page")) ?? pages[0];
    /** @type {import("./elements.js").Context["t"]} */
    const t = (key, values = {}) => {
      const text = texts[tongue][key];
      if (text === undefined) throw new Error(`no text ${key}`);
      return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
    };
    shown = location.hash || kept;
    root.lang = tongue === "zh" ? "zh-CN" : "en";
    root.dataset.theme = theme();
    document.title = `${t(`page.${page.id}`)} · normlab`;
    const other = tongue === "en" ? "zh" : "en", shade = theme() === "dark" ? "light" : "dark";
    const link = (/** @type {import("./elements.js").Page} */ p) =>
      h("a", { href: `#page=${p.id}`, "aria-current": p === page ? "page" : null, click: (/** @type {Event} */ event) => { event.preventDefault(); go(p.id); } }, t(`page.${p.id}`));
    const main = h("main", { id: "main", tabindex: -1 });
    const header = h("header", {},
      h("a", { class: "skip", href: "#main", click: (/** @type {Event} */ event) => { event.preventDefault(); main.focus(); } }, t("skip")),
      h("p", { class: "mark", translate: "no" }, "normlab"),
      h("nav", { "aria-label": t("pages") }, ...pages.map(link)),
      h("div", { class: "switches" },
        h("button", { id: "language", type: "button", lang: other === "zh" ? "zh-CN" : "en", click: () => { remember({ lang: other }); show(); document.getElementById("language")?.focus(); } }, texts[other].language),
        h("button", { id: "theme", type: "button", "aria-label": t(`theme.${shade}`), title: t(`theme.${shade}`), click: () => { remember({ theme: shade }); show(); document.getElementById("theme")?.focus(); } }, shade === "dark" ? "☾" : "☀")));
    main.append(.../** @type {Node[]} */ ((site.place?.(t) ?? []).filter(Boolean)));
    document.body.replaceChildren(header, main, h("footer", {}, h("p", {}, t(site.footer))));
    header.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    const data = site.data();
    now = { page, shape: page.shape?.(data) ?? "" };
    leave = page.mount(main, { t, language: tongue, address: settings, remember, data, follow: (listener) => { followers.push(listener); } });
  }

  /** Newer data: drawn into the page as it stands, or the page made again where its parts have changed. */
  function update() {
    const data = site.data();
    if (now && site.pages().includes(now.page) && followers.length && (now.page.shape?.(data) ?? "") === now.shape) followers.forEach((listener) => listener(data));
    else show();
  }

  /** @param {string} id */
  function go(id) {
    remember({ page: id });
    show();
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }

  addEventListener("hashchange", () => {
    if (location.hash === shown) return;
    kept = "";
    site.moved?.(address());
    show();
  });
  dark.addEventListener("change", show);
  // on paper: light, and nothing folded away
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; document.querySelectorAll("details:not(.numbers)").forEach((part) => { /** @type {HTMLDetailsElement} */ (part).open = true; }); });
  addEventListener("afterprint", () => { root.dataset.theme = theme(); });
  document.body.querySelectorAll("noscript").forEach((part) => part.remove());
  show();
  return { show, update };
}

/** What Python put into the page. */
export function embedded() {
  return JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent ?? "");
}
