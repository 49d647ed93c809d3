// The page: which view is shown, by the address behind #, and what all of them share.
//
//   #/TABLE                     live
//   #/TABLE/episodes?q=...      the list
//   #/TABLE/episode/7           one episode
//   #/TABLE/episode/7/9         two, side by side

import { get } from "./dom.js";
import { EpisodesView } from "./episodes.js";
import { EpisodeView } from "./episode.js";
import { LiveView } from "./live.js";

const byId = (id) => document.getElementById(id);
const EVERY_MS = 1000;
const lists = new Map(); // by table: the list of episodes as it was left
let view = null, tables = [], shown = null;

function goes(hash) {
  location.hash = hash;
}

function theme(next) {
  if (next) {
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("contig-theme", next); } catch { /* it lasts as long as the page */ }
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  byId("theme").textContent = now === "dark" ? "Light" : "Dark";
  return now;
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; } // typed by hand: a name of nothing
}

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [table, place, ...ids] = path.split("/").map(decoded);
  return { table: tables.includes(table) ? table : tables[0], place: place || "", ids, asked: new URLSearchParams(query || "") };
}

function route() {
  if (!tables.length) return;
  const { table, place, ids, asked } = parse();
  const name = `#/${encodeURIComponent(table)}`;
  byId("to-live").href = name;
  byId("to-episodes").href = `${name}/episodes`;
  byId("table").value = table;
  if (view instanceof EpisodesView) lists.set(view.table, view.address());
  if (view) view.close();
  const numbers = ids.filter((id) => /^\d{1,15}$/.test(id)).map(Number).slice(0, 2);
  if (place === "episode" && numbers.length) view = new EpisodeView(table, numbers, goes, lists.get(table) || `${name}/episodes`);
  else if (place === "episodes") view = new EpisodesView(table, asked, goes);
  else view = new LiveView(table);
  byId("to-live").toggleAttribute("aria-current", view instanceof LiveView);
  byId("to-episodes").toggleAttribute("aria-current", !(view instanceof LiveView));
  byId("main").replaceChildren(view.node);
  shown = table;
  document.title = numbers.length && place === "episode" ? `contig: episode ${numbers.join(" and ")}` : "contig";
  if (view instanceof LiveView) look();
}

function known(numbers) {
  const names = Object.keys(numbers.tables);
  if (names.join("\n") === tables.join("\n")) return;
  tables = names;
  byId("table").replaceChildren(...names.map((name) => new Option(name, name)));
  byId("tables").hidden = names.length < 2;
  const { kind, label } = numbers.source;
  byId("source").textContent = `${{ directory: "directory", shared: "shared memory", server: "server", buffer: "buffer", remote: "server" }[kind] || kind} ${label}`;
  route();
}

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    const numbers = await get("api/numbers");
    known(numbers);
    if (view) await view.update(numbers);
    byId("state").textContent = "live";
    byId("state").className = "on";
  } catch (error) {
    byId("state").textContent = error instanceof TypeError ? "not reachable" : error.message;
    byId("state").className = "off";
  } finally {
    looking = false;
  }
}

function typing(target) {
  return target.matches?.("input:not([type=checkbox]):not([type=range]), select, textarea");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (byId("keys").open) return;
  if (event.key === " " && event.target.matches?.("button, a, input:not([type=range])")) return;
  if (event.target.matches?.("input[type=range]") && event.key.startsWith("Arrow")) return;
  if (view && view.key(event)) event.preventDefault();
  else if (event.key === "1") goes(byId("to-live").hash);
  else if (event.key === "2") goes(byId("to-episodes").hash);
  else if (event.key === "t") theme(theme() === "dark" ? "light" : "dark");
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key === "/") { event.preventDefault(); goes(byId("to-episodes").hash); setTimeout(() => byId("search")?.focus(), 50); }
});
byId("theme").addEventListener("click", () => theme(theme() === "dark" ? "light" : "dark"));
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("table").addEventListener("change", () => goes(`#/${encodeURIComponent(byId("table").value)}${parse().place === "episodes" ? "/episodes" : ""}`));
window.addEventListener("hashchange", () => { if (location.hash !== "#main") route(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());

try { const kept = localStorage.getItem("contig-theme"); if (kept === "dark" || kept === "light") theme(kept); } catch { /* none is kept */ }
theme();
look();
// Nothing is asked while nobody sees the page.
setInterval(() => document.hidden || look(), EVERY_MS);
