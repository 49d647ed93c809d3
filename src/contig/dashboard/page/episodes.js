// The list of episodes: search, sort, select, compare, export.

import { duration, el, get, short, whole } from "./dom.js";

const PAGE = 25;
const REFRESH_MS = 2500;

export function ending(episode) {
  if (episode.terminated) return "terminated";
  if (episode.truncated) return "truncated";
  return "open";
}

export class EpisodesView {
  constructor(table, asked, goes) {
    this.table = table;
    this.goes = goes;
    this.query = asked.get("q") || "";
    this.sort = asked.get("sort") || "-id";
    this.offset = Number(asked.get("at")) || 0;
    this.chosen = new Set((asked.get("sel") || "").split(",").filter(Boolean).map(Number));
    this.focused = null;
    this.build();
    this.load();
    this.timer = setInterval(() => document.hidden || this.load(), REFRESH_MS);
  }

  build() {
    this.box = el("input", { id: "search", type: "search", "aria-label": "Search episodes", autocomplete: "off", spellcheck: "false",
      placeholder: "return>100 length<50 version=3..7 terminated", oninput: () => this.typed() });
    this.box.value = this.query;
    this.said = el("p", { id: "found", role: "status" });
    this.about = el("p", { class: "note", id: "about", hidden: true });
    this.body = el("div", { class: "scroll", id: "list", tabindex: -1 });
    this.compare = el("button", { type: "button", id: "compare", onclick: () => this.compareChosen() }, "Compare");
    this.exports = ["csv", "json", "npz"].map((form) => el("a", { class: "button", download: true, "data-as": form }, form.toUpperCase()));
    this.what = el("span", { class: "muted" });
    this.back = el("button", { type: "button", onclick: () => this.turn(-PAGE) }, "Newer");
    this.on = el("button", { type: "button", onclick: () => this.turn(PAGE) }, "Older");
    this.place = el("span", { class: "muted" });
    this.node = el("div", { id: "episodes" },
      el("form", { role: "search", class: "bar", onsubmit: (event) => { event.preventDefault(); this.typed(true); } }, this.box),
      el("p", { class: "note" }, "Terms are joined by “and”: ", el("code", {}, "return"), " ", el("code", {}, "length"), " ", el("code", {}, "version"), " ", el("code", {}, "id"),
        " ", el("code", {}, "traj"), " ", el("code", {}, "age"), " and fields, with < > = or a range a..b; ", el("code", {}, "terminated"), " ", el("code", {}, "-trimmed"), "; or an id."),
      this.about, this.said,
      el("div", { class: "bar" }, this.compare, el("span", { class: "group" }, this.what, ...this.exports), el("span", { class: "group right" }, this.place, this.back, this.on)),
      this.body);
  }

  typed(now) {
    clearTimeout(this.later);
    const go = () => {
      this.query = this.box.value.trim();
      this.offset = 0;
      this.remember();
      this.load();
    };
    if (now) go(); else this.later = setTimeout(go, 250);
  }

  turn(by) {
    this.offset = Math.max(this.offset + by, 0);
    this.remember();
    this.load();
  }

  // A link to what is searched for, sorted by and selected.
  address() {
    const asked = new URLSearchParams();
    if (this.query) asked.set("q", this.query);
    if (this.sort !== "-id") asked.set("sort", this.sort);
    if (this.offset) asked.set("at", this.offset);
    if (this.chosen.size) asked.set("sel", [...this.chosen].join(","));
    const text = asked.toString();
    return `#/${encodeURIComponent(this.table)}/episodes${text ? `?${text}` : ""}`;
  }

  remember() { history.replaceState(null, "", this.address()); }

  async load() {
    const asked = new URLSearchParams({ query: this.query, sort: this.sort, offset: this.offset, limit: PAGE });
    const turn = (this.turnNumber = (this.turnNumber || 0) + 1);
    let data;
    try {
      data = await get(`api/tables/${encodeURIComponent(this.table)}/episodes?${asked}`);
    } catch (error) {
      if (turn !== this.turnNumber) return;
      this.said.textContent = error.message;
      this.said.classList.add("wrong");
      if (error.status === 404) this.body.replaceChildren();
      return;
    }
    if (turn !== this.turnNumber) return;
    this.said.classList.remove("wrong");
    this.data = data;
    const all = this.query ? `${whole(data.found)} of ${whole(data.total)} episodes stored` : `${whole(data.total)} episodes stored`;
    this.said.textContent = all;
    this.draw();
  }

  columns() {
    const now = Date.now() / 1000;
    const plain = [
      ["id", "id", (e) => el("a", { href: this.link(e.id), "data-id": e.id, "data-focus": `link ${e.id}` }, `#${e.id}`), "number"],
      ["return", "return", (e) => short(e.return), "number"],
      ["steps", "length", (e) => whole(e.steps), "number"],
      [null, "end", (e) => el("span", { class: `badge ${ending(e)}` }, ending(e)), ""],
      ["policy_version", "version", (e) => (e.policy_version < 0 ? "–" : whole(e.policy_version)), "number"],
      ["time", "age", (e) => duration(Math.max(now - e.time, 0)), "number"],
      [null, "traj id", (e) => (e.traj_id === "-1" ? "–" : e.traj_id), "number wide"],
      [null, "", (e) => (e.trimmed ? el("span", { class: "badge" }, "trimmed") : ""), "wide"],
    ];
    const show = (value) => (Array.isArray(value) ? `[${value.flat(3).slice(0, 4).map((x) => short(Number(x))).join(", ")}]` : typeof value === "boolean" ? String(value) : short(value));
    const fields = this.data.fields.map((name) => [name, name, (e) => show(e[name]), "number wide"]);
    return [...plain, ...fields];
  }

  link(id) {
    return `#/${encodeURIComponent(this.table)}/episode/${id}`;
  }

  draw() {
    const { episodes, found } = this.data;
    const columns = this.columns();
    const head = columns.map(([key, name, , kind]) => {
      const turned = this.sort.replace("-", "") === key;
      const sorted = turned ? (this.sort.startsWith("-") ? "descending" : "ascending") : null;
      const label = key === null || Array.isArray(episodes[0] && episodes[0][key]) ? name
        : el("button", { type: "button", class: "sort", "data-focus": `sort ${key}`, onclick: () => this.sortBy(key) }, name, turned ? (sorted === "ascending" ? " ↑" : " ↓") : "");
      return el("th", { class: kind, "aria-sort": sorted }, label);
    });
    const rows = episodes.map((e) => {
      const box = el("input", { type: "checkbox", "data-focus": `box ${e.id}`, "aria-label": `select episode ${e.id}`, checked: this.chosen.has(e.id), onchange: () => this.choose(e.id) });
      const cells = columns.map(([, , show, kind]) => el("td", { class: kind }, show(e)));
      return el("tr", { "data-row": e.id, class: e.id === this.focused ? "here" : "", ondblclick: () => this.goes(this.link(e.id)) }, el("td", {}, box), ...cells);
    });
    const active = this.body.contains(document.activeElement) ? document.activeElement.dataset.focus || "" : null;
    this.body.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, el("th", {}), ...head)), el("tbody", {}, ...rows)));
    if (!episodes.length) this.body.replaceChildren(el("p", { class: "note" }, this.query ? "No episode is like that." : "There are no episodes yet."));
    // The keyboard stays where it is, or, if that is gone, at the list.
    if (active !== null) (this.body.querySelector(`[data-focus="${CSS.escape(active)}"]`) || this.body).focus({ preventScroll: true });
    this.place.textContent = found ? `${whole(this.offset + 1)} to ${whole(Math.min(this.offset + PAGE, found))}` : "";
    this.back.disabled = !this.offset;
    this.on.disabled = this.offset + PAGE >= found;
    this.tell();
  }

  tell() {
    const ids = [...this.chosen];
    this.compare.disabled = ids.length !== 2;
    this.compare.textContent = ids.length === 2 ? `Compare #${ids[0]} and #${ids[1]}` : "Select two to compare";
    this.what.textContent = ids.length ? `Export ${ids.length} selected:` : "Export all found:";
    for (const link of this.exports) {
      const asked = new URLSearchParams({ as: link.dataset.as });
      if (ids.length) asked.set("ids", ids.join(",")); else asked.set("query", this.query);
      link.href = `api/tables/${encodeURIComponent(this.table)}/export?${asked}`;
    }
  }

  sortBy(key) {
    this.sort = this.sort === `-${key}` ? key : `-${key}`;
    this.offset = 0;
    this.remember();
    this.load();
  }

  choose(id) {
    if (!this.chosen.delete(id)) this.chosen.add(id);
    this.remember();
    this.draw();
  }

  compareChosen() {
    const ids = [...this.chosen];
    if (ids.length === 2) this.goes(`${this.link(ids[0])}/${ids[1]}`);
  }

  step(by) {
    const ids = (this.data ? this.data.episodes : []).map((e) => e.id);
    if (!ids.length) return;
    const at = ids.indexOf(this.focused);
    this.focused = ids[Math.min(Math.max(at + by, 0), ids.length - 1)];
    for (const row of this.body.querySelectorAll("tr[data-row]")) row.classList.toggle("here", Number(row.dataset.row) === this.focused);
    const link = this.body.querySelector(`a[data-id="${this.focused}"]`);
    link.focus();
    link.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const key = event.key;
    if (key === "/") this.box.focus(), this.box.select();
    else if (key === "j" || key === "ArrowDown") this.step(1);
    else if (key === "k" || key === "ArrowUp") this.step(-1);
    else if (key === "x" && this.focused !== null) this.choose(this.focused);
    else if (key === "c") this.compareChosen();
    else return false;
    return true;
  }

  update(numbers) {
    this.about.textContent = numbers.notes.episodes || "";
    this.about.hidden = !numbers.notes.episodes;
  }

  close() { clearInterval(this.timer); clearTimeout(this.later); }
}
