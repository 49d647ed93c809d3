// Charts drawn by hand in SVG: lines with ranges, marks and a cursor; histograms.

import { el, short, svg } from "./dom.js";

const LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22;

// Round numbers between two others, about `count` of them.
export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const out = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) out.push(n * step);
  return out;
}

function bounds(series, zero) {
  let low = zero ? 0 : Infinity, high = zero ? 0 : -Infinity;
  for (const line of series) {
    for (const values of [line.y, line.low, line.high]) {
      for (const value of values || []) {
        if (value === null) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  if (low > high) return [0, 1];
  if (low === high) return zero && low === 0 ? [0, 1] : [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const room = (high - low) * 0.06;
  return [zero && low === 0 ? 0 : low - room, high + room];
}

function path(x, y, at, up) {
  let out = "", pen = false;
  for (let i = 0; i < x.length; i += 1) {
    if (y[i] === null || y[i] === undefined) { pen = false; continue; }
    out += `${pen ? "L" : "M"}${at(x[i]).toFixed(1)} ${up(y[i]).toFixed(1)}`;
    pen = true;
  }
  return out;
}

function area(x, low, high, at, up) {
  const kept = x.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  if (kept.length < 2) return "";
  const there = kept.map((i) => `${at(x[i]).toFixed(1)} ${up(high[i]).toFixed(1)}`);
  const back = kept.reverse().map((i) => `${at(x[i]).toFixed(1)} ${up(low[i]).toFixed(1)}`);
  return `M${there.join("L")}L${back.join("L")}Z`;
}

function nearest(x, value) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= value) low = middle; else high = middle;
  }
  return Math.abs(x[low] - value) <= Math.abs(x[high] - value) ? low : high;
}

// A chart that keeps its place and is drawn again with other data, or when its width changes.
class Chart {
  constructor(name, height) {
    this.height = height;
    this.root = svg("svg", { role: "img", "aria-label": name, class: "plot" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.node = el("div", { class: "chart" }, this.root, this.tip);
    this.width = 0;
    new ResizeObserver(() => {
      const width = this.node.clientWidth;
      if (width && width !== this.width) { this.width = width; this.draw(); }
    }).observe(this.node);
    this.root.addEventListener("pointermove", (event) => this.hover(event));
    this.root.addEventListener("pointerleave", () => this.leave());
  }

  frame(low, high, left, right, format) {
    const width = this.width, height = this.height;
    this.root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.root.setAttribute("height", height);
    const span = right - left || 1, rise = high - low || 1;
    this.at = (x) => LEFT + ((x - left) / span) * (width - LEFT - RIGHT);
    this.up = (y) => height - BOTTOM - ((y - low) / rise) * (height - TOP - BOTTOM);
    this.back = (px) => left + ((px - LEFT) / (width - LEFT - RIGHT)) * span;
    const parts = [];
    for (const y of ticks(low, high, height < 120 ? 2 : 4)) {
      const py = this.up(y);
      if (py < TOP - 1 || py > height - BOTTOM + 1) continue;
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: py, y2: py }));
      parts.push(svg("text", { class: "tick end", x: LEFT - 6, y: py + 3.5 }, short(y)));
    }
    for (const x of ticks(left, right, Math.max(width / 110, 2))) {
      const px = this.at(x);
      if (px < LEFT - 1 || px > width - RIGHT + 1) continue;
      const last = px > width - RIGHT - 14;
      parts.push(svg("text", { class: last ? "tick end" : "tick middle", x: last ? width - RIGHT : px, y: height - 7 }, format(x)));
    }
    const base = height - BOTTOM;
    parts.push(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: base, y2: base }));
    return parts;
  }

  say(event, lines) {
    this.tip.replaceChildren(...lines);
    this.tip.hidden = false;
    const box = this.node.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.tip.style.left = `${Math.min(Math.max(x + 12, 0), Math.max(box.width - this.tip.offsetWidth, 0))}px`;
    if (x + 12 > box.width - this.tip.offsetWidth) this.tip.style.left = `${Math.max(x - this.tip.offsetWidth - 12, 0)}px`;
    this.tip.style.top = "4px";
  }

  leave() { this.tip.hidden = true; }
  hover() {}
}

export class LineChart extends Chart {
  // options: height, zero (the axis begins at 0), format (of x), seek (called with x), legend
  constructor(name, options = {}) {
    super(name, options.height || 150);
    this.options = { format: short, ...options };
    this.series = [];
    this.marks = [];
    this.levels = [];
    this.cursor = null;
    this.legend = el("div", { class: "legend" });
    if (options.legend) this.node.append(this.legend);
    if (options.seek) {
      this.root.classList.add("seeks");
      const seek = (event) => {
        if (!this.at || (event.type === "pointermove" && !event.buttons)) return;
        options.seek(this.back(event.clientX - this.root.getBoundingClientRect().left));
      };
      this.root.addEventListener("pointerdown", seek);
      this.root.addEventListener("pointermove", seek);
    }
  }

  // series: {name, x, y, low, high}; marks: {x, kind}; levels: {y, name}, drawn across
  show(series, { marks = [], levels = [], range = null } = {}) {
    Object.assign(this, { series, marks, levels, range });
    if (this.options.legend) {
      this.legend.replaceChildren(...series.map((line, i) => el("span", {}, el("i", { class: `key s${(line.colour ?? i) % 8}` }), line.name)));
      this.legend.hidden = series.length < 2 && !levels.length;
      this.legend.append(...levels.map((level) => el("span", {}, el("i", { class: "key level" }), level.name)));
    }
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const series = this.series.filter((line) => line.x.length);
    if (!series.length) { this.root.replaceChildren(); this.at = null; return; }
    const flat = this.levels.map((level) => ({ y: [level.y] }));
    const [low, high] = bounds([...series, ...flat], this.options.zero);
    let left = Math.min(...series.map((line) => line.x[0]));
    let right = Math.max(...series.map((line) => line.x[line.x.length - 1]));
    if (this.range) [left, right] = this.range;
    const parts = this.frame(low, high, left, right, this.options.format);
    for (const mark of this.marks) {
      const x = this.at(mark.x);
      parts.push(svg("line", { class: `mark ${mark.kind}`, x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM }, svg("title", {}, `${mark.kind} at step ${mark.x}`)));
    }
    for (const level of this.levels) {
      const y = this.up(level.y);
      parts.push(svg("line", { class: "level", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
    }
    series.forEach((line, i) => {
      const colour = `s${(line.colour ?? i) % 8}`;
      if (line.low) parts.push(svg("path", { class: `band ${colour}`, d: area(line.x, line.low, line.high, this.at, this.up) }));
      if (line.x.length === 1) parts.push(svg("circle", { class: `dot ${colour}`, cx: this.at(line.x[0]), cy: this.up(line.y[0] ?? low), r: 3 }));
      else parts.push(svg("path", { class: `line ${colour}`, d: path(line.x, line.y, this.at, this.up) }));
    });
    this.hair = svg("line", { class: "hair", y1: TOP, y2: this.height - BOTTOM, visibility: "hidden" });
    this.needle = svg("line", { class: "cursor", y1: TOP, y2: this.height - BOTTOM, visibility: "hidden" });
    this.root.replaceChildren(...parts, this.hair, this.needle);
    this.point(this.cursor);
  }

  // Where the player is.
  point(x) {
    this.cursor = x;
    if (!this.at || !this.needle || x === null) return;
    this.needle.setAttribute("x1", this.at(x));
    this.needle.setAttribute("x2", this.at(x));
    this.needle.setAttribute("visibility", "visible");
  }

  hover(event) {
    if (!this.at || !this.series.length) return;
    const x = this.back(event.clientX - this.root.getBoundingClientRect().left);
    const first = this.series.find((line) => line.x.length);
    if (!first) return;
    const there = first.x[nearest(first.x, x)];
    this.hair.setAttribute("x1", this.at(there));
    this.hair.setAttribute("x2", this.at(there));
    this.hair.setAttribute("visibility", "visible");
    const lines = this.series.filter((line) => line.x.length).map((line, i) => {
      const k = nearest(line.x, x);
      const range = line.low && line.low[k] !== line.high[k] ? ` (${short(line.low[k])} … ${short(line.high[k])})` : "";
      return el("div", {}, el("i", { class: `key s${(line.colour ?? i) % 8}` }), `${line.name} `, el("b", {}, short(line.y[k])), range);
    });
    this.say(event, [el("div", { class: "muted" }, (this.options.tell || this.options.format)(there)), ...lines.slice(0, 16)]);
  }

  leave() {
    super.leave();
    if (this.hair) this.hair.setAttribute("visibility", "hidden");
  }
}

export class Histogram extends Chart {
  constructor(name, options = {}) {
    super(name, options.height || 140);
    this.options = { format: short, ...options };
    this.data = null;
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    if (!this.width) return;
    if (!this.data) { this.root.replaceChildren(); this.at = null; return; }
    const { edges, counts } = this.data;
    const high = Math.max(...counts, 1);
    const parts = this.frame(0, high * 1.05, edges[0], edges[edges.length - 1], this.options.format);
    counts.forEach((count, i) => {
      if (!count) return;
      const x = this.at(edges[i]) + 1, width = Math.max(this.at(edges[i + 1]) - this.at(edges[i]) - 2, 1);
      const y = this.up(count);
      parts.push(svg("rect", { class: "bar", x, width, y, height: this.up(0) - y, rx: Math.min(2, width / 2) }));
    });
    const median = this.at(this.data.p50);
    parts.push(svg("line", { class: "level", x1: median, x2: median, y1: TOP, y2: this.height - BOTTOM }));
    this.root.replaceChildren(...parts);
  }

  hover(event) {
    if (!this.at || !this.data) return;
    const { edges, counts, count } = this.data;
    const x = this.back(event.clientX - this.root.getBoundingClientRect().left);
    const i = Math.min(Math.max(edges.findIndex((edge) => edge > x) - 1, 0), counts.length - 1);
    const format = this.options.format;
    this.say(event, [
      el("div", { class: "muted" }, `${format(edges[i])} to ${format(edges[i + 1])}`),
      el("div", {}, el("b", {}, short(counts[i])), ` of ${short(count)} rows`),
    ]);
  }
}
