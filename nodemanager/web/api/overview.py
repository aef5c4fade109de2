"""The document of the dashboard's overview: all that the page needs for one refresh, in one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypedDict

from nodemanager.actors.manager import Publication
from nodemanager.actors.user_names import user_name
from nodemanager.core.jobs import Job, JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reasons import Reason
from nodemanager.delegation.view import DelegationView
from nodemanager.history.fleet_samples import FleetSample
from nodemanager.planner.ranks_and_queue import queue_index_of
from nodemanager.planner.reasons import JobReasons
from nodemanager.planner.spending import periods
from nodemanager.web.api import documents
from nodemanager.web.api.documents import Document, clock_of, reason_document
from nodemanager.web.api.peers import with_delegation
from nodemanager.web.state.range_figures import RANGES_S, RangeFigures

STRIPS_MAX = 120  # more nodes are drawn as a grid, from the compact form
DEMANDS_SHOWN = 100
DELEGATED_SHOWN = 100


class Cores(TypedDict):
    """Cores that jobs use, of those of nodes that are charged for: now, and over the range."""

    used: int
    paid: int
    used_hours: float
    paid_hours: float
    share: float | None  # over the range, from 0 to 1


class Waits(TypedDict):
    """How long the jobs waited that began in the range."""

    jobs: int
    median_s: float | None
    p95_s: float | None


class AlwaysOnCost(TypedDict):
    """What the nodes cost, and what as many nodes as there were at once would have cost, always on."""

    since_at: float
    cost: float
    always_on: float
    nodes: Mapping[str, int]  # by type


class Boots(TypedDict):
    """The boots of a type that began in the range. ``failures``: by outcome."""

    joined: int
    failed: int
    median_s: float | None
    p95_s: float | None
    failures: Mapping[str, int]


class Demand(TypedDict):
    """Waiting jobs of one user and queue that ask for the same and wait for the same reason."""

    count: int
    job: str  # the first
    user: str
    queue: str
    nodes: int | None
    slots: int
    cores_per_slot: int
    gpus_per_slot: int
    exclusive: bool
    waits_s: float  # the longest
    reason: Document


# --- over time --------------------------------------------------------------------------------------------


def samples(found: list[FleetSample]) -> list[Document]:
    """Write samples of the fleet. ``spent`` is not among them: ``/costs`` has it by day."""
    return [
        {
            "at": it.at,
            "nodes": dict(it.by_state),
            "jobs_waiting": it.jobs_waiting,
            "jobs_running": it.jobs_running,
            "price_per_hour": it.price_per_hour,
            "cores_used": round(it.cores_used, 2),
            "cores_paid": round(it.cores_paid, 2),
        }
        for it in found
    ]


def range_document(name: str, figures: RangeFigures, now: FleetSample) -> Document:
    """What the history says about a range. ``now``: the latest sample."""
    hours = figures.core_hours
    cores = Cores(
        used=int(now.cores_used),
        paid=int(now.cores_paid),
        used_hours=hours.used,
        paid_hours=hours.paid,
        share=hours.share,
    )
    waits = Waits(jobs=figures.waits.jobs, median_s=figures.waits.median_s, p95_s=figures.waits.p95_s)
    always = figures.always_on
    return {
        "name": name,
        "range_s": RANGES_S[name],
        "since_at": figures.since_at,
        "failure": figures.failure,
        "cores": cores,
        "waits": waits,
        "cost": AlwaysOnCost(
            since_at=always.since_at, cost=always.cost, always_on=always.cost_always_on, nodes=always.nodes
        )
        if always is not None
        else None,
    }


def with_forecast(budgets: list[Document], figures: RangeFigures, now_at: float) -> list[Document]:
    """Add to each budget when its period ends, and what will be spent then.

    The forecast: what is spent, and until the end the mean cost per hour of the last 24 hours.
    """
    ends_at = {period.name: period.ends_at for period in periods(now_at)}
    rate = figures.cost_per_hour
    return [
        {
            **it,
            "ends_at": ends_at[it["period"]],
            "forecast": it["spent"] + rate * (ends_at[it["period"]] - now_at) / 3600 if rate is not None else None,
        }
        for it in budgets
    ]


# --- node types -------------------------------------------------------------------------------------------


def types(published: Publication, figures: RangeFigures) -> list[Document]:
    """The node types in the order of the site: nodes, boots of the range, and why each is bought or not."""
    clock, wanted = clock_of(published), documents.nodes_wanted(published)
    present = Counter(node.launch.type_name for node in published.snapshot.nodes.values())
    found = []
    for it in published.policy.node_types:
        reason = published.plan.types.get(it.name)
        found.append(
            {
                "name": it.name,
                "cloud": it.cloud,
                "size": it.size,
                "market": str(it.market),
                "cores": it.cores,
                "gpus": it.gpus,
                "price_per_hour": float(it.price_per_hour),
                "slots": len(it.slots),
                "nodes": present.get(it.name, 0),
                "wanted": wanted.get(it.name, 0),
                "boots": _boots(figures, it.name),
                "reason": reason_document(reason, clock) if reason is not None else None,
            }
        )
    return found


def _boots(figures: RangeFigures, name: str) -> Boots | None:
    boots = figures.boots.get(name)
    if boots is None:
        return None
    return Boots(
        joined=boots.joined,
        failed=sum(boots.failures.values()),
        median_s=boots.median_s,
        p95_s=boots.p95_s,
        failures=boots.failures,
    )


# --- waiting jobs -----------------------------------------------------------------------------------------


def demand(published: Publication) -> tuple[list[Demand], int]:
    """Group the waiting jobs, in the order in which Flux considers them. Return the first groups, and how many."""
    snapshot, clock = published.snapshot, clock_of(published)
    groups: dict[tuple[object, ...], tuple[Job, int, Reason]] = {}
    for id_, count, reason in _waiting(published):
        job = snapshot.jobs.get(id_)
        if job is None:  # it cannot be read, so nobody knows what it asks for: ``/jobs`` shows it
            continue
        shape = job.shape
        asks = (shape.nodes, shape.slots, shape.cores_per_slot, shape.gpus_per_slot, shape.exclusive)
        key = (job.userid, job.queue, asks, reason.code)
        first, before, its_reason = groups.get(key, (job, 0, reason))
        if job.submitted_at < first.submitted_at:
            first, its_reason = job, reason
        groups[key] = (first, before + count, its_reason)
    shown = [
        Demand(
            count=count,
            job=format_job_id(job.id),
            user=user_name(job.userid),
            queue=job.queue,
            nodes=job.shape.nodes,
            slots=job.shape.slots,
            cores_per_slot=job.shape.cores_per_slot,
            gpus_per_slot=job.shape.gpus_per_slot,
            exclusive=job.shape.exclusive,
            waits_s=max(0.0, clock.wall_at - job.submitted_at),
            reason=reason_document(reason, clock),
        )
        for job, count, reason in islice(groups.values(), DEMANDS_SHOWN)
    ]
    return shown, len(groups)


def _waiting(published: Publication) -> Iterator[tuple[JobId, int, Reason]]:
    """The waiting jobs: the first of each group of equals, their number, and its reason."""
    plan, snapshot = published.plan, published.snapshot
    if plan.stands_still is not None:
        index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
        yield from ((ids[0], len(ids), plan.stands_still) for ids in index.in_order.values())
        yield from ((id_, 1, plan.stands_still) for id_ in index.withheld)
    elif isinstance(plan.jobs, JobReasons):
        yield from plan.jobs.in_groups()


def delegated_jobs(published: Publication, view: DelegationView | None) -> list[Document]:
    """The jobs that run in other instances, the first ones."""
    clock = clock_of(published)
    found: list[Document] = []
    for job in published.snapshot.jobs.values():
        if job.request.delegated_to or (view is not None and job.id in view.jobs):
            found.append(with_delegation(documents.job_document(job, published, clock), view, clock))
            if len(found) >= DELEGATED_SHOWN:
                break
    return found
