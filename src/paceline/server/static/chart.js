// Lines and stacked areas over time, as SVG, with a legend that reads values out and a table for those who do not see it.

import { h, svg } from "./dom.js";
import { clock, duration, NONE, t, tidy } from "./words.js";

const MARGIN = { left: 40, right: 8, top: 8, bottom: 20 };
const GAP_S = 5;
const ROWS = 30;

export class TimeChart {
  /**
   * @param {HTMLElement} host where it is drawn
   * @param {object} what
   *   lines: `{value: point => number|null, label: string key, style: class, area: boolean}`; areas stack in order.
   *   window: seconds shown. height: pixels. title: string key. top: fixed upper end, if any. format: of values; tick: of the axis.
   */
  constructor(host, what) {
    this.what = { height: 150, tick: tidy, ...what };
    this.points = [];
    this.at = null;
    this.legend = h("ul", { class: "legend" });
    this.drawing = svg("svg", { class: "chart", role: "img", height: this.what.height });
    this.rows = h("details", { class: "data" }, h("summary"));
    host.append(h("figure", {}, this.legend, this.drawing, this.rows));
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.rows.addEventListener("toggle", () => this.tabulate());
    new ResizeObserver(() => this.draw()).observe(this.drawing);
  }

  update(points) {
    this.points = points ?? [];
    this.rows.firstChild.textContent = t("chart.table");
    this.draw();
    this.tabulate();
  }

  get end() {
    return this.points.length ? this.points.at(-1).t : 0;
  }

  /** Heights of each line's upper edge at a point; areas stand on those before them. */
  edges(point) {
    let below = 0;
    return this.what.lines.map(({ value, area }) => {
      const height = value(point) ?? null;
      if (!area || height === null) return height;
      below += height;
      return below;
    });
  }

  draw() {
    const width = this.drawing.clientWidth;
    if (!width) return;
    const heights = this.points.map((point) => this.edges(point));
    const ticks = ticksTo(this.what.top ?? Math.max(0, ...heights.flat().filter((y) => y !== null)));
    const plot = {
      x: (at) => MARGIN.left + (1 - (this.end - at) / this.what.window) * (width - MARGIN.left - MARGIN.right),
      y: (value) => MARGIN.top + (1 - value / ticks.at(-1)) * (this.what.height - MARGIN.top - MARGIN.bottom),
      width,
    };
    this.plot = plot;
    const paths = this.what.lines.map((line, i) => this.path(line, i, heights, plot)).reverse();
    this.drawing.replaceChildren(...this.axes(ticks, plot), ...paths.flat(), ...this.cross(plot));
    if (this.points.length < 2) this.drawing.append(this.empty(plot, ticks));
    this.drawing.setAttribute("aria-label", this.summary());
    this.spell();
  }

  axes(ticks, { x, y, width }) {
    const lines = ticks.map((tick) =>
      svg("g", { class: "axis" },
        svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
        svg("text", { x: MARGIN.left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, this.what.tick(tick))));
    const parts = width < 420 ? 2 : this.what.window % 300 ? 4 : 5;
    const times = Array.from({ length: parts + 1 }, (_, i) => (this.what.window / parts) * i).map((ago) =>
      svg("text", { class: "axis", x: x(this.end - ago), y: this.what.height - 5, "text-anchor": anchor(ago, this.what) },
        ago ? `−${duration(ago)}` : t("now")));
    return [...lines, ...times];
  }

  /** A line's stretches, broken where the server said nothing for a while or does not know. */
  path({ area, style }, i, heights, { x, y }) {
    const begin = this.end - this.what.window;
    const stretches = [];
    let before = null;
    this.points.forEach((point, j) => {
      const top = heights[j][i];
      if (top === null || point.t < begin) return;
      if (before === null || point.t - before > GAP_S || heights[j - 1][i] === null) stretches.push([]);
      const below = area && i > 0 && this.what.lines[i - 1].area ? heights[j][i - 1] ?? 0 : 0;
      stretches.at(-1).push([x(point.t), y(top), y(below)]);
      before = point.t;
    });
    return stretches.map((points) => {
      const over = points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join("L");
      const under = points.map(([px, , pb]) => `${px.toFixed(1)},${pb.toFixed(1)}`).reverse().join("L");
      return svg("path", { d: area ? `M${over}L${under}Z` : `M${over}`, class: `${area ? "area" : "line"} ${style}` });
    });
  }

  cross({ x }) {
    const point = this.pointed();
    if (!point || this.at === null) return [];
    const at = x(point.t);
    return [svg("line", { class: "cross", x1: at, x2: at, y1: MARGIN.top, y2: this.what.height - MARGIN.bottom })];
  }

  empty({ width, y }, ticks) {
    const between = y((Math.floor(ticks.length / 2) - 0.5) * ticks[1]) + 3.5;
    return svg("text", { x: (width + MARGIN.left) / 2, y: between, "text-anchor": "middle" }, t("chart.empty"));
  }

  point(event) {
    const x = event && event.clientX - this.drawing.getBoundingClientRect().left;
    const inside = event && this.plot && this.points.length;
    const share = inside && (x - MARGIN.left) / (this.plot.width - MARGIN.left - MARGIN.right);
    this.at = inside ? this.end - (1 - share) * this.what.window : null;
    this.draw();
  }

  /** The point under the pointer, or the last one. */
  pointed() {
    if (this.at === null) return this.points.at(-1);
    return this.points.reduce((best, p) => (Math.abs(p.t - this.at) < Math.abs(best.t - this.at) ? p : best));
  }

  /** The legend: what each line is, and its value now or under the pointer. */
  spell() {
    const point = this.pointed();
    const entries = this.what.lines.map(({ value, label, style, area }) =>
      h("li", {}, swatch(style, area), `${t(label)} `, h("b", {}, point ? this.what.format(value(point)) : NONE)));
    const ago = point ? this.end - point.t : 0;
    this.legend.replaceChildren(...entries, h("li", { class: "muted at" }, ago ? `−${duration(ago)}` : t("now")));
  }

  summary() {
    const lines = this.what.lines.map(({ value, label }) => {
      const values = this.points.map(value).filter((v) => typeof v === "number");
      const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [null, null];
      const said = { now: values.at(-1) ?? null, low, high };
      for (const name of Object.keys(said)) said[name] = this.what.format(said[name]);
      return t("chart.line", { label: t(label), ...said });
    });
    return t("chart.summary", { title: t(this.what.title), window: duration(this.what.window), lines: lines.join(" ") });
  }

  tabulate() {
    this.rows.querySelector("table")?.remove();
    if (!this.rows.open) return;
    const every = Math.max(1, Math.ceil(this.points.length / ROWS));
    const shown = this.points.filter((_, i) => (this.points.length - 1 - i) % every === 0).reverse();
    const titles = [t("chart.time"), ...this.what.lines.map(({ label }) => t(label))];
    this.rows.append(h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, shown.map((point) => h("tr", {}, h("th", { scope: "row" }, clock(point.t)),
        this.what.lines.map(({ value }) => h("td", {}, this.what.format(value(point)))))))));
  }
}

function swatch(style, area) {
  const mark = area ? svg("rect", { class: `area ${style}`, width: 12, height: 10, y: 1 })
    : svg("line", { class: `line ${style}`, x2: 14, y1: 6, y2: 6 });
  return svg("svg", { class: "swatch", width: 14, height: 12, "aria-hidden": "true" }, mark);
}

const anchor = (ago, { window }) => (ago === 0 ? "end" : ago === window ? "start" : "middle");

/** Three to five round numbers from 0 to at least `most`. */
export function ticksTo(most) {
  const rough = (most > 0 ? most : 1) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  return Array.from({ length: Math.max(2, Math.ceil((most || 1) / step - 1e-9) + 1) }, (_, i) => i * step);
}
