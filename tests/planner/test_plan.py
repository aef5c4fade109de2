from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import FluxUnreachable, QueueProbed, QueueSeen
from nodemanager.core.jobs import HasProperty, JobId, Not
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import BootNode, ListCloud, LookAtRanks, SweepCloud
from nodemanager.planner import basis
from nodemanager.planner.placement import Placement, place_jobs
from nodemanager.planner.plan import Plan, plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Snapshot, Source
from nodemanager.planner.trust import is_settled, settles_at_s
from tests.builders import (
    CLOUD,
    NOW_S,
    WALL_AT,
    World,
    a_cloud_node,
    a_job,
    a_launch,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    a_world,
    boots,
    drained,
    orders,
    tasks,
    whole_nodes,
)
from tests.planner.strategies import POLICIES, snapshots

MOMENTS = st.one_of(st.none(), st.floats(NOW_S - 30, NOW_S))

NO_GPU = Not(HasProperty("gpu"))


# --- asking -----------------------------------------------------------------------------------------------


def test_nothing_is_asked_while_all_is_fresh() -> None:
    assert a_world().idle_node().plan().asks == ()


def test_ranks_are_looked_at_every_probe_and_at_once_when_they_stir() -> None:
    world = a_world(probe_s=10)
    assert LookAtRanks() not in world.wait(8).plan().asks
    assert LookAtRanks() in world.wait(1).plan().asks
    assert LookAtRanks() in a_world().but(look_due_since_s=NOW_S).plan().asks


@pytest.mark.parametrize(
    ("state", "every_s"),
    [
        (None, 60),
        (NodeState.IDLE, 60),
        (NodeState.BUSY, 60),
        (NodeState.REQUESTED, 10),
        (NodeState.BOOTING, 10),
        (NodeState.LOST, 10),
        (NodeState.STOPPING, 10),
    ],
)
def test_the_cloud_is_listed_more_often_while_something_is_on_its_way(
    state: NodeState | None, every_s: float
) -> None:
    world = a_world(probe_s=10, relist_s=60)
    if state is not None:
        world.node("cloud1", state)
    seen_s = NOW_S - 1
    assert ListCloud() not in world.wait(seen_s + every_s - 0.5 - NOW_S).plan().asks
    assert ListCloud() in world.wait(0.5).plan().asks


def test_leftovers_are_swept_up_rarely_and_only_by_who_acts_on_fresh_news() -> None:
    every_s = a_policy().timing.sweep_s
    world = a_world().but(swept_s=NOW_S)
    assert SweepCloud() not in world.wait(every_s - 0.5).all_is_fresh().plan().asks
    assert SweepCloud() in world.wait(0.5).all_is_fresh().decide().asks
    assert SweepCloud() not in world.plan().asks, "it was asked for just now"
    assert SweepCloud() in a_world().but(swept_s=None).plan().asks
    assert SweepCloud() not in a_world().but(swept_s=None, claimed=False).plan().asks


def test_a_source_is_not_asked_twice_nor_before_it_may_be() -> None:
    old = Source(seen_s=NOW_S - 100)
    assert a_world().but(flux=replace(old, answer_due_s=NOW_S + 5), cloud=old).plan().asks == (ListCloud(),)
    assert a_world().but(flux=old, cloud=replace(old, retry_s=NOW_S + 5)).plan().asks == (LookAtRanks(),)


# --- settling ---------------------------------------------------------------------------------------------


def test_jobs_that_are_submitted_together_are_bought_for_together() -> None:
    world = a_world(settle_s=1)
    for number in (1, 2, 3):
        world.see_queue(a_job(number, whole_nodes(1))).wait(0.6)
        assert boots(world.decide()) == []
        assert world.why_job(number).code == "settling"
    assert boots(world.wait(0.4).decide()) == ["cloud1", "cloud2", "cloud3"]


def test_a_stream_of_jobs_puts_the_purchase_off_for_so_long_and_no_longer() -> None:
    world = a_world(settle_s=1, settle_max_s=10)
    bought: list[tuple[float, str]] = []
    for number in range(1, 31):
        world.see_queue(a_job(number, tasks(1))).wait(0.5)
        bought += [(world.snapshot.now_s - NOW_S, slot) for slot in boots(world.decide())]
    assert bought[0][0] == 10


@given(newest=MOMENTS, unsettled=MOMENTS, changed=st.floats(NOW_S - 30, NOW_S), stirred=MOMENTS)
def test_settling_waits_for_quiet_and_never_longer_than_it_may(
    newest: float | None, unsettled: float | None, changed: float, stirred: float | None
) -> None:
    policy = a_policy(settle_s=1, settle_max_s=10, quiet_s=0.1)
    snapshot = a_snapshot(
        policy, newest_job_s=newest, unsettled_s=unsettled, changed_s=changed, look_due_since_s=stirred
    )
    if unsettled is not None and NOW_S - unsettled >= 10:
        assert is_settled(snapshot, policy)
        return
    quiet = changed + 0.1 <= NOW_S and (newest is None or newest + 1 <= NOW_S)
    assert is_settled(snapshot, policy) is (quiet and stirred is None)
    assert (settles_at_s(snapshot, policy) <= NOW_S) is quiet


def test_what_needs_no_purchase_does_not_wait_for_the_settling() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=5).draining_node("cloud2")
    world.see_queue(a_job(1, whole_nodes(2)))
    assert orders(world.plan()) == ["undrain cloud2-1"]
    assert world.why("cloud1") == "wanted"


# --- booting ----------------------------------------------------------------------------------------------


def test_a_boot_says_what_it_is_for_and_carries_all_that_its_call_needs() -> None:
    world = a_world().job(*[tasks(1)] * 4)
    (boot,) = world.plan().actions
    assert isinstance(boot, BootNode)
    assert boot.serves == (1, 2, 3, 4)
    assert boot.reason.code == "demand"
    assert boot.reason.figures == {"node_type": "cloud", "job_count": 4}
    assert (boot.launch.slot, boot.launch.rank, boot.launch.type_name) == ("cloud1", 1, "cloud")
    assert boot.launch.requested_at == WALL_AT
    assert boot.launch.id.startswith("cloud1-")
    assert boot.launch.client_token.endswith(boot.launch.id)


def test_a_boot_names_ten_jobs_and_counts_them_all() -> None:
    world = a_world(replace(CLOUD, cores=64)).job(*[tasks(1)] * 25)
    (boot,) = world.plan().actions
    assert isinstance(boot, BootNode)
    assert len(boot.serves) == 10
    assert boot.reason.figures["job_count"] == 25


def test_what_ends_a_bill_comes_before_what_begins_one() -> None:
    world = a_world().stopping_node("cloud1").draining_node("cloud2").idle_node("cloud3", hour_ends_in_s=5)
    world.node("cloud4", NodeState.GONE).job(tasks(1, gpus=1))
    assert orders(world.plan()) == [
        "stop-broker cloud2-1",
        "end-lease cloud4-1",
        "stop-broker cloud1-1",
        "drain cloud3-1",
        "boot gpu1",
    ]


# --- behind a job that a cap keeps out --------------------------------------------------------------------


def test_nothing_is_kept_or_bought_for_the_jobs_behind_one_that_a_cap_keeps_out() -> None:
    """A scheduler that follows queue order would never start them, and the node would never leave."""
    world = a_world(nodes_max=1).job(tasks(1, gpus=1)).job(tasks(1)).idle_node("cloud1")
    made = world.plan()
    assert orders(made) == ["drain cloud1-1"]
    assert made.nodes[world.id("cloud1")].code == "makes_room"
    assert made.jobs[JobId(1)].code == "nodes_max"
    assert made.jobs[JobId(2)].code == "behind_a_stuck_job"


def test_no_more_nodes_make_room_than_the_job_needs() -> None:
    world = a_world(nodes_max=4).job(tasks(1, gpus=1))
    for slot in ("cloud1", "cloud2", "cloud3", "cloud4"):
        world.idle_node(slot)
    assert orders(world.decide()) == ["drain cloud1-1"]
    assert orders(world.wait(1).decide()) == []


def test_a_node_that_the_job_kept_out_would_run_on_does_not_make_room_for_it() -> None:
    """It lacks one node, and a node of another type uses up the limit: of three idle nodes only that one goes."""
    world = a_world(nodes_max=3).job(whole_nodes(3, where=NO_GPU))
    for slot in ("cloud1", "cloud2", "gpu1"):
        world.idle_node(slot)
    made = world.plan()
    assert orders(made) == ["drain gpu1-1"]
    assert made.nodes[world.id("gpu1")].code == "makes_room"


def test_small_nodes_that_fill_the_limit_make_room_for_fewer_large_ones() -> None:
    """The job could use the two small ones itself, but it never gets a third. Two large nodes serve it."""
    small, large = a_type("small", cores=4, price="0.10"), a_type("large", cores=8, price="0.90")
    world = a_world(small, large, nodes_max=2).job(tasks(12))
    world.idle_node("small1").idle_node("small2")
    made = world.plan()
    assert {made.nodes[world.id(it)].code for it in ("small1", "small2")} == {"makes_room"}
    assert orders(made) == ["drain small1-1", "drain small2-1"]


def test_one_large_node_takes_the_place_of_a_small_one_though_two_small_ones_cost_less() -> None:
    small, large = a_type("small", cores=4, price="0.10"), a_type("large", cores=8, price="0.90")
    other = a_type("other", cores=2, price="0.01")
    world = a_world(small, large, other, nodes_max=1).job(tasks(8))
    assert orders(world.idle_node("other1").plan()) == ["drain other1-1"]


def test_nobody_makes_room_where_it_would_not_be_enough() -> None:
    """The node in the way is busy, so the others are kept: the job needs them once that node is free."""
    world = a_world(nodes_max=3).job(whole_nodes(3, where=NO_GPU)).busy_node("gpu1")
    for slot in ("cloud1", "cloud2"):
        world.idle_node(slot)
    made = world.plan()
    assert orders(made) == []
    assert made.jobs[JobId(1)].code == "nodes_max"


def test_the_dearest_make_room_and_none_beside_those_that_leave_already() -> None:
    world = a_world(nodes_max=4, price_per_hour_max=Decimal("3.80")).job(tasks(1, gpus=1))
    for slot in ("cloud1", "cloud2", "cloud3"):
        world.idle_node(slot)
    assert orders(world.decide()) == ["drain cloud1-1"]  # 3.00 in addition to 0.80
    assert orders(world.wait(1).decide()) == []


# --- whatever the fleet -----------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> World:
    policy = draw(POLICIES)
    return World(policy, draw(snapshots(policy)))


def to_the_byte(made: Plan) -> str:
    """Everything in a plan, in its order."""
    parts = [made.asks, made.actions, made.warnings, made.stands_still, made.settled, made.price_per_hour]
    return repr([*parts, *(list(said.items()) for said in (made.jobs, made.nodes, made.types))])


@given(worlds())
def test_the_same_snapshot_gives_the_same_plan(world: World) -> None:
    assert to_the_byte(world.plan()) == to_the_byte(world.plan())


@settings(deadline=None, max_examples=300)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_became_known_does_not_matter(world: World, draw: Random) -> None:
    """Only (priority, id) counts: the order of submission, as in Flux."""
    before = world.plan()

    def shuffled(held: Mapping[Any, Any]) -> dict[Any, Any]:
        entries = list(held.items())
        draw.shuffle(entries)
        return dict(entries)

    known = world.snapshot
    world.but(**{name: shuffled(getattr(known, name)) for name in ("jobs", "nodes", "ranks")})
    world.but(strays=shuffled(known.account_of().strays), blocks=shuffled(known.learned.blocks))
    assert to_the_byte(world.plan()) == to_the_byte(before)


@given(worlds())
def test_what_was_decided_is_not_decided_again(world: World) -> None:
    """Without news, the next plan orders nothing for calls in flight, and stays within the limits."""
    first = world.decide()
    again = world.decide()
    once = {order for order in orders(first) if not order.startswith(("record", "destroy"))}
    assert not once & set(orders(again))


@given(worlds())
def test_planning_does_not_change_the_snapshot(world: World) -> None:
    before = replace(world.snapshot, nodes=dict(world.snapshot.nodes), jobs=dict(world.snapshot.jobs))
    world.plan()
    assert world.snapshot == before


def test_a_stray_waits_out_its_grace_without_a_word_to_the_cloud() -> None:
    world = (
        a_world()
        .idle_node("cloud1")
        .see_cloud(a_cloud_node(a_launch("cloud1")), a_cloud_node(a_launch("cloud1", number=7)))
    )
    assert orders(world.plan()) == []
    assert ListCloud() in world.wait(10).plan().asks


def test_memory_that_no_scheduler_heeds_is_said_with_the_nodes() -> None:
    world = a_world().job(tasks(1), unheeded=("memory",)).idle_node("cloud1")
    assert world.why_job(1).figures["unheeded"] == ("memory",)


def test_after_the_instance_was_away_its_queues_are_asked_for_before_anything_is_bought() -> None:
    """A queue may have been stopped meanwhile, and the jobs' events do not show that."""
    world = a_world().job(whole_nodes(1)).wait(2)
    assert boots(world.plan()) == ["cloud1"]
    world.see(FluxUnreachable(NOW_S + 2, "the instance has no scheduler")).wait(1).see_claim().see_ranks().wait(1)
    world.see_queue(a_job(1)).wait(1)
    assert (boots(world.plan()), world.why_job(1).code) == ([], "settling")
    stopped, probed = QueueSeen(NOW_S + 5, queues_stopped=frozenset({""})), QueueProbed(NOW_S + 5)
    assert boots(World(world.policy, world.snapshot).see(stopped).wait(1).plan()) == []
    assert boots(world.see(probed).wait(1).plan()) == ["cloud1"]


def test_an_answer_that_hides_which_queues_are_stopped_is_none() -> None:
    world = a_world().job(whole_nodes(1)).wait(2).see(FluxUnreachable(NOW_S + 2, "the instance has no scheduler"))
    world.wait(1).see_claim().see_ranks().see(QueueSeen(NOW_S + 3)).wait(2)
    assert boots(world.plan()) == []


# --- an empty queue ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "ordered"),
    [
        (a_world().idle_node(hour_ends_in_s=30.0), ["drain cloud1-1"]),
        (a_world().idle_node(hour_ends_in_s=1800.0), []),
        (a_world().busy_node().booting_node("cloud2"), []),
    ],
)
def test_while_no_job_waits_nothing_is_placed(
    world: World, ordered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[Snapshot] = []

    def watched(snapshot: Snapshot, policy: Policy, price: Decimal) -> Placement:
        placed.append(snapshot)
        return place_jobs(snapshot, policy, price)

    monkeypatch.setattr(basis, "place_jobs", watched)
    made = world.plan()
    assert (orders(made), placed, len(made.jobs)) == (ordered, [], 0)
    assert made.warnings == ()
    assert len(placed) == 1  # only the explanation needs it
    world.job(whole_nodes(1)).plan()
    assert len(placed) == 2


@pytest.mark.parametrize("limit", [{"nodes_max": 1}, {"price_per_hour_max": Decimal("0.50")}])
def test_a_job_at_a_limit_of_the_site_is_told_which_jobs_hold_the_nodes(limit: dict[str, Any]) -> None:
    world = a_world(a_type(price="0.40"), **limit).job(whole_nodes(1), whole_nodes(1))
    reason = world.why_job(2)
    assert reason.code == next(iter(limit))
    assert reason.figures["jobs"] == ("1",)


def test_a_job_gets_an_idle_node_that_is_undrained_now_and_no_new_one() -> None:
    """The drain is ours, of a retirement that was called off."""
    world = a_world().job(whole_nodes(1))
    world.idle_node("cloud1", rank=drained(a_rank("cloud1", online=True), drain_text(LaunchId("cloud1-1"))))
    assert boots(world.plan()) == []
    assert (world.why_job(1).code, world.why_job(1).figures["nodes"]) == ("node_kept_for_it", ("cloud1",))


@given(worlds())
def test_nothing_keeps_a_snapshot_once_its_plan_is_made(world: World) -> None:
    """A cycle would keep it, and with it a whole fleet, until the collector runs."""
    gc.disable()
    try:
        snapshot = replace(world.snapshot)
        kept = weakref.ref(snapshot)
        plan(snapshot, world.policy)
        del snapshot
        assert kept() is None
    finally:
        gc.enable()
