"""Learn how long boots and stops take, from the latest few of each node type."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from nodemanager.core.jobs import Job, JobState
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import CreateNode, key_of_call
from nodemanager.core.slots import CloudName, Market, NodeType, TypeName
from nodemanager.planner.billing import age_s
from nodemanager.planner.frozen import replace
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot

SAMPLES_MAX = 32
SAMPLES_MIN = 3  # samples needed before a time shorter than the site's setting is believed
LEAD_S_MIN = 2.0  # by so much a plan may be late
# The longest lead of a stop, as a part of the billing window. With few samples the 90th percentile is the slowest
# one, so a single slow stop would decide. And a node that stops before half its window wastes more of the paid time
# than it uses, every time.
LEAD_MAX = 0.5
RECLAIM = "spot reclaim"  # how adapters begin the cause of an end by the provider
RECLAIM_HOURS = 100.0  # the site's estimate of reclaims counts like so many node-hours
LONG_RUN_S = 2 * 86400.0  # jobs without a time limit, or with one above a day, count as so long
RERUNS_MAX = 50.0  # in the exponent: such a job would never end on a spot node


def with_boots(snapshot: Snapshot, changed: Mapping[LaunchId, Node]) -> Snapshot:
    """Add the boot times of nodes that have just joined. Adopted nodes are left out: their start is unknown."""
    joined = [
        (node.launch.type_name, snapshot.now_s - node.create.boots_from_s)
        for id_, node in changed.items()
        if node.state in (NodeState.IDLE, NodeState.BUSY)
        and snapshot.nodes[id_].state is NodeState.BOOTING
        and not node.create.adopted
    ]
    return (
        replace(
            snapshot, learned=replace(snapshot.learned, boots_s=_with_samples(snapshot.learned.boots_s, joined))
        )
        if joined
        else snapshot
    )


def with_stops(snapshot: Snapshot, changed: Mapping[LaunchId, Node], listed_s: float) -> Snapshot:
    """Add the stop times of nodes that a list shows gone. ``listed_s``: when that list was begun.

    A stop lasts until the list shows it: until then the node may be billed, even if the provider accepted the
    order. Delayed stops are left out: they show how long the trouble lasted. A stop that is merely slow counts.
    """
    gone = [
        (
            node.launch.type_name,
            (listed_s if node.listing.absent_s is None else node.listing.absent_s) - node.stop.retired_s,
        )
        for id_, node in changed.items()
        if node.state is NodeState.GONE
        and snapshot.nodes[id_].state is NodeState.STOPPING
        and node.stop.retired_s is not None
        and not node.stop.delayed
    ]
    return (
        replace(snapshot, learned=replace(snapshot.learned, stops_s=_with_samples(snapshot.learned.stops_s, gone)))
        if gone
        else snapshot
    )


def with_reclaims(snapshot: Snapshot, changed: Mapping[LaunchId, Node]) -> Snapshot:
    """Add the lives of spot nodes that a list shows gone, and whether the provider took them back."""
    ended = [
        (node.launch.type_name, _was_reclaimed(node), age_s(node, snapshot.now_s))
        for id_, node in changed.items()
        if node.launch.market is Market.SPOT
        and node.cloud is not None
        and node.state is NodeState.GONE
        and snapshot.nodes[id_].state is not NodeState.GONE
    ]
    if not ended:
        return snapshot
    known = dict(snapshot.learned.reclaims)
    for name, reclaimed, lived_s in ended:
        count, seconds = known.get(name, (0, 0.0))
        known[name] = (count + reclaimed, seconds + lived_s)
    return replace(snapshot, learned=replace(snapshot.learned, reclaims=known))


def _was_reclaimed(node: Node) -> bool:
    said = node.cloud.died_because if node.cloud is not None else ""
    return node.health.reclaimed is not None or said.startswith(RECLAIM)


def rerun_factor(snapshot: Snapshot, node_type: NodeType, policy: Policy, span_s: float) -> float:
    """By how much reclaims lengthen the use of a node, on average, for jobs of ``span_s`` seconds; at least 1.

    A job whose node is taken back starts again from the beginning. With reclaims at the rate r, a run of L seconds
    takes (exp(r L) - 1) / r seconds on average (Daly, 2006, without checkpoints). The rate is the site's estimate,
    which weighs as much as ``RECLAIM_HOURS`` node-hours, and what was measured since the start.
    """
    if node_type.market is not Market.SPOT:
        return 1.0
    count, node_s = snapshot.learned.reclaims.get(node_type.name, (0, 0.0))
    assumed = policy.rules.spot_reclaims_assumed * RECLAIM_HOURS
    per_s = (assumed + count) / (RECLAIM_HOURS * 3600.0 + node_s)
    run_s = min(span_s, LONG_RUN_S) + (boot_s(snapshot, node_type.name) or 0.0)
    expected = min(per_s * run_s, RERUNS_MAX)
    return math.expm1(expected) / expected if expected > 0 else 1.0


def boot_s(snapshot: Snapshot, type_name: TypeName) -> float | None:
    """How long a node takes from order to join, as the 90th percentile; None if none was seen yet."""
    return _percentile_90(snapshot.learned.boots_s.get(type_name, ()))


def stop_lead_s(snapshot: Snapshot, type_name: TypeName, policy: Policy) -> float:
    """How long before the end of a paid window a stop must begin so that it ends within the window.

    At least ``LEAD_S_MIN``: a plan at the very end comes a moment late, and finds the next window paid for.
    """
    assumed_s = max(LEAD_S_MIN, policy.rules.stop_lead_s)
    samples = snapshot.learned.stops_s.get(type_name, ())
    measured_s = _percentile_90(samples)
    if measured_s is None:
        return assumed_s
    lead_s = max(LEAD_S_MIN, measured_s) if len(samples) >= SAMPLES_MIN else max(measured_s, assumed_s)
    return min(lead_s, max(assumed_s, _longest_lead_s(type_name, policy)))


def quickest_stop_s(snapshot: Snapshot, type_name: TypeName) -> float | None:
    """The shortest stop of the type; None if none was seen yet."""
    return min(snapshot.learned.stops_s.get(type_name, ()), default=None)


def _longest_lead_s(type_name: TypeName, policy: Policy) -> float:
    """The longest lead for a type; unlimited if its windows are no longer than an idle node is kept anyway."""
    node_type = policy.types.get(type_name)
    if node_type is None:
        return math.inf
    paid_s = max(node_type.billing.window_s, node_type.billing.minimum_s)
    return LEAD_MAX * paid_s if paid_s > policy.idle_timeout_s(node_type) else math.inf


def _with_samples(
    samples: Mapping[TypeName, tuple[float, ...]], more: Iterable[tuple[TypeName, float]]
) -> Mapping[TypeName, tuple[float, ...]]:
    made = dict(samples)
    for name, took_s in more:
        made[name] = (*made.get(name, ()), took_s)[-SAMPLES_MAX:]
    return made


def _percentile_90(samples: Sequence[float]) -> float | None:
    return sorted(samples)[(len(samples) * 9 - 1) // 10] if samples else None


# --- run times --------------------------------------------------------------------------------------------
#
# How long jobs run, learned from those that ended, for jobs that have no time limit or end long before theirs.


RUNS_MAX = 10
RUNS_MIN = 3
KINDS_MAX = 1000  # users with a shape of job


def with_runs(snapshot: Snapshot, gone: Iterable[Job]) -> Snapshot:
    """The snapshot with the run times of jobs that have just ended. Kinds seen longest ago are forgotten."""
    ended = [
        (job.userid, job.shape, snapshot.wall_at - job.began_at)
        for job in gone
        if job.state in (JobState.RUN, JobState.CLEANUP)
        and job.began_at is not None
        and job.id not in snapshot.jobs
    ]
    if not ended:
        return snapshot
    runs = dict(snapshot.learned.runs_s)
    for userid, shape, ran_s in ended:
        samples = (*runs.pop((userid, shape), ()), max(0.0, ran_s))[-RUNS_MAX:]
        runs[userid, shape] = samples
    runs = dict(islice(runs.items(), max(0, len(runs) - KINDS_MAX), None))
    return replace(snapshot, learned=replace(snapshot.learned, runs_s=runs))


def ends_in_s(job: Job, snapshot: Snapshot) -> float:
    """In how many seconds a running job probably ends; infinity if nothing is known about it.

    By the longest of the latest runs of that user's jobs of that shape, or by its time limit if it has run longer.
    """
    limit_s = job.ends_at - snapshot.wall_at if job.ends_at is not None else inf
    samples = snapshot.learned.runs_s.get((job.userid, job.shape), ())
    if job.began_at is not None and len(samples) >= RUNS_MIN:
        left_s = max(samples) - (snapshot.wall_at - job.began_at)
        if left_s > 0.0:
            return min(left_s, max(0.0, limit_s))
    return max(0.0, limit_s)


# --- how many creates may be sent now: single ones, and calls that create several nodes each --------------


@dataclass(slots=True)
class CreateCalls:
    """The create calls of one plan to one cloud. ``credit``: how many more may begin now."""

    nodes_per_call: int
    credit: float
    _places: dict[Hashable, int] = field(default_factory=dict)  # free in the last call for nodes of each kind

    def fits(self, order: CreateNode) -> bool:
        """Whether a call of this plan can create the node."""
        return self.credit >= 1.0 or self._places.get(key_of_call(order), 0) > 0

    def take(self, order: CreateNode) -> None:
        """Give the node a place in a call, and begin another call if there is none."""
        if self.credit == inf:
            return
        key = key_of_call(order)
        places = self._places.get(key, 0)
        if not places:
            self.credit -= 1.0
            places = self.nodes_per_call
        self._places[key] = places - 1


def create_calls(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> CreateCalls:
    """The create calls that may begin now: those that the provider's bucket of requests has room for."""
    account, calls = snapshot.account_of(cloud), policy.calls_of(cloud)
    if calls.create_calls_burst is None:
        return CreateCalls(calls.nodes_per_create, inf)
    credit = calls.create_calls_burst
    if account.create_credit_s is not None:
        gained = (snapshot.now_s - account.create_credit_s) * calls.create_calls_per_s
        credit = min(credit, account.create_calls_credit + gained)
    return CreateCalls(calls.nodes_per_create, credit)


def create_credit(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> float:
    """The tokens in a cloud's bucket for creates: each create takes one."""
    account, calls = snapshot.account_of(cloud), policy.calls_of(cloud)
    if account.create_credit_s is None:
        return float(calls.creates_burst)
    gained = (snapshot.now_s - account.create_credit_s) * calls.creates_per_s
    return min(float(calls.creates_burst), account.create_credit + gained)
