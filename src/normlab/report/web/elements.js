/** Elements of HTML and SVG from plain values, and what every page is given. */

/**
 * @typedef {object} Context What a page is given.
 * @property {(key: string, values?: Record<string, string | number>) => string} t a text in the language shown
 * @property {"en" | "zh"} language
 * @property {Map<string, string>} address the settings in the address
 * @property {(settings: Record<string, string>) => void} remember writes settings into the address
 * @property {any} data what Python computed for the pages
 * @property {(listener: (data: any) => void) => void} follow asks to be told of newer data of the same shape
 */
/** @typedef {{id: string, mount: (root: HTMLElement, context: Context) => (() => void), shape?: (data: any) => string}} Page mount returns what ends the page; shape names its parts */
/** @typedef {string | number | Node | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Attributes: functions become listeners, true an empty attribute, null and false none.
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {Child[]} children
 */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value" || name === "checked" || name === "selected") /** @type {any} */ (element)[name] = value;
    else if (value !== null && value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : String(c))));
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  filled(element, attributes, children);
  return element;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function s(tag, attributes = {}, ...children) {
  const element = /** @type {SVGElementTagNameMap[K]} */ (document.createElementNS(SVG, tag));
  filled(element, attributes, children);
  return element;
}

let labels = 0;

/**
 * A labelled menu.
 * @param {string} label
 * @param {{value: string, text: string}[]} options
 * @param {string} value
 * @param {(value: string) => void} change
 */
export function menu(label, options, value, change) {
  const select = h("select", { change: () => change(select.value) }, ...options.map((o) => h("option", { value: o.value, selected: o.value === value }, o.text)));
  return h("label", { class: "field" }, h("span", {}, label), select);
}

/**
 * A labelled slider over a list of values.
 * @param {string} label
 * @param {number[]} values
 * @param {number} value
 * @param {(value: number) => string} shown
 * @param {(value: number) => void} change called while it moves
 */
export function slider(label, values, value, shown, change) {
  const output = h("output", {}, shown(value)), id = `slider-${++labels}`;
  const input = h("input", {
    type: "range", id, min: 0, max: values.length - 1, step: 1, "aria-valuetext": shown(value), value: values.indexOf(value),
    input: () => {
      const now = values[Number(input.value)];
      output.textContent = shown(now);
      input.setAttribute("aria-valuetext", shown(now));
      change(now);
    },
  });
  input.value = String(values.indexOf(value));
  return h("div", { class: "field slider" }, h("label", { for: id }, label), output, input);
}

/**
 * A row of buttons of which one is chosen.
 * @param {string} label
 * @param {{value: string, text: string}[]} options
 * @param {string} value
 * @param {(value: string) => void} change
 */
export function choice(label, options, value, change) {
  const group = `choice-${++labels}`;
  return h("fieldset", { class: "choice" }, h("legend", {}, label),
    ...options.map((o) => h("label", {}, h("input", { type: "radio", name: group, value: o.value, checked: o.value === value, change: () => change(o.value) }), h("span", {}, o.text))));
}

/**
 * A box to tick.
 * @param {string} label
 * @param {boolean} value
 * @param {(value: boolean) => void} change
 */
export function tick(label, value, change) {
  const box = h("input", { type: "checkbox", checked: value, change: () => change(box.checked) });
  return h("label", { class: "tick" }, box, h("span", {}, label));
}

/**
 * A figure: what it shows, the drawing, and a caption whose text can be replaced.
 * @param {string} title
 * @param {Node} drawing
 * @param {string} caption
 * @param {string} [kind]
 */
export function figure(title, drawing, caption, kind = "") {
  const text = h("figcaption", {}, caption);
  return { element: h("figure", { class: kind }, h("h3", {}, title), drawing, text), say: (/** @type {string} */ now) => { if (text.textContent !== now) text.textContent = now; } };
}

/**
 * A table that scrolls inside of its frame where it is too wide, by keyboard as well.
 * @param {string} label
 * @param {string[]} head
 * @param {Child[][]} rows the first of each names its row
 */
export function table(label, head, rows) {
  return h("div", { class: "scroll edge", tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), ...rest.map((cell) => h("td", {}, cell)))))));
}

/**
 * A number as people write it: few digits, no exponent where it can be avoided.
 * @param {number} x
 * @param {number} [digits]
 */
export function number(x, digits = 3) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e5 || size < 1e-3 ? scientific(x, digits - 1) : String(Number(x.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

/**
 * @param {number} x
 * @param {number} digits
 */
function scientific(x, digits) {
  const [front, power] = x.toExponential(digits).split("e");
  const high = String(Number(power)).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]));
  return Number(front) === 1 ? `10${high}` : `${Number(front)}×10${high}`;
}
