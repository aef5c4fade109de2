"""Explains why a job waits, a node is kept or terminated, a type is bought or not: by the planner's own reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.nodes import LaunchId
from nodemanager.core.notation import NotationError, format_job_id, parse_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import format_wall_time
from nodemanager.core.reasons import because
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.ensemble.fair_share import NodeClaim
from nodemanager.history.events import type_subject
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.planner import timings
from nodemanager.planner.backoff import block_on, block_reason, zones_of
from nodemanager.planner.demand import unreadable_reason
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.reasons import describe_near, size_reasons
from nodemanager.planner.snapshot import Node
from nodemanager.web.api.documents import (
    STARTED_STATES,
    Document,
    blocks,
    clock_of,
    job_document,
    node_document,
    nodes_wanted,
    reason_document,
    reason_fields,
)

HISTORY_SHOWN = 50
# A launch id, never a job id: everybody may see nodes, so asking for a node must not show a job.
_LAUNCH = re.compile(r"[^\s-][^\s]*-[0-9a-f]+", re.ASCII)


class UnknownSubject(Exception):
    """Nothing of that name is known. The message says what there is instead."""


# --- the present ------------------------------------------------------------------------------------------


def job(
    published: Publication,
    text: str,
    reader: HistoryReader | None = None,
    job_end: Callable[[JobId], JobEnd | None] | None = None,
) -> Document:
    """Explain why an active job waits, by its id in any of Flux's forms. Raises ``UnknownSubject``.

    Of an ended job it tells the end and the exceptions by Flux's record, which ``job_end`` reads. The error of a
    job of which Flux says nothing tells its end from the history.
    """
    job_id = _job_id(text)
    clock = clock_of(published)
    snapshot = published.snapshot
    if (bad := snapshot.queues.unreadable.get(job_id)) is not None:
        reason = reason_document(unreadable_reason(bad), clock)
        return {"subject": format_job_id(job_id), "at": clock.wall_at, "job": None, "reason": reason, "nodes": []}
    found = snapshot.jobs.get(job_id)
    if found is None:
        if job_end is not None and (end := job_end(job_id)) is not None:
            return _ended_job(job_id, end, clock.wall_at)
        raise UnknownSubject(
            f"no active job {text}: {_how_it_ended(job_id, reader)}."
            f" For its end and any exception in Flux's own words: flux job eventlog {format_job_id(job_id)}."
            " To see why it waited: explain job ID --at TIME"
        )
    document = job_document(found, published, clock)
    still = published.plan.stands_still
    if found.state not in STARTED_STATES and still is not None:
        document["reason"] = reason_document(still, clock)
    return {
        "subject": format_job_id(job_id),
        "at": clock.wall_at,
        "job": document,
        "reason": document["reason"],
        "nodes": _nodes_for(published, document),
        "not_taken": [str(way) for way in published.plan.bursts.not_taken.get(job_id, ())],
        "near": describe_near(found, published.policy),
    }


def job_to_user(published: Publication, text: str, userid: int | None) -> Document:
    """Explain an active job to a user; None is the instance's owner. Raises ``UnknownSubject``.

    Of others' jobs it says nothing, not even whether they exist. Of the nodes it names only the slots.
    """
    job_id = _job_id(text)
    found = published.snapshot.jobs.get(job_id) or published.snapshot.queues.unreadable.get(job_id)
    if userid is not None and (found is None or found.userid != userid):
        raise UnknownSubject(f"you have no active job {text}; for its end: flux job eventlog {text}")
    explained = job(published, text)
    return {**explained, "nodes": [it["slot"] for it in explained["nodes"]]}


def _ended_job(job_id: JobId, end: JobEnd, at: float) -> Document:
    return {
        "subject": format_job_id(job_id),
        "at": at,
        "job": None,
        "reason": None,
        "nodes": [],
        "ended": {
            "at": end.ended_at,
            "began_at": end.began_at,
            "result": end.result,
            "how": end.how,
            "text": _end_text(end),
            "exceptions": [{"type": it.type, "severity": it.severity, "note": it.note} for it in end.exceptions],
        },
    }


def _end_text(end: JobEnd) -> str:
    if end.result == "REFUSED":
        return f"Flux refused it at {format_wall_time(end.ended_at)}"
    how = f" ({end.how})" if end.how else ""
    ran = (
        f"it ran from {format_wall_time(end.began_at)} to {format_wall_time(end.ended_at)}"
        if end.began_at is not None
        else f"it ended at {format_wall_time(end.ended_at)} and never ran"
    )
    return f"{ran}: {end.result}{how}"


def _how_it_ended(job_id: JobId, reader: HistoryReader | None) -> str:
    unknown = "it has ended, or was never submitted here"
    try:
        ended = reader.ended_job(job_id) if reader is not None else None
    except HistoryUnreadable:
        return unknown
    if ended is None:
        return unknown
    began_at, ended_at = ended
    if began_at is None:  # it never started, or its start was not seen
        return f"it ended at {format_wall_time(ended_at)}"
    return f"it ran from {format_wall_time(began_at)} to {format_wall_time(ended_at)}"


def _nodes_for(published: Publication, job_: Document) -> list[Document]:
    """The nodes that the reason names or that the job runs on."""
    reason = job_["reason"]
    slots = {*job_["on"], *((reason or {}).get("figures", {}).get("nodes", ()) if reason else ())}
    named = [node for node in published.snapshot.nodes.values() if node.launch.slot in slots]
    return [node_document(node, published) for node in named]


def node(published: Publication, name: str) -> Document:
    """Explain a node, named by its slot, its launch or its provider's id. Raises ``UnknownSubject``."""
    found = find_node(published, name)
    clock = clock_of(published)
    document = node_document(found, published)
    boot_s = timings.boot_s(published.snapshot, found.launch.type_name)
    return {
        "subject": found.id,
        "at": clock.wall_at,
        "node": document,
        "reason": document["reason"] or _standstill(published),
        "retiring": reason_document(found.stop.retiring, clock) if found.stop.retiring is not None else None,
        "story": [clock.with_wall_time(line) for line in found.moves],
        "boot_takes_s": boot_s,
    }


def _standstill(published: Publication) -> Document | None:
    still = published.plan.stands_still
    return reason_document(still, clock_of(published)) if still is not None else None


def find_node(published: Publication, name: str) -> Node:
    """Find a node by its launch, its slot or its provider's id. Raises ``UnknownSubject``."""
    nodes = published.snapshot.nodes
    if (by_launch := nodes.get(LaunchId(name))) is not None:
        return by_launch
    by_slot = [it for it in nodes.values() if name in (it.launch.slot, it.cloud and it.cloud.provider_id)]
    if by_slot:
        return by_slot[0]
    is_slot = name in published.snapshot.slots.rank_of_slot
    why = f"slot {name} has no node" if is_slot else f"there is no node or slot {name}"
    raise UnknownSubject(f"{why}; flux-node-manager nodes lists all nodes")


def node_type(published: Publication, name: str) -> Document:
    """Explain why a node type is bought or not. Raises ``UnknownSubject``."""
    found = published.policy.types.get(TypeName(name))
    if found is None:
        known = ", ".join(published.policy.types)
        raise UnknownSubject(f"the site has no node type {name}; it has {known}")
    clock = clock_of(published)
    snapshot = published.snapshot
    there = [it for it in snapshot.nodes.values() if it.launch.type_name == found.name]
    reason = published.plan.types.get(found.name)
    return {
        "subject": found.name,
        "at": clock.wall_at,
        "node_type": _type_document(found),
        "sizes": _sizes(found, published) if found.sizes else [],
        "acts": published.acts and found.name not in published.policy.observed,
        "reason": reason_document(reason, clock) if reason is not None else _standstill(published),
        "nodes": dict(Counter(str(it.state) for it in there)),
        "wanted": nodes_wanted(published).get(found.name, 0),
        "slots_known": sum(1 for slot in found.slots if slot in snapshot.slots.rank_of_slot),
        "boot_takes_s": timings.boot_s(snapshot, found.name),
        "blocks": [it for it in blocks(snapshot, clock) if it["node_type"] in (found.name, "*")],
    }


def _sizes(found: NodeType, published: Publication) -> list[Document]:
    """The sizes that serve as nodes of the type, the cheapest first, and why some are not bought now."""
    snapshot, policy, clock = published.snapshot, published.policy, clock_of(published)
    reasons = size_reasons(found.name, snapshot, policy)
    count = node_index_of(snapshot).count_by_size
    documents = []
    for size in policy.by_size[found.name]:
        zones = zones_of(size)
        blocked = {zone: block for zone in zones if (block := block_on(size, zone, snapshot)) is not None}
        why = reasons.get((size.size, size.market))
        documents.append(
            {
                "size": size.size,
                "market": str(size.market),
                "price_per_hour": float(size.price_per_hour),
                "nodes": count.get((size.name, size.size, size.market), 0),
                "zones": [zone for zone in zones if zone and zone not in blocked],
                "blocked_zones": {
                    zone: reason_document(block_reason(block), clock) for zone, block in blocked.items() if zone
                },
                "reason": reason_document(why, clock) if why is not None else None,
            }
        )
    return documents


def _type_document(found: NodeType) -> dict[str, Any]:
    return {
        "name": found.name,
        "size": found.size,
        "market": str(found.market),
        "zones": list(found.zones),
        "cores": found.cores,
        "gpus": found.gpus,
        "memory_bytes": found.memory_bytes,
        "properties": sorted(found.properties),
        "price_per_hour": float(found.price_per_hour),
        "billing_window_s": found.billing.window_s,
        "slots": len(found.slots),
        "spares": found.spares,
    }


def ensemble(published: Publication, claims: Mapping[str, NodeClaim], name: str, reader: HistoryReader) -> Document:
    """Explain how many nodes are kept for an ensemble, whom it waits for, and what it did.

    Raises ``UnknownSubject``. The history has the runs of the service's own ensembles only.
    """
    claim = claims.get(name)
    try:
        history = [_history_line(it) for it in reader.events(subject=f"ensemble {name}", limit=HISTORY_SHOWN)]
    except HistoryUnreadable:
        history = []
    if claim is None and not history:
        known = f"known are {', '.join(claims)}" if claims else "no ensemble has asked for nodes"
        raise UnknownSubject(f"no ensemble called {name} has run in the service or asked for nodes; {known}")
    clock = clock_of(published)
    reason = because(Code.ENSEMBLE_ASKS_FOR_NOTHING) if claim is None else claim.reason
    return {
        "subject": name,
        "at": clock.wall_at,
        "ensemble": None if claim is None else _claim_document(claim),
        "reason": reason_document(reason, clock),
        "history": history,
    }


def _claim_document(claim: NodeClaim) -> Document:
    terms = claim.terms
    return {
        "wanted": claim.wanted,
        "asked": claim.asked,
        "kept": claim.kept,
        "weight": terms.weight,
        "nodes_min": terms.nodes_min,
        "nodes_max": terms.nodes_max,
        "per_day": None if terms.per_day is None else float(terms.per_day),
        "cost_today": float(claim.cost_today),
    }


# --- the past ---------------------------------------------------------------------------------------------


def explain_past(reader: HistoryReader, kind: str, name: str, at: float) -> Document:
    """Explain something as of a past time, from the history. Raises ``UnknownSubject``, ``HistoryUnreadable``.

    ``reason`` is None if no reason applied any more; ``what`` then says since which event (``began``, ``ended``).
    """
    subject = _history_subject(kind, name)
    event = reader.reason_at(subject, at) if kind != "node" or _LAUNCH.fullmatch(name) else None
    if event is None and kind == "node" and (launch := reader.launch_of_node(name, at)) is not None:
        subject, event = launch, reader.reason_at(launch, at)
    if event is None:
        raise UnknownSubject(
            f"the history has nothing on {kind} {name} before that time{_where_history_begins(reader)}"
        )
    return {
        "subject": format_job_id(int(subject)) if kind == "job" else subject.removeprefix(type_subject("")),
        "at": at,
        "said_at": event["at"],
        "what": event["what"],
        "of_type": event["node_type"] or None,
        "reason": reason_fields(event["code"], event["figures"]) if event["code"] else None,
        "history": [_history_line(event) for event in reader.events(subject=subject, limit=HISTORY_SHOWN)],
    }


def recent_history(reader: HistoryReader, kind: str, name: str) -> list[Document]:
    """What the history has on a job, a launch or a node type, oldest first; nothing if it cannot be read."""
    try:
        events = reader.events(subject=_history_subject(kind, name), limit=HISTORY_SHOWN)
    except HistoryUnreadable:
        return []
    return [_history_line(event) for event in events]


def _where_history_begins(reader: HistoryReader) -> str:
    begins_at, set_aside = reader.begins_at(), reader.set_aside_files()
    begins = f"; it begins at {format_wall_time(begins_at)}" if begins_at is not None else ""
    if set_aside:
        begins += f"; earlier history may be in {set_aside[-1]}, which was unusable and was moved aside"
    return begins


def _history_subject(kind: str, name: str) -> str:
    """The subject's name in the history."""
    if kind == "job":
        return str(int(_job_id(name)))
    return type_subject(name) if kind == "type" else name


def _history_line(event: Document) -> Document:
    return {
        "at": event["at"],
        "kind": event["kind"],
        "what": event["what"],
        "reason": reason_fields(event["code"], event["figures"]) if event["code"] else None,
        "detail": event["figures"].get("detail", "") if not event["code"] else "",
    }


def _job_id(text: str) -> JobId:
    try:
        return JobId(parse_job_id(text))
    except NotationError as error:
        raise UnknownSubject(str(error)) from error
