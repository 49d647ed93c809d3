// An image leaf of an episode: a frame, and a strip of some of them. Frames come in sheets.

import { el, short } from "./dom.js";

const SHEET = 24; // frames of one request
const KEPT = 16; // sheets of one leaf
const STRIP = 14; // frames of a strip

function picture(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(() => image);
}

export class ImageLeaf {
  constructor(path, leaf, { first, rows }, seek) {
    this.url = `${path}/frames?leaf=${leaf.number}`;
    this.leaf = leaf;
    this.first = first; // the oldest step that was not evicted
    this.rows = rows;
    this.sheets = new Map();
    this.step = first;
    this.canvas = el("canvas", { class: "frame", width: leaf.width, height: leaf.height, role: "img", "aria-label": `${leaf.name}, a frame` });
    this.strip = el("canvas", { class: "strip", role: "img", "aria-label": `${leaf.name}, frames of the whole episode` });
    this.strip.addEventListener("pointerdown", (event) => {
      const box = this.strip.getBoundingClientRect();
      seek(this.first + Math.floor(((event.clientX - box.left) / box.width) * this.rows));
    });
    this.shape = `${leaf.shape.join(" × ")} ${leaf.dtype}`;
    this.note = el("p", { class: "note" });
    this.node = el("div", { class: "images" }, this.canvas, this.strip, this.note);
  }

  async load() {
    const every = Math.max(Math.ceil(this.rows / STRIP), 1);
    const count = Math.ceil(this.rows / every);
    try {
      this.thumbs = await picture(`${this.url}&from=${this.first}&count=${count}&every=${every}&side=64`);
      this.count = count;
      this.every = every;
      this.drawStrip();
      await this.show(this.step);
    } catch {
      this.note.textContent = "These frames could not be read; the episode may have been evicted.";
    }
  }

  drawStrip() {
    if (!this.thumbs) return;
    const width = this.thumbs.naturalWidth, height = this.thumbs.naturalHeight / this.count;
    this.strip.width = width * this.count;
    this.strip.height = height;
    const pen = this.strip.getContext("2d");
    for (let i = 0; i < this.count; i += 1) pen.drawImage(this.thumbs, 0, i * height, width, height, i * width, 0, width, height);
    const x = ((this.step - this.first + 0.5) / this.rows) * this.strip.width;
    pen.fillStyle = "#000";
    pen.fillRect(x - 3, 0, 6, height);
    pen.fillStyle = "#fff";
    pen.fillRect(x - 1.5, 0, 3, height);
  }

  sheet(number) {
    if (!this.sheets.has(number)) {
      if (this.sheets.size >= KEPT) this.sheets.delete(this.sheets.keys().next().value);
      this.sheets.set(number, picture(`${this.url}&from=${this.first + number * SHEET}&count=${SHEET}`));
    }
    return this.sheets.get(number);
  }

  sheetOf(step) { return Math.floor((step - this.first) / SHEET); }

  async show(step) {
    this.step = Math.min(Math.max(step, this.first), this.first + this.rows - 1);
    const number = this.sheetOf(this.step);
    let image;
    try {
      image = await this.sheet(number);
    } catch {
      this.sheets.delete(number);
      this.note.textContent = "This frame could not be read; the episode may have been evicted.";
      return;
    }
    if (this.sheetOf(this.step) !== number) return; // it went on meanwhile
    const { width, height } = this.canvas;
    const at = this.step - this.first - number * SHEET;
    this.canvas.getContext("2d").drawImage(image, 0, at * height, width, height, 0, 0, width, height);
    this.canvas.dataset.step = this.step;
    this.note.textContent = `frame ${short(this.step)} of ${short(this.first + this.rows - 1)}`;
    this.drawStrip();
    if (number * SHEET + SHEET < this.rows) this.sheet(number + 1).catch(() => this.sheets.delete(number + 1));
  }
}
