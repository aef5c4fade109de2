from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import CallKind, NodeState
from nodemanager.core.orders import (
    BootNode,
    ClaimInstance,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    ListCloud,
    LookAtRanks,
    RecordLaunches,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import DEFAULT_CLOUD
from nodemanager.planner.brain import commit_actions, commit_asks
from nodemanager.planner.plan import Action, Plan
from nodemanager.planner.timings import create_credit
from tests.builders import (
    CLOUD,
    NOW_S,
    World,
    a_cloud_node,
    a_launch,
    a_node,
    a_policy,
    a_snapshot,
    a_world,
    boots,
    orders,
    tasks,
    whole_nodes,
)

WHY = because(Code.GONE)
LAUNCH = a_launch("cloud1")


def _committed(state: NodeState, action: Action) -> World:
    world = a_world().node("cloud1", state)
    world.snapshot = commit_actions(world.snapshot, Plan(actions=(action,)), world.policy)
    return world


@pytest.mark.parametrize(
    ("before", "action", "kind", "after"),
    [
        (NodeState.IDLE, DrainNode(LAUNCH.id, LAUNCH.rank, WHY), CallKind.DRAIN, NodeState.DRAINING),
        (NodeState.DRAINING, DrainNode(LAUNCH.id, LAUNCH.rank, WHY), CallKind.DRAIN, NodeState.DRAINING),
        (
            NodeState.DRAINING,
            UndrainNode(LAUNCH.id, LAUNCH.rank, WHY),
            CallKind.UNDRAIN,
            NodeState.DRAINING,
        ),
        (NodeState.BUSY, UndrainNode(LAUNCH.id, LAUNCH.rank, WHY), CallKind.UNDRAIN, NodeState.BUSY),
        (NodeState.DRAINING, StopBroker(LAUNCH.id, LAUNCH.rank), CallKind.STOP_BROKER, NodeState.STOPPING),
        (
            NodeState.DRAINING,
            DestroyNode(LAUNCH.id, a_cloud_node(LAUNCH).provider_id, WHY),
            CallKind.DESTROY,
            NodeState.STOPPING,
        ),
        (
            NodeState.STOPPING,
            DestroyNode(LAUNCH.id, a_cloud_node(LAUNCH).provider_id, WHY),
            CallKind.DESTROY,
            NodeState.STOPPING,
        ),
        (NodeState.REQUESTED, CreateNode(LAUNCH, CLOUD), CallKind.CREATE, NodeState.REQUESTED),
        (NodeState.REQUESTED, RecordLaunches((LAUNCH,)), CallKind.RECORD, NodeState.REQUESTED),
        (NodeState.GONE, EndLease(LAUNCH, WHY), CallKind.END_LEASE, NodeState.GONE),
    ],
)
def test_each_order_stands_in_the_snapshot_with_its_deadline(
    before: NodeState, action: Action, kind: CallKind, after: NodeState
) -> None:
    node = _committed(before, action)["cloud1"]
    assert node.state is after
    assert node.call is not None
    assert (node.call.kind, node.call.started_s) == (kind, NOW_S)
    assert node.call.deadline_s == NOW_S + a_policy().calls.call_timeout_s


def test_a_drain_and_an_undrain_make_the_last_second_look_void() -> None:
    for order in (
        DrainNode(LAUNCH.id, LAUNCH.rank, WHY),
        UndrainNode(LAUNCH.id, LAUNCH.rank, WHY),
    ):
        assert _committed(NodeState.DRAINING, order)["cloud1"].stop.drained_s is None


def test_a_node_is_there_from_the_moment_it_is_decided() -> None:
    launch = a_launch()
    world = a_world()
    world.snapshot = commit_actions(world.snapshot, Plan(actions=(BootNode(launch, (), WHY),)), world.policy)
    node = world["cloud1"]
    assert node.state is NodeState.REQUESTED
    assert node.call is not None
    assert node.call.kind is CallKind.RECORD
    assert not node.create.recorded
    assert node.create.sent_s is None


def test_a_stray_that_gets_its_lease_back_is_looked_for_never_made_again() -> None:
    launch = a_launch(age_s=500)
    world = a_world()
    world.snapshot = commit_actions(world.snapshot, Plan(actions=(RecordLaunches((launch,)),)), world.policy)
    node = world["cloud1"]
    assert node.create.sent_s == NOW_S
    assert node.create.requested_s == NOW_S - 500


def test_what_was_asked_is_waited_for() -> None:
    plan = Plan(asks=(ClaimInstance(), LookAtRanks(), ListCloud()))
    snapshot = commit_asks(a_snapshot(), plan, a_policy(call_timeout_s=30))
    due_s = NOW_S + 30
    assert (
        snapshot.sources.claim.answer_due_s,
        snapshot.sources.flux.answer_due_s,
        snapshot.account_of().source.answer_due_s,
    ) == (due_s,) * 3


def test_a_settled_plan_ends_the_settling_and_another_does_not() -> None:
    policy = a_policy()
    unsettled = a_snapshot(unsettled_s=NOW_S - 3)
    assert commit_asks(unsettled, Plan(settled=True), policy).news.unsettled_s is None
    assert commit_asks(unsettled, Plan(settled=False), policy).news.unsettled_s == NOW_S - 3


def test_what_is_ordered_is_not_ordered_again() -> None:
    world = a_world().job(whole_nodes(2), tasks(1, gpus=1)).idle_node("cloud4", hour_ends_in_s=5)
    first = world.decide()
    assert boots(first) == ["cloud1", "gpu1"]
    assert orders(world.decide()) == []


def test_ordering_changes_nothing_in_place() -> None:
    world = a_world().idle_node(hour_ends_in_s=5).job(tasks(1, gpus=1))
    before = world.snapshot
    held = dict(before.nodes)
    world.decide()
    assert dict(before.nodes) == held
    assert world.snapshot is not before


# --- the rate bucket --------------------------------------------------------------------------------------


@given(
    rate=st.sampled_from([0.5, 2.0, 5.0]),
    burst=st.integers(1, 5),
    pauses_s=st.lists(st.sampled_from([0.0, 0.1, 0.4, 1.0, 7.0]), max_size=30),
)
def test_creates_never_outrun_the_bucket(rate: float, burst: int, pauses_s: list[float]) -> None:
    """Over any span from the start: at most the burst, plus what the rate allows in that span."""
    policy = a_policy(creates_per_s=rate, creates_burst=burst, calls_in_flight_max=1000)
    world = World(policy, a_snapshot(policy))
    for slot in ("cloud1", "cloud2", "cloud3", "cloud4", "gpu1", "gpu2"):
        world.node(slot, NodeState.REQUESTED)
    made = 0
    for pause_s in pauses_s:
        world.wait(pause_s)
        made += sum(order.startswith("create ") for order in orders(world.decide()))
        assert made <= burst + (world.snapshot.now_s - NOW_S) * rate + 1e-6
        assert 0 <= create_credit(world.snapshot, policy, DEFAULT_CLOUD) <= burst


def test_the_bucket_is_full_at_first_and_never_overflows() -> None:
    policy = a_policy(creates_burst=3, creates_per_s=1)
    assert create_credit(a_snapshot(), policy, DEFAULT_CLOUD) == 3
    spent = a_snapshot(create_credit=0.5, create_credit_s=NOW_S - 2)
    assert create_credit(spent, policy, DEFAULT_CLOUD) == pytest.approx(2.5)
    assert create_credit(a_snapshot(create_credit=0.5, create_credit_s=0.0), policy, DEFAULT_CLOUD) == 3


def test_price_is_summed_exactly() -> None:
    policy = a_policy()
    fleet = [a_node("cloud1"), a_node("gpu1"), a_node("cloud2", NodeState.GONE)]
    assert World(policy, a_snapshot(policy, nodes=fleet)).plan().price_per_hour == Decimal("3.40")
