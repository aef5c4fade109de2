// The dashboard: one page that polls the service's HTTP API every two seconds and follows the stream of events.
import { Chart, Grid, clockTime, showTip } from "/static/draw.js";
import { ask, legend, link, made, money, span, the, words } from "/static/page.js";
import { showClouds, showCosts, showEnsembles, showPeers } from "/static/panels.js";
import { showSubject } from "/static/subject.js";
import { openStudies } from "/static/whatif.js";

const STATES = ["busy", "idle", "booting", "requested", "draining", "stopping", "lost", "gone"];
const STRIPS_MAX = 120;
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

function bar(id, part) {
  the(id).style.width = `${Math.min(100, 100 * part)}%`;
  the(id).className = part > 0.9 ? "high" : "";
}

const counted = (counts) => Object.entries(counts).sort((one, other) => other[1] - one[1])
  .map(([code, count]) => `${count.toLocaleString("en")} ${code.replaceAll("_", " ")}`).join(", ");

function showStatus(status) {
  document.title = `${status.cluster} · flux-node-manager`;
  the("cluster").textContent = status.cluster;
  const only = status.observed.length ? `, ${status.observed.join(", ")} only observed` : "";
  pill("mode", (status.mode === "act" ? "acts" : "observes") + only, status.mode === "act" && !only ? "" : "warn");
  if (status.stands_still) pill("decides", status.paused ? `paused by ${status.paused.by}` : "decides nothing", status.paused ? "warn" : "bad");
  else pill("decides", status.safe_mode.on ? "safe mode" : "decides", status.safe_mode.on ? "warn" : "good");
  the("clock").textContent = new Date(status.at * 1000).toLocaleString();
  the("sources").replaceChildren(...Object.entries(status.sources).map(([name, source]) => {
    const shown = made("span", source.stale ? "stale" : "");
    shown.append(made("i"), `${name} ${span(source.age_s)}`);
    return shown;
  }));
  const { nodes, limits, jobs, spent } = status;
  const running = (jobs.run ?? 0) + (jobs.cleanup ?? 0);
  const extras = [[nodes.held, "held"], [nodes.to_retire, "to retire"], [nodes.to_replace, "to replace"], [nodes.orphans, "orphans"], [nodes.intruders, "intruders"]]
    .filter(([count]) => count).map(([count, word]) => `${count} ${word}`).join(", ");
  tile("tile-nodes", nodes.total.toLocaleString("en"), `of ${limits.nodes_max.toLocaleString("en")}`, extras || `${Object.values(nodes.wanted).reduce((sum, it) => sum + it, 0).toLocaleString("en")} wanted`);
  bar("bar-nodes", nodes.total / Math.max(1, limits.nodes_max));
  tile("tile-waiting", status.jobs_waiting_for_nodes.toLocaleString("en"), "", counted(status.jobs_waiting));
  tile("tile-running", running.toLocaleString("en"), "", `${(jobs.inactive ?? 0).toLocaleString("en")} have ended`);
  tile("tile-price", money(status.price_per_hour), `of ${money(limits.price_per_hour_max)}`, `${money(limits.price_per_hour_left)} left`);
  bar("bar-price", status.price_per_hour / Math.max(1e-9, limits.price_per_hour_max));
  tile("tile-spent", money(spent.today ?? spent.since_start), "", spent.today === null ? "since the service started" : "an estimate, UTC day");
  showTroubles(status);
  showClouds(status);
}

function showTroubles(status) {
  const lines = [];
  if (status.stands_still) lines.push([status.stands_still.text, status.paused ? "" : "bad"]);
  if (status.safe_mode.on) lines.push(["A list lacked a large part of the fleet at once. The manager changes nothing until that is confirmed.", ""]);
  if (status.nodes.intruders) lines.push([`${status.nodes.intruders} machines have our cluster's name but another UUID. They are never touched.`, "bad"]);
  for (const block of status.blocks) lines.push([`${block.node_type === "*" ? "All types" : block.node_type}${block.zone ? ` in ${block.zone}` : ""}: not bought until ${clockTime(block.until_at)}: ${block.reason.text}`, ""]);
  for (const warning of status.warnings) lines.push([warning.text, ""]);
  for (const [name, source] of Object.entries(status.sources)) if (source.failure) lines.push([`${name}: ${source.failure}`, source.stale ? "bad" : ""]);
  the("troubles").hidden = lines.length === 0;
  the("troubles").replaceChildren(...lines.map(([text, kind]) => made("p", kind, text)));
}

// --- over time ------------------------------------------------------------------------------------------

const charts = {
  nodes: new Chart(the("chart-nodes"), tip, { stacked: true }),
  queue: new Chart(the("chart-queue"), tip),
  price: new Chart(the("chart-price"), tip, { whole: false }),
};

function showHistory({ samples }) {
  const at = samples.map((it) => it.at);
  const seen = STATES.filter((state) => samples.some((it) => it.nodes[state]));
  charts.nodes.show(at, seen.map((state) => ({ name: state, colour: state, values: samples.map((it) => it.nodes[state] ?? 0) })));
  charts.queue.show(at, [
    { name: "running", colour: "running", values: samples.map((it) => it.jobs_running) },
    { name: "waiting for nodes", colour: "waiting", values: samples.map((it) => it.jobs_waiting) },
  ]);
  charts.price.show(at, [{ name: "per hour", colour: "price", values: samples.map((it) => it.price_per_hour) }]);
  legend(the("legend-nodes"), seen.map((state) => [state, state]));
  legend(the("legend-queue"), [["running", "running"], ["waiting for nodes", "waiting"]]);
}

// --- the fleet ------------------------------------------------------------------------------------------

const grid = new Grid(the("grid"), tip, (node) => { location.hash = `#/node/${encodeURIComponent(node)}`; });

async function showFleet() {
  const fleet = await ask("/fleet");
  const counts = {};
  fleet.state.forEach((index) => { counts[fleet.states[index]] = (counts[fleet.states[index]] ?? 0) + 1; });
  legend(the("legend-fleet"), STATES.filter((state) => counts[state]).map((state) => [state, state, counts[state]]));
  const many = fleet.node.length > STRIPS_MAX;
  the("fleet-empty").hidden = fleet.node.length > 0;
  the("strips").hidden = many;
  the("grid-holder").hidden = !many;
  if (many) grid.show(fleet);
  else showStrips((await ask("/nodes")).nodes);
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

// --- jobs -----------------------------------------------------------------------------------------------

function showJobs(jobs) {
  const waiting = jobs.jobs.filter((job) => job.waits_s !== null);
  const total = Object.values(jobs.waiting).reduce((sum, it) => sum + it, 0);
  the("jobs-note").textContent = jobs.shown ? (waiting.length < total ? `the first ${waiting.length} of ${total.toLocaleString("en")}` : "") : "shown only with the token";
  const rows = waiting.slice(0, 100).map((job) => {
    const row = made("tr");
    const id = made("td", "id");
    id.append(link("job", job.job));
    row.append(id, made("td", "", job.user), made("td", "", job.reason?.text ?? job.state), made("td", "number", span(job.waits_s)));
    return row;
  });
  the("jobs-empty").hidden = waiting.length > 0 || !jobs.shown;
  the("jobs").hidden = !rows.length;
  the("jobs").tBodies[0].replaceChildren(...rows);
}

// Jobs that run in other instances are shown beside the peers.
async function showQueue(jobs) {
  showJobs(jobs);
  showPeers(await ask("/peers"), jobs);
}

// --- events ---------------------------------------------------------------------------------------------

function showEvent(event) {
  const line = made("li");
  const what = made("div", "what");
  what.append(made("b", "", words(event.what)), " ");
  if (event.subject && event.node_type) {
    what.append(link("node", event.subject, event.at));
  } else what.append(event.subject);
  const { detail, by, why } = event.figures;
  // The reason of a standstill that ends is why nothing was decided.
  const ended = event.kind === "standstill" && event.what === "ends";
  const because = ended ? "decides again" : event.reason?.text ?? detail ?? (by ? `by ${by}${why ? `: ${why}` : ""}` : "");
  if (because) what.append(made("span", "", `  ${because}`));
  line.append(made("time", "", clockTime(event.at)), made("span", `tag ${event.kind}`, event.kind), what);
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

async function turn() {
  try {
    showStatus(await ask("/status"));
    await Promise.all([ask("/history").then(showHistory), showFleet(), ask("/jobs?limit=100").then(showQueue), ask("/ensembles").then(showEnsembles)]);
  } catch (error) {
    pill("decides", "unreachable", "bad");
    the("troubles").hidden = false;
    the("troubles").replaceChildren(made("p", "bad", `The service cannot be reached: ${error.message}`));
  }
  document.body.dataset.turns = Number(document.body.dataset.turns ?? 0) + 1;
  setTimeout(turn, EVERY_MS);
}

useTheme();
openStudies();
showView();
ask("/events/recent?limit=300").then(({ events }) => {
  events.forEach(showEvent);
  follow(events.at(-1)?.number ?? 0);
}).catch(() => follow(0));
turn();
