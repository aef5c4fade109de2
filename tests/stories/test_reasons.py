"""Every reason is true: each is derived again from the snapshot, independently and in the plainest way.

If a reason depends on the placement of jobs ahead (for example a limit that they reach), the check is a bound that
holds for every such placement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, Shape
from nodemanager.core.nodes import CallKind, CloudState, FluxRank, LaunchId, NodeState
from nodemanager.core.orders import (
    BootNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    RecordLaunches,
    StopBroker,
    UndrainNode,
    key_of_call,
)
from nodemanager.core.slots import ForeignDrain, NodeType, TypeName
from nodemanager.planner.constraints import holds
from nodemanager.planner.plan import Plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import ALL_TYPES, Node, Scope, Snapshot
from tests.builders import World, a_world, tasks
from tests.planner.strategies import POLICIES, snapshots

Figures = Mapping[str, Any]
LEAVING = (NodeState.DRAINING, NodeState.STOPPING)
UP_SOON = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST)


@dataclass(frozen=True)
class Case:
    """A plan, and the snapshot and policy it was made from."""

    snapshot: Snapshot
    policy: Policy
    made: Plan

    @property
    def now_s(self) -> float:
        return self.snapshot.now_s

    def orders_for(self, node: Node) -> list[type]:
        return [type(action) for action in self.made.actions if _is_about(action, node)]

    def types(self) -> dict[str, NodeType]:
        return {node_type.name: node_type for node_type in self.policy.node_types}

    def on_the_bill(self) -> int:
        owned = {node.cloud.provider_id for node in self.snapshot.nodes.values() if node.cloud is not None}
        strays = sum(1 for id_ in self.snapshot.account_of().strays if id_ not in owned)
        return strays + sum(1 for node in self.snapshot.nodes.values() if node.state is not NodeState.GONE)

    def queue(self) -> list[Job]:
        """The jobs that wait for nodes, as Flux would take them."""
        waiting = [job for job in self.snapshot.jobs.values() if _waits_for_nodes(job, self.snapshot)]
        return sorted(waiting, key=lambda job: (-job.priority, job.id))

    def wanted_up_to(self, job: Job) -> int:
        """An upper bound for the nodes bought for a job and all jobs ahead of it."""
        ahead = self.queue()[: self.queue().index(job) + 1]
        return sum(each.shape.nodes if each.shape.nodes is not None else each.shape.slots for each in ahead)


def _is_about(action: Any, node: Node) -> bool:
    match action:
        case RecordLaunches(launches=launches):
            return node.launch in launches
        case BootNode(launch=launch) | CreateNode(launch=launch) | EndLease(launch=launch):
            return bool(launch.id == node.id)
        case _:
            return bool(action.launch == node.id)


def _waits_for_nodes(job: Job, snapshot: Snapshot) -> bool:
    held = job.urgency == 0 or job.priority == 0 or job.queue in snapshot.queues.stopped
    return job.state is JobState.SCHED and not held


def _fits(node_type: NodeType, shape: Shape) -> bool:
    """Whether a node of the type has the cores and GPUs that the job needs on each node."""
    slots = shape.slots if shape.nodes is not None and not shape.exclusive else 1
    return node_type.cores >= slots * shape.cores_per_slot and node_type.gpus >= slots * shape.gpus_per_slot


def _places(case: Case, node_type: NodeType, shape: Shape) -> list[FluxRank]:
    ranks = [rank for rank in case.snapshot.ranks.values() if rank.host in node_type.slots]
    return [
        rank
        for rank in ranks
        if _fits(node_type, shape)
        and holds(shape.constraint, properties=node_type.properties, host=rank.host, rank=rank.rank)
    ]


def _is_free(case: Case, rank: FluxRank) -> bool:
    leased = {node.launch.slot for node in case.snapshot.nodes.values()}
    owned = {node.cloud.provider_id for node in case.snapshot.nodes.values() if node.cloud is not None}
    for id_, stray in case.snapshot.account_of().strays.items():
        if id_ not in owned and stray.node.identity is not None:
            leased.add(stray.node.identity.slot)
    held = rank.drain_reason is not None and not rank.drain_reason.startswith("flux-node-manager:")
    return rank.host not in leased and not (rank.online or rank.allocated or rank.excluded or held)


# --- jobs -------------------------------------------------------------------------------------------------


def _held(case: Case, job: Job, figures: Figures) -> None:
    assert 0 in (job.urgency, job.priority)
    assert figures == {"urgency": job.urgency, "priority": job.priority}


def _dependency(case: Case, job: Job, figures: Figures) -> None:
    assert job.state is JobState.DEPEND


def _not_yet_scheduled(case: Case, job: Job, figures: Figures) -> None:
    assert job.state in (JobState.NEW, JobState.PRIORITY)
    assert figures["state"] == job.state


def _queue_stopped(case: Case, job: Job, figures: Figures) -> None:
    assert job.queue in case.snapshot.queues.stopped
    assert figures["queue"] == job.queue


def _no_type_fits(case: Case, job: Job, figures: Figures) -> None:
    assert not any(_places(case, node_type, job.shape) for node_type in case.policy.node_types)
    nearest = case.types()[figures["nearest"]]
    for lack in figures["lacks"]:
        what, _, rest = lack.partition(": ")
        if what == "constraint":
            assert _fits(nearest, job.shape)
        else:
            has, needs = (int(part.split()[1]) for part in rest.split(", "))
            assert has == getattr(nearest, what)
            assert needs > has


def _no_free_slot(case: Case, job: Job, figures: Figures) -> None:
    places = _places(case, case.types()[figures["node_type"]], job.shape)
    assert figures["slots"] == len(places)
    assert 0 < figures["short"] <= (job.shape.nodes or job.shape.slots)
    assert sum(_is_free(case, rank) for rank in places) < case.wanted_up_to(job)


def _nodes_max(case: Case, job: Job, figures: Figures) -> None:
    assert figures["nodes_max"] == case.policy.limits.nodes_max
    assert 0 < figures["short"] <= (job.shape.nodes or job.shape.slots)
    assert case.on_the_bill() + case.wanted_up_to(job) > case.policy.limits.nodes_max


def _price_per_hour_max(case: Case, job: Job, figures: Figures) -> None:
    price = case.types()[figures["node_type"]].price_per_hour
    assert figures["price_per_hour"] == price
    assert figures["price_per_hour_max"] == case.policy.limits.price_per_hour_max
    assert figures["left"] < price
    assert figures["left"] <= case.policy.limits.price_per_hour_max - case.made.price_per_hour


def _blocked(case: Case, job: Job, figures: Figures) -> None:
    assert figures["until_s"] > case.now_s
    assert figures["until_s"] in {block.until_s for block in case.snapshot.learned.blocks.values()}


def _settling(case: Case, job: Job, figures: Figures) -> None:
    assert not case.made.settled
    assert not [action for action in case.made.actions if isinstance(action, BootNode)]
    assert case.snapshot.news.look_due_since_s is not None or case.now_s < figures["settles_at_s"]


def _served(case: Case, job: Job, figures: Figures) -> list[FluxRank]:
    """The ranks named for a job suit it, and are no more than it asks for.

    For exclusive jobs the scheduler does not count cores: they start on any node that is up and free.
    """
    shape = job.shape
    if shape.exclusive:
        job = replace(job, request=JobRequest(replace(shape, cores_per_slot=1)))
    named = [rank for rank in case.snapshot.ranks.values() if rank.host in figures["nodes"]]
    assert 0 < len(named) == len(figures["nodes"]) <= (job.shape.nodes or job.shape.slots)
    for rank in named:
        (node_type,) = (it for it in case.policy.node_types if rank.host in it.slots)
        assert rank in _places(case, node_type, job.shape)
    return named


def _node_of(case: Case, rank: FluxRank) -> Node | None:
    return next((node for node in case.snapshot.nodes.values() if node.launch.rank == rank.rank), None)


def _fits_on_a_node_that_is_up(case: Case, job: Job, figures: Figures) -> None:
    for rank in _served(case, job, figures):
        assert rank.online
        assert rank.schedulable
        assert not (job.shape.exclusive and rank.allocated)
        node = _node_of(case, rank)
        assert node is None or DrainNode not in case.orders_for(node)
        assert job.shape.exclusive or rank.cores_free >= job.shape.cores_per_slot


def _node_kept_for_it(case: Case, job: Job, figures: Figures) -> None:
    for rank in _served(case, job, figures):
        node = _node_of(case, rank)
        assert node is not None
        said = case.made.nodes[node.id].code
        waits = node.call is not None or case.now_s < node.retry_s
        if node.state is NodeState.DRAINING:
            assert waits or said == "wanted_again"
        elif rank.drain_reason == drain_text(node.id):  # seen during another call; the next look decides
            assert waits or said == "wanted"
        else:  # meant for an earlier node of the slot
            assert node.state is NodeState.IDLE
            assert rank.drain_reason is not None
            assert rank.drain_reason.startswith("flux-node-manager:")
            assert waits or said == "drained_for_another"


def _node_coming(case: Case, job: Job, figures: Figures) -> None:
    for rank in _served(case, job, figures):
        node = _node_of(case, rank)
        assert node is not None
        unnoticed = node.state is NodeState.IDLE and not rank.schedulable
        slot_soon_free = node.state is NodeState.GONE  # bought again as soon as this lease has ended
        assert node.state in UP_SOON or unnoticed or slot_soon_free


def _node_ordered(case: Case, job: Job, figures: Figures) -> None:
    bought = {action.launch.slot for action in case.made.actions if isinstance(action, BootNode)}
    assert {rank.host for rank in _served(case, job, figures)} <= bought


STUCK_BY = (
    "nodes_max",
    "price_per_hour_max",
    "no_free_slot",
    "blocked_create_capacity",
    "beyond_limits",
    "one_zone_short",
    # Flux has not refused the job, so it keeps its place.
    "no_type_fits",
    "too_few_slots",
)


def _behind_a_stuck_job(case: Case, job: Job, figures: Figures) -> None:
    (stuck,) = (each for each in case.queue() if str(each.id) == figures["job"])
    assert case.queue().index(stuck) < case.queue().index(job)
    assert case.made.jobs[stuck.id].code in STUCK_BY


def _beyond_limits(case: Case, job: Job, figures: Figures) -> None:
    """Even alone the job exceeds the limits: even the fewest or cheapest suitable nodes do."""
    fitting = [
        (node_type.price_per_hour, rank)
        for node_type in case.policy.node_types
        for rank in _places(case, node_type, job.shape)
    ]
    assert 0 < figures["node_count"] <= len(fitting)
    too_many = figures["node_count"] > case.policy.limits.nodes_max
    assert too_many or figures["price_per_hour"] > case.policy.limits.price_per_hour_max


def _too_few_slots(case: Case, job: Job, figures: Figures) -> None:
    able = [it for it in case.policy.node_types if _has_memory(case, it, job.shape)]
    assert figures["slots"] == sum(len(_places(case, node_type, job.shape)) for node_type in able)
    assert figures["short"] > 0


def _one_zone_short(case: Case, job: Job, figures: Figures) -> None:
    """No zone has enough nodes, existing, booting or on sale, even if no other job wanted them."""
    assert job.shape.one_zone
    want = job.shape.nodes or job.shape.slots
    assert figures["have"] + figures["short"] == want
    assert figures["short"] > 0
    for zone in ("", "a", "b", "c"):
        assert sum(_in_zone(case, rank, zone, job.shape) for rank in case.snapshot.ranks.values()) < want


def _in_zone(case: Case, rank: FluxRank, zone: str, shape: Shape) -> int:
    """A lower bound for the pieces that a slot's node takes in a zone: 1 or 0."""
    node_type = next(it for it in case.policy.node_types if rank.host in it.slots)
    if rank not in _places(case, node_type, shape):
        return 0
    node = _node_of(case, rank)
    if node is not None and node.state is not NodeState.GONE:
        at_ease = node.call is None and node.retry_s <= case.now_s  # the node may be given up but not stopped yet
        coming = node.state is NodeState.BOOTING and at_ease and node.id not in _leaving(case)
        return int(coming and node.launch.zone == zone and _has_memory(case, node_type, shape))
    blocks = case.snapshot.learned.blocks
    scopes = [Scope(ALL_TYPES), Scope(node_type.name)]
    is_open = not any(scope in blocks and blocks[scope].until_s > case.now_s for scope in scopes)
    return int(is_open and zone in node_type.zones and _is_free(case, rank) and _has_memory(case, node_type, shape))


def _leaving(case: Case) -> set[LaunchId]:
    return {action.launch for action in case.made.actions if isinstance(action, DrainNode)}


def _has_memory(case: Case, node_type: NodeType, shape: Shape) -> bool:
    """Whether it has the job's memory, or the site has too few slots with so much."""
    slots = shape.slots if shape.nodes is not None else 1
    able = [it for it in case.policy.node_types if it.memory_bytes >= slots * shape.memory_bytes_per_slot]
    most = sum(len(_places(case, it, shape)) * (1 if shape.nodes else it.cores) for it in able)
    return node_type in able or most < (shape.nodes or shape.slots)


JOBS: Mapping[str, Callable[[Case, Job, Figures], object]] = {
    "held": _held,
    "dependency": _dependency,
    "not_yet_scheduled": _not_yet_scheduled,
    "queue_stopped": _queue_stopped,
    "no_type_fits": _no_type_fits,
    "no_free_slot": _no_free_slot,
    "nodes_max": _nodes_max,
    "price_per_hour_max": _price_per_hour_max,
    "blocked_create_capacity": _blocked,
    "settling": _settling,
    "fits_on_a_node_that_is_up": _fits_on_a_node_that_is_up,
    "node_kept_for_it": _node_kept_for_it,
    "node_coming": _node_coming,
    "node_ordered": _node_ordered,
    "behind_a_stuck_job": _behind_a_stuck_job,
    "beyond_limits": _beyond_limits,
    "too_few_slots": _too_few_slots,
    "one_zone_short": _one_zone_short,
}


# --- nodes ------------------------------------------------------------------------------------------------


def _call_in_flight(case: Case, node: Node, figures: Figures) -> None:
    assert node.call is not None
    assert figures == {"call": node.call.kind, "deadline_s": node.call.deadline_s}
    assert not case.orders_for(node)


def _retry_later(case: Case, node: Node, figures: Figures) -> None:
    assert figures == {"retry_s": node.retry_s, "tries": node.tries}
    assert figures["retry_s"] > case.now_s
    assert not case.orders_for(node)


def _lease_to_record(case: Case, node: Node, figures: Figures) -> None:
    assert not node.create.recorded
    assert case.orders_for(node) == [RecordLaunches]


def _looked_for(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.REQUESTED
    assert node.create.sent_s is not None
    assert figures["absences"] == node.listing.absences
    assert not case.orders_for(node)


def _calls_given(case: Case) -> int:
    kinds = (CallKind.CREATE, CallKind.DESTROY)
    under_way = sum(1 for node in case.snapshot.nodes.values() if node.call is not None and node.call.kind in kinds)
    given = [action for action in case.made.actions if isinstance(action, CreateNode | DestroyNode)]
    return under_way + sum(1 for action in given if isinstance(action, CreateNode) or action.launch is not None)


def _calls_in_flight_max(case: Case, node: Node, figures: Figures) -> None:
    assert figures["calls_in_flight_max"] == case.policy.calls.calls_in_flight_max
    assert _calls_given(case) >= case.policy.calls.calls_in_flight_max
    assert not case.orders_for(node)


def _create_paced(case: Case, node: Node, figures: Figures) -> None:
    assert figures["creates_per_s"] == case.policy.calls.creates_per_s
    creates = sum(isinstance(action, CreateNode) for action in case.made.actions)
    assert creates >= case.policy.calls.creates_burst  # the bucket is full: no create was ever sent
    assert not case.orders_for(node)


def _create_calls_paced(case: Case, node: Node, figures: Figures) -> None:
    assert figures["calls_per_s"] == case.policy.calls.create_calls_per_s
    creates = [action for action in case.made.actions if isinstance(action, CreateNode)]
    calls = Counter(map(key_of_call, creates))
    most = case.policy.calls.nodes_per_create
    burst = case.policy.calls.create_calls_burst
    assert burst is not None
    assert sum(math.ceil(count / most) for count in calls.values()) >= burst
    assert not case.orders_for(node)


def _creating(case: Case, node: Node, figures: Figures) -> None:
    assert node.create.recorded
    assert node.create.sent_s is None
    assert case.orders_for(node) == [CreateNode]


def _blocked_node(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.REQUESTED
    assert node.create.sent_s is None
    block = case.snapshot.learned.blocks.get(Scope(node.launch.type_name))
    of_its_type = block is not None and block.until_s > case.now_s
    assert case.orders_for(node) == ([EndLease] if of_its_type else [])
    assert figures["until_s"] > case.now_s


def _lease_not_wanted(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.REQUESTED
    assert node.create.sent_s is None
    assert case.made.settled
    assert case.orders_for(node) == [EndLease]


def _lease_above_limits(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.REQUESTED
    assert node.create.sent_s is None
    assert figures["nodes_max"] == case.policy.limits.nodes_max
    assert case.policy.limits.nodes_max < figures["node_count"] <= case.on_the_bill() or (
        case.policy.limits.price_per_hour_max < figures["price_per_hour"] <= case.made.price_per_hour
    )
    assert case.orders_for(node) == [EndLease]


def _lease_settling(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.REQUESTED
    assert node.create.sent_s is None
    assert not case.made.settled
    assert not case.orders_for(node)


def _booting(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.BOOTING
    assert figures["waited_s"] == case.now_s - node.create.requested_s
    young = figures["waited_s"] < case.policy.timing.boot_timeout_s
    assert young or case.now_s - node.since_s < case.policy.timing.rejoin_timeout_s
    assert not case.orders_for(node)


def _failed_at_provider(case: Case, node: Node, figures: Figures) -> None:
    assert node.cloud is not None
    assert node.cloud.state is CloudState.FAILED
    assert case.orders_for(node) == [DrainNode]


def _never_joined(case: Case, node: Node, figures: Figures) -> None:
    assert figures["waited_s"] == case.now_s - node.create.requested_s >= case.policy.timing.boot_timeout_s
    assert case.orders_for(node) == [DrainNode]


def _broker_lost(case: Case, node: Node, figures: Figures) -> None:
    assert figures["away_s"] == case.now_s - node.since_s >= case.policy.timing.rejoin_timeout_s
    assert case.orders_for(node) == [DrainNode]


def _may_rejoin(case: Case, node: Node, figures: Figures) -> None:
    assert figures["away_s"] == case.now_s - node.since_s
    at_work = node.rank is not None and node.rank.allocated
    assert figures["away_s"] < case.policy.timing.rejoin_timeout_s or at_work
    assert not case.orders_for(node)


def _wanted(case: Case, node: Node, figures: Figures) -> None:
    waiting = {str(job.id) for job in case.queue()}
    assert figures["jobs"]
    assert set(figures["jobs"]) <= waiting
    assert case.orders_for(node) == ([UndrainNode] if node.state is NodeState.DRAINING else [])


def _staying(case: Case) -> int:
    gone = (NodeState.GONE, *LEAVING)
    kept = sum(1 for node in case.snapshot.nodes.values() if node.state not in gone)
    return kept + sum(isinstance(action, UndrainNode) for action in case.made.actions)


def _above_nodes_max(case: Case, node: Node, figures: Figures) -> None:
    assert figures["nodes_max"] == case.policy.limits.nodes_max
    assert case.policy.limits.nodes_max < figures["node_count"] <= _staying(case)
    assert case.orders_for(node) == [DrainNode]


def _makes_room(case: Case, node: Node, figures: Figures) -> None:
    capped = case.made.jobs[JobId(int(figures["job"]))]
    assert capped.code in ("nodes_max", "price_per_hour_max")
    assert case.orders_for(node) == [DrainNode]
    assert case.made.basis is not None
    seats = case.made.basis.placement.seating.seats.get(JobId(int(figures["job"])), ())
    assert node.launch.slot not in {bin_.slot for bin_, _ in seats}


def _held_by_drain(case: Case, node: Node, figures: Figures) -> None:
    assert node.rank is not None
    assert figures["drain_reason"] == node.rank.drain_reason
    assert not case.orders_for(node)


def _drained_by_flux(case: Case, node: Node, figures: Figures) -> None:
    assert node.rank is not None
    assert figures["drain_reason"] == node.rank.drain_reason
    assert case.policy.rules.foreign_drain is ForeignDrain.RETIRE
    overdue = figures["lasts_s"] >= case.policy.rules.foreign_drain_after_s
    confirmed = node.seen.idle_looks >= case.policy.rules.idle_confirmations
    assert case.orders_for(node) == ([DrainNode] if overdue and confirmed else [])


def _idle_unconfirmed(case: Case, node: Node, figures: Figures) -> None:
    assert figures == {"looks": node.seen.idle_looks, "needs": case.policy.rules.idle_confirmations}
    assert node.seen.idle_looks < case.policy.rules.idle_confirmations
    assert not case.orders_for(node)


def _takes_jobs(node: Node) -> bool:
    """Whether the node certainly takes jobs, now or soon: nothing speaks against it."""
    rank = node.rank
    if rank is None:
        return node.is_sound
    kept_out = rank.excluded or rank.drain_reason is not None or not (rank.schedulable or node.state in UP_SOON)
    return node.is_sound and not kept_out


def _nodes_min(case: Case, node: Node, figures: Figures) -> None:
    """Only as many nodes as must be kept would be left."""
    assert figures["nodes_min"] == case.policy.limits.nodes_min
    states = (NodeState.IDLE, NodeState.BUSY)
    up = sum(1 for each in case.snapshot.nodes.values() if each.state in states and _takes_jobs(each))
    kept = sum(isinstance(action, UndrainNode) for action in case.made.actions)
    drained = [action.launch for action in case.made.actions if isinstance(action, DrainNode)]
    leaving = sum(1 for id_ in drained if case.snapshot.nodes[id_].state is NodeState.IDLE)
    assert up - leaving <= case.policy.limits.nodes_min
    assert kept >= 0
    assert not case.orders_for(node)


def _window_left_s(case: Case, node: Node) -> float:
    rule = case.types()[node.launch.type_name].billing
    assert rule.window_s > 0
    assert node.listing.billed_from_s is not None
    age_s = case.now_s - node.listing.billed_from_s
    paid_s = 0.0
    while paid_s < max(age_s, rule.minimum_s) or paid_s == 0:
        paid_s += rule.window_s
    return paid_s - age_s


def _idle_s(case: Case, node: Node) -> float:
    assert node.seen.idle_since_s is not None
    return case.now_s - node.seen.idle_since_s


def _paid_time_left(case: Case, node: Node, figures: Figures) -> None:
    assert math.isclose(figures["window_left_s"], _window_left_s(case, node))
    assert figures["window_left_s"] > figures["stop_lead_s"] == case.policy.rules.stop_lead_s
    assert not case.orders_for(node)


def _window_closes(case: Case, node: Node, figures: Figures) -> None:
    assert math.isclose(figures["window_left_s"], _window_left_s(case, node), abs_tol=1e-6)
    assert figures["window_left_s"] <= case.policy.rules.stop_lead_s
    assert figures["idle_s"] == _idle_s(case, node)
    assert node.seen.idle_looks >= case.policy.rules.idle_confirmations
    assert case.orders_for(node) == [DrainNode]


def _idle_not_long(case: Case, node: Node, figures: Figures) -> None:
    assert figures["idle_s"] == _idle_s(case, node) < figures["idle_timeout_s"] == case.policy.rules.idle_timeout_s
    assert case.types()[node.launch.type_name].billing.window_s <= case.policy.rules.idle_timeout_s
    assert not case.orders_for(node)


def _busy(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.BUSY
    assert not case.orders_for(node)


def _busy_yet_drained_by_us(case: Case, node: Node, figures: Figures) -> None:
    assert node.rank is not None
    assert node.rank.drain_reason == f"flux-node-manager:{node.id}"
    assert case.orders_for(node) == [UndrainNode]


def _drained_for_another(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.IDLE
    assert node.rank is not None
    assert node.rank.drain_reason is not None
    assert node.rank.drain_reason.startswith("flux-node-manager:")
    assert not node.rank.drain_reason.endswith(f":{node.id}")
    assert case.orders_for(node) == [UndrainNode]


def _job_slipped_in(case: Case, node: Node, figures: Figures) -> None:
    assert node.rank is not None
    assert node.rank.allocated
    undone = node.state is NodeState.DRAINING and node.rank.online
    assert case.orders_for(node) == ([UndrainNode] if undone else [])


def _retiring(case: Case, node: Node, figures: Figures) -> None:
    """A drain or a stop continues, with its original reason."""
    assert node.state in LEAVING
    assert len(case.orders_for(node)) == 1
    assert case.orders_for(node)[0] in (DrainNode, StopBroker, DestroyNode)


def _broker_stopping(case: Case, node: Node, figures: Figures) -> None:
    assert node.stop.broker_told_s is not None
    assert figures["told_s"] == case.now_s - node.stop.broker_told_s < figures["broker_stop_s"]
    assert not case.orders_for(node)


def _gone(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.GONE
    assert case.orders_for(node) == [EndLease]


def _gone_yet_online(case: Case, node: Node, figures: Figures) -> None:
    assert node.state is NodeState.GONE
    assert case.snapshot.ranks[node.launch.rank].online
    assert not case.orders_for(node)


def _drifted(case: Case, node: Node, figures: Figures) -> None:
    node_type, changed = case.policy.types[node.launch.type_name], set(figures["changed"])
    assert changed
    assert ("zone" in changed) == (bool(node_type.zones) and node.launch.zone not in ("", *node_type.zones))
    assert changed == {"zone"} or node.launch.made_from != node_type.made_from


def _waits_for_turn(_case: Case, _node: Node, figures: Figures) -> None:
    assert figures["under_way"] >= figures["disruption_max"]


def _waits_for_jobs_to_start(case: Case, _node: Node, figures: Figures) -> None:
    assert {*figures["jobs"]} <= {str(job) for job in case.snapshot.jobs}


def _replaced_first(case: Case, node: Node, figures: Figures) -> None:
    assert figures["node_type"] == node.launch.type_name
    assert node.state not in LEAVING


NODES: Mapping[str, Callable[[Case, Node, Figures], None]] = {
    "call_in_flight": _call_in_flight,
    "retry_later": _retry_later,
    "lease_to_record": _lease_to_record,
    "looked_for": _looked_for,
    "calls_in_flight_max": _calls_in_flight_max,
    "create_paced": _create_paced,
    "create_calls_paced": _create_calls_paced,
    "creating": _creating,
    "lease_not_wanted": _lease_not_wanted,
    "lease_above_limits": _lease_above_limits,
    "settling": _lease_settling,
    "blocked_create_capacity": _blocked_node,
    "booting": _booting,
    "failed_at_provider": _failed_at_provider,
    "never_joined": _never_joined,
    "broker_lost": _broker_lost,
    "may_rejoin": _may_rejoin,
    "wanted": _wanted,
    "wanted_again": _wanted,
    "above_nodes_max": _above_nodes_max,
    "makes_room": _makes_room,
    "held_by_drain": _held_by_drain,
    "drained_by_flux": _drained_by_flux,
    "idle_unconfirmed": _idle_unconfirmed,
    "nodes_min": _nodes_min,
    "paid_time_left": _paid_time_left,
    "idle_not_long": _idle_not_long,
    "busy": _busy,
    "busy_yet_drained_by_us": _busy_yet_drained_by_us,
    "drained_for_another": _drained_for_another,
    "job_slipped_in": _job_slipped_in,
    "broker_stopping": _broker_stopping,
    "gone": _gone,
    "gone_yet_online": _gone_yet_online,
    "drifted": _drifted,
    "waits_for_turn": _waits_for_turn,
    "waits_for_jobs_to_start": _waits_for_jobs_to_start,
    "replaced_first": _replaced_first,
}


def _check_boot(case: Case, boot: BootNode) -> None:
    assert case.made.settled
    assert boot.reason.figures["node_type"] == boot.launch.type_name
    rank = case.snapshot.ranks[boot.launch.rank]
    assert rank.host == boot.launch.slot
    assert _is_free(case, rank)
    if boot.reason.code == "nodes_min":
        assert not boot.serves
        staying = [it for it in case.snapshot.nodes.values() if it.state not in (*LEAVING, NodeState.GONE)]
        ending = [it for it in staying if it.call is not None and it.call.kind is CallKind.END_LEASE]
        up = sum(_takes_jobs(node) for node in staying if node not in ending)
        bought = sum(isinstance(action, BootNode) for action in case.made.actions)
        assert up + bought <= case.policy.limits.nodes_min
    elif boot.reason.code == "replaces":
        assert not boot.serves
        assert boot.reason.figures["node"] in {node.launch.slot for node in case.snapshot.nodes.values()}
    else:
        assert boot.reason.code == "demand"
        assert set(boot.serves) <= {job.id for job in case.queue()}
        counted = boot.reason.figures["job_count"]
        assert isinstance(counted, int)
        assert counted >= len(boot.serves) > 0


def _check(case: Case) -> None:
    snapshot, made = case.snapshot, case.made
    running = (JobState.RUN, JobState.CLEANUP)
    assert made.jobs.keys() == {job.id for job in snapshot.jobs.values() if job.state not in running}
    assert list(made.jobs.items()) == [(id_, made.jobs[id_]) for id_ in made.jobs]
    for id_, reason in made.jobs.items():
        JOBS[reason.code](case, snapshot.jobs[id_], reason.figures)
    boots = {action.launch.id: action for action in made.actions if isinstance(action, BootNode)}
    assert made.nodes.keys() == snapshot.nodes.keys() | boots.keys()
    for node_id, reason in made.nodes.items():
        if node_id in boots:
            assert boots[node_id].reason == reason
            _check_boot(case, boots[node_id])
        else:
            _check_node(case, node_id)
    _check_types(case)
    prices = [
        case.types()[node.launch.type_name].price_per_hour for node in snapshot.nodes.values() if node.may_be_billed
    ]
    assert made.price_per_hour >= sum(prices, Decimal(0))


def _check_types(case: Case) -> None:
    bought = [action.launch.type_name for action in case.made.actions if isinstance(action, BootNode)]
    prices = case.types()
    assert list(case.made.types) == [node_type.name for node_type in case.policy.node_types]
    for name, reason in case.made.types.items():
        match reason.code:
            case "bought":
                assert not case.made.settled or bought.count(name) >= int(str(reason.figures["node_count"])) > 0
            case "nothing_is_short":
                served = ("fits_on_a_node_that_is_up", "node_kept_for_it", "node_coming", "node_free_soon")
                waiting = [case.made.jobs[job.id].code for job in case.queue()]
                never = ("no_type_fits", "too_few_slots", "beyond_limits")
                assert all(code in (*served, *never) for code in waiting)
            case "job_held_up":
                held_up = case.made.jobs[JobId(int(str(reason.figures["job"])))]
                assert held_up.code == reason.figures["why"]
                assert held_up.code in STUCK_BY
            case "fits_no_job_that_is_short":
                short = [job for job in case.queue() if case.made.jobs[job.id].code in ("node_ordered", "settling")]
                (node_type,) = (it for it in case.policy.node_types if it.name == name)
                fits = (job for job in short if _has_memory(case, node_type, job.shape))
                assert not any(_places(case, node_type, job.shape) for job in fits)
            case "another_mix_is_cheaper":
                chosen = reason.figures["node_types"]
                assert isinstance(chosen, tuple)
                assert chosen
                assert name not in chosen
                for_jobs = [
                    action.launch.type_name
                    for action in case.made.actions
                    if isinstance(action, BootNode) and action.reason.code == "demand"
                ]
                price = sum((prices[name].price_per_hour for name in for_jobs), Decimal(0))
                assert not case.made.settled or price == reason.figures["price_per_hour"]
            case "another_type_is_cheaper":
                better, worse = prices[TypeName(str(reason.figures["node_type"]))], prices[name]
                assert better.price_per_hour == reason.figures["price_per_hour"]
                assert better.price_per_hour <= worse.price_per_hour
                assert (better.cores, better.gpus) >= (worse.cores, worse.gpus)
                assert better.cores >= worse.cores
                assert better.memory_bytes >= worse.memory_bytes
            case "all_slots_taken":
                places = [rank for rank in case.snapshot.ranks.values() if rank.host in prices[name].slots]
                leaves = [node.launch.slot for node in case.snapshot.nodes.values() if node.state is NodeState.GONE]
                assert not any(_is_free(case, rank) for rank in places if rank.host not in leaves)
            case "blocked_create_capacity":
                assert reason.figures["until_s"] in {
                    block.until_s for block in case.snapshot.learned.blocks.values()
                }
            case code:
                raise AssertionError(code)


def _check_node(case: Case, node_id: LaunchId) -> None:
    node, reason = case.snapshot.nodes[node_id], case.made.nodes[node_id]
    if reason == node.stop.retiring and node.state in LEAVING:
        _retiring(case, node, reason.figures)
    elif reason.code == "window_closes":
        _window_closes(case, node, reason.figures)
    else:
        NODES[reason.code](case, node, reason.figures)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    world = draw(POLICIES.flatmap(lambda policy: snapshots(policy).map(lambda snapshot: World(policy, snapshot))))
    return Case(world.snapshot, world.policy, world.plan())


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_every_reason_is_true(case: Case) -> None:
    assert case.made.stands_still is None
    _check(case)


def test_a_standing_still_explains_everything_at_once() -> None:
    made = a_world().idle_node().job(tasks(1)).wait(1000).plan()
    assert made.stands_still is not None
    assert not made.jobs
    assert not made.nodes


def test_the_checker_does_not_take_whatever_is_said() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=280)
    case = Case(world.snapshot, world.policy, world.plan())
    _check(case)
    said = case.made.nodes[world.id("cloud1")]
    assert said.code == "paid_time_left"
    with pytest.raises(AssertionError):
        _paid_time_left(case, world["cloud1"], {**said.figures, "window_left_s": 281.0})
    with pytest.raises(AssertionError):
        _busy(case, world["cloud1"], {})
