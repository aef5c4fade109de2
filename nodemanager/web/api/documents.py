"""The documents made from a publication: plain values, ready for JSON.

Names of times end in ``_at`` (seconds since the epoch), names of durations in ``_s``. Money is a number in the
site's currency, and an estimate. A reason has its code, its figures and a sentence.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from nodemanager.actors.manager import Publication
from nodemanager.actors.user_names import user_name
from nodemanager.core.drains import drained_by_others
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.notation import format_job_id
from nodemanager.core.orders import BootNode, CreateNode, DrainNode
from nodemanager.core.reason_codes import Figure
from nodemanager.core.reason_text import ClockReading, to_sentence, used_currency, with_user_names
from nodemanager.core.reasons import Reason
from nodemanager.core.records import Mark
from nodemanager.core.slots import Rank
from nodemanager.history.fleet_samples import count_waiting_for_nodes
from nodemanager.planner import billing
from nodemanager.planner.backoff import refusal_reason
from nodemanager.planner.billing import ownerless_strays
from nodemanager.planner.node_health import drained_nodes
from nodemanager.planner.plan import Action, Plan
from nodemanager.planner.snapshot import Node, Snapshot, Source
from nodemanager.planner.trust import source_name, unsafe_clouds

Document = dict[str, Any]

JOBS_SHOWN = 500
STARTED_STATES = (JobState.RUN, JobState.CLEANUP)
# The states of nodes that are not on their way out.
STAYING_STATES = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.IDLE, NodeState.BUSY, NodeState.LOST)


def clock_of(published: Publication) -> ClockReading:
    """The clocks of a publication, which convert its times."""
    return ClockReading(published.snapshot.now_s, published.snapshot.wall_at)


# --- reasons ----------------------------------------------------------------------------------------------


def reason_document(reason: Reason, clock: ClockReading) -> Document:
    """Write a reason with its code, figures and sentence."""
    figures = clock.figures(reason)
    return reason_fields(reason.code, figures)


def reason_fields(code: str, figures: Mapping[str, Figure]) -> Document:
    """Write a reason from its code and figures, in which times are wall-clock already."""
    return {
        "code": code,
        "figures": {name: json_value(value) for name, value in figures.items()},
        "text": with_user_names(to_sentence(code, figures), user_name),
    }


def json_value(value: Figure) -> Any:
    """Convert a figure for JSON. Infinity, which JSON lacks, becomes a string."""
    if isinstance(value, Decimal | float):
        return float(value) if math.isfinite(value) else str(value)
    return list(value) if isinstance(value, tuple) else value


def _mark_document(mark: Mark | None) -> Document | None:
    return {"by": mark.by, "at": mark.at, "why": mark.why, "until_at": mark.until_at} if mark is not None else None


# --- the whole --------------------------------------------------------------------------------------------


def status(published: Publication) -> Document:
    """The overview: queue, nodes, cost, limits, blocks, warnings, a standstill, and the age of each source."""
    snapshot, plan, policy = published.snapshot, published.plan, published.policy
    clock = clock_of(published)
    nodes = snapshot.nodes.values()
    by_type: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        by_type[node.launch.type_name][str(node.state)] += 1
    costing = sum(1 for node in nodes if node.may_be_billed)
    still = plan.stands_still
    doubted = max((account.doubted_lists for account in snapshot.accounts.values()), default=0)
    return {
        "cluster": policy.cluster,
        "cluster_uuid": policy.cluster_uuid,
        "mode": "act" if published.acts else "observe",
        "observed": sorted(policy.observed),
        "at": snapshot.wall_at,
        "acts": published.acts and snapshot.sources.claimed and still is None,
        "stands_still": reason_document(still, clock) if still is not None else None,
        "paused": _mark_document(snapshot.operator.steering.paused),
        "safe_mode": {
            "doubted_lists": doubted,
            "on": doubted > 0 or bool(unsafe_clouds(snapshot, policy)),
        },
        "jobs": {
            **Counter(str(job.state) for job in snapshot.jobs.values()),
            "inactive": snapshot.queues.jobs_ended,
        },
        "jobs_waiting": jobs_waiting(plan),
        "jobs_waiting_for_nodes": count_waiting_for_nodes(published),
        "jobs_unreadable": len(snapshot.queues.unreadable),
        "nodes": {
            "total": len(snapshot.nodes),
            "by_state": dict(Counter(str(node.state) for node in nodes)),
            "by_type": {name: dict(counts) for name, counts in sorted(by_type.items())},
            "price_by_type": _price_by_type(published),
            "wanted": nodes_wanted(published),
            "held": len(snapshot.operator.steering.holds),
            "drained": {
                by: {"count": drained.count, "price_per_hour": float(drained.price_per_hour)}
                for by, drained in drained_nodes(snapshot, policy).items()
            },
            "to_retire": len(snapshot.operator.steering.retirements),
            "to_replace": len(plan.due),
            "orphans": len(ownerless_strays(snapshot)),
            "intruders": len(snapshot.intruders),
            "strangers": snapshot.strangers,
        },
        "limits": {
            "nodes_max": policy.limits.nodes_max,
            "nodes_min": policy.limits.nodes_min,
            "nodes_left": policy.limits.nodes_max - costing,
            "price_per_hour_max": float(policy.limits.price_per_hour_max),
            "price_per_hour_left": float(policy.limits.price_per_hour_max - plan.price_per_hour),
        },
        "price_per_hour": float(plan.price_per_hour),
        "currency": used_currency(),
        "due": due_documents(published),
        "blocks": blocks(snapshot, clock),
        "warnings": [reason_document(warning, clock) for warning in plan.warnings],
        "sources": sources(published),
    }


def due_documents(published: Publication) -> list[Document]:
    """The nodes that upkeep replaces, in their order: why, how far that is, and when if it is known."""
    clock, nodes = clock_of(published), published.snapshot.nodes
    return [
        {
            "node": id_,
            "slot": nodes[id_].launch.slot,
            "node_type": nodes[id_].launch.type_name,
            "stage": it.stage.name.lower(),
            "why": reason_document(it.why, clock),
            "reason": reason_document(it.reason, clock),
            "when_at": it.when_at,
        }
        for id_, it in published.plan.due.items()
        if id_ in nodes
    ]


def _due_document(node: Node, published: Publication) -> Document | None:
    due = published.plan.due.get(node.id)
    return reason_document(due.reason, clock_of(published)) if due is not None else None


def _price_by_type(published: Publication) -> dict[str, float]:
    """What the nodes of each type cost an hour."""
    prices: defaultdict[str, Decimal] = defaultdict(Decimal)
    for node in published.snapshot.nodes.values():
        tariff = billing.tariff_of(node.launch, published.policy) if node.may_be_billed else None
        if tariff is not None:
            prices[node.launch.type_name] += tariff.price_per_hour
    return {name: float(price) for name, price in sorted(prices.items())}


def sources(published: Publication) -> Mapping[str, Document]:
    """The age of each source, and whether it is stale."""
    snapshot, policy = published.snapshot, published.policy
    limit_s = policy.timing.stale_after_s
    named = {"queue": snapshot.sources.queue, "flux": snapshot.sources.flux}
    named |= {source_name(name, policy): snapshot.account_of(name).source for name in policy.cloud_names}
    return {name: _source(source, snapshot.now_s, limit_s) for name, source in named.items()}


def _source(source: Source, now_s: float, limit_s: float) -> Document:
    age_s = now_s - source.seen_s if source.seen_s is not None else None
    return {"age_s": age_s, "stale": age_s is None or age_s > limit_s, "failure": source.failure}


def blocks(snapshot: Snapshot, clock: ClockReading) -> list[Document]:
    """The types and zones that are not bought from for a while, and why."""
    return [
        {
            "node_type": scope.type_name,
            "size": scope.size or None,
            "market": str(scope.market) if scope.market is not None else None,
            "zone": scope.zone,
            "until_at": clock.to_wall(block.until_s),
            "reason": reason_document(refusal_reason(block), clock),
        }
        for scope, block in snapshot.learned.blocks.items()
        if block.until_s > snapshot.now_s
    ]


def jobs_waiting(made: Plan) -> dict[str, int]:
    """Count the waiting jobs by reason. ``served``: jobs whose nodes are running, booting or ordered."""
    return {"served" if code == "node_ordered" else code: count for code, count in made.count_by_reason().items()}


def nodes_wanted(published: Publication) -> dict[str, int]:
    """Count the nodes of each type that the plan wants: existing ones that it keeps, and those it buys."""
    wanted: dict[str, int] = {node_type.name: 0 for node_type in published.policy.node_types}
    # For observed types too: somebody else may carry out the reported decisions.
    actions = (*published.plan.actions, *published.plan.would)
    going = {action.launch for action in actions if isinstance(action, DrainNode)}
    for node in published.snapshot.nodes.values():
        if node.state in STAYING_STATES and node.id not in going:
            wanted[node.launch.type_name] = wanted.get(node.launch.type_name, 0) + 1
    for action in actions:
        # If the manager acts, the nodes that this plan buys are in the snapshot already.
        if isinstance(action, BootNode) and action.launch.id not in published.snapshot.nodes:
            wanted[action.launch.type_name] = wanted.get(action.launch.type_name, 0) + 1
    return wanted


# --- nodes ------------------------------------------------------------------------------------------------


def nodes(published: Publication) -> list[Document]:
    """All nodes, in the order of their ranks."""
    jobs_on = _jobs_on(published.snapshot)
    ordered = sorted(published.snapshot.nodes.values(), key=lambda node: (node.launch.rank, node.id))
    return [node_document(node, published, jobs_on.get(node.launch.rank, ())) for node in ordered]


def node_document(node: Node, published: Publication, jobs: Iterable[JobId] | None = None) -> Document:
    """Write one node. ``jobs``: the jobs on it, if known already."""
    snapshot, policy = published.snapshot, published.policy
    clock = clock_of(published)
    if jobs is None:
        jobs = _jobs_on(snapshot).get(node.launch.rank, ())
    node_type = policy.types.get(node.launch.type_name)
    market = node.launch.market or (node_type.market if node_type is not None else None)
    tariff = billing.tariff_of(node.launch, policy)
    reason = published.plan.nodes.get(node.id)
    rank = node.rank
    return {
        "node": node.id,
        "slot": node.launch.slot,
        "rank": int(node.launch.rank),
        "node_type": node.launch.type_name,
        "size": node.launch.size or (node_type.size if node_type is not None else None),
        "market": str(market) if market is not None else None,
        "cloud": policy.cloud_of(node.launch),
        "zone": node.launch.zone,
        "group": node.launch.group,
        "provider_id": node.cloud.provider_id if node.cloud is not None else None,
        "state": str(node.state),
        "since_at": clock.to_wall(node.since_s),
        "requested_at": node.launch.requested_at,
        "cores": rank.cores if rank is not None else None,
        "cores_free": rank.cores_free if rank is not None else None,
        "jobs": [format_job_id(job) for job in jobs],
        "price_per_hour": float(tariff.price_per_hour) if tariff is not None else None,
        "cost": _cost(node, published),
        "window": _paid_window(node, published),
        "reason": reason_document(reason, clock) if reason is not None else None,
        "held": _mark_document(snapshot.operator.steering.holds.get(node.id)),
        "drained_by_others": rank.drain_reason if rank is not None and drained_by_others(rank) else None,
        "to_retire": _mark_document(snapshot.operator.steering.retirements.get(node.id)),
        "due": _due_document(node, published),
        "call": str(node.call.kind) if node.call is not None else None,
    }


def _cost(node: Node, published: Publication) -> float | None:
    tariff = billing.tariff_of(node.launch, published.policy)
    if tariff is None or node.cloud is None:
        return None
    return float(billing.cost(tariff, billing.age_s(node, published.snapshot.now_s)))


def _paid_window(node: Node, published: Publication) -> Document | None:
    """The rest of the node's paid billing window; None if nothing is paid in advance, or not yet."""
    node_type = published.policy.types.get(node.launch.type_name)
    if node_type is None or node.cloud is None or node_type.billing.window_s <= 0:
        return None
    age_s = billing.age_s(node, published.snapshot.now_s)
    left_s = billing.window_left_s(node_type.billing, age_s)
    return {
        "length_s": node_type.billing.window_s,
        "left_s": left_s,
        "paid_until_at": published.snapshot.wall_at + left_s,
    }


def _jobs_on(snapshot: Snapshot) -> Mapping[Rank, list[JobId]]:
    found: defaultdict[Rank, list[JobId]] = defaultdict(list)
    for job in snapshot.jobs.values():
        for held in job.allocations:
            found[held.rank].append(job.id)
    return found


def fleet(published: Publication) -> Document:
    """All nodes in a compact form, to draw thousands: one list a property, with indices into states and types."""
    ordered = sorted(published.snapshot.nodes.values(), key=lambda node: (node.launch.rank, node.id))
    states = [str(state) for state in NodeState]
    types = sorted({node.launch.type_name for node in ordered})
    steering = published.snapshot.operator.steering
    left = [_paid_window(node, published) for node in ordered]
    return {
        "at": published.snapshot.wall_at,
        "states": states,
        "types": types,
        "node": [node.id for node in ordered],
        "slot": [node.launch.slot for node in ordered],
        "state": [states.index(node.state) for node in ordered],
        "type": [types.index(node.launch.type_name) for node in ordered],
        "left": [round(it["left_s"] / it["length_s"], 3) if it is not None else None for it in left],
        "left_s": [round(it["left_s"]) if it is not None else None for it in left],
        "held": [index for index, node in enumerate(ordered) if node.id in steering.holds],
    }


# --- jobs -------------------------------------------------------------------------------------------------


def jobs(published: Publication, *, limit: int = JOBS_SHOWN) -> Document:
    """The active jobs: first those that wait, in the order in which Flux considers them."""
    snapshot = published.snapshot
    waiting = [job for job in snapshot.jobs.values() if job.state not in STARTED_STATES]
    running = [job for job in snapshot.jobs.values() if job.state in STARTED_STATES]
    ordered = sorted(waiting, key=lambda job: (-job.priority, job.id)) + sorted(running, key=lambda job: job.id)
    clock = clock_of(published)
    return {
        **jobs_summary(published),
        "jobs": [job_document(job, published, clock) for job in islice(ordered, limit)],
        "unreadable": [
            {"job": format_job_id(bad.id), "why": bad.why}
            for bad in islice(snapshot.queues.unreadable.values(), limit)
        ],
    }


def jobs_summary(published: Publication) -> Document:
    """The counts of jobs, which everybody may see."""
    return {
        "total": len(published.snapshot.jobs),
        "by_state": dict(Counter(str(job.state) for job in published.snapshot.jobs.values())),
        "waiting": jobs_waiting(published.plan),
    }


def job_document(job: Job, published: Publication, clock: ClockReading) -> Document:
    """Write one job."""
    waits = job.state not in STARTED_STATES
    reason = published.plan.jobs.get(job.id) if waits else None
    shape = job.shape
    return {
        "job": format_job_id(job.id),
        "id": int(job.id),
        "state": str(job.state),
        "user": user_name(job.userid),
        "userid": job.userid,
        "queue": job.queue,
        "priority": job.priority,
        "urgency": job.urgency,
        "nodes": shape.nodes,
        "slots": shape.slots,
        "cores_per_slot": shape.cores_per_slot,
        "gpus_per_slot": shape.gpus_per_slot,
        "exclusive": shape.exclusive,
        "submitted_at": job.submitted_at,
        "waits_s": max(0.0, clock.wall_at - job.submitted_at) if waits else None,
        "on": [_host(held.rank, published.snapshot) for held in job.allocations],
        "reason": reason_document(reason, clock) if reason is not None else None,
        "delegated": not_placed(job.request.delegated_to) if job.request.delegated_to else None,
    }


def not_placed(target: str) -> Document:
    """Write where a delegated job is that no peer is known to have."""
    return {"target": target, "peer": None, "uri": "", "remote": None, "started_at": None, "chosen": None}


def _host(rank: Rank, snapshot: Snapshot) -> str:
    known = snapshot.ranks.get(rank)
    return known.host if known is not None else str(rank)


# --- the plan ---------------------------------------------------------------------------------------------


def plan(published: Publication) -> Document:
    """What this plan orders, or would order, with reasons; and the reasons why jobs wait."""
    made, clock = published.plan, clock_of(published)
    return {
        "at": published.snapshot.wall_at,
        "acts": published.acts,
        "settled": made.settled,
        "stands_still": reason_document(made.stands_still, clock) if made.stands_still is not None else None,
        "asks": [type(ask).__name__ for ask in made.asks],
        "actions": [_action(action, published, clock) for action in made.actions],
        "would": [_action(action, published, clock) for action in made.would],
        "nodes_wanted": nodes_wanted(published),
        "jobs_waiting": jobs_waiting(made),
        "types": {name: reason_document(reason, clock) for name, reason in made.types.items()},
        "price_per_hour": float(made.price_per_hour),
    }


def _action(action: Action, published: Publication, clock: ClockReading) -> Document:
    reason = action.why
    subject = action.subject
    known = published.snapshot.nodes.get(LaunchId(subject))
    launch = action.launch if isinstance(action, BootNode | CreateNode) else known.launch if known else None
    return {
        "order": action.name,
        "node": subject if action.only_job is None else None,
        "job": format_job_id(action.only_job) if action.only_job is not None else None,
        "slot": launch.slot if launch is not None else None,
        "node_type": launch.type_name if launch is not None else None,
        "serves": [format_job_id(job) for job in action.serves] if isinstance(action, BootNode) else [],
        "reason": reason_document(reason, clock) if reason is not None else None,
    }
