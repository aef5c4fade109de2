// Shows a result of "simulate --json": each policy with its cost and waits. The file stays in the browser.
import { list, made, madeSvg, money, span, table, the } from "/static/page.js";

export function openStudies() {
  the("study-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    let parts;
    try {
      parts = study(JSON.parse(await file.text()));
    } catch (error) {
      parts = [made("p", "because", `${file.name} is no result of "flux-node-manager simulate --json": ${error.message}`)];
    }
    the("study").replaceChildren(...parts);
  });
}

function study(found) {
  if (!found.main || !found.workload) throw new Error("it has no main and no workload");
  const groups = [["this site", { [found.main.policy]: found.main }], ["other site", found.compared], ["sweep", found.swept], ["baseline", found.baselines]];
  const runs = groups.flatMap(([kind, outcomes]) => Object.entries(outcomes ?? {}).map(([name, outcome]) => ({ kind, name, ...outcome })));
  const parts = [made("h3", "", found.headline || `The site alone: ${money(found.main.cost)}`)];
  parts.push(list([["workload", found.workload.name], ["site", found.site], ["jobs", String(found.main.jobs)]]));
  if (runs.length > 1) parts.push(picture(runs));
  const rows = runs.map((run) => [run.name, run.kind, money(run.cost), span(run.wait_mean_s), span(run.wait_p95_s), run.node_hours.toFixed(1), `${(100 * run.utilisation).toFixed(0)} %`, String(run.boots), String(run.jobs - run.jobs_served)]);
  const holder = made("div", "scroll-x");
  holder.tabIndex = 0;
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", "Policies as a table");
  holder.append(table("Policies", ["policy", "", ">cost", ">mean wait", ">95 of 100 wait", ">node-hours", ">used", ">boots", ">not served"], rows));
  parts.push(holder);
  if (found.sentences?.length) {
    const said = made("ul");
    said.append(...found.sentences.map((sentence) => made("li", "", sentence)));
    parts.push(made("h3", "", "Findings"), said);
  }
  return parts;
}

// A dot for each policy: cost to the right, the wait of 95 of 100 jobs upwards.
function picture(runs) {
  const figure = made("figure", "plane");
  const picture_ = madeSvg("svg", { viewBox: "0 0 640 300", role: "img", "aria-label": `Cost and wait of ${runs.length} policies; the table has the figures` });
  const costs = Math.max(...runs.map((run) => run.cost), 1e-9) * 1.1;
  const waits = Math.max(...runs.map((run) => run.wait_p95_s), 1) * 1.15;
  picture_.append(madeSvg("path", { d: "M 50 10 V 260 H 630", class: "axis" }));
  const put = (x, y, text, anchor) => {
    const label = madeSvg("text", { x, y, "text-anchor": anchor });
    label.textContent = text;
    picture_.append(label);
  };
  put(630, 280, `cost, up to ${money(costs)}`, "end");
  put(56, 20, `wait of 95 of 100 jobs, up to ${span(waits)}`, "start");
  for (const run of runs.toReversed()) { // this site last, so that no other covers it
    const x = 50 + (570 * run.cost) / costs;
    const y = 260 - (240 * run.wait_p95_s) / waits;
    const dot = madeSvg("circle", { cx: x, cy: y, r: 6, class: run.kind === "this site" ? "fill-accent" : run.kind === "baseline" ? "fill-gone" : "fill-waiting" });
    dot.append(madeSvg("title", {}));
    dot.firstChild.textContent = `${run.name}: ${money(run.cost)}, ${span(run.wait_p95_s)}`;
    picture_.append(dot);
    if (run.kind === "this site") put(x, y - 10, run.name, "middle");
  }
  figure.append(picture_);
  return figure;
}
