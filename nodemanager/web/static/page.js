// What all views share: requests with the token, formats, and elements made in short.

export const the = (id) => document.getElementById(id);

export function made(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined && text !== null) element.textContent = text;
  return element;
}

// CordonNode becomes "cordon node".
export const words = (name) => name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();

export function madeSvg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// --- requests -------------------------------------------------------------------------------------------

// The token is in this tab's memory only, never in the address.
export const keptToken = () => sessionStorage.getItem("token");
export function keepToken(token) {
  if (token) sessionStorage.setItem("token", token);
  else sessionStorage.removeItem("token");
}

// What all views know: the last overview, and the range that the address names.
export const RANGES = { "1h": 3600, "6h": 21600, "1d": 86400, "7d": 604800, "30d": 2592000 };
const named = new URLSearchParams(location.search).get("range");
export const known = { overview: null, range: named in RANGES ? named : "6h" };

export async function ask(path, order) {
  const headers = keptToken() ? { Authorization: `Bearer ${keptToken()}` } : {};
  const how = order ? { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(order) } : { headers };
  const response = await fetch(path, how);
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error ?? `status ${response.status}`), { status: response.status });
  currency = answer.status?.currency ?? currency; // only the overview has it
  return answer;
}

// --- formats --------------------------------------------------------------------------------------------

let currency = "";

// As on the command line: a code after the amount, a symbol before it.
export function money(amount) {
  if (amount === null || amount === undefined) return "–";
  const written = digits(Math.abs(amount));
  const sign = amount < 0 ? "-" : "";
  return /^[A-Z]/.test(currency) ? `${sign}${written} ${currency}` : `${sign}${currency}${written}`;
}

function digits(amount) {
  if (amount >= 1000) return amount.toLocaleString("en", { maximumFractionDigits: 0 });
  // Four digits, as on the command line: a small machine costs 0.0116 an hour.
  const decimals = amount ? Math.max(2, Math.min(6, 3 - Math.floor(Math.log10(amount)))) : 2;
  return amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: decimals });
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(Math.abs(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (hours) return `${hours}h${String(minutes).padStart(2, "0")}m`;
  return minutes ? `${minutes}m${String(rest).padStart(2, "0")}s` : `${rest}s`;
}

const AMOUNTS = new Set(["budget", "cost", "cost_today", "egress", "forecast", "instead_per_hour", "left", "other_cost", "per_day", "price_per_hour", "price_per_hour_max", "spent"]);

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (part) => (part === null || part === undefined || !Number.isFinite(part) ? "–" : `${(100 * part).toFixed(0)} %`);

// A time as ISO 8601 with its zone: 2026-11-24 09:30:00+01:00.
export function stamp(at) {
  const zone = -new Date(at * 1000).getTimezoneOffset();
  const local = new Date(at * 1000 + zone * 60000).toISOString().slice(0, 19).replace("T", " ");
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${local}${zone < 0 ? "-" : "+"}${two(Math.abs(zone) / 60)}:${two(Math.abs(zone) % 60)}`;
}

// A time in short; its title has the whole.
export function moment(at, text = stamp(at)) {
  const shown = made("time", "", text);
  shown.dateTime = stamp(at).replace(" ", "T");
  shown.title = stamp(at);
  return shown;
}

// What a job asks for: "4 cores", "2 nodes, 2 x 16 cores and 1 GPU".
export function asks(job) {
  const each = count(job.cores_per_slot, "core") + (job.gpus_per_slot ? ` and ${count(job.gpus_per_slot, "GPU")}` : "");
  const all = job.slots === 1 ? each : `${job.slots.toLocaleString("en")} x ${each}`;
  return job.nodes === null ? all : `${count(job.nodes, "node")}, ${all}`;
}

export function figure(name, value) {
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "number" && name.endsWith("_at")) return stamp(value);
  if (typeof value === "number" && name.endsWith("_s")) return span(value);
  if (typeof value === "number" && AMOUNTS.has(name)) return money(value);
  return typeof value === "number" && !Number.isInteger(value) ? value.toFixed(2) : String(value);
}

export function legend(holder, entries) {
  holder.replaceChildren(...entries.map(([name, shade, count]) => {
    const entry = made("span");
    const mark = made("i");
    mark.style.background = `var(--${shade})`;
    entry.append(mark, count === undefined ? name : `${name} ${count.toLocaleString("en")}`);
    return entry;
  }));
}

// Rows for a list of pairs, in which a name without its unit stands before its value.
export function list(pairs) {
  const holder = made("dl");
  for (const [name, value] of pairs) {
    const shown = made("dd");
    shown.append(value);
    holder.append(made("dt", "", name.replace(/_(s|at)$/, "").replaceAll("_", " ")), shown);
  }
  return holder;
}

// A table with a caption for screen readers. columns: names, those that begin with ">" to the right; rows: cells.
export function table(caption, columns, rows) {
  const holder = made("table");
  holder.append(made("caption", "hidden", caption));
  const head = made("tr");
  for (const column of columns) head.append(Object.assign(made("th", column.startsWith(">") ? "number" : "", column.replace(/^>/, "")), { scope: "col" }));
  holder.append(made("thead"), made("tbody"));
  holder.tHead.append(head);
  for (const cells of rows) {
    const row = made("tr");
    cells.forEach((cell, index) => {
      const shown = made("td", columns[index].startsWith(">") ? "number" : "");
      shown.append(cell ?? "–");
      row.append(shown);
    });
    holder.tBodies[0].append(row);
  }
  return holder;
}

export function link(kind, name, at) {
  const shown = made("a", "", name);
  shown.href = `#/${kind}/${encodeURIComponent(name)}${at === undefined ? "" : `?at=${at}`}`;
  return shown;
}
