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

const keptToken = () => sessionStorage.getItem("token");
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("token", decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", location.pathname);
}

export async function ask(path) {
  const headers = keptToken() ? { Authorization: `Bearer ${keptToken()}` } : {};
  const response = await fetch(path, { headers });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? `status ${response.status}`);
  if (typeof answer.currency === "string") currency = answer.currency; // only the status has it
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

export function figure(name, value) {
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "number" && name.endsWith("_at")) return new Date(value * 1000).toLocaleString();
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
  for (const [name, value] of pairs) holder.append(made("dt", "", name.replace(/_(s|at)$/, "").replaceAll("_", " ")), made("dd", "", value));
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
