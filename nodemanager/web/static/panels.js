// Panels beside the fleet: instances that take our jobs, ensembles, and what the days cost.
import { RANGES, ask, asks, count, known, legend, link, made, madeSvg, money, span, table, the } from "/static/page.js";

// --- clouds ---------------------------------------------------------------------------------------------

// Only a site with several clouds has any here.
export function showClouds({ at, clouds }) {
  the("clouds").hidden = !clouds.length;
  if (clouds.length) the("costs-by-cloud").hidden = false;
  const word = (it) => `${it.state}${it.node_type ? ` (${it.node_type})` : ""}${it.since_at === null ? "" : ` for ${span(at - it.since_at)}`}`;
  const rows = clouds.map((cloud) => [
    cloud.name,
    cloud.troubles.map(word).join(", ") || cloud.state,
    cloud.nodes_max === null ? String(cloud.nodes) : `${cloud.nodes} of ${cloud.nodes_max}`,
    cloud.price_per_hour_max === null ? money(cloud.price_per_hour) : `${money(cloud.price_per_hour)} of ${money(cloud.price_per_hour_max)}`,
    cloud.budgets.map((it) => `${money(it.spent)} of ${money(it.budget)} a ${it.period}`).join(", ") || null,
  ]);
  const reasons = clouds.flatMap((cloud) => cloud.troubles.map((it) => made("p", "note", it.reason.text)));
  the("clouds-body").replaceChildren(table("Clouds of the site", ["cloud", "state", ">nodes", ">cost per hour", ">of its budget"], rows), ...reasons);
}

// --- node types and demand ------------------------------------------------------------------------------

export function showTypes(types) {
  const rows = types.map(({ boots, ...it }) => [
    link("type", it.name),
    money(it.price_per_hour),
    `${it.nodes.toLocaleString("en")} of ${it.slots.toLocaleString("en")}`,
    it.wanted.toLocaleString("en"),
    boots ? boots.joined.toLocaleString("en") : null,
    boots ? `${span(boots.median_s)} / ${span(boots.p95_s)}` : null,
    boots ? failures(boots) : null,
    it.reason?.text,
  ]);
  const columns = ["type", ">per hour", ">nodes of slots", ">wanted", ">joined", ">boot median / p95", ">failed", "because"];
  the("types-body").replaceChildren(table("Node types, and how they booted", columns, rows));
}

export function failures(boots) {
  const shown = made("span", boots.failed ? "failed" : "", boots.failed.toLocaleString("en"));
  shown.title = Object.entries(boots.failures).map(([outcome, number]) => `${number} ${outcome.replaceAll("_", " ")}`).join(", ");
  return shown;
}

// Equal jobs are one row: "34 jobs of 4 cores".
export function showDemand({ shown, groups, first }) {
  the("jobs-note").textContent = !shown ? "shown only with the token" : first.length < groups ? `the first ${first.length} of ${groups.toLocaleString("en")} kinds` : "";
  const rows = first.map((it) => [
    `${count(it.count, "job")} of ${asks(it)}${it.queue ? `, queue ${it.queue}` : ""}`,
    it.user,
    link("job", it.job),
    it.reason?.text,
    span(it.waits_s),
  ]);
  the("jobs-empty").hidden = first.length > 0 || !shown;
  the("jobs").replaceChildren(...(rows.length ? [table("Waiting jobs", ["asks for", "user", "longest", "because", ">waits"], rows)] : []));
}

// --- peers ----------------------------------------------------------------------------------------------

export function showPeers({ delegates, fault, peers, delegated, shown }) {
  the("peers").hidden = !delegates;
  if (!delegates) return;
  const rows = peers.map((peer) => [
    peer.name,
    peer.reachable ? (peer.load ? `up, ${peer.load.scheduler}` : "up") : `away: ${peer.why}`,
    peer.load ? `${peer.load.nodes_free} of ${peer.load.nodes}` : null,
    peer.load ? `${peer.load.cores_free} of ${peer.load.cores}` : null,
    peer.load ? String(peer.load.waiting) : null,
    peer.load ? span(peer.load.wait_s) : null,
    money(peer.price_per_core_hour),
    `${peer.jobs} of ${peer.jobs_max}`,
  ]);
  const parts = fault ? [made("p", "because", `No job is delegated now: ${fault}`)] : [];
  parts.push(table("Instances that take our jobs", ["peer", "state", ">free nodes", ">free cores", ">waiting", ">wait", ">price per core", ">our jobs"], rows));
  if (delegated.length) parts.push(table("Jobs in other instances", ["job", "user", "state", "peer", "because"], delegated.map((job) => [link("job", job.job), job.user, job.state, job.delegated?.peer ?? "none yet", job.reason?.text])));
  else parts.push(made("p", "note", shown ? "None of the jobs shown runs in another instance." : "Single jobs are shown only with the token."));
  the("peers-body").replaceChildren(...parts);
}

// --- ensembles ------------------------------------------------------------------------------------------

const COUNTS = ["submitting", "pending", "running", "success", "failed", "retried", "cancelled", "refused"];
const SHADES = { submitting: "requested", pending: "waiting", running: "running", success: "idle", failed: "lost", retried: "draining", cancelled: "gone", refused: "gone" };

export function showEnsembles({ ensembles, nodes_kept: kept }) {
  const names = [...new Set([...ensembles.map((it) => it.name), ...Object.keys(kept)])];
  the("ensembles").hidden = !names.length;
  the("ensembles-body").replaceChildren(...names.flatMap((name) => {
    const found = ensembles.find((it) => it.name === name);
    const head = made("h3");
    head.append(link("ensemble", name));
    head.append(made("span", "note", `  nodes kept for it: ${kept[name] ?? found?.nodes_floor ?? 0}${found ? "" : "; it runs beside the service"}`));
    if (!found) return [head];
    const groups = Object.entries(found.groups);
    const used = COUNTS.filter((count) => groups.some(([, counts]) => counts[count]));
    const rows = groups.map(([group, counts]) => [group, share(counts, used), ...used.map((count) => String(counts[count] ?? 0))]);
    const rules = found.rules.map((it) => [it.rule, String(it.matches), String(it.runs), String(it.left)]);
    return [head, table(`Groups of ${name}`, ["group", "jobs", ...used.map((it) => `>${it}`)], rows), table(`Rules of ${name}`, ["rule", ">matched", ">fired", ">left"], rules)];
  }));
}

// A bar of a group's jobs by their state.
function share(counts, used) {
  const total = used.reduce((sum, it) => sum + (counts[it] ?? 0), 0);
  const bar = madeSvg("svg", { viewBox: "0 0 100 8", class: "share", role: "img", preserveAspectRatio: "none", "aria-label": `${total} jobs` });
  let from = 0;
  for (const it of used) {
    const width = total ? (100 * (counts[it] ?? 0)) / total : 0;
    bar.append(madeSvg("rect", { x: from, y: 0, width, height: 8, class: `fill-${SHADES[it]}` }));
    from += width;
  }
  return bar;
}

// --- costs ----------------------------------------------------------------------------------------------

const SHARES = ["accent", "busy", "booting", "draining", "lost", "idle"];

export async function showCosts() {
  const by = the("costs-by").value;
  const body = the("costs-body");
  try {
    // Each UTC day that the range touches.
    const wanted = Math.ceil(RANGES[known.range] / 86400) + 1;
    const { days, shown } = await ask(`/costs?days=${wanted}`);
    const hidden = !shown && ["user", "queue"].includes(by);
    body.replaceChildren(...(hidden ? [made("p", "note", "Users and queues are shown only with the token.")] : costs(days, by, wanted)));
  } catch (error) {
    body.replaceChildren(made("p", "because", error.message));
  }
}
the("costs-by").addEventListener("change", showCosts);

function costs(days, by, wanted) {
  if (!days.length) return [made("p", "empty", "The history has no costs of this time.")];
  const unnamed = by === "cloud" ? "(not recorded)" : "(the only queue)";
  const sums = new Map();
  for (const day of days) for (const [name, cost] of Object.entries(day[`by_${by}`])) sums.set(name, (sums.get(name) ?? 0) + cost);
  const ordered = [...sums].sort((one, other) => other[1] - one[1]).map(([name]) => name);
  // The picture has as many shares as colours; the table has all.
  const named = ordered.length > SHARES.length ? ordered.slice(0, SHARES.length - 1) : ordered;
  const shade = (name) => (named.includes(name) ? SHARES[named.indexOf(name)] : SHARES.at(-1));
  const key = made("p", "legend");
  const dearest = Math.max(...days.map((day) => Object.values(day[`by_${by}`]).reduce((sum, it) => sum + it, 0)));
  legend(key, [...named, ...(named.length < ordered.length ? ["others"] : [])].map((name) => [name || unnamed, shade(name)]));
  const date = (day) => new Date(day.day_at * 1000).toISOString().slice(0, 10);
  const rows = days.toReversed().map((day) => [date(day), money(Object.values(day[`by_${by}`]).reduce((sum, it) => sum + it, 0)), ...ordered.map((name) => money(day[`by_${by}`][name] ?? 0))]);
  const holder = made("div", "scroll-x");
  holder.tabIndex = 0;
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", "Costs as a table");
  holder.append(table("Costs by day", ["day (UTC)", ">all", ...ordered.map((name) => `>${name || unnamed}`)], rows));
  return [key, made("p", "note", `The dearest day cost ${money(dearest)}.`), bars(days, by, dearest, ordered, shade, date, unnamed, wanted), holder];
}

function bars(days, by, dearest, ordered, shade, date, unnamed, wanted) {
  const most = Math.max(dearest, 1e-9);
  const picture = madeSvg("svg", { viewBox: `0 0 ${wanted * 40} 160`, class: "days", role: "img", preserveAspectRatio: "none" });
  picture.style.maxWidth = `${wanted * 90}px`;
  picture.setAttribute("aria-label", `Costs of ${days.length} days, at most ${money(most)} a day`);
  const today = days.at(-1).day_at;
  days.forEach((day) => {
    const place = wanted - 1 - Math.round((today - day.day_at) / 86400);
    let top = 158;
    for (const name of ordered) {
      const height = (150 * (day[`by_${by}`][name] ?? 0)) / most;
      top -= height;
      const part = madeSvg("rect", { x: place * 40 + 4, y: top, width: 32, height, class: `fill-${shade(name)}` });
      part.append(madeSvg("title", {}));
      part.firstChild.textContent = `${date(day)} ${name || unnamed}: ${money(day[`by_${by}`][name] ?? 0)}`;
      picture.append(part);
    }
  });
  return picture;
}
