/** The shell of the page: what is shown, in which language and theme. All of it stands in the address, behind the #. */

import { h } from "./elements.js";
import { numbers } from "./pages/numbers.js";
import { places } from "./pages/places.js";
import { playground } from "./pages/playground.js";
import { scaling } from "./pages/scaling.js";
import { shelf } from "./pages/shelf.js";
import { sphere } from "./pages/sphere.js";

/** @type {import("./elements.js").Page[]} */
const PAGES = [playground, shelf, numbers, places, sphere, scaling];
/** @typedef {"en" | "zh"} Language */

const embedded = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent ?? "");
/** @type {Record<Language, Record<string, string>>} */
const TEXTS = embedded.texts;
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
/** @type {(() => void) | null} */
let leave = null;
let shown = "";

/** @returns {Map<string, string>} */
function address() {
  const parts = location.hash.slice(1).split("&").filter((part) => part.includes("="));
  return new Map(parts.map((part) => /** @type {[string, string]} */ ([part.slice(0, part.indexOf("=")), part.slice(part.indexOf("=") + 1)])));
}

/** @param {Record<string, string | null>} settings null removes one */
function remember(settings) {
  const now = address();
  for (const [key, value] of Object.entries(settings)) {
    if (value === null) now.delete(key);
    else now.set(key, value);
  }
  shown = `#${[...now].map(([key, value]) => `${key}=${value}`).join("&")}`;
  history.replaceState(null, "", shown);
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
  const now = address(), tongue = language(), page = PAGES.find((p) => p.id === now.get("page")) ?? PAGES[0];
  /** @type {import("./elements.js").Context["t"]} */
  const t = (key, values = {}) => {
    const text = TEXTS[tongue][key];
    if (text === undefined) throw new Error(`no text ${key}`);
    return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  };
  shown = location.hash;
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
    h("nav", { "aria-label": t("pages") }, ...PAGES.map(link)),
    h("div", { class: "switches" },
      h("button", { id: "language", type: "button", lang: other === "zh" ? "zh-CN" : "en", click: () => { remember({ lang: other }); show(); document.getElementById("language")?.focus(); } }, TEXTS[other].language),
      h("button", { id: "theme", type: "button", "aria-label": t(`theme.${shade}`), title: t(`theme.${shade}`), click: () => { remember({ theme: shade }); show(); document.getElementById("theme")?.focus(); } }, shade === "dark" ? "☾" : "☀")));
  document.body.replaceChildren(header, main, h("footer", {}, h("p", {}, t("footer"))));
  header.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  leave = page.mount(main, { t, language: tongue, address: now, remember, data: embedded });
}

/** @param {string} id */
function go(id) {
  remember({ page: id });
  show();
  scrollTo(0, 0);
  document.getElementById("main")?.focus({ preventScroll: true });
}

addEventListener("hashchange", () => location.hash !== shown && show());
dark.addEventListener("change", show);
document.body.querySelectorAll("noscript").forEach((part) => part.remove());
show();
