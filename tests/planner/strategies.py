"""Hypothesis strategies for fleets: small ones, in which everything is near its limit."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import (
    ANYWHERE,
    All,
    AnyOf,
    Constraint,
    HasProperty,
    Job,
    JobId,
    JobState,
    Not,
    OnHosts,
    OnRanks,
    QueuePolicy,
    Shape,
)
from nodemanager.core.nodes import CallKind, CloudState, FailureKind, FluxRank, LaunchId, NodeState
from nodemanager.core.notation import format_idset
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import ALL_TYPES, Block, Node, Scope, Snapshot, Stray
from tests.builders import (
    NOW_S,
    a_call,
    a_cloud_node,
    a_job,
    a_launch,
    a_node,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    busy,
    drained,
)

SLOTS = ("cloud1", "cloud2", "cloud3", "gpu1", "gpu2")
TYPES = (
    replace(a_type("cloud", slots=3, cores=4, price="0.30"), zones=("a", "b")),
    replace(
        a_type("gpu", slots=2, cores=8, gpus=2, price="1.10", properties=["gpu"]),
        memory_bytes=2**36,
        zones=("b", "c"),
    ),
)

_LEAVES: st.SearchStrategy[Constraint] = st.one_of(
    st.just(HasProperty("gpu")),
    st.sampled_from(["cloud1", "gpu2"]).map(lambda host: OnHosts((host,))),
    st.frozensets(st.integers(1, 5), max_size=3).map(lambda ranks: OnRanks((format_idset(ranks),))),
)


def _joined(parts: st.SearchStrategy[Constraint]) -> st.SearchStrategy[Constraint]:
    several = st.lists(parts, max_size=2).map(tuple)
    return st.one_of(several.map(All), several.map(AnyOf), parts.map(Not))


CONSTRAINTS = st.one_of(st.just(ANYWHERE), st.recursive(_LEAVES, _joined, max_leaves=4))

SHAPES = st.builds(
    Shape,
    slots=st.integers(1, 4),
    cores_per_slot=st.sampled_from([1, 2, 4, 8, 16]),
    gpus_per_slot=st.sampled_from([0, 0, 0, 1, 2]),
    nodes=st.one_of(st.none(), st.integers(1, 4)),
    exclusive=st.booleans(),
    constraint=CONSTRAINTS,
    memory_bytes_per_slot=st.sampled_from([0, 0, 0, 2**34, 2**35, 2**40]),
    one_zone=st.sampled_from([False, False, True]),
)

POLICIES = st.builds(
    a_policy,
    st.just(TYPES[0]),
    st.just(TYPES[1]),
    nodes_max=st.integers(0, 5),
    nodes_min=st.integers(0, 2),
    price_per_hour_max=st.sampled_from(["0", "0.30", "0.90", "1.40", "2.50", "100"]).map(Decimal),
    queue_policy=st.sampled_from([QueuePolicy.FIFO, QueuePolicy.FIFO, QueuePolicy.BACKFILL]),
    calls_in_flight_max=st.integers(1, 3),
    creates_burst=st.integers(1, 3),
    idle_timeout_s=st.sampled_from([60.0, 300.0, 7200.0]),
)


def jobs(count_max: int = 8) -> st.SearchStrategy[list[Job]]:
    """Jobs numbered from 1, most of which wait for nodes."""
    few_shapes = st.lists(SHAPES, min_size=1, max_size=3).map(st.sampled_from)
    drawn = few_shapes.flatmap(lambda shapes: st.lists(_a_job_of(shapes), max_size=count_max))
    return drawn.map(lambda many: [replace(job, id=JobId(number)) for number, job in enumerate(many, start=1)])


def _a_job_of(shapes: st.SearchStrategy[Shape]) -> st.SearchStrategy[Job]:
    return st.builds(
        a_job,
        shape=shapes,
        state=st.sampled_from([JobState.SCHED] * 6 + list(JobState)),
        priority=st.sampled_from([16, 16, 16, 31, 0]),
        urgency=st.sampled_from([16, 16, 16, 0]),
        queue=st.sampled_from(["", "", "debug"]),
        userid=st.sampled_from([1000, 1000, 1001]),
    )


# What one look may show of a rank. Drained "by us" means for the launch that holds the slot now.
CONDITIONS = (
    "away",
    "away and still allocated",
    "idle",
    "busy",
    "partly busy",
    "not yet noticed by the scheduler",
    "drained by us",
    "drained by us and busy",
    "drained for an earlier launch",
    "drained by others",
    "drained by others and busy",
)


def a_rank_that_is(condition: str, policy: Policy, slot: str, launch: LaunchId | None = None) -> FluxRank:
    rank = a_rank(slot, policy, online=not condition.startswith("away"))
    if "busy" in condition:
        rank = busy(rank, cores_free=2 if "partly" in condition else 0)
    if "drained" in condition:
        ours = drain_text(launch if launch is not None and "by us" in condition else LaunchId("an-earlier-one"))
        rank = drained(rank, "broken fan" if "others" in condition else ours)
    if "not yet noticed" in condition:
        rank = replace(rank, schedulable=False, cores_free=0, gpus_free=0)
    return replace(rank, allocated=True) if "still allocated" in condition else rank


def ranks(policy: Policy, slot: str, launch: LaunchId | None = None) -> st.SearchStrategy[FluxRank]:
    return st.sampled_from(CONDITIONS).map(lambda condition: a_rank_that_is(condition, policy, slot, launch))


@st.composite
def nodes(draw: st.DrawFn, policy: Policy, slot: str) -> Node:
    """A node in any state, with what a manager may know about it in that state."""
    launch = replace(a_launch(slot, policy), zone=draw(st.sampled_from(["", "a", "b"])))
    state = draw(st.sampled_from(NodeState))
    rank = draw(st.one_of(st.none(), ranks(policy, slot, launch.id)))
    changes: dict[str, Any] = {
        "since_s": NOW_S - draw(st.sampled_from([0.0, 30.0, 130.0, 1000.0])),
        "requested_s": NOW_S - draw(st.sampled_from([1000.0, 5000.0])),
        "billed_from_s": NOW_S - draw(st.sampled_from([10.0, 400.0, 3580.0, 3590.0, 3700.0])),
        "tries": draw(st.integers(0, 4)),
        "retry_s": NOW_S + draw(st.sampled_from([-5.0, -5.0, 5.0])),
        "recorded": draw(st.booleans()),
    }
    if draw(st.integers(0, 3)) == 0:
        changes["call"] = a_call(draw(st.sampled_from(CallKind)))
    if state in (NodeState.IDLE, NodeState.BUSY):
        # These states say that the rank is up, and whether it has work.
        rank = replace(rank or a_rank(slot, policy), online=True, allocated=state is NodeState.BUSY)
    if state is NodeState.IDLE:
        changes["idle_looks"] = draw(st.integers(1, 3))
        changes["idle_since_s"] = NOW_S - draw(st.sampled_from([1.0, 100.0, 400.0]))
    if state is NodeState.DRAINING:
        changes["drained_s"] = draw(st.one_of(st.none(), st.just(NOW_S - 5)))
    if state is NodeState.STOPPING:
        rank = rank or a_rank(slot, policy)  # its drain was answered with a look
        changes["broker_told_s"] = draw(st.one_of(st.none(), st.sampled_from([NOW_S - 1, NOW_S - 20])))
    if state is NodeState.REQUESTED:
        changes["sent_s"] = draw(st.one_of(st.none(), st.just(NOW_S - 20)))
    else:
        provider_state = draw(st.sampled_from([CloudState.RUNNING, CloudState.RUNNING, *CloudState]))
        changes["cloud"] = a_cloud_node(launch, state=provider_state)
    return a_node(slot, state, policy, launch=launch, rank=rank, **changes)


@st.composite
def strays(draw: st.DrawFn, policy: Policy, slot: str) -> Stray:
    cloud = a_cloud_node(a_launch(slot, policy, number=9))
    return Stray(cloud, NOW_S - draw(st.sampled_from([1.0, 700.0])), draw(st.sampled_from([0.0, NOW_S + 30])))


@st.composite
def snapshots(draw: st.DrawFn, policy: Policy) -> Snapshot:
    """A fleet with nodes on some slots and something else on others, and a queue."""
    held = draw(st.sets(st.sampled_from(SLOTS)))
    made = [draw(nodes(policy, slot)) for slot in SLOTS if slot in held]
    seen = [node.rank for node in made if node.rank is not None]
    seen += [draw(ranks(policy, slot)) for slot in SLOTS if slot not in held and draw(st.integers(0, 3)) == 0]
    found = [draw(strays(policy, slot)) for slot in SLOTS if draw(st.integers(0, 7)) == 0]
    blocked = draw(st.sets(st.sampled_from([*(node_type.name for node_type in TYPES), ALL_TYPES]), max_size=1))
    stirred = draw(st.integers(0, 5)) == 0
    return a_snapshot(
        policy,
        nodes=made,
        jobs=draw(jobs()),
        ranks=seen,
        strays={stray.node.provider_id: stray for stray in found},
        stopped=draw(st.sampled_from([frozenset(), frozenset(["debug"])])),
        blocks={
            Scope(name): Block(NOW_S + draw(st.sampled_from([-1.0, 30.0])), FailureKind.CAPACITY, "none")
            for name in blocked
        },
        newest_job_s=draw(st.sampled_from([None, NOW_S - 0.5, NOW_S - 100])),
        unsettled_s=draw(st.sampled_from([None, NOW_S - 0.5, NOW_S - 100])),
        look_due_since_s=NOW_S - 2 if stirred else None,
    )
