// The dashboard: one page that asks the service for one document every two seconds, and follows the stream of events.
import { Chart, Grid, clockTime, showTip } from "/static/draw.js";
import { ask, known, legend, link, made, moment, money, percent, span, stamp, the, words } from "/static/page.js";
import { showClouds, showCosts, showDemand, showEnsembles, showPeers, showTypes } from "/static/panels.js";
import { openSteering, showSteering } from "/static/steer.js";
import { showSubject } from "/static/subject.js";
import { openStudies } from "/static/whatif.js";

const STATES = ["busy", "idle", "booting", "requested", "draining", "stopping", "lost", "gone"];
const EVENTS_SHOWN = 150;
const EVERY_MS = 2000;

const tip = the("tip");

// --- the head and the tiles -----------------------------------------------------------------------------

function pill(id, text, kind) {
  the(id).textContent = text;
  the(id).className = `pill ${kind}`;
}

function tile(id, figureText, small, note) {
  the(id).replaceChildren(figureText, ...(small ? [" ", made("small", "", small)] : []));
  the(`${id}-note`).textContent = note;
}

function bar(id, part, warns = true) {
  the(id).style.width = `${Math.min(100, 100 * part)}%`;
  the(id).className = warns && part > 0.9 ? "high" : "";
}

const counted = (counts) => Object.entries(counts).sort((one, other) => other[1] - one[1])
  .map(([code, count]) => `${count.toLocaleString("en")} ${code.replaceAll("_", " ")}`).join(", ");

// One word for what the manager does, and its colour.
function standing(status) {
  if (status.paused) return [`paused by ${status.paused.by}`, "warn"];
  if (status.stands_still) return ["decides nothing", "bad"];
  if (status.safe_mode.on) return ["safe mode", "warn"];
  if (status.mode !== "act") return ["observing", "warn"];
  return status.observed.length ? [`acting, ${status.observed.join(", ")} only observed`, "warn"] : ["acting", "good"];
}

function showStatus(status, { cores, waits, cost, name, failure }) {
  document.title = `${status.cluster} · flux-node-manager`;
  the("cluster").textContent = status.cluster;
  pill("mode", ...standing(status));
  the("clock").replaceChildren(stamp(status.at));
  the("clock").dateTime = stamp(status.at).replace(" ", "T");
  the("sources").replaceChildren(...Object.entries(status.sources).map(([name, source]) => {
    const shown = made("span", source.stale ? "stale" : "");
    shown.append(made("i"), `${name} ${span(source.age_s)}`);
    return shown;
  }));
  const { nodes, limits, jobs } = status;
  const running = (jobs.run ?? 0) + (jobs.cleanup ?? 0);
  const extras = [[nodes.held, "held"], [nodes.to_retire, "to retire"], [nodes.to_replace, "to replace"], [nodes.orphans, "orphans"], [nodes.intruders, "intruders"]]
    .filter(([count]) => count).map(([count, word]) => `${count} ${word}`).join(", ");
  tile("tile-nodes", nodes.total.toLocaleString("en"), `of ${limits.nodes_max.toLocaleString("en")}`, extras || `${Object.values(nodes.wanted).reduce((sum, it) => sum + it, 0).toLocaleString("en")} wanted`);
  bar("bar-nodes", nodes.total / Math.max(1, limits.nodes_max));
  tile("tile-waiting", status.jobs_waiting_for_nodes.toLocaleString("en"), "", counted(status.jobs_waiting));
  tile("tile-running", running.toLocaleString("en"), "", `${(jobs.inactive ?? 0).toLocaleString("en")} have ended`);
  tile("tile-price", money(status.price_per_hour), `of ${money(limits.price_per_hour_max)}`, `${money(limits.price_per_hour_left)} left`);
  bar("bar-price", status.price_per_hour / Math.max(1e-9, limits.price_per_hour_max));
  tile("tile-cores", percent(cores.used / cores.paid), "now", `${cores.used.toLocaleString("en")} of ${cores.paid.toLocaleString("en")} paid; ${percent(cores.share)} in ${name}`);
  bar("bar-cores", cores.used / Math.max(1, cores.paid), false);
  tile("tile-wait", waits.jobs ? span(waits.median_s) : "–", "", failure ? "no history" : waits.jobs ? `p95 ${span(waits.p95_s)}; ${waits.jobs.toLocaleString("en")} began in ${name}` : `none began in ${name}`);
  showSpent(status);
  const saved = cost && cost.always_on > 0 ? 1 - cost.cost / cost.always_on : null;
  tile("tile-saved", percent(saved), "", saved === null ? (failure ? "no history" : "no data yet") : `${money(cost.cost)} in ${name}, not ${money(cost.always_on)} for as many nodes, always on`);
  the("tile-saved-note").title = cost ? `since ${stamp(cost.since_at)}; at once: ${Object.entries(cost.nodes).map(([type, number]) => `${number} ${type}`).join(", ")}` : "";
  showTroubles(status);
  showClouds(status);
}

// A budget counts payments when they fall due, so its own amount is shown and not that of the history.
function showSpent({ spent }) {
  const day = spent.budgets.find((it) => it.period === "day");
  the("budget").hidden = !spent.budgets.length;
  bar("bar-spent", Math.max(0, ...spent.budgets.map((it) => it.spent / Math.max(1e-9, it.budget))));
  const forecast = (it) => (it.forecast === null ? "no forecast" : `${money(it.forecast)} expected at the end of the ${it.period}`);
  const notes = spent.budgets.map((it) => (it === day ? forecast(it) : `${money(it.spent)} of ${money(it.budget)} this ${it.period}, ${forecast(it)}`));
  const amount = day?.spent ?? spent.today ?? spent.since_start;
  tile("tile-spent", money(amount), day ? `of ${money(day.budget)}` : "", notes.join("; ") || (spent.today === null ? "since the service started" : "an estimate, UTC day"));
  the("tile-spent-note").title = notes.length ? "Expected: what is spent, and until the end the mean cost per hour of the last 24 hours" : "";
}

function showTroubles(status) {
  const lines = [];
  if (status.stands_still) lines.push([status.stands_still.text, status.paused ? "" : "bad"]);
  if (status.safe_mode.on) lines.push(["A list lacked a large part of the fleet at once. The manager changes nothing until that is confirmed.", ""]);
  if (status.nodes.intruders) lines.push([`${status.nodes.intruders} machines have our cluster's name but another UUID. They are never touched.`, "bad"]);
  for (const block of status.blocks) lines.push([`${block.node_type === "*" ? "All types" : block.node_type}${block.zone ? ` in ${block.zone}` : ""}: not bought until ${stamp(block.until_at)}: ${block.reason.text}`, ""]);
  for (const warning of status.warnings) lines.push([warning.text, ""]);
  for (const [name, source] of Object.entries(status.sources)) if (source.failure) lines.push([`${name}: ${source.failure}`, source.stale ? "bad" : ""]);
  the("troubles").hidden = lines.length === 0;
  the("troubles").replaceChildren(...lines.map(([text, kind]) => made("p", kind, text)));
}

// --- over time ------------------------------------------------------------------------------------------

const charts = {
  nodes: new Chart(the("chart-nodes"), tip, { stacked: true }),
  queue: new Chart(the("chart-queue"), tip),
  cores: new Chart(the("chart-cores"), tip),
  price: new Chart(the("chart-price"), tip, { whole: false }),
};

function showHistory(samples) {
  const at = samples.map((it) => it.at);
  const seen = STATES.filter((state) => samples.some((it) => it.nodes[state]));
  charts.nodes.show(at, seen.map((state) => ({ name: state, colour: state, values: samples.map((it) => it.nodes[state] ?? 0) })));
  charts.queue.show(at, [
    { name: "running", colour: "running", values: samples.map((it) => it.jobs_running) },
    { name: "waiting for nodes", colour: "waiting", values: samples.map((it) => it.jobs_waiting) },
  ]);
  charts.cores.show(at, [
    { name: "paid", colour: "idle", values: samples.map((it) => it.cores_paid) },
    { name: "used", colour: "busy", values: samples.map((it) => it.cores_used) },
  ]);
  charts.price.show(at, [{ name: "per hour", colour: "price", values: samples.map((it) => it.price_per_hour) }]);
  legend(the("legend-nodes"), seen.map((state) => [state, state]));
  legend(the("legend-cores"), [["paid", "idle"], ["used by jobs", "busy"]]);
  legend(the("legend-queue"), [["running", "running"], ["waiting for nodes", "waiting"]]);
}

// --- the fleet ------------------------------------------------------------------------------------------

const grid = new Grid(the("grid"), tip, (node) => { location.hash = `#/node/${encodeURIComponent(node)}`; });

// Rows or cells, and their legend, are of one answer.
function showFleet({ nodes, fleet }) {
  const states = nodes ? nodes.map((it) => it.state) : fleet.state.map((index) => fleet.states[index]);
  const counts = {};
  for (const state of states) counts[state] = (counts[state] ?? 0) + 1;
  legend(the("legend-fleet"), STATES.filter((state) => counts[state]).map((state) => [state, state, counts[state]]));
  the("fleet-empty").hidden = states.length > 0;
  the("fleet-empty").textContent = "No nodes. The manager provisions them when jobs need them.";
  the("strips").hidden = !nodes;
  the("grid-holder").hidden = Boolean(nodes);
  if (nodes) showStrips(nodes);
  else grid.show(fleet);
}

function showStrips(nodes) {
  the("strips").replaceChildren(...nodes.map((node) => {
    const strip = link("node", node.node);
    strip.className = "strip";
    strip.textContent = "";
    const dot = made("span", "dot");
    dot.style.background = `var(--${node.state})`;
    const paid = made("span", "window");
    if (node.window) {
      const left = made("i");
      left.style.width = `${(100 * node.window.left_s) / node.window.length_s}%`;
      paid.append(left);
      strip.addEventListener("pointermove", (event) => showTip(tip, event, `${node.slot} (${node.node_type})\n${span(node.window.left_s)} left of the paid ${span(node.window.length_s)}\n${money(node.cost)} so far`));
      strip.addEventListener("pointerleave", () => { tip.hidden = true; });
    }
    const why = node.jobs.length ? `${node.jobs.length === 1 ? "job" : "jobs"} ${node.jobs.join(", ")}` : node.reason?.text ?? "";
    strip.append(dot, made("span", "slot", node.slot), made("span", "state", node.held ? "held" : node.state), paid, made("span", "why", why));
    return strip;
  }));
}

// --- events ---------------------------------------------------------------------------------------------

function showEvent(event) {
  const line = made("li");
  const what = made("div", "what");
  what.append(made("b", "", words(event.what)), " ");
  if (event.subject.startsWith("type ")) {
    what.append(link("type", event.subject.slice(5)));
  } else if (event.subject && event.node_type) {
    what.append(link("node", event.subject, event.at));
  } else what.append(event.subject);
  const { detail, by, why } = event.figures;
  // The reason of a standstill that ends is why nothing was decided.
  const ended = event.kind === "standstill" && event.what === "ends";
  const because = ended ? "decides again" : event.reason?.text ?? detail ?? (by ? `by ${by}${why ? `: ${why}` : ""}` : "");
  if (because) what.append(made("span", "", `  ${because}`));
  line.append(moment(event.at, clockTime(event.at)), made("span", `tag ${event.kind}`, event.kind), what);
  the("events").prepend(line);
  while (the("events").childElementCount > EVENTS_SHOWN) the("events").lastElementChild.remove();
}

function follow(after) {
  const source = new EventSource(`/events?after=${after}`);
  for (const kind of ["decided", "would", "node", "failed", "operator", "standstill", "alarm", "block"]) {
    source.addEventListener(kind, (event) => showEvent(JSON.parse(event.data)));
  }
}

// --- views ----------------------------------------------------------------------------------------------

// The part of the address after # names the view: #/costs, #/node/NAME, #/job/ID?at=TIME.
function showView() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, subject] = path.split("/");
  const isSubject = ["node", "job", "type", "ensemble"].includes(name) && subject;
  const view = isSubject ? "subject" : ["costs", "whatif"].includes(name) ? name : "overview";
  for (const shown of document.querySelectorAll("main > [data-view]")) shown.hidden = shown.dataset.view !== view;
  for (const entry of document.querySelectorAll("nav a")) {
    if (entry.dataset.view === view) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
  document.body.dataset.view = view;
  if (isSubject) showSubject(name, decodeURIComponent(subject), new URLSearchParams(query).get("at"), STATES);
  if (view === "costs") showCosts();
  if (view === "overview") redraw();
  else scrollTo(0, 0);
}
function useRange() {
  const chosen = the("range").value;
  known.range = chosen;
  const there = new URL(location.href);
  there.searchParams.set("range", chosen);
  history.replaceState(null, "", there);
  refresh();
  if (document.body.dataset.view !== "overview") showView();
}
the("range").value = known.range;
the("range").addEventListener("change", useRange);
addEventListener("hashchange", () => { showView(); the("main").focus({ preventScroll: true }); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && document.body.dataset.view === "subject") location.hash = "#/"; });

// --- themes, and polling --------------------------------------------------------------------------------

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function useTheme() {
  const chosen = localStorage.getItem("theme");
  document.documentElement.dataset.theme = chosen ?? (prefersDark.matches ? "dark" : "light");
  redraw();
}
function redraw() {
  if (document.body.dataset.view !== "overview") return;
  Object.values(charts).forEach((chart) => chart.draw());
  grid.draw();
}
the("theme").addEventListener("click", () => {
  localStorage.setItem("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  useTheme();
});
prefersDark.addEventListener("change", useTheme);
addEventListener("resize", redraw);

let asked = 0;
async function refresh() {
  const number = (asked += 1);
  try {
    const found = await ask(`/overview?range=${known.range}`);
    if (number !== asked) return;  // another range was chosen meanwhile
    const isFirst = !known.overview;
    known.overview = found;
    document.body.dataset.state = "live";
    showStatus(found.status, found.range);
    showHistory(found.samples);
    showFleet(found);
    showTypes(found.types);
    showDemand(found.demand);
    showPeers(found.peers);
    showEnsembles(found.ensembles);
    showSteering(found);
    if (isFirst && document.body.dataset.view === "subject") showView();
  } catch (error) {
    if (number === asked) showFailure(error);
  }
}

// An answer with an error is no data; no answer at all is unreachable. What was shown before stays, greyed out.
function showFailure(error) {
  const state = error.status ? "no data" : "unreachable";
  document.body.dataset.state = state;
  pill("mode", state, "bad");
  const since = known.overview ? ` What follows is of ${stamp(known.overview.at)}.` : "";
  the("troubles").hidden = false;
  the("troubles").replaceChildren(made("p", "bad", `${error.status ? "The service has nothing to show" : "The service cannot be reached"}: ${error.message}.${since}`));
  if (known.overview) return;
  for (const empty of document.querySelectorAll(".view .empty")) empty.textContent = state;
  redraw();
}

async function turn() {
  await refresh();
  document.body.dataset.turns = Number(document.body.dataset.turns ?? 0) + 1;
  setTimeout(turn, EVERY_MS);
}

useTheme();
openStudies();
openSteering(async () => {
  await refresh();
  if (document.body.dataset.view !== "overview") showView();
});
showView();
ask("/events/recent?limit=150").then(({ events }) => {
  events.forEach(showEvent);
  follow(events.at(-1)?.number ?? 0);
}).catch(() => follow(0));
turn();
