"""Nodes at rest: the few that a plan looks at give the same plan as all of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import ANYWHERE, HasProperty, Not, QueuePolicy
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import Billing
from nodemanager.planner import billing, free_room, node_index
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.plan import Plan, plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.reasons import NodeReasons
from nodemanager.planner.snapshot import NodeIndex, Resting, Snapshot
from tests.builders import NOW_S, a_type, a_world, nodes, tasks, whole_nodes

CONSTRAINTS = st.sampled_from([ANYWHERE, HasProperty("fast"), Not(HasProperty("fast"))])
TIMES = st.floats(NOW_S - 20_000.0, NOW_S)


def plan_of_all(snapshot: Snapshot, policy: Policy) -> Plan:
    """The plan with an index in which no node is at rest: each idle node takes its step."""
    with patch.object(node_index, "is_at_rest", lambda *_: False):
        looked_at = replace(snapshot, indexes=replace(snapshot.indexes, nodes=NodeIndex()))
        return plan(replace(looked_at, indexes=replace(looked_at.indexes, nodes=node_index_of(looked_at))), policy)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Snapshot, Policy]:
    """Idle, busy and draining nodes of two types, with jobs, limits, spares and windows of all kinds."""
    types = [
        replace(
            a_type(name, slots=8, price=price, gpus=gpus, properties=["fast"] if gpus else []),
            billing=Billing(draw(st.sampled_from([1.0, 60.0, 3600.0])), draw(st.sampled_from([0.0, 60.0, 5000.0]))),
            spares=draw(st.sampled_from([0, 0, 1, 3])),
        )
        for name, price, gpus in (("cheap", "1", 0), ("dear", "3", 1))
    ]
    world = a_world(
        *types,
        nodes_max=draw(st.sampled_from([4, 9, 100])),
        stale_after_s=1e9,
        nodes_min=draw(st.sampled_from([0, 0, 2, 6])),
        queue_policy=draw(st.sampled_from(QueuePolicy)),
        idle_timeout_s=draw(st.sampled_from([0.0, 300.0, 7200.0])),
        idle_confirmations=draw(st.sampled_from([1, 2, 3])),
    )
    for slot in draw(st.lists(st.sampled_from([s for it in types for s in it.slots]), unique=True)):
        if draw(st.integers(0, 3)) == 0:
            world.busy_node(slot, cores_free=draw(st.integers(0, 3)))
            continue
        idle_since_s, billed_from_s = draw(TIMES), draw(TIMES)
        looks = draw(st.integers(1, 4))
        world.node(slot, NodeState.IDLE, idle_since_s=idle_since_s, billed_from_s=billed_from_s, idle_looks=looks)
    shapes = st.one_of(
        st.builds(whole_nodes, st.integers(1, 9)),
        st.builds(nodes, st.integers(1, 5), cores=st.integers(1, 4)),
        st.builds(tasks, st.integers(1, 9), cores=st.integers(1, 4), gpus=st.integers(0, 1), where=CONSTRAINTS),
    )
    world.job(*draw(st.lists(shapes, max_size=4)))
    return world.snapshot, world.policy


@settings(deadline=None, max_examples=300)
@given(fleets())
def test_the_nodes_at_rest_that_a_plan_leaves_out_would_take_no_step(case: tuple[Snapshot, Policy]) -> None:
    snapshot, policy = case
    some, every = plan(snapshot, policy), plan_of_all(snapshot, policy)
    assert some.actions == every.actions
    assert dict(some.nodes) == dict(every.nodes)
    assert abs(some.again_at_s - every.again_at_s) < 1e-6 or some.again_at_s == every.again_at_s


@settings(deadline=None, max_examples=300)
@given(fleets())
def test_the_nodes_that_no_job_can_get_are_rightly_left_out(case: tuple[Snapshot, Policy]) -> None:
    snapshot, policy = case
    with patch.object(free_room, "REACHABLE_PART", inf):
        some = plan(snapshot, policy)
    with patch.object(free_room, "REACHABLE_PART", -1.0):
        every = plan(snapshot, policy)
    assert some == every
    assert dict(some.jobs) == dict(every.jobs)


@settings(deadline=None, max_examples=200)
@given(fleets(), st.floats(0.0, 4000.0), st.booleans())
def test_a_node_whose_reason_has_another_code_is_not_passed_over(
    case: tuple[Snapshot, Policy], later_s: float, jobs_go: bool
) -> None:
    snapshot, policy = case
    later = replace(snapshot, now_s=snapshot.now_s + later_s, jobs={} if jobs_go else snapshot.jobs)
    before, after = plan(snapshot, policy).nodes, plan(later, policy).nodes
    assert isinstance(before, NodeReasons)
    assert isinstance(after, NodeReasons)
    looked_at = after.changed_since(before)
    for id_, reason in after.items():
        assert id_ in looked_at or before[id_].code == reason.code


@given(
    st.lists(st.tuples(TIMES, TIMES), max_size=30),
    st.sampled_from([0.0, 1.0, 60.0, 600.0, 3600.0]),
    st.sampled_from([0.0, 60.0, 5000.0]),
    st.sampled_from([0.0, 30.0, 300.0]),
    st.sampled_from([0.0, 60.0, 900.0]),
)
def test_no_node_s_time_comes_before_it_is_said_to(
    times: list[tuple[float, float]], window_s: float, minimum_s: float, idle_timeout_s: float, lead_s: float
) -> None:
    rule = Billing(window_s, minimum_s)
    nodes = [(since, billed, LaunchId(f"n{number}")) for number, (since, billed) in enumerate(times)]
    resting = Resting().changed((), nodes)
    found = list(resting.by_time(rule, idle_timeout_s, lead_s, NOW_S))
    assert sorted(id_ for _, id_ in found) == sorted(id_ for _, _, id_ in nodes)
    assert found == sorted(found, key=lambda it: it[0])
    earliest = {id_: at_s for at_s, id_ in found}
    for since_s, billed_s, id_ in nodes:
        left_s = billing.window_left_s(rule, NOW_S - billed_s)
        waits_s = max(0.0, left_s - lead_s)
        if rule.window_s <= idle_timeout_s:
            waits_s = max(0.0, since_s + idle_timeout_s - NOW_S)
        assert earliest[id_] <= NOW_S + waits_s


def test_a_fleet_of_idle_nodes_costs_a_plan_no_step_each() -> None:
    world = a_world(a_type("cloud", slots=50, window_s=1.0), nodes_max=100, idle_timeout_s=300.0)
    for number in range(1, 51):
        world.node(f"cloud{number}", NodeState.IDLE, idle_since_s=NOW_S - number, idle_looks=2)
    made = plan(world.snapshot, world.policy)
    assert not made.decided
    assert {reason.code for reason in made.nodes.values()} == {Code.IDLE_NOT_LONG}
    idle_s = made.nodes[world.id("cloud7")].figures["idle_s"]
    assert idle_s == 7.0
    assert made.again_at_s == NOW_S + 250.0
