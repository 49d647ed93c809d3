// One episode, or two side by side: rewards, flags, every leaf, and a player for all of them.

import { duration, el, get, short, whole } from "./dom.js";
import { LineChart } from "./charts.js";
import { ending } from "./episodes.js";
import { ImageLeaf } from "./player.js";

const FLAGS = new Set(["is_init", "done", "terminated", "truncated"]);
const SPEEDS = [["0.25", "¼×"], ["0.5", "½×"], ["1", "1×"], ["2", "2×"], ["4", "4×"]];
const FPS = 12;

function lines(name, data, first = 0) {
  return data.mean.map((y, i) => ({ name: data.mean.length > 1 || first ? `${name}[${first + i}]` : name, colour: first + i, x: data.steps, y,
    low: data.low && data.low[i], high: data.high && data.high[i] }));
}

// The column of one episode.
class Pane {
  constructor(table, id, seek) {
    this.table = table;
    this.id = id;
    this.seek = seek;
    this.path = `api/tables/${encodeURIComponent(table)}/episodes/${id}`;
    this.charts = [];
    this.images = [];
    this.node = el("section", { class: "pane", "aria-label": `episode ${id}` });
    this.waiting = new Map();
    this.observer = new IntersectionObserver((seen) => {
      for (const entry of seen) {
        if (!entry.isIntersecting || !this.waiting.has(entry.target)) continue;
        this.waiting.get(entry.target)();
        this.waiting.delete(entry.target);
        this.observer.unobserve(entry.target);
      }
    }, { rootMargin: "300px" });
  }

  async load() {
    this.data = await get(this.path);
  }

  // Charts of two episodes have the same steps below each other.
  build(first, last) {
    this.range = [first, Math.max(last, first + 1)];
    const { episode: e, marks, leaves, reward } = this.data;
    this.marks = Object.entries(marks).flatMap(([kind, steps]) => (kind === "done" && (marks.terminated || marks.truncated) ? [] : steps.map((x) => ({ x, kind }))));
    const facts = [["return", short(e.return)], ["length", whole(e.steps)], ["version", e.policy_version < 0 ? "–" : whole(e.policy_version)],
      ["age", duration(Math.max(Date.now() / 1000 - e.time, 0))], ["writer", e.writer]];
    if (e.traj_id !== "-1") facts.push(["traj id", e.traj_id]);
    for (const [name, value] of Object.entries(e)) if (!OWN.has(name)) facts.push([name, Array.isArray(value) ? JSON.stringify(value) : String(value)]);
    const kinds = [...new Set(this.marks.map((m) => m.kind))];
    this.node.append(
      el("h2", {}, `Episode #${this.id} `, el("span", { class: `badge ${ending(e)}` }, ending(e)), e.trimmed ? el("span", { class: "badge" }, "trimmed") : null),
      el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      el("p", { class: "legend" }, ...kinds.map((kind) => el("span", {}, el("i", { class: `key mark ${kind}` }), kind))));
    this.addRewards();
    const others = leaves.filter((l) => l.kind !== "image" && !(reward && l.name === this.data.reward_leaf));
    const order = [...leaves.filter((l) => l.kind === "image"), ...others.filter((l) => !this.isFlag(l)), ...others.filter((l) => this.isFlag(l))];
    for (const leaf of order) this.addLeaf(leaf);
  }

  isFlag(leaf) { return FLAGS.has(leaf.name.split(".").pop()); }

  chart(name, options = {}) {
    const chart = new LineChart(name, { height: 120, seek: (x) => this.seek(Math.round(x)), tell: (x) => `step ${x}`, legend: true, ...options });
    this.charts.push(chart);
    return chart;
  }

  addRewards() {
    const { reward, total } = this.data;
    if (!reward) {
      this.node.append(el("p", { class: "note" }, "These rows have no reward."));
      return;
    }
    const range = this.range;
    const first = this.chart("reward"), sum = this.chart("return so far");
    this.node.append(el("section", { class: "leaf", "data-leaf": "reward curve" }, el("h3", {}, "reward"), first.node, el("h3", {}, "return so far"), sum.node));
    first.show(lines("reward", reward), { marks: this.marks, range });
    sum.show(lines("return so far", total).map((line) => ({ ...line, colour: 4 })), { marks: this.marks, range });
  }

  addLeaf(leaf) {
    const section = el("section", { class: "leaf", "data-leaf": leaf.name },
      el("h3", {}, leaf.name, el("small", {}, `${leaf.shape.length ? leaf.shape.join(" × ") : "scalar"} ${leaf.dtype}${leaf.kind === "lengths" ? ", elements of each row" : ""}`)));
    this.node.append(section);
    if (leaf.kind === "image") {
      const images = new ImageLeaf(this.path, leaf, this.data, this.seek);
      this.images.push(images);
      section.append(images.node);
      this.later(section, () => images.load());
    } else if (leaf.lines > 0) {
      this.addLines(section, leaf);
    }
  }

  addLines(section, leaf) {
    const chart = this.chart(leaf.name);
    const said = el("span", { class: "muted" });
    let first = 0, step = 16;
    const show = async () => {
      try {
        const data = await get(`${this.path}/lines?leaf=${leaf.number}&first=${first}`);
        chart.show(lines(leaf.name.split(".").pop(), data, first), { marks: this.marks, range: this.range });
        said.textContent = `${first} to ${Math.min(first + step, data.of) - 1} of ${data.of}`;
      } catch (error) {
        said.textContent = error.message;
      }
    };
    const turn = (by) => { first = Math.min(Math.max(first + by, 0), Math.floor((leaf.lines - 1) / step) * step); show(); };
    section.append(chart.node);
    if (leaf.lines > step) section.append(el("p", { class: "bar" }, el("button", { type: "button", onclick: () => turn(-step) }, "←"), said, el("button", { type: "button", onclick: () => turn(step) }, "→")));
    this.later(section, show);
  }

  // Only what is looked at is read.
  later(node, call) {
    this.waiting.set(node, call);
    this.observer.observe(node);
  }

  show(step) {
    if (!this.data) return null;
    const { first, rows } = this.data;
    const at = Math.min(Math.max(step, first), first + rows - 1);
    for (const chart of this.charts) chart.point(at);
    return Promise.all(this.images.filter((image) => image.thumbs).map((image) => image.show(at)));
  }

  close() { this.observer.disconnect(); }
}

const OWN = new Set(["id", "traj_id", "first", "steps", "return", "terminated", "truncated", "trimmed", "complete", "writer", "policy_version", "time"]);

export class EpisodeView {
  // `list` is where Esc goes: the list as it was left.
  constructor(table, ids, goes, list) {
    this.table = table;
    this.list = list;
    this.ids = ids;
    this.goes = goes;
    this.step = this.first = 0;
    this.last = -1;
    this.playing = false;
    this.panes = ids.map((id) => new Pane(table, id, (step) => this.seek(step)));
    this.build();
    this.load();
  }

  build() {
    const link = (id, other) => `#/${encodeURIComponent(this.table)}/episode/${id}${other === undefined ? "" : `/${other}`}`;
    const other = el("input", { id: "other", type: "number", min: 0, placeholder: "id", "aria-label": "compare with episode" });
    if (this.ids.length > 1) other.value = this.ids[1];
    const exported = new URLSearchParams({ as: "npz", ids: this.ids.join(",") });
    this.copied = el("button", { type: "button", id: "link", onclick: () => this.copy() }, "Copy link");
    this.play = el("button", { type: "button", id: "play", "aria-pressed": "false", onclick: () => this.toggle() }, "▶ Play");
    this.scrub = el("input", { id: "scrub", type: "range", min: 0, max: 0, value: 0, "aria-label": "step", oninput: () => this.seek(Number(this.scrub.value)) });
    this.label = el("output", { id: "step" }, "–");
    this.speed = el("select", { "aria-label": "speed" }, ...SPEEDS.map(([value, name]) => el("option", { value }, name)));
    this.speed.value = "1";
    this.said = el("p", { class: "wrong", role: "status", hidden: true });
    this.node = el("div", { id: "episode" },
      el("div", { class: "bar" }, el("a", { class: "button", href: this.list }, "← Episodes"),
        el("a", { class: "button", href: link(Math.max(this.ids[0] - 1, 0)) }, "Previous"), el("a", { class: "button", href: link(this.ids[0] + 1) }, "Next"),
        el("form", { class: "group", onsubmit: (event) => { event.preventDefault(); if (other.value !== "") this.goes(link(this.ids[0], Number(other.value))); } }, "side by side with", other, el("button", {}, "Show")),
        this.ids.length > 1 ? el("a", { class: "button", href: link(this.ids[0]) }, "Only one") : null,
        el("span", { class: "group right" }, this.copied, el("a", { class: "button", download: true, href: `api/tables/${encodeURIComponent(this.table)}/export?${exported}` }, "Export NPZ"))),
      this.said,
      el("div", { class: "transport" }, el("button", { type: "button", "aria-label": "a step back", onclick: () => this.seek(this.step - 1) }, "−1"), this.play,
        el("button", { type: "button", "aria-label": "a step forward", onclick: () => this.seek(this.step + 1) }, "+1"), this.scrub, this.label, this.speed),
      el("div", { class: this.panes.length > 1 ? "panes both" : "panes" }, ...this.panes.map((p) => p.node)));
  }

  async load() {
    const wrong = (pane) => (error) => pane.node.replaceChildren(el("h2", {}, `Episode #${pane.id}`), el("p", { class: "wrong", role: "status" }, error.message));
    await Promise.all(this.panes.map((pane) => pane.load().catch(wrong(pane))));
    const there = this.panes.filter((pane) => pane.data);
    if (!there.length) return;
    this.first = Math.min(...there.map(({ data }) => data.first));
    this.last = Math.max(...there.map(({ data }) => data.first + data.rows - 1));
    for (const pane of there) pane.build(this.first, this.last);
    this.scrub.min = this.first;
    this.scrub.max = this.last;
    this.seek(this.first);
  }

  seek(step) {
    if (this.last < 0) return null;
    this.step = Math.min(Math.max(step, this.first), this.last);
    this.scrub.value = this.step;
    this.label.textContent = `${this.step} / ${this.last}`;
    return Promise.all(this.panes.map((pane) => pane.show(this.step)));
  }

  toggle() {
    this.playing = !this.playing;
    this.play.textContent = this.playing ? "❚❚ Pause" : "▶ Play";
    this.play.setAttribute("aria-pressed", String(this.playing));
    if (!this.playing) return;
    if (this.step >= this.last) this.seek(this.first);
    this.run();
  }

  // One step after another; a frame that is late holds the player up, none is left out.
  async run() {
    while (this.playing) {
      await new Promise((done) => setTimeout(done, 1000 / (FPS * Number(this.speed.value))));
      if (!this.playing) return;
      if (this.step >= this.last) { this.toggle(); return; }
      await this.seek(this.step + 1);
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      this.copied.textContent = "Copied";
    } catch {
      this.copied.textContent = "Copy it from the address bar";
    }
    setTimeout(() => { this.copied.textContent = "Copy link"; }, 2000);
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1;
    if (event.key === " ") this.toggle();
    else if (event.key === "ArrowLeft") this.seek(this.step - far);
    else if (event.key === "ArrowRight") this.seek(this.step + far);
    else if (event.key === "Home") this.seek(this.first);
    else if (event.key === "End") this.seek(this.last);
    else if (event.key === "Escape") this.goes(this.list);
    else return false;
    return true;
  }

  update() {}
  close() {
    this.playing = false;
    for (const pane of this.panes) pane.close();
  }
}
