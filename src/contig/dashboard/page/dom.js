// Elements and numbers. Text is always text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "hidden" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// A number in a few characters: 1.23k, 45.6, 0.012.
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, name] of UNITS) {
    if (size >= unit * 0.9995) return trim(value / unit) + name;
  }
  if (size === 0) return "0";
  if (size < 0.001) return value.toExponential(1);
  return trim(value);
}

function trim(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(Number(value.toFixed(digits)));
}

export function whole(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${trim(value)} ${units[unit]}`;
}

// Seconds as a person says them.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  if (size < 0.0995) return `${trim(seconds * 1000)} ms`;
  if (size < 99.5) return `${trim(seconds)} s`;
  if (size < 5970) return `${trim(seconds / 60)} min`;
  if (size < 172000) return `${trim(seconds / 3600)} h`;
  return `${trim(seconds / 86400)} d`;
}

export async function get(path) {
  const answer = await fetch(path);
  if (answer.ok) return answer.json();
  let said = `${answer.status} ${answer.statusText}`;
  try {
    said = (await answer.json()).error || said;
  } catch {
    // no JSON: the status says it
  }
  const error = new Error(said);
  error.status = answer.status;
  throw error;
}
