// Charts and the grid of nodes, on canvas. Colours come from the stylesheet by name, so the same code draws both themes.

import { stamp } from "/static/page.js";

const colours = () => getComputedStyle(document.documentElement);
export const colour = (name) => colours().getPropertyValue(`--${name}`).trim();

function prepared(canvas, height) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

// Choose a step of 1, 2 or 5 times a power of ten, so that a few grid lines reach the top.
export function niceStep(most, lines, whole) {
  const rough = Math.max(most, 1e-9) / lines;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((it) => it * power).find((it) => it >= rough);
  return whole ? Math.max(1, step) : step;
}

const two = (number) => String(number).padStart(2, "0");
export const clockTime = (at, seconds = true) => {
  const time = new Date(at * 1000);
  return `${two(time.getHours())}:${two(time.getMinutes())}${seconds ? `:${two(time.getSeconds())}` : ""}`;
};

// The axis of a day or less has times, a longer one has dates.
function axisTime(at, span) {
  if (span <= 86400 * 1.1) return clockTime(at, span < 600);
  const date = stamp(at).slice(5, 10);
  return span < 86400 * 8 ? `${date} ${clockTime(at, false)}` : date;
}

function shownNumber(value, whole, most = value) {
  const digits = whole || most >= 100 ? 0 : most >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Draws stacked areas or lines. series: [{name, colour, values}]; at: seconds since the epoch, ascending.
export class Chart {
  constructor(canvas, tip, { height = 190, stacked = false, whole = true, step = false } = {}) {
    Object.assign(this, { canvas, tip, height, stacked, whole, step, at: [], series: [], hover: null });
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => { this.hover = null; tip.hidden = true; this.draw(); });
  }

  show(at, series) {
    this.shown = true;
    this.at = at;
    this.series = series;
    this.named ??= this.canvas.getAttribute("aria-label");
    const now = series.map((it) => `${it.name} ${shownNumber(it.values.at(-1) ?? 0, this.whole)}`).join(", ");
    this.canvas.setAttribute("aria-label", `${this.named}. Now: ${now || "nothing"}`);
    this.draw();
  }

  draw() {
    const { pen, width, height } = prepared(this.canvas, this.height);
    const sums = this.at.map((_, index) => this.series.reduce((sum, it) => sum + it.values[index], 0));
    const tops = this.stacked ? sums : this.series.flatMap((it) => it.values);
    const top = tops.reduce((most, it) => Math.max(most, it), 0);
    const step = niceStep(Math.max(top, this.whole ? 1 : 0.01), 4, this.whole);
    const most = Math.max(step, Math.ceil(top / step) * step);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    const left = Math.max(40, 12 + pen.measureText(shownNumber(most, this.whole, most)).width);
    const box = { left, right: width - 6, top: 8, bottom: height - 22 };
    const first = this.at[0] ?? 0;
    const last = this.at.at(-1) ?? 1;
    const span = Math.max(1, last - first);
    this.x = (at) => box.left + ((at - first) / span) * (box.right - box.left);
    const y = (value) => box.bottom - (value / most) * (box.bottom - box.top);
    this.axes(pen, box, y, step, most, first, span);
    if (this.at.length < 2) {
      pen.fillStyle = colour("faint");
      pen.textAlign = "center";
      pen.fillText(this.shown ? "no data yet" : document.body.dataset.state ?? "loading", (box.left + box.right) / 2, (box.top + box.bottom) / 2);
      return;
    }
    if (this.stacked) this.areas(pen, y);
    else this.lines(pen, y);
    if (this.hover !== null) {
      pen.strokeStyle = colour("faint");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(this.x(this.at[this.hover]), box.top);
      pen.lineTo(this.x(this.at[this.hover]), box.bottom);
      pen.stroke();
    }
  }

  axes(pen, box, y, step, most, first, span) {
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let value = 0; this.at.length > 1 && value <= most + step / 2; value += step) {
      pen.strokeStyle = colour("line");
      pen.beginPath();
      pen.moveTo(box.left, Math.round(y(value)) + 0.5);
      pen.lineTo(box.right, Math.round(y(value)) + 0.5);
      pen.stroke();
      pen.fillStyle = colour("faint");
      pen.fillText(shownNumber(value, this.whole, most), box.left - 7, y(value));
    }
    pen.textBaseline = "alphabetic";
    const ticks = Math.max(2, Math.floor((box.right - box.left) / 110));
    for (let index = 0; index <= ticks && this.at.length > 1; index += 1) {
      pen.textAlign = index === 0 ? "left" : index === ticks ? "right" : "center";
      const at = first + (span * index) / ticks;
      pen.fillText(axisTime(at, span), box.left + ((box.right - box.left) * index) / ticks, box.bottom + 16);
    }
  }

  // Counts change abruptly, so curves are drawn in steps.
  trace(pen, heights, forth) {
    const count = this.at.length;
    for (let index = 0; index < count; index += 1) {
      const here = forth ? index : count - 1 - index;
      const x = this.x(this.at[here]);
      if (forth && here > 0) pen.lineTo(x, heights[here - 1]);
      pen.lineTo(x, heights[here]);
      if (!forth && here > 0) pen.lineTo(x, heights[here - 1]);
    }
  }

  areas(pen, y) {
    let below = this.at.map(() => 0);
    for (const { values, colour: name } of this.series) {
      const above = below.map((value, index) => value + values[index]);
      pen.beginPath();
      this.trace(pen, above.map(y), true);
      this.trace(pen, below.map(y), false);
      pen.closePath();
      pen.fillStyle = colour(name);
      pen.globalAlpha = 0.88;
      pen.fill();
      pen.globalAlpha = 1;
      below = above;
    }
  }

  lines(pen, y) {
    for (const { values, colour: name } of this.series) {
      const heights = values.map(y);
      pen.beginPath();
      this.trace(pen, heights, true);
      pen.strokeStyle = colour(name);
      pen.lineWidth = 2;
      pen.lineJoin = "round";
      pen.stroke();
      pen.lineTo(this.x(this.at.at(-1)), y(0));
      pen.lineTo(this.x(this.at[0]), y(0));
      pen.fillStyle = colour(name);
      pen.globalAlpha = 0.1;
      pen.fill();
      pen.globalAlpha = 1;
    }
  }

  point(event) {
    if (this.at.length < 2) return;
    const x = event.offsetX;
    let nearest = 0;
    this.at.forEach((at, index) => { if (Math.abs(this.x(at) - x) < Math.abs(this.x(this.at[nearest]) - x)) nearest = index; });
    this.hover = nearest;
    const rows = this.series.filter((it) => it.values[nearest]).map((it) => `${it.name}  ${shownNumber(it.values[nearest], this.whole)}`);
    showTip(this.tip, event, [stamp(this.at[nearest]), ...rows].join("\n"));
    this.draw();
  }
}

export function showTip(tip, event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const right = event.clientX + 16 + tip.offsetWidth > window.innerWidth;
  tip.style.left = `${right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 14}px`;
  tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
}

// A grid for thousands of nodes: one cell each, grouped by type, filled from below by the rest of its paid window.
export class Grid {
  constructor(canvas, tip, picked) {
    Object.assign(this, { canvas, tip, picked, places: [], fleet: null });
    canvas.addEventListener("pointermove", (event) => {
      const index = this.at(event);
      if (index === null) { tip.hidden = true; return; }
      const { slot, states, state, types, type, left_s: left } = this.fleet;
      const paid = left[index] === null ? "" : `\n${Math.round(left[index] / 60)} min left of its paid window`;
      showTip(tip, event, `${slot[index]}  ${types[type[index]]}\n${states[state[index]]}${paid}`);
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => { const index = this.at(event); if (index !== null) picked(this.fleet.node[index]); });
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  // Arrow keys move a frame from node to node, in the order in which they are drawn; Enter picks one.
  press(event) {
    const order = this.rows?.flatMap((row) => row.nodes) ?? [];
    const columns = Math.max(1, ...(this.rows ?? []).map((row) => row.nodes.length));
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (!order.length || !(event.key in steps || event.key === "Enter")) return;
    event.preventDefault();
    if (event.key === "Enter") { if (this.chosen) this.picked(this.chosen); return; }
    const now = order.findIndex((index) => this.fleet.node[index] === this.chosen);
    const next = order[now < 0 ? 0 : Math.min(order.length - 1, Math.max(0, now + steps[event.key]))];
    const { node, slot, states, state, types, type } = this.fleet;
    this.chosen = node[next];
    this.canvas.nextElementSibling.textContent = `${slot[next]}, ${types[type[next]]}, ${states[state[next]]}`;
    this.draw();
  }

  at(event) {
    const found = this.rows?.find((row) => event.offsetY >= row.top && event.offsetY < row.top + this.pitch);
    if (!found) return null;
    const column = Math.floor((event.offsetX - found.left) / this.pitch);
    return column >= 0 && column < found.nodes.length ? found.nodes[column] : null;
  }

  show(fleet) {
    this.fleet = fleet;
    this.draw();
  }

  draw() {
    const { fleet, canvas } = this;
    if (!fleet) return;
    const width = canvas.clientWidth || canvas.parentElement.clientWidth;
    this.pitch = fleet.node.length > 2500 ? 11 : fleet.node.length > 800 ? 14 : 18;
    const columns = Math.max(1, Math.floor(width / this.pitch));
    const groups = fleet.types.map((_, type) => fleet.node.map((_, index) => index).filter((index) => fleet.type[index] === type));
    const label = 24;
    this.rows = [];
    let top = 0;
    const labels = [];
    groups.forEach((group, type) => {
      labels.push({ text: `${fleet.types[type]}  ${group.length.toLocaleString("en")}`, top });
      top += label;
      for (let from = 0; from < group.length; from += columns) {
        this.rows.push({ top, left: 0, nodes: group.slice(from, from + columns) });
        top += this.pitch;
      }
      top += 8;
    });
    const { pen } = prepared(canvas, top);
    const shades = fleet.states.map((state) => colour(state));
    const held = new Set(fleet.held);
    pen.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("soft");
    labels.forEach(({ text, top: y }) => pen.fillText(text, 0, y + label / 2));
    const size = this.pitch - 2;
    for (const row of this.rows) {
      row.nodes.forEach((index, column) => {
        const x = row.left + column * this.pitch;
        pen.fillStyle = shades[fleet.state[index]];
        pen.globalAlpha = this.pitch > 11 ? 0.38 : 0.55;  // small cells show their state first
        pen.fillRect(x, row.top, size, size);
        pen.globalAlpha = 1;
        const left = fleet.left[index] ?? 1;
        const height = Math.max(2, Math.round(size * left));
        pen.fillRect(x, row.top + size - height, size, height);
        if (fleet.node[index] === this.chosen) {
          pen.strokeStyle = colour("accent");
          pen.lineWidth = 3;
          pen.strokeRect(x + 0.5, row.top + 0.5, size - 1, size - 1);
        }
        if (held.has(index)) {
          pen.strokeStyle = colour("ink");
          pen.lineWidth = 1.5;
          pen.strokeRect(x + 0.75, row.top + 0.75, size - 1.5, size - 1.5);
        }
      });
    }
  }
}
