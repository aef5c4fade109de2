// The page of one node, job, node type or ensemble: why it is as it is, what it did before, and a picture of it.
import { failures } from "/static/panels.js";
import { ask, figure, known, link, list, made, madeSvg, moment, money, span, stamp, table, the, words } from "/static/page.js";
import { nodeButtons, typeButtons } from "/static/steer.js";

const NODE_KEYS = ["state", "slot", "node_type", "market", "zone", "provider_id", "cores", "cores_free", "cost", "price_per_hour", "requested_at", "since_at"];
const JOB_KEYS = ["state", "user", "queue", "nodes", "slots", "cores_per_slot", "gpus_per_slot", "submitted_at", "waits_s"];
const TYPE_KEYS = ["size", "market", "zones", "cores", "gpus", "price_per_hour", "slots", "spares", "properties"];
const NODES_SHOWN = 100;
const ENSEMBLE_KEYS = ["wanted", "asked", "kept", "weight", "nodes_min", "nodes_max", "per_day", "cost_today"];
// Of a past time at which no reason applied: the last event.
const NO_REASON = { began: "It was running.", ended: "It had ended.", ends: "Nothing is recorded since decisions resumed." };
const JOB_STATES = { began: "running", ended: "gone" };
let shown = 0;

// at: a time in seconds since the epoch, from the link; null if the link has none. A subject that is gone is shown as of then.
export async function showSubject(kind, name, at, states) {
  const number = (shown += 1);
  const body = the("subject");
  if (body.dataset.of !== `${kind} ${name}`) body.replaceChildren(made("p", "note", "loading"));
  body.dataset.of = `${kind} ${name}`;
  const path = `/explain/${kind}/${encodeURIComponent(name)}`;
  let parts;
  try {
    // What has gone is explained from the history, as of the time of the link, or else as of now.
    const past = at ?? known.overview?.at ?? Date.now() / 1000;
    const now = await ask(`${path}?history=yes`).catch((error) => {
      if (error.status !== 404 || kind === "ensemble") throw error;
      return ask(`${path}?at=${past}`).catch(() => { throw error; });
    });
    parts = subject(kind, now, now.history ?? [], states);
  } catch (error) {
    const why = error.status === 401 ? "Single jobs are shown only with the token: enter it at the top of the page." : error.status ? error.message : `The service cannot be reached: ${error.message}.`;
    parts = [made("p", "note", kind), made("h2", "title", name), made("p", "because", why)];
  }
  if (number === shown) body.replaceChildren(...parts);
}

function subject(kind, answer, history, states) {
  const parts = [made("p", "note", kind), made("h2", "title", answer.subject)];
  if (answer.said_at !== undefined) parts.push(made("p", "note", `As of ${stamp(answer.at)}, from the history`));
  if (kind === "node" && answer.node) parts.push(...nodeButtons(answer.node));
  if (kind === "type" && answer.node_type) parts.push(...typeButtons(answer.subject));
  const because = made("p", "because", answer.reason?.text ?? answer.ended?.text ?? NO_REASON[answer.what] ?? "No reason is known.");
  if (answer.reason) because.append(made("code", "", answer.reason.code));
  parts.push(because);
  const figures = Object.entries(answer.reason?.figures ?? {}).map(([key, value]) => [key, figure(key, value)]);
  if (figures.length) parts.push(list(figures));
  if (answer.near) parts.push(list([["its data", answer.near]]));
  if (answer.not_taken?.length) parts.push(list(answer.not_taken.map((way) => ["not taken", way])));
  for (const it of answer.ended?.exceptions ?? []) parts.push(made("p", "because", `${it.type} (severity ${it.severity}): ${it.note}`));
  if (answer.of_type) parts.push(list([["node_type", link("type", answer.of_type)]]));
  if (answer.node_type) parts.push(...typeParts(answer));
  if (kind !== "type") parts.push(...pictures(history, answer.at, states));
  if (answer.node) parts.push(made("h3", "", "The node"), facts(answer.node, NODE_KEYS), ...related("Jobs on it", "job", answer.node.jobs));
  if (answer.job) parts.push(made("h3", "", "The job"), facts(answer.job, JOB_KEYS), ...delegated(answer.job.delegated), ...related("Runs on", "node", answer.job.on));
  if (answer.ensemble) parts.push(made("h3", "", "Nodes kept for it"), facts(answer.ensemble, ENSEMBLE_KEYS));
  if (kind === "job") parts.push(...related("Nodes that its reason names", "node", (answer.nodes ?? []).map((node) => node.slot)));
  if (answer.story?.length) {
    const story = made("ul");
    story.append(...answer.story.toReversed().map((line) => made("li", "", line)));
    parts.push(made("h3", "", "Its states, latest first"), story);
  }
  if (history.length) parts.push(made("h3", "", "History, latest first"), table("History", ["at", "what", "because", ">times"], lines(history)));
  return parts;
}

// The lines of the history, latest first. A reason that comes again and again is one line.
function lines(history) {
  const found = new Map();
  for (const it of history.toReversed()) {
    const text = it.reason?.text ?? it.detail ?? "";
    const key = it.kind === "because" ? text : `${it.at} ${it.kind} ${it.what}`;
    if (found.has(key)) found.get(key)[3] = String(Number(found.get(key)[3] || 1) + 1);
    else found.set(key, [moment(it.at), it.kind === "because" ? "new reason" : `${it.kind} ${words(it.what)}`, text, ""]);
  }
  return [...found.values()];
}

// A type's facts, its boots in the range, its nodes, sizes and blocks.
function typeParts(answer) {
  const now = Object.entries(answer.nodes).map(([state, number]) => `${number} ${state}`).join(", ") || "none";
  const parts = [made("h3", "", "The type"), facts(answer.node_type, TYPE_KEYS)];
  parts[1].append(...list([["nodes", now], ["wanted", String(answer.wanted)], ["expected boot", span(answer.boot_takes_s)]]).children);
  const boots = known.overview?.types.find((it) => it.name === answer.subject)?.boots;
  const rows = boots ? [["joined", String(boots.joined)], ["boot median", span(boots.median_s)], ["boot p95", span(boots.p95_s)], ["failed", failures(boots)]] : [];
  parts.push(made("h3", "", `Boots in ${known.range}`), boots ? list(rows) : made("p", "note", "none"));
  if (boots?.failed) parts.push(list(Object.entries(boots.failures).map(([outcome, number]) => [outcome.replaceAll("_", " "), String(number)])));
  const there = nodesOf(answer.subject);
  if (there.length) parts.push(...related("Nodes", "node", there.slice(0, NODES_SHOWN)));
  if (there.length > NODES_SHOWN) parts.push(made("p", "note", `and ${there.length - NODES_SHOWN} more`));
  if (answer.sizes?.length) parts.push(made("h3", "", "Sizes"), table("Sizes", ["size", "market", ">per hour", ">nodes", "because"], answer.sizes.map((it) => [it.size, it.market, money(it.price_per_hour), String(it.nodes), it.reason?.text])));
  for (const block of answer.blocks ?? []) parts.push(made("p", "because", `Not bought${block.zone ? ` in ${block.zone}` : ""} until ${stamp(block.until_at)}: ${block.reason.text}`));
  return parts;
}

function nodesOf(type) {
  const { nodes, fleet } = known.overview ?? {};
  if (nodes) return nodes.filter((it) => it.node_type === type).map((it) => it.slot);
  return fleet ? fleet.slot.filter((_, index) => fleet.types[fleet.type[index]] === type) : [];
}

function facts(of, keys) {
  const present = keys.filter((key) => of[key] !== null && of[key] !== "" && of[key] !== undefined && of[key].length !== 0);
  const rows = present.map((key) => [key, key === "node_type" ? link("type", of[key]) : key.endsWith("_at") ? moment(of[key]) : key === "cost" || key === "price_per_hour" ? money(of[key]) : figure(key, of[key])]);
  if (of.window) rows.push(["paid window", `${span(of.window.left_s)} left of ${span(of.window.length_s)}`]);
  if (of.held) rows.push(["held by", of.held.by]);
  return list(rows);
}

function related(title, kind, names) {
  if (!names?.length) return [];
  const holder = made("p", "related", "");
  for (const name of names) holder.append(link(kind, name), " ");
  return [made("h3", "", title), holder];
}

function delegated(where) {
  if (!where) return [];
  const rows = [["target", where.target], ["peer", where.peer ?? "none yet"], ["id there", where.remote ?? "none yet"]];
  if (where.chosen) rows.push(["chosen because", where.chosen.text]);
  return [made("h3", "", "Runs in another instance"), list(rows)];
}

// --- the picture ----------------------------------------------------------------------------------------

// One bar from the first event to now: a node's states, or whether a job waited or ran. Below, a mark for each decision.
function pictures(history, now, states) {
  const changes = history.filter((it) => it.kind === "node" || it.kind === "job" || it.kind === "because");
  if (!changes.length) return [];
  const first = changes[0].at;
  const ended = changes.findIndex((it) => it.what === "ended");
  const last = Math.max(ended >= 0 ? changes[ended].at : now, first + 1);
  const width = 1000;
  const x = (at) => ((at - first) / (last - first)) * width;
  const picture = madeSvg("svg", { viewBox: `0 0 ${width} 46`, class: "timeline", role: "img", preserveAspectRatio: "none" });
  const isNode = changes.some((it) => it.kind === "node");
  const spans = changes.filter((it) => it.kind === (isNode ? "node" : it.kind) && it.what !== "ended");
  const used = new Map();
  spans.forEach((it, index) => {
    const shade = states.includes(it.what) ? it.what : JOB_STATES[it.what] ?? (isNode ? "gone" : "waiting");
    const until = spans[index + 1]?.at ?? last;
    const part = madeSvg("rect", { x: x(it.at), y: 0, width: Math.max(1, x(until) - x(it.at)), height: 26, class: `fill-${shade}` });
    part.append(madeSvg("title", {}));
    part.firstChild.textContent = `${it.what.replaceAll("_", " ")}: ${span(until - it.at)}${it.reason ? `, ${it.reason.text}` : ""}`;
    picture.append(part);
    used.set(shade, (used.get(shade) ?? 0) + until - it.at);
  });
  for (const it of history.filter((line) => line.kind === "decided" || line.kind === "would" || line.kind === "failed")) {
    picture.append(madeSvg("rect", { x: Math.min(width - 3, x(it.at)), y: 30, width: 3, height: 14, class: it.kind === "failed" ? "fill-lost" : "fill-accent" }));
  }
  const told = [...used].map(([shade, length]) => `${shade} for ${span(length)}`);
  picture.setAttribute("aria-label", `From ${stamp(first)} to ${stamp(last)}: ${told.join(", ")}`);
  const key = made("p", "legend");
  for (const [shade, length] of used) {
    const entry = made("span");
    entry.append(made("i", `back-${shade}`), `${shade} ${span(length)}`);
    key.append(entry);
  }
  const ends = made("p", "ends");
  ends.append(moment(first), ended >= 0 ? moment(last) : made("span", "", "now"));
  return [made("h3", "", "Over time"), key, picture, ends];
}
