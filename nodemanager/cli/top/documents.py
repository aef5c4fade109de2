"""Turns the service's documents into the rows of ``top``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodemanager.cli.tables import STYLES, money, span, why
from nodemanager.cli.terminal import escape_document, shows_unicode_ids, with_unicode_ids
from nodemanager.cli.top.screen import Pane, Row

NODES_IN_FULL_MAX = 500  # of more, only the compact list is asked for
EVENTS_SHOWN = 200
JOBS_SHOWN = 200
EVENT_STYLES: Mapping[str, str] = {
    "failed": "red",
    "alarm": "bold red",
    "standstill": "bold red",
    "would": "yellow",
}


def readable(document: Any) -> Any:
    """Return a document as the terminal may show it."""
    document = escape_document(document)
    return with_unicode_ids(document) if shows_unicode_ids() else document


def node_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of all nodes: slot, type, state, the rest of the paid time, cost, reason."""
    rows = []
    for node in document["nodes"]:
        mark = " held" if node["held"] else " retire" if node["to_retire"] else ""
        paid = span(node["window"]["left_s"]) if node["window"] else "-"
        because = f"runs {', '.join(node['jobs'])}" if node["jobs"] else why(node["reason"])
        cells = (node["slot"], node["node_type"], node["state"] + mark, paid, money(node["cost"]), because)
        rows.append(Row(node["node"], cells, STYLES.get(node["state"], ""), "node", node["slot"]))
    return rows


def fleet_rows(fleet: Mapping[str, Any]) -> list[Row]:
    """The same from the compact list, which has neither costs nor reasons."""
    held = set(fleet["held"])
    rows = []
    for index, node in enumerate(fleet["node"]):
        state = fleet["states"][fleet["state"][index]]
        slot, left_s = fleet["slot"][index], fleet["left_s"][index]
        cells = (
            slot,
            fleet["types"][fleet["type"][index]],
            state + (" held" if index in held else ""),
            span(left_s),
        )
        rows.append(Row(node, (*cells, "", "Enter explains"), STYLES.get(state, ""), "node", slot))
    return rows


def job_rows(document: Mapping[str, Any]) -> list[Row]:
    """The rows of the waiting jobs: id, user, how long it waits, reason."""
    if not document["shown"]:
        return [Row("", ("", "", "", "only the owner may see jobs: the token is missing"))]
    waiting = [job for job in document["jobs"] if job["waits_s"] is not None]
    return [
        Row(job["job"], (job["job"], job["user"], span(job["waits_s"]), why(job["reason"])), "", "job", job["job"])
        for job in waiting
    ]


def event_rows(events: Sequence[Mapping[str, Any]], clock: Any) -> list[Row]:
    """The rows of the events, latest first: time, kind, what, subject, reason. ``clock``: formats a time."""
    rows = []
    for event in reversed(events):
        detail = why(event["reason"]) or str(event["figures"].get("detail", ""))
        cells = (clock(event["at"]), event["kind"], event["what"], event["subject"], detail)
        is_node = bool(event["subject"] and event["node_type"])
        rows.append(
            Row(
                str(event["number"]),
                cells,
                EVENT_STYLES.get(event["kind"], ""),
                "node" if is_node else "",
                event["subject"] if is_node else "",
                event["at"],
            )
        )
    return rows


def rows_of(
    nodes: Mapping[str, Any], jobs: Mapping[str, Any], events: Mapping[str, Any], clock: Any
) -> Mapping[Pane, Sequence[Row]]:
    """All rows. ``nodes``: the full or the compact list."""
    nodes, jobs, events = readable(nodes), readable(jobs), readable(events)
    return {
        Pane.NODES: node_rows(nodes) if "nodes" in nodes else fleet_rows(nodes),
        Pane.JOBS: job_rows(jobs),
        Pane.EVENTS: event_rows(events["events"], clock),
    }
