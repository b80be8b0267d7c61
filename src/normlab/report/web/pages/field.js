/** What a network makes of the plane: the likeliest class of each place, the surer the stronger, and the training points. */

import { h } from "../elements.js";

const CELLS = 44; // along each side; drawn smoothly
const REACH = 1.12; // of the plane, from the middle

export class Field {
  /** @param {(key: string) => string} t */
  constructor(t) {
    this.canvas = h("canvas", { width: 440, height: 440, role: "img", "aria-label": t("field") });
    this.element = h("div", { class: "field-of-classes" }, this.canvas);
    this.small = h("canvas", { width: CELLS, height: CELLS });
    this.row = 0;
  }

  /**
   * Goes on row by row, for about so many milliseconds; Infinity: the whole picture.
   * @param {import("../training.js").Training} training
   * @param {number} milliseconds
   */
  refine(training, milliseconds) {
    const paint = this.small.getContext("2d"), until = performance.now() + milliseconds;
    if (!paint) return;
    const colors = palette(this.canvas), points = new Float64Array(2 * CELLS);
    for (let done = 0; done < CELLS; done++) {
      const y = REACH * (1 - (2 * (this.row + 0.5)) / CELLS), strip = paint.createImageData(CELLS, 1);
      for (let i = 0; i < CELLS; i++) {
        points[2 * i] = REACH * ((2 * (i + 0.5)) / CELLS - 1);
        points[2 * i + 1] = y;
      }
      training.classify(points).forEach(({ label, sure }, i) => {
        // From even odds (blank) to certainty; NaN, after a divergence, stays blank.
        const classes = training.data.classes, share = Number.isFinite(sure) ? 0.12 + 0.55 * ((sure - 1 / classes) / (1 - 1 / classes)) : 0;
        for (let c = 0; c < 3; c++) strip.data[4 * i + c] = colors.paper[c] + share * (colors.classes[label][c] - colors.paper[c]);
        strip.data[4 * i + 3] = 255;
      });
      paint.putImageData(strip, 0, this.row);
      this.row = (this.row + 1) % CELLS;
      if (performance.now() > until) break;
    }
    this.paint(training, colors);
  }

  /**
   * @param {import("../training.js").Training} training
   * @param {{paper: number[], classes: number[][]}} colors
   */
  paint({ data }, colors) {
    const on = this.canvas.getContext("2d"), size = this.canvas.width;
    if (!on) return;
    on.imageSmoothingEnabled = true;
    on.drawImage(this.small, 0, 0, size, size);
    const { points, labels } = data.train;
    on.strokeStyle = `rgb(${colors.paper.join(",")})`;
    on.lineWidth = 1.2;
    for (let i = 0; i < labels.length; i++) {
      const x = (points[2 * i] / REACH + 1) * (size / 2), y = (1 - points[2 * i + 1] / REACH) * (size / 2);
      on.fillStyle = `rgb(${colors.classes[labels[i]].join(",")})`;
      on.beginPath();
      // Classes differ in form as well: circle, square, triangle.
      if (labels[i] === 0) on.arc(x, y, 4, 0, 2 * Math.PI);
      else if (labels[i] === 1) on.rect(x - 3.6, y - 3.6, 7.2, 7.2);
      else {
        on.moveTo(x, y - 5);
        on.lineTo(x + 4.8, y + 4);
        on.lineTo(x - 4.8, y + 4);
        on.closePath();
      }
      on.fill();
      on.stroke();
    }
  }
}

/**
 * Colors of the style sheet, as numbers.
 * @param {Element} element
 */
function palette(element) {
  const style = getComputedStyle(element);
  const read = (/** @type {string} */ name) => [1, 3, 5].map((i) => parseInt(style.getPropertyValue(name).trim().slice(i, i + 2), 16));
  return { paper: read("--paper"), classes: [read("--class-0"), read("--class-1"), read("--class-2")] };
}
