"""The report: a single HTML page that needs no other files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from nodemanager.core.reason_text import format_total
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.report import charts
from nodemanager.whatif.report.findings import compare, details, format_short_span, format_span, headline
from nodemanager.whatif.study.study import CostBounds, Study, cost_at_wait

STYLE = """
:root { --paper: #fbfaf8; --card: #ffffff; --ink: #1d1f23; --soft: #5c6068; --grid: #e4e2dd; --main: #1f6fd0;
  --swept: #6ba3e8; --compared: #0f8a6d; --baseline: #b4541a; --busy: #1f6fd0; --idle: #e0a019; --boot: #8a63c9;
  --unused: #c8506b; --lost: #7d828b; --there: #b9d2f1; --waiting: #b4541a; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171b; --card: #1d2026; --ink: #e9e8e4; --soft: #a3a7af;
  --grid: #333841; --main: #5c9df0; --swept: #3f6ea8; --compared: #3fb795; --baseline: #e08a4e; --busy: #5c9df0;
  --idle: #e3b04b; --boot: #a98ae0; --unused: #e0788f; --lost: #8f959f; --there: #2b425f; --waiting: #e08a4e; } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px }
h1 { font-size: 24px; line-height: 1.3; margin: 0 0 6px; text-wrap: balance }
h2 { font-size: 16px; margin: 34px 0 8px }
ul { padding-left: 18px; margin: 6px 0 }
p, li { max-width: 76ch; overflow-wrap: anywhere } .soft { color: var(--soft) }
section > div { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 12px;
  overflow-x: auto }
svg { width: 100%; min-width: 620px; height: auto; display: block }
text { fill: var(--ink); font: 13px system-ui, sans-serif; stroke: var(--card); stroke-width: 3px;
  stroke-linejoin: round; paint-order: stroke } .tick, .axis { fill: var(--soft); font-size: 12px }
.grid { stroke: var(--grid) } .bound { stroke: var(--soft); stroke-dasharray: 5 4 }
.line { fill: none; stroke-width: 2 } .dot { stroke: var(--card); stroke-width: 1.5 }
.dot.main { fill: var(--main) } .dot.swept { fill: var(--swept) } .line.swept { stroke: var(--swept) }
.dot.compared { fill: var(--compared) } .dot.baseline { fill: var(--baseline) }
.area.there { fill: var(--there) } .area.busy { fill: var(--busy) } .area.waiting { fill: var(--waiting) }
.part.busy, .key.busy { fill: var(--busy); background: var(--busy) }
.part.idle, .key.idle { fill: var(--idle); background: var(--idle) }
.part.lost, .key.lost { fill: var(--lost); background: var(--lost) }
.part.boot, .key.boot { fill: var(--boot); background: var(--boot) }
.part.unused, .key.unused { fill: var(--unused); background: var(--unused) }
.key.main { background: var(--main) } .key.swept { background: var(--swept) }
.key.there { background: var(--there) }
.key.compared { background: var(--compared) } .key.baseline { background: var(--baseline) }
.key.waiting { background: var(--waiting) }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px }
.named { white-space: nowrap; margin-right: 14px }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 13px;
  font-variant-numeric: tabular-nums }
th { text-align: right; font-weight: 600; color: var(--soft); vertical-align: bottom }
td { text-align: right; white-space: nowrap } th, td { padding: 5px 8px; border-bottom: 1px solid var(--grid) }
tr:last-child td { border-bottom: 0 } tr.main td { font-weight: 600 }
th:first-child, td:first-child { text-align: left; position: sticky; left: -12px; background: var(--card) }
table.words th, table.words td { text-align: left; white-space: normal }
""".strip()

KINDS = (("main", "this site"), ("swept", "the sweep"), ("compared", "compared"), ("baseline", "baselines"))
BOUND_NAMES = ("no fleet costs less with every job starting as on fixed", "no fleet costs less")


DRAWN_MAX = 3  # the number of runs whose nodes and queue are drawn over time


def render_report(study: Study) -> str:
    """Render the page as HTML."""
    runs = study.outcomes
    drawn = runs[:DRAWN_MAX] if study.compared or study.baselines else runs[:1]
    extent = charts.Extent.of(drawn)
    parts = [
        f"<h1>{_plain(headline(study))}</h1>",
        _findings_list(study),
        f'<p class="soft">{escape(_introduction(study))}</p>',
        *([_section("Cost against wait", _pareto(study), _keys(_shown_groups(study)))] if len(runs) > 1 else []),
        _section("Cost and wait", _html_table(COST_HEADS, _rows(study, _cost_row), main=0), _note(study)),
        _section("Where the money goes", charts.where_money_goes(runs), _keys(charts.cost_parts(runs))),
        _section(f"The cost of {study.main.policy} by node type", _types(study.main), TYPES_NOTE),
        *(
            _section(f"Nodes and queue over time: {run.policy}", charts.over_time(run, extent), _TIME_KEYS)
            for run in drawn
        ),
        _section("Nodes", _html_table(NODE_HEADS, _rows(study, _node_row), main=0)),
        *_restarts(study, runs),
        *_differences(study),
        *_cloud(study),
        *_unserved(study),
        *_oddities(study),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What if: {escape(study.workload.name)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _plain(sentence: str) -> str:
    return escape(sentence).replace(" %", "&nbsp;%")


def _findings_list(study: Study) -> str:
    text = "".join(f"<li>{_plain(sentence)}</li>" for sentence in details(study))
    return f"<ul>{text}</ul>" if text else ""


def _introduction(study: Study) -> str:
    main = study.main
    unserved = sum(main.jobs_unserved.values())
    not_served = f", {unserved} of them not served" if unserved else ""
    return (
        f"{study.workload.name}: {main.jobs:,} jobs{not_served}, over {format_span(main.ended_s)}. "
        f"Site {study.site.path.name}, seed {study.site.simulation.seed}. "
        "Costs are estimates in the currency of the site's prices."
    )


def _section(title: str, body: str, note: str = "") -> str:
    below = f'<p class="soft">{note}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2><div>{body}</div>{below}</section>"


def _keys(kinds: Iterable[tuple[str, str]]) -> str:
    return " ".join(
        f'<span class="named"><span class="key {kind}"></span>{escape(name)}</span>' for kind, name in kinds
    )


_TIME_KEYS = _keys((("there", "all nodes"), ("busy", "nodes with jobs"), ("waiting", "waiting jobs")))


def _shown_groups(study: Study) -> list[tuple[str, str]]:
    there = {"main": True, "swept": study.swept, "compared": study.compared, "baseline": study.baselines}
    return [(kind, name) for kind, name in KINDS if there[kind]]


def _pareto(study: Study) -> str:
    groups = [
        charts.Group("swept", list(study.swept.values()), joined=True),
        charts.Group("baseline", list(study.baselines.values())),
        charts.Group("compared", list(study.compared.values())),
        charts.Group("main", [study.main]),
    ]
    bounds: Sequence[tuple[str, float]] = ()
    if study.bounds is not None:
        costs = (study.bounds.same_starts, study.bounds.work)
        named = list(zip(BOUND_NAMES, costs, strict=True))
        bounds = named if costs[0] > costs[1] else named[1:]
    return charts.cost_against_wait(groups, bounds)


# --- tables -----------------------------------------------------------------------------------------------

COST_HEADS = ("policy", "cost", "this site ÷ this", "mean wait", "median", "p95", "p99", "slowdown",
              "jobs served", "not served")  # fmt: skip
NODE_HEADS = ("policy", "share used", "node-hours", "boots", "failed boots", "reclaimed", "creates refused",
              "re-created within 10 min", "at a limit", "time at a limit", "most at once")  # fmt: skip
TYPE_HEADS = ("type", "market", "nodes", "node-hours", "paid", "cost")
RESTART_HEADS = ("policy", "job restarts", "core-hours lost", "their cost", "share of the cost")
RESTART_NOTE = (
    "If a job's node is lost or reclaimed, the job restarts. The time of the lost run counts as wait. On a shared "
    "node, a lost run costs its share of the cores or of the GPUs, whichever is larger."
)
TYPES_NOTE = (
    "Node-hours are counted from creation to end. Paid hours also include the rest of each billing window or "
    "minimum charge."
)


def _rows(study: Study, row: Callable[[Study, Outcome], tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [row(study, outcome) for outcome in study.outcomes]


def _cost_row(study: Study, outcome: Outcome) -> tuple[str, ...]:
    comparable = outcome is not study.main and outcome.cost > 0 and outcome.serves_as_many(study.main)
    return (
        outcome.policy,
        format_total(outcome.cost),
        f"{study.main.cost / outcome.cost:.3f}" if comparable else "",
        format_short_span(outcome.wait_mean_s),
        format_short_span(outcome.wait_median_s),
        format_short_span(outcome.wait_p95_s),
        format_short_span(outcome.wait_p99_s),
        f"{outcome.slowdown_mean:,.1f}",
        f"{outcome.jobs_served:,}",
        f"{sum(outcome.jobs_unserved.values()):,}",
    )


def _node_row(_: Study, outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        f"{outcome.utilisation:.1%}",
        f"{outcome.node_hours:,.0f}",
        f"{outcome.boots:,}",
        f"{outcome.boot_failures:,}",
        f"{outcome.reclaims:,}",
        f"{outcome.creates_refused:,}",
        f"{outcome.churn:,}",
        f"{outcome.cap_hits:,} times",
        format_short_span(outcome.capped_s),
        f"{outcome.peak_nodes:,}",
    )


def _restarts(study: Study, runs: Sequence[Outcome]) -> list[str]:
    if not any(run.restarts for run in runs):
        return []
    return [_section("Runs lost", _html_table(RESTART_HEADS, _rows(study, _restart_row), main=0), RESTART_NOTE)]


def _restart_row(_: Study, outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        f"{outcome.restarts:,} times",
        f"{outcome.lost_core_hours:,.1f}",
        format_total(outcome.cost_lost),
        f"{outcome.cost_lost / outcome.cost:.1%}" if outcome.cost else "-",
    )


def _types(outcome: Outcome) -> str:
    parts = charts.cost_parts([outcome])
    rows = [
        (
            name,
            it.market,
            f"{it.nodes:,}",
            f"{it.hours:,.1f}",
            f"{it.hours_paid:,.1f}",
            format_total(it.cost),
            *(
                f"{part / it.cost:.1%}" if it.cost else "-"
                for part in (getattr(it, f"cost_{kind}") for kind, _ in parts)
            ),
        )
        for name, it in sorted(outcome.types.items(), key=lambda named: -named[1].cost)
    ]
    return _html_table((*TYPE_HEADS, *(name for _, name in parts)), rows)


def _note(study: Study) -> str:
    """Explain the ratios, the bounds, and the costs at equal mean wait if a sweep allows to compare them."""
    notes = ["Slowdown: the mean of wait plus run time, divided by the run time; runs below 10 s count as 10 s. "]
    if study.bounds is not None:
        notes.append(_bounds(study.bounds, study.main, study.baselines.get("fixed")))
    for name, bounds in study.compared_bounds.items():
        notes.append(
            f"With the nodes and prices of {name}, no fleet costs less than {format_total(bounds.work)}, however "
            f"long jobs wait, and none less than {format_total(bounds.same_starts)} with every job starting when "
            f"it did on its fixed cluster: {name} costs {study.compared[name].cost / bounds.work:.3f} times as "
            "much. "
            if bounds.work
            else ""
        )
    points, shorter = [study.main, *study.swept.values()], list[str]()
    fewer = [run.policy for run in points if run.jobs_served < _most_served(study)]
    if fewer:
        notes.append(f"Not compared, because they serve fewer jobs: {', '.join(fewer)}. ")
    for name, baseline in study.baselines.items():
        if not any(point.serves_as_many(baseline) for point in points):
            continue
        cost = cost_at_wait(points, baseline)
        if cost is not None and baseline.cost:
            ratio = cost / baseline.cost
            notes.append(f"At the mean wait of {name}, this site costs {ratio:.3f} times as much as {name}. ")
        else:
            shorter.append(name)
    if shorter:
        notes.append(f"Jobs wait less under {', '.join(shorter)}. ")
    return escape("".join(notes))


def _most_served(study: Study) -> int:
    return max(run.jobs_served for run in study.outcomes)


def _bounds(bounds: CostBounds, main: Outcome, fixed: Outcome | None) -> str:
    comparable = bounds.work and (fixed is None or main.serves_as_many(fixed))
    over = f": this site costs {main.cost / bounds.work:.3f} times as much" if comparable else ""
    served = f" that serves the {fixed.jobs_served:,} jobs of the fixed cluster" if fixed and not comparable else ""
    return (
        f"No fleet{served} costs less than {format_total(bounds.work)}, however long jobs wait{over}; none costs "
        f"less than {format_total(bounds.same_starts)} with every job starting when it did on the fixed cluster. "
    )


def _html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], main: int | None = None, kind: str = ""
) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(
        f"<tr{' class=main' if index == main else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for index, row in enumerate(rows)
    )
    return f"<table class='{kind}'><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _differences(study: Study) -> list[str]:
    return [
        _section(
            f"What differs in {name}",
            _html_table(
                ("key", study.main.policy, name), [(key, *both) for key, both in changes.items()], kind="words"
            ),
            escape(f"{study.main.policy} compared with {name}: {compare(study.main, study.compared[name])}."),
        )
        for name, changes in study.differences.items()
    ]


def _cloud(study: Study) -> list[str]:
    rows = [(it.node_type, it.what, it.value, it.source) for it in study.cloud]
    if not rows:
        return []
    table = _html_table(("type", "figure", "value", "source"), rows, kind="words")
    return [_section("The simulated cloud", table)]


def _unserved(study: Study) -> list[str]:
    if not study.main.jobs_unserved:
        return []
    rows = [(why, f"{count:,}") for why, count in study.main.jobs_unserved.items()]
    named = ", ".join(f"{job} ({why})" for job, why in study.main.unserved_examples)
    return [
        _section(
            "Jobs not served", _html_table(("reason", "jobs"), rows, kind="words"), escape(f"Examples: {named}.")
        )
    ]


def _oddities(study: Study) -> list[str]:
    rows = [
        (kind, f"{count:,}", ", ".join(study.oddities.examples[kind]))
        for kind, count in study.oddities.counts.items()
    ]
    return (
        [_section("Oddities of the workload", _html_table(("kind", "count", "first at"), rows, kind="words"))]
        if rows
        else []
    )
