// The live view: rates, fill, ages, the limiter, clients, returns and lengths.

import { bytes, duration, el, get, short, whole } from "./dom.js";
import { Histogram, LineChart } from "./charts.js";

const WINDOW_S = 120;

function card(title, hint, ...children) {
  const note = el("p", { class: "note" });
  const node = el("section", { class: "card" }, el("h2", {}, title, hint ? el("small", {}, hint) : null), ...children, note);
  return { node, say(text) { note.textContent = text || ""; note.hidden = !text; } };
}

function tile(name) {
  const value = el("b", {}, "–"), more = el("small", {});
  const node = el("div", { class: "tile" }, el("span", {}, name), value, more);
  return { node, value, show(text, said = "") { value.textContent = text; more.textContent = said; } };
}

// Why there is no staleness of rows that were sampled.
function missingVersions(ages) {
  if (ages.stored_version === null) return "No policy version is recorded with any row of this table.";
  return `The sampled rows have no policy version, or were evicted since; the newest one stored is ${whole(ages.stored_version)}.`;
}

export class LiveView {
  constructor(table) {
    this.table = table;
    this.history = [];
    this.build();
    this.soon = 0;
  }

  build() {
    this.tiles = {};
    for (const [key, name] of [["in", "rows in per s"], ["out", "rows out per s"], ["fill", "filled"], ["episodes", "episodes, ever"],
      ["ratio", "samples per insert"], ["age", "mean age sampled"], ["return", "return, last 100"], ["clients", "clients"]]) {
      this.tiles[key] = tile(name);
      this.tiles[key].node.id = `tile-${key}`;
    }
    this.meter = el("div", { class: "meter", role: "meter", "aria-label": "filled", "aria-valuemin": 0, "aria-valuemax": 100 }, el("i", {}));
    this.tiles.fill.node.append(this.meter);
    const ago = (x) => (x === 0 ? "now" : `${short(x)} s`);
    this.rates = new LineChart("rows per second", { zero: true, legend: true, format: ago, height: 190 });
    this.ratio = new LineChart("samples per insert", { zero: true, legend: true, format: ago });
    this.rows = new Histogram("ages of sampled rows, in rows");
    this.seconds = new Histogram("ages of sampled rows, in seconds", { format: duration });
    this.stale = new Histogram("versions behind the newest policy");
    const clock = (x) => new Date(x * 1000).toLocaleTimeString("en-GB");
    this.returns = new LineChart("returns over time", { format: clock });
    this.lengths = new LineChart("lengths over time", { format: clock });
    this.limiter = el("p", { class: "limiter" });
    this.clients = el("div", { class: "scroll" });
    this.counters = el("p", { class: "counters muted" });
    this.cards = {
      rates: card("Rates", "rows per second", this.rates.node),
      ratio: card("Samples per insert", "against the limiter", this.ratio.node, this.limiter),
      rows: card("Age of what is sampled", "in rows written since", this.rows.node),
      seconds: card("Age of what is sampled", "in time", this.seconds.node),
      stale: card("Policy staleness", "versions behind the newest", this.stale.node),
      returns: card("Returns", "of ended episodes", this.returns.node),
      lengths: card("Lengths", "steps of ended episodes", this.lengths.node),
      clients: card("Clients", "", this.clients, this.counters),
    };
    this.cards.rates.node.classList.add("two");
    for (const key of ["returns", "lengths"]) this.cards[key].node.classList.add("half");
    this.cards.clients.node.classList.add("all");
    this.node = el("div", { id: "live" },
      el("div", { class: "tiles" }, ...Object.values(this.tiles).map((t) => t.node)),
      el("div", { class: "cards" }, ...Object.values(this.cards).map((c) => c.node)));
  }

  async update(numbers) {
    const table = numbers.tables[this.table];
    if (!table) return;
    const since = this.history.length ? this.history[this.history.length - 1].time : 0;
    const path = `api/tables/${encodeURIComponent(this.table)}`;
    const live = await get(`${path}/live?since=${since}`);
    this.history = [...this.history, ...live.history].slice(-600);
    this.showNumbers(numbers, table);
    this.showCurves(numbers, table);
    this.showAges(live.ages, numbers.notes, table);
    this.showClients(numbers);
    if (table.kind !== "queue" && Date.now() >= this.soon) {
      const began = performance.now();
      this.showReturns(await get(`${path}/returns`), numbers.notes.episodes);
      this.soon = Date.now() + 2000 + 10 * (performance.now() - began);
    }
  }

  showNumbers(numbers, table) {
    const tiles = this.tiles;
    tiles.in.show(short(table.rows_in_per_s), `${whole(table.rows_in)} in all`);
    tiles.out.show(short(table.rows_out_per_s), table.rows_out === null ? "not counted here" : `${whole(table.rows_out)} in all`);
    const fill = table.fill === null ? null : Math.min(table.fill, 1) * 100;
    const of = table.capacity ? `${short(table.rows)} of ${short(table.capacity)} rows` : `${whole(table.rows)} rows kept`;
    tiles.fill.show(fill === null ? "–" : `${short(fill)} %`, `${of}${table.bytes ? `, ${bytes(table.bytes)}` : ""}`);
    tiles.fill.node.title = numbers.notes.capacity || "";
    this.meter.hidden = fill === null;
    this.meter.firstChild.style.width = `${fill || 0}%`;
    this.meter.setAttribute("aria-valuenow", Math.round(fill || 0));
    tiles.episodes.show(short(table.episodes), table.episodes_per_s === null || table.episodes_per_s === undefined ? "" : `${short(table.episodes_per_s)} per s`);
    tiles.ratio.show(short(table.samples_per_insert), table.limiter ? `limiter: ${short(table.limiter.samples_per_insert)}` : "no limiter known");
    tiles.age.show(short(table.sampled_age_rows), table.sampled_age_rows === null ? "" : "rows written since");
    const clients = numbers.clients;
    const blocked = (clients || []).filter((c) => c.blocked).length;
    tiles.clients.show(clients ? String(clients.length) : "–", clients ? (blocked ? `${blocked} waiting for room` : "none is waiting") : "");
  }

  showCurves(numbers, table) {
    const now = numbers.time;
    const seen = this.history.filter((look) => look.time > now - WINDOW_S);
    const x = seen.map((look) => Math.min(look.time - now, 0));
    const line = (name, key, colour) => ({ name, colour, x, y: seen.map((look) => look[key] ?? null) });
    const range = [-Math.max(Math.min(WINDOW_S, x.length ? -x[0] : 0), 10), 0];
    this.rates.show([line("in", "rows_in_per_s", 0), line("out", "rows_out_per_s", 1)], { range });
    this.cards.rates.say(numbers.notes.rows_out ? `Rows out: ${numbers.notes.rows_out}.` : "");
    const limiter = table.limiter;
    const levels = limiter ? [{ y: limiter.samples_per_insert, name: "limiter" }] : [];
    const known = table.samples_per_insert !== null && table.samples_per_insert !== undefined;
    this.ratio.show(known ? [line("samples per insert", "samples_per_insert", 1)] : [], { range, levels });
    this.cards.ratio.say(known ? (limiter ? "" : (numbers.notes.limiter ? `No limiter: ${numbers.notes.limiter}.` : "This table has no limiter.")) : "Nothing was sampled yet, or it is not counted here.");
    this.limiter.hidden = !limiter;
    if (limiter) {
      const side = limiter.drift > 0 ? "Inserting is ahead by" : "Sampling is ahead by";
      this.limiter.textContent = `${side} ${short(Math.abs(limiter.drift))} of ${short(limiter.error_buffer)} sampled rows; the first sample needs ${short(limiter.min_size)} rows.`;
    }
  }

  showAges(ages, notes, table) {
    const of = ages && ages.of ? `Of ${ages.of}.` : "";
    const none = table.kind === "queue" ? "A queue hands each item out once, in order." : notes.ages || "Nothing was sampled since this page looks.";
    const show = (key, chart, data, missing) => {
      chart.show(data);
      chart.node.hidden = !data;
      this.cards[key].say(data ? `median ${chart.options.format(data.p50)}, 90 % below ${chart.options.format(data.p90)}, ${short(data.count)} rows. ${of}` : missing);
    };
    show("rows", this.rows, ages && ages.rows, none);
    show("seconds", this.seconds, ages && ages.seconds, none);
    const unversioned = ages && ages.rows ? notes.staleness || missingVersions(ages) : none;
    show("stale", this.stale, ages && ages.staleness, unversioned);
  }

  showReturns(data, note) {
    const line = (name, key, colour) => [{ name, colour, x: data.time, y: data[key].mean, low: data[key].low, high: data[key].high }];
    const some = data.time.length > 0;
    this.returns.show(some ? line("return", "return", 4) : []);
    this.lengths.show(some ? line("steps", "steps", 7) : []);
    const said = some ? `${whole(data.ended)} ended, ${whole(data.open)} open; means, and the range of each point.` : "No episode has ended yet.";
    this.cards.returns.say(note || said);
    this.cards.lengths.say(note || said);
    this.tiles.return.show(short(data.mean_return ?? null), data.mean_steps ? `${short(data.mean_steps)} steps` : "");
  }

  showClients(numbers) {
    const { clients, server, notes } = numbers;
    if (!clients) {
      this.clients.replaceChildren();
      this.cards.clients.say(notes.clients ? `Not shown: ${notes.clients}.` : "");
      this.counters.textContent = "";
      return;
    }
    this.cards.clients.say(clients.length ? "" : "Nobody is connected.");
    const head = ["client", "table", "rows/s", "rows", "bytes", "connected", "blocked", "now"];
    const rows = clients.slice(0, 200).map((c) => el("tr", {},
      el("td", {}, c.peer), el("td", {}, c.table), el("td", { class: "number" }, short(c.rows_per_s)), el("td", { class: "number" }, whole(c.rows)),
      el("td", { class: "number" }, bytes(c.bytes)), el("td", { class: "number" }, duration(c.seconds)),
      el("td", { class: "number" }, `${duration(c.blocked_s)} (${short(c.seconds ? (100 * c.blocked_s) / c.seconds : 0)} %)`),
      el("td", {}, c.blocked ? el("span", { class: "badge waits" }, "waits for room") : el("span", { class: "badge fine" }, "sends"))));
    this.clients.replaceChildren(clients.length ? el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { class: i > 1 && i < 7 ? "number" : "" }, h)))), el("tbody", {}, ...rows)) : "");
    const refused = Object.entries(server.rejected).map(([reason, n]) => `${n} ${reason}`).join(", ");
    this.counters.textContent = `${whole(server.connections_total)} connections ever, ${bytes(server.bytes_in)} received, ${bytes(server.bytes_out)} sent, `
      + `blocked ${whole(server.blocked)} times for ${duration(server.blocked_s)} in all, ${whole(server.duplicates_dropped)} duplicates dropped, ${whole(server.lost_items)} lost`
      + `${refused ? `; refused: ${refused}` : ""}.`;
  }

  key() { return false; }
  close() {}
}
