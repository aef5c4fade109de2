"""Formats the service's answers as tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nodemanager.cli import listing
from nodemanager.cli.listing import Listing
from nodemanager.core.reason_text import MONEY_FIGURES, format_duration, format_money
from nodemanager.core.slots import DEFAULT_CLOUD

STATES = ("requested", "booting", "idle", "busy", "lost", "draining", "stopping", "gone")
STYLES: Mapping[str, str] = {
    "busy": "green",
    "idle": "cyan",
    "booting": "yellow",
    "requested": "yellow",
    "draining": "magenta",
    "stopping": "magenta",
    "lost": "bold red",
    "gone": "dim",
}
DUE_MAX = 10  # how many nodes to be replaced are listed
NO_CLOUD = "(not recorded)"  # by versions that did not keep the cloud
MIB = 1 << 20
SILENT_MAX_S = 15.0  # as in /healthz
_CAPITAL = re.compile(r"(?<!^)[A-Z]")
STARTED_JOB_STATES = ("run", "cleanup")
JOB_STATES = ("depend", "priority", "sched", "run", "cleanup", "inactive")


def clock(at: float | None) -> str:
    """Format a time as local time, which the operator's clock shows."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if at is not None else "-"


def money(amount: float | None) -> str:
    """Format an amount of money."""
    return format_money(amount) if amount is not None else "-"


def span(span_s: float | None) -> str:
    """Format a duration."""
    return format_duration(span_s) if span_s is not None else "-"


def why(reason: Mapping[str, Any] | None) -> str:
    """The sentence of a reason; "" without a reason."""
    return str(reason["text"]) if reason else ""


def _table(*columns: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


# --- status -----------------------------------------------------------------------------------------------


def status(document: Mapping[str, Any]) -> Group:
    """Format the status on one screen."""
    parts = _nodes_by_type(document), *_clouds(document), *_due(document), *_troubles(document)
    return Group(_status_head(document), *parts)


def _status_head(document: Mapping[str, Any]) -> Table:
    jobs, limits, spent = document["jobs"], document["limits"], document["spent"]
    total = document["nodes"]["total"]
    sources = "  ".join(
        f"{name} {span(source['age_s'])}{' STALE' if source['stale'] else ''}"
        for name, source in document["sources"].items()
    )
    return _pairs(
        [
            ("cluster", f"{document['cluster']}  ({_mode(document)})"),
            ("decides", _decides(document)),
            ("queue", ", ".join(f"{jobs.get(state, 0)} {state}" for state in JOB_STATES if jobs.get(state))),
            ("waiting", "no plan" if document["stands_still"] else _waiting(document["jobs_waiting"]) or "none"),
            ("nodes", f"{total} of {limits['nodes_max']} at most" + _extras(document["nodes"])),
            (
                "cost",
                (
                    f"{money(document['price_per_hour'])} an hour of {money(limits['price_per_hour_max'])},"
                    f" {money(spent['today'])} today (an estimate){_budgets(spent.get('budgets', ()))}"
                ),
            ),
            ("data age", sources),
            ("history", _history_size(document["journal"])),
        ]
    )


def _budgets(budgets: Sequence[Mapping[str, Any]]) -> str:
    return "".join(
        f"; {money(it['spent'])} of the {it['period']}'s budget of {money(it['budget'])}" for it in budgets
    )


def _history_size(journal: Mapping[str, Any]) -> str:
    return f"{journal['size_bytes'] / MIB:.1f} MiB of {journal['size_max_bytes'] / MIB:.0f} MiB at most"


def _mode(document: Mapping[str, Any]) -> str:
    only = ", ".join(document["observed"])
    return f"{document['mode']}, {only} only observed" if only else str(document["mode"])


def _decides(document: Mapping[str, Any]) -> Text:
    if document["stands_still"]:
        return Text(why(document["stands_still"]), style="bold red")
    if document["silent_s"] > SILENT_MAX_S:
        silent = span(document["silent_s"])
        return Text(f"no: the manager has hung for {silent}; restart the service", style="bold red")
    if document["safe_mode"]["on"]:
        return Text("in safe mode: a list lacked a large part of the fleet", style="bold yellow")
    return Text(
        "yes" if document["acts"] else "only reports what it would do",
        style="green" if document["acts"] else "yellow",
    )


def _extras(nodes: Mapping[str, Any]) -> str:
    named = (
        ("held", "held"),
        ("to_retire", "to retire"),
        ("to_replace", "to replace"),
        ("orphans", "orphans"),
        ("intruders", "INTRUDERS"),
    )
    drained = "".join(
        f", {it['count']} drained by {who} ({money(it['price_per_hour'])} an hour)"
        for who, it in (("Flux itself", nodes["drained"]["flux"]), ("a person", nodes["drained"]["person"]))
        if it["count"]
    )
    return "".join(f", {nodes[key]} {word}" for key, word in named if nodes[key]) + drained


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(counts.items(), key=lambda it: -it[1]))


def _waiting(by_code: Mapping[str, int]) -> str:
    return _counts({code.replace("_", " "): count for code, count in by_code.items()})


def _nodes_by_type(document: Mapping[str, Any]) -> Table:
    by_type, wanted = document["nodes"]["by_type"], document["nodes"]["wanted"]
    shown = [state for state in STATES if any(counts.get(state) for counts in by_type.values())]
    table = _table("type", *shown, "wanted", right=[*shown, "wanted"])
    for name in sorted({*by_type, *wanted}):
        counts = by_type.get(name, {})
        cells = [Text(str(counts.get(state, "")), style=STYLES[state]) for state in shown]
        table.add_row(name, *cells, str(wanted.get(name, 0)))
    return table


def _clouds(document: Mapping[str, Any]) -> list[RenderableType]:
    """The clouds of a site that has several, and below the table the troubles of each."""
    clouds = document.get("clouds", ())
    if not clouds:
        return []
    table = _table("cloud", "nodes", "an hour", "of its budget", "state", right=["nodes", "an hour"])
    for cloud in clouds:
        nodes, price = of_most(str(cloud["nodes"]), cloud["nodes_max"]), cloud_price(cloud)
        table.add_row(cloud["name"], nodes, price, cloud_budgets(cloud), cloud_state(cloud, document["at"]))
    troubles = (
        f"cloud {cloud['name']}: {why(trouble['reason'])}" for cloud in clouds for trouble in cloud["troubles"]
    )
    return [table, *(Text(line, style="yellow") for line in troubles)]


def of_most(amount: str, most: object) -> str:
    """Format an amount and its limit, if there is one."""
    return amount if most is None else f"{amount} of {most}"


def cloud_price(cloud: Mapping[str, Any]) -> str:
    """Format what a cloud costs an hour, and its limit."""
    most = cloud["price_per_hour_max"]
    return of_most(money(cloud["price_per_hour"]), money(most) if most is not None else None)


def cloud_budgets(cloud: Mapping[str, Any]) -> str:
    """Format what a cloud has spent of its own budgets."""
    shown = (f"{money(it['spent'])} of {money(it['budget'])} a {it['period']}" for it in cloud["budgets"])
    return ", ".join(shown) or "-"


def cloud_state(cloud: Mapping[str, Any], at: float) -> Text:
    """Format whether nodes are created in a cloud, and since when they are not."""
    if not cloud["troubles"]:
        return Text(cloud["state"], style="green")
    worst = cloud["troubles"][0]
    of_type = f" ({worst['node_type']})" if worst["node_type"] else ""
    since = f" for {span(at - worst['since_at'])}" if worst["since_at"] is not None else ""
    more = f", and {len(cloud['troubles']) - 1} more" if len(cloud["troubles"]) > 1 else ""
    return Text(f"{worst['state']}{of_type}{since}{more}", style="bold yellow")


def _due(document: Mapping[str, Any]) -> list[RenderableType]:
    """The nodes that upkeep replaces, those under way first."""
    if not document["due"]:
        return []
    table = _table("to replace", "type", "why", "when")
    for node in document["due"][:DUE_MAX]:
        leaves = node["stage"] == "leaves"
        when = "under way" if leaves else clock(node["when_at"]) if node["when_at"] else why(node["reason"])
        table.add_row(node["slot"], node["node_type"], why(node["why"]), when)
    more = len(document["due"]) - DUE_MAX
    return [table, *([Text(f"and {more} more nodes to replace")] if more > 0 else [])]


def _troubles(document: Mapping[str, Any]) -> list[RenderableType]:
    lines = [
        f"not bought: {block['node_type']} {block['size'] or ''} {block['zone'] or ''} until"
        f" {clock(block['until_at'])}:"
        f" {why(block['reason'])}"
        for block in document["blocks"]
    ]
    lines += [f"warning: {why(warning)}" for warning in document["warnings"]]
    if failure := document["journal"]["failure"]:
        lines.append(f"warning: the history is not written: {failure}")
    lines += [
        f"{name} does not answer: {source['failure']}"
        for name, source in document["sources"].items()
        if source["failure"]
    ]
    return [Text(line, style="yellow") for line in lines]


# --- lists ------------------------------------------------------------------------------------------------


def nodes(document: Mapping[str, Any]) -> Listing:
    """Format the list of nodes."""
    return Listing(listing.NODES, [_node_cells(node, document["at"]) for node in document["nodes"]])


def _node_cells(node: Mapping[str, Any], at: float) -> dict[str, str | Text]:
    state = node["state"] + (" (held)" if node["held"] else " (to retire)" if node["to_retire"] else "")
    return {
        "slot": node["slot"],
        "type": node["node_type"],
        "state": Text(state, style=STYLES.get(node["state"], "")),
        "since": span(at - node["since_at"]),
        "paid_for": span(node["window"]["left_s"]) if node["window"] else "-",
        "cost": money(node["cost"]),
        "because": why(node["reason"]),
        "node": node["node"],
        "rank": str(node["rank"]),
        "size": node["size"] or "-",
        "market": node["market"] or "-",
        "cloud": node["cloud"],
        "zone": node["zone"] or "-",
        "price": money(node["price_per_hour"]),
        "jobs": ",".join(node["jobs"]) or "-",
    }


def jobs(document: Mapping[str, Any]) -> Listing:
    """Format the list of jobs, or their counts if the client may not see them."""
    if not document["shown"]:
        hidden = f"{_count(document['total'], 'job')}; only the owner may see them. {_waiting(document['waiting'])}"
        return Listing(listing.JOBS, (), [Text(hidden)])
    rows = [
        {
            "job": job["job"],
            "user": job["user"],
            "state": job["state"],
            "wants": _wants(job),
            "waits": span(job["waits_s"]),
            "because": why(job["reason"]) or ", ".join(job["on"]),
            "queue": job["queue"] or "-",
            "priority": str(job["priority"]),
            "on": ",".join(job["on"]) or "-",
        }
        for job in document["jobs"]
    ]
    left_out = document["total"] - len(rows)
    return Listing(listing.JOBS, rows, [Text(f"and {left_out} more", style="dim")] if left_out > 0 else ())


def peers(document: Mapping[str, Any]) -> Listing:
    """Format the list of peers."""
    if not document["delegates"]:
        return Listing(listing.PEERS, (), [Text("The site has no [Peer NAME]: no job runs in another instance")])
    rows = []
    for peer in document["peers"]:
        load = peer["load"] or {}
        rows.append(
            {
                "peer": peer["name"],
                "state": _peer_state(peer),
                "nodes": f"{load['nodes_free']}/{load['nodes']}" if load else "-",
                "cores": f"{load['cores_free']}/{load['cores']}" if load else "-",
                "waiting": str(load["waiting"]) if load else "-",
                "wait": span(load.get("wait_s")),
                "price": money(peer["price_per_core_hour"]),
                "ours": f"{peer['jobs']}/{peer['jobs_max']}",
            }
        )
    fault = document["fault"]
    above = [Text(f"No job is delegated now: {fault}", style="red")] if fault else []
    return Listing(listing.PEERS, rows, above=above)


def _peer_state(peer: Mapping[str, Any]) -> Text:
    if not peer["reachable"]:
        return Text(f"away: {peer['why']}", style="red")
    return Text(f"up, {peer['load']['scheduler']}" if peer["load"] else "up")


def _delegated_pairs(delegated: Mapping[str, Any] | None) -> list[tuple[str, RenderableType]]:
    if not delegated:
        return []
    rows: list[tuple[str, RenderableType]] = [("runs in", f"delegate:{delegated['target']}")]
    if delegated["remote"] is not None:
        uri, remote = delegated["uri"], delegated["remote"]
        rows += [
            ("peer", f"{delegated['peer']}, as {remote}"),
            ("its output there", f"flux proxy {uri} flux job attach {remote}"),
            ("a signal", f"flux proxy {uri} flux job kill {remote}"),
        ]
    if delegated["chosen"] is not None:
        rows.append(("chosen", why(delegated["chosen"])))
    return rows


def _wants(job: Mapping[str, Any]) -> str:
    each = _count(job["cores_per_slot"], "core")
    if job["gpus_per_slot"]:
        each += f" and {_count(job['gpus_per_slot'], 'GPU')}"
    wants = each if job["slots"] == 1 else f"{job['slots']} x {each}"
    return f"{_count(job['nodes'], 'node')}, {wants}" if job["nodes"] is not None else wants


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- one thing --------------------------------------------------------------------------------------------


# If no reason applied at a past time: the text for the last event.
NO_REASON_TEXTS: Mapping[str, str] = {
    "began": "it was running",
    "ended": "it had ended",
    "ends": "nothing is recorded since decisions resumed after a standstill",
}


def explanation(document: Mapping[str, Any]) -> Group:
    """Format the explanation of a job, node, type or ensemble."""
    reason = document["reason"]
    rows: list[tuple[str, RenderableType]] = [
        ("", Text(str(document["subject"]), style="bold")),
        ("because", why(reason) or _without_reason(document)),
    ]
    if reason:
        rows.append(("reason", reason["code"]))
        rows += [(f"  {name}", _figure(name, value)) for name, value in reason["figures"].items()]
    for it in (document.get("ended") or {}).get("exceptions", ()):
        rows.append(("exception", f"{it['type']} (severity {it['severity']}): {it['note']}"))
    rows += [("its data", document["near"])] if document.get("near") else []
    rows += [("not taken", way) for way in document.get("not_taken", ())]
    rows += [(name, str(value)) for name, value in (document.get("ensemble") or {}).items() if value is not None]
    rows += _job_pairs(document.get("job")) + _node_pairs(document.get("node")) + _type_pairs(document)
    if document.get("said_at"):
        rows.append(("recorded", clock(document["said_at"])))
    parts: list[RenderableType] = [_pairs(rows)]
    if document.get("sizes"):
        parts.append(_sizes(document["sizes"]))
    if document.get("story"):
        parts.append(_pairs([("state", line) for line in document["story"]]))
    if document.get("nodes") and isinstance(document["nodes"], list):
        parts.append(nodes({"at": document["at"], "nodes": document["nodes"]}))
    if document.get("history"):
        parts.append(_history(document["history"]))
    return Group(*parts)


def _without_reason(document: Mapping[str, Any]) -> str:
    """What to show if there is no reason: a started job needs none, and a new node or job has none yet."""
    if (past := NO_REASON_TEXTS.get(document.get("what", ""))) is not None:
        return past
    if (ended := document.get("ended")) is not None:
        return str(ended["text"])
    job = document.get("job")
    if job and job["state"] in STARTED_JOB_STATES:
        return f"it runs on {', '.join(job['on'])}" if job["on"] else "it has started"
    return "nothing has been decided about it yet"


def _figure(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name.endswith("_at") and isinstance(value, int | float):
        return clock(value)
    if name.endswith("_s") and isinstance(value, int | float):
        return span(value)
    if name in MONEY_FIGURES and isinstance(value, int | float):
        return money(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _job_pairs(job: Mapping[str, Any] | None) -> list[tuple[str, RenderableType]]:
    if not job:
        return []
    return [
        ("state", job["state"]),
        ("user", job["user"]),
        ("queue", job["queue"] or "(the only one)"),
        ("wants", _wants(job)),
        ("waits", span(job["waits_s"])),
        *_delegated_pairs(job.get("delegated")),
    ]


def _node_pairs(node: Mapping[str, Any] | None) -> list[tuple[str, RenderableType]]:
    if not node:
        return []
    window = node["window"]
    return [
        ("state", Text(node["state"], style=STYLES.get(node["state"], ""))),
        ("slot", f"{node['slot']} (rank {node['rank']}), {node['node_type']}"),
        ("size", f"{node['size'] or 'unknown'}, {node['market'] or 'unknown market'}"),
        *([("cloud", node["cloud"])] if node.get("cloud", DEFAULT_CLOUD) != DEFAULT_CLOUD else []),
        ("jobs", ", ".join(node["jobs"]) or "none"),
        ("cost", f"{money(node['cost'])}, {money(node['price_per_hour'])} an hour (an estimate)"),
        ("paid until", f"{clock(window['paid_until_at'])}, {span(window['left_s'])} left" if window else "-"),
        ("held by", _holder(node)),
    ]


def _holder(node: Mapping[str, Any]) -> str:
    """Who keeps the node from jobs. Flux does not record who drained it, only the reason."""
    if node["held"]:
        return f"{node['held']['by']} since {clock(node['held']['at'])}"
    drain_reason = node.get("drained_by_others")
    if drain_reason is None:
        return "nobody"
    return f"somebody who drained it ({drain_reason or 'without a reason'})"


def _type_pairs(document: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    offer = document.get("node_type")
    if not offer:
        return []
    return [
        (
            "size",
            f"{offer['size']}: {_count(offer['cores'], 'core')}, {_count(offer['gpus'], 'GPU')}, {offer['market']}",
        ),
        (
            "price",
            f"{money(offer['price_per_hour'])} an hour, billed in windows of {span(offer['billing_window_s'])}",
        ),
        ("slots", f"{offer['slots']}, {document['slots_known']} of them in Flux"),
        ("nodes", _counts(document["nodes"]) or "none"),
        ("wanted", str(document["wanted"])),
        ("acts", "yes" if document["acts"] else "no, only observed"),
        ("boot takes", span(document["boot_takes_s"])),
    ]


def _sizes(sizes: Sequence[Mapping[str, Any]]) -> Table:
    """The sizes of a node type, the cheapest first."""
    table = _table("size", "market", "an hour", "nodes", "because", right=["an hour", "nodes"], title="sizes")
    for size in sizes:
        blocked = "; ".join(f"not in {zone}: {why(reason)}" for zone, reason in size["blocked_zones"].items())
        verdict = why(size["reason"]) if size["reason"] is not None else blocked
        price, count = money(size["price_per_hour"]), str(size["nodes"])
        table.add_row(size["size"], size["market"], price, count, verdict or "can be bought")
    return table


def _history(history: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("at", "what", "because", title="history")
    for line in history:
        table.add_row(
            clock(line["at"]), f"{line['kind']} {line['what']}", why(line["reason"]) or line.get("detail", "")
        )
    return table


# --- plan, events, report ---------------------------------------------------------------------------------


def plan(document: Mapping[str, Any]) -> Group:
    """Format a plan."""
    table = _table("order", "node", "type", "for jobs", "because")
    would = [{**action, "order": f"would {words(action['order'])}"} for action in document["would"]]
    for action in (*document["actions"], *would):
        table.add_row(
            words(action["order"]),
            action["slot"] or action["node"] or action.get("job") or "",
            action["node_type"] or "",
            ", ".join(action["serves"]),
            why(action["reason"]),
        )
    types = _table("type", "wanted", "because", right=["wanted"])
    for name, reason in document["types"].items():
        types.add_row(name, str(document["nodes_wanted"].get(name, 0)), why(reason))
    still = document["stands_still"]
    first = Text(why(still), style="bold red") if still else Text(f"{len(document['actions'])} orders")
    waiting = Text(f"waiting jobs: {_waiting(document['jobs_waiting']) or 'none'}")
    parts: list[RenderableType] = [first, *([table] if table.rows else []), types, waiting]
    return Group(*parts)


def event(document: Mapping[str, Any]) -> Text:
    """Format an event in one line."""
    cells = event_cells(document)
    text = Text(f"{cells['at']}  ", style="dim")
    text.append(f"{cells['kind']:<10} ", style="bold" if document["kind"] in ("decided", "alarm") else "")
    text.append(f"{cells['what']:<14} {cells['subject']}", style="")
    if cells["because"]:
        text.append(f"  {cells['because']}", style="cyan" if document["reason"] else "dim")
    return text


def event_cells(document: Mapping[str, Any]) -> dict[str, str]:
    """The columns of an event."""
    return {
        "at": clock(document["at"]),
        "kind": document["kind"],
        "what": words(document["what"]),
        "subject": document["subject"],
        "because": _why_event(document),
    }


def words(order: str) -> str:
    """Write the kind of an order in words: ``CreateNode`` is "create node". Other texts stay as they are."""
    return _CAPITAL.sub(r" \g<0>", order).lower() if order[:1].isupper() else order


def _why_event(document: Mapping[str, Any]) -> str:
    figures = document["figures"]
    if (document["kind"], document["what"]) == ("standstill", "ends"):
        return "decides again"  # its reason is why nothing was decided
    if document["reason"]:
        return why(document["reason"])
    if figures.get("detail"):
        return str(figures["detail"])
    if figures.get("story"):
        was = figures.get("was", "")
        return f"was {was}" if was not in ("", "unknown") else ""
    by, reason = figures.get("by"), figures.get("why")
    return f"by {by}{f': {reason}' if reason else ''}" if by else ""


def report(document: Mapping[str, Any]) -> Group:
    """Format a report."""
    cost, waste = document["cost"], document["waste"]
    share = f" ({100 * waste / cost:.0f} %)" if cost else ""
    waits = document["waits"]
    head = _pairs(
        [
            ("from", f"{clock(document['since_at'])} to {clock(document['until_at'])}"),
            *([("history", _begins(document))] if document["begins_at"] is not None else []),
            (
                "cost",
                f"{money(cost)} for {document['node_hours']:.1f} node-hours (an estimate){_whole_hours(document)}",
            ),
            ("without jobs", f"{money(waste)}{share}"),
            *([("GPUs unused", misused(document["misused"]))] if document.get("misused") else []),
            (
                "jobs started",
                f"{waits['jobs']}; waited {span(waits['median_s'])} (median), {span(waits['p95_s'])} (95 of 100)",
            ),
            *([("observed", document["observed"]["text"])] if document.get("observed") else []),
            *(
                [("waits, failures", _kept(document))]
                if document["entries_since_at"] > document["since_at"]
                else []
            ),
        ]
    )
    sums = [
        _sums(document[key], column, title)
        for key, column, title in (
            ("by_type", "node_type", "by type"),
            ("by_use", "use", "by use"),
            ("by_user", "user", "by user"),
            ("by_queue", "queue", "by queue"),
        )
        if document[key]
    ]
    sums += _by_cloud(document.get("by_cloud", ()))
    sums += [_by_peer(document["by_peer"])] if document["by_peer"] else []
    return Group(head, *sums, *_boots(document["boots"]), *_failures(document["failures"]))


def misused(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say what nodes with GPUs cost while they ran only jobs without GPUs, in one sentence."""
    costs = ", ".join(f"{row['node_type']} nodes cost {money(row['cost'])}" for row in rows)
    return f"{costs} while they ran only jobs without GPUs"


def _by_cloud(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """What each cloud cost, and how the boots there ended. Nothing for a site that has a single cloud."""
    if len([row for row in rows if row["cloud"]]) < 2:
        return []
    columns = ("cost", "node-hours", "booted", "boots failed")
    table = _table("by cloud", *columns, right=columns)
    for row in rows:
        cost, node_hours = money(row["cost"]), f"{row['node_hours']:.2f}"
        table.add_row(row["cloud"] or NO_CLOUD, cost, node_hours, str(row["booted"]), str(row["boots_failed"]))
    return [table]


def _by_peer(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What ran in other instances. Its cost is not part of the report's, which is of our nodes."""
    columns = ("jobs ended", "lost", "core-hours", "cost there")
    table = _table("by peer", *columns, right=columns)
    for row in rows:
        numbers = str(row["jobs"]), str(row["lost"]), f"{row['core_hours']:.2f}", money(row["cost"])
        table.add_row(row["peer"], *numbers)
    return table


def _whole_hours(document: Mapping[str, Any]) -> str:
    since_at = document["cost_since_at"]
    return f", in whole hours since {clock(since_at)}" if since_at < document["since_at"] else ""


def _kept(document: Mapping[str, Any]) -> str:
    return f"only since {clock(document['entries_since_at'])}: older ones have been deleted"


def _begins(document: Mapping[str, Any]) -> str:
    aside = (
        f"; earlier history may be in {document['set_aside'][-1]}, which was moved aside"
        if document["set_aside"]
        else ""
    )
    return f"begins only at {clock(document['begins_at'])}{aside}"


def _sums(rows: Sequence[Mapping[str, Any]], column: str, title: str) -> Table:
    table = _table(title, "cost", "node-hours", right=["cost", "node-hours"])
    for row in rows:
        table.add_row(str(row[column]) or "(the only one)", money(row["cost"]), f"{row['node_hours']:.2f}")
    return table


def _boots(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    table = _table("boots of", "ended", "times", "median", "95 of 100", right=["times", "median", "95 of 100"])
    for row in rows:
        table.add_row(
            row["node_type"], row["outcome"], str(row["count"]), span(row["median_s"]), span(row["p95_s"])
        )
    return [table] if rows else []


def _failures(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    table = _table("failed", "kind", "times", "last", right=["times"])
    for row in rows:
        table.add_row(row["operation"], row["kind"], str(row["count"]), clock(row["last_at"]))
    return [table] if rows else []
