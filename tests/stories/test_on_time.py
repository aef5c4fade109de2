"""Timing: room that will be free soon is waited for, and boot and stop times are learned."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    BrokerStopped,
    CloudCallFailed,
    DecisionsPaused,
    DecisionsResumed,
    LaunchesRecorded,
    NodeCordoned,
    NodeDestroyed,
    NodeUndrained,
    QueueProbed,
    RetirementRequested,
)
from nodemanager.core.jobs import Job, JobId, JobState, PackingPolicy, RankAllocation
from nodemanager.core.nodes import CallKind, CloudState, FailureKind, NodeState, ProviderId
from nodemanager.core.orders import BootNode
from nodemanager.core.records import Mark
from nodemanager.core.slots import Market, Rank, TypeName
from nodemanager.planner.snapshot import Block, Scope
from nodemanager.planner.timings import SAMPLES_MAX
from tests.builders import (
    CLOUD,
    GPU,
    GPU_FOR_ALL,
    NOW_S,
    WALL_AT,
    World,
    a_call,
    a_cloud_node,
    a_job,
    a_rank,
    a_type,
    a_world,
    boots,
    busy,
    changed,
    drained,
    orders,
    tasks,
    whole_nodes,
)

CLOUD_TYPE = TypeName("cloud")


def running(number: int, *, ends_in_s: float, rank: int = 1, cores: int = 4, **changes: Any) -> Job:
    """A job that runs on one node, with the end of its time limit."""
    holds = (RankAllocation(Rank(rank), cores, 0),)
    return a_job(number, state=JobState.RUN, allocations=holds, ends_at=WALL_AT + ends_in_s, **changes)


def at_work(*, ends_in_s: float, boot_s: float = 90.0, **settings: Any) -> World:
    """One full node whose job ends then, and a measured boot time."""
    world = a_world(CLOUD, **settings).busy_node("cloud1").but(boots_s={CLOUD_TYPE: (boot_s,)})
    ending = running(9, ends_in_s=ends_in_s)
    return world.but(jobs={ending.id: ending})


# --- room that will be free -------------------------------------------------------------------------------


def test_room_that_is_free_sooner_than_a_boot_takes_is_waited_for() -> None:
    world = at_work(ends_in_s=60).job(tasks(2))
    assert boots(world.plan()) == []
    reason = world.why_job(2)
    assert reason.code == "node_free_soon"
    assert reason.figures == {"nodes": ("cloud1",), "free_in_s": 60.0}


def test_room_that_comes_later_than_a_boot_is_not() -> None:
    assert boots(at_work(ends_in_s=91).job(tasks(2)).plan()) == ["cloud2"]


def test_patience_waits_for_longer() -> None:
    assert boots(at_work(ends_in_s=120, patience_s=30).job(tasks(2)).plan()) == []
    assert boots(at_work(ends_in_s=121, patience_s=30).job(tasks(2)).plan()) == ["cloud2"]


def test_the_same_room_is_not_given_twice() -> None:
    world = at_work(ends_in_s=60).job(tasks(4), tasks(4))
    assert boots(world.plan()) == ["cloud2"]
    assert [world.why_job(number).code for number in (2, 3)] == ["node_free_soon", "node_ordered"]


def test_a_job_that_is_over_its_time_is_not_counted_on() -> None:
    assert boots(at_work(ends_in_s=-1).job(tasks(2)).plan()) == ["cloud2"]


def test_before_a_boot_was_ever_seen_nothing_is_waited_for() -> None:
    assert boots(at_work(ends_in_s=1).but(boots_s={}).job(tasks(2)).plan()) == ["cloud2"]


def test_a_whole_node_is_waited_for_only_where_all_of_it_will_be_free() -> None:
    assert boots(at_work(ends_in_s=60).job(whole_nodes(1)).plan()) == []
    ending = running(9, ends_in_s=60, cores=2)
    half = at_work(ends_in_s=60).but(jobs={ending.id: ending}).job(whole_nodes(1))
    assert boots(half.plan()) == ["cloud2"]


# --- what is learned --------------------------------------------------------------------------------------


def test_a_boot_is_timed_from_the_order_to_the_joining() -> None:
    world = a_world().booting_node("cloud1", requested_s=NOW_S - 80)
    world.see_ranks(a_rank("cloud1", online=True))
    assert world.snapshot.learned.boots_s == {"cloud": (80.0,)}


def test_a_node_that_was_found_booting_teaches_nothing() -> None:
    world = a_world().booting_node("cloud1", requested_s=NOW_S - 80, adopted=True)
    world.see_ranks(a_rank("cloud1", online=True))
    assert not world.snapshot.learned.boots_s


def test_only_the_latest_boots_count() -> None:
    world = a_world().but(boots_s={CLOUD_TYPE: tuple(float(n) for n in range(SAMPLES_MAX))})
    world.booting_node("cloud1", requested_s=NOW_S - 80).see_ranks(a_rank("cloud1", online=True))
    assert world.snapshot.learned.boots_s[CLOUD_TYPE][-2:] == (SAMPLES_MAX - 1.0, 80.0)
    assert len(world.snapshot.learned.boots_s[CLOUD_TYPE]) == SAMPLES_MAX


def test_a_stop_is_timed_from_the_decision_to_the_list_that_shows_it_gone() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    world.decide()
    world.wait(3).see_drained("cloud1")
    world.decide()
    world.see(BrokerStopped(world.id("cloud1"))).wait(6).all_is_fresh()
    assert orders(world.decide()) == ["destroy i-cloud1-1"]
    world.wait(2).see(NodeDestroyed(world.id("cloud1"), ProviderId("i-cloud1-1")))
    assert not world.snapshot.learned.stops_s  # accepting the order does not end the billing
    gone = a_cloud_node(world["cloud1"].launch, state=CloudState.TERMINATED)
    assert world.wait(20).see_cloud(gone).snapshot.learned.stops_s == {"cloud": (31.0,)}


def test_a_stop_is_timed_from_its_first_drain() -> None:
    """The scheduler has missed that one, so the node is drained again."""
    world = a_world().idle_node("cloud1", hour_ends_in_s=5)
    world.decide()
    missed = replace(drained(world.rank_now("cloud1"), drain_text(world.id("cloud1"))), schedulable=True)
    world.wait(3).see_drained("cloud1", missed).wait(2).see_ranks(missed)
    assert orders(world.decide()) == ["drain cloud1-1"]
    gone = a_cloud_node(world["cloud1"].launch, state=CloudState.TERMINATED)
    world.see_drained("cloud1", drained(a_rank("cloud1"), drain_text(world.id("cloud1"))))
    assert orders(world.decide()) == ["destroy i-cloud1-1"]
    world.see(NodeDestroyed(world.id("cloud1"), ProviderId("i-cloud1-1")))
    assert world.wait(20).see_cloud(gone).snapshot.learned.stops_s == {"cloud": (25.0,)}


def test_a_stop_that_no_list_tells_of_is_over_with_the_first_list_that_lacks_it() -> None:
    world = a_world().stopping_node("cloud1", retired_s=NOW_S - 5)
    world.see_ranks(a_rank("cloud1"))
    for _ in range(3):
        world.wait(10).see_cloud()
    assert world.snapshot.learned.stops_s == {"cloud": (15.0,)}


def leaving(**changes: Any) -> World:
    """A stopping node whose broker is gone: only its destroy is left."""
    world = a_world().stopping_node("cloud1", retired_s=NOW_S - 5, **changes)
    return world.see_ranks(drained(a_rank("cloud1"), drain_text(world.id("cloud1"))))


def stops_after(world: World, seconds: float) -> tuple[float, ...]:
    """The stop times learned when a list shows the node gone after these seconds."""
    gone = a_cloud_node(world["cloud1"].launch, state=CloudState.TERMINATED)
    return world.wait(seconds).see_cloud(gone).snapshot.learned.stops_s.get(CLOUD_TYPE, ())


def test_a_stop_that_is_only_slow_is_learned() -> None:
    world = leaving()
    assert orders(world.decide()) == ["destroy i-cloud1-1"]
    world.see(NodeDestroyed(world.id("cloud1"), ProviderId("i-cloud1-1")))
    for _ in range(60):
        world.wait(60).all_is_fresh().decide()
        world.see(NodeDestroyed(world.id("cloud1"), ProviderId("i-cloud1-1")))
    assert stops_after(world, 5) == (3610.0,)


def test_a_stop_whose_destroy_failed_says_nothing_of_the_next() -> None:
    world = leaving()
    world.decide()
    world.see(CloudCallFailed("destroy", world.id("cloud1"), FailureKind.TRANSIENT, "500"))
    world.wait(30).all_is_fresh()
    assert orders(world.decide()) == ["destroy i-cloud1-1"]
    assert stops_after(world, 30) == ()


def test_nor_does_one_whose_destroy_was_not_answered() -> None:
    world = leaving()
    world.decide()
    assert stops_after(world.wait(61), 30) == ()


def test_nor_one_during_which_nothing_was_decided() -> None:
    world = leaving(drained_s=None).see(DecisionsPaused(Mark("ada", WALL_AT)))
    assert world.decide().stands_still is not None
    world.wait(7200).see(DecisionsResumed()).all_is_fresh()
    assert stops_after(world, 5) == ()


def test_nor_one_that_waited_for_what_ran_there() -> None:
    world = a_world().stopping_node("cloud1", retired_s=NOW_S - 5)
    world.wait(1).see_ranks(replace(world.rank_now("cloud1"), allocated=True))
    world.wait(900).see_ranks(a_rank("cloud1"))
    assert stops_after(world, 5) == ()


def test_the_stop_after_one_that_was_taken_back_is_measured_anew() -> None:
    world = a_world().draining_node("cloud1", retired_s=NOW_S - 5, delayed=True).job(whole_nodes(1))
    assert orders(world.decide()) == ["undrain cloud1-1"]
    world.see(NodeUndrained(world.id("cloud1"))).wait(1).see_ranks(busy(world.rank_now("cloud1")))
    world.see(RetirementRequested(world.id("cloud1"), Mark("ada", WALL_AT))).decide()
    cordoned = drained(busy(world.rank_now("cloud1")), drain_text(world.id("cloud1")))
    world.see(NodeCordoned(world.id("cloud1"), world.snapshot.now_s, cordoned))
    world.wait(1799).see(QueueProbed(world.snapshot.now_s)).see_cloud(a_cloud_node(world["cloud1"].launch))
    world.see_ranks(drained(a_rank("cloud1", online=True), drain_text(world.id("cloud1"))))
    assert "drain cloud1-1" in orders(world.decide())
    assert (world["cloud1"].stop.retired_s, world["cloud1"].stop.delayed) == (NOW_S + 1800, False)


@pytest.mark.parametrize(
    ("stops_s", "last_safe_s"),
    [
        ((), 60.0),  # the site's setting
        ((90.0,), 90.0),  # longer, as measured
        ((8.0, 9.0), 60.0),  # too few samples to believe a shorter time
        ((8.0, 9.0, 7.0), 9.0),
        ((7200.0,), 1800.0),  # at most half of an hour's window is given up
        ((40.0,) * 20 + (10800.0,) * 4, 1800.0),
    ],
)
def test_a_node_goes_at_the_last_safe_moment_of_its_window(stops_s: tuple[float, ...], last_safe_s: float) -> None:
    def at_the_end(left_s: float) -> str:
        world = a_world(stop_lead_s=60).idle_node("cloud1", hour_ends_in_s=left_s)
        return world.but(stops_s={CLOUD_TYPE: stops_s}).why("cloud1")

    assert at_the_end(last_safe_s + 1) == "paid_time_left"
    assert at_the_end(last_safe_s) == "window_closes"


def too_late(left_s: float, stops_s: tuple[float, ...] = (40.0, 50.0, 45.0), **settings: Any) -> World:
    world = a_world(**settings).idle_node("cloud1", hour_ends_in_s=left_s)
    return world.but(stops_s={CLOUD_TYPE: stops_s})


def test_a_node_that_would_not_be_gone_in_time_is_kept_for_the_window_that_is_paid_anyway() -> None:
    world = too_late(3)
    assert (orders(world.plan()), world.why("cloud1")) == ([], "next_window_begins")
    figures = world.plan().nodes[world.id("cloud1")].figures
    assert (figures["quickest_stop_s"], figures["goes_in_s"]) == (40.0, 3 + 3600 - 50.0)
    world.wait(3 + 3600 - 51).all_is_fresh()
    assert world.see(QueueProbed(world.snapshot.now_s)).why("cloud1") == "paid_time_left"
    assert orders(world.wait(1).all_is_fresh().plan()) == ["drain cloud1-1"]


@pytest.mark.parametrize(
    ("left_s", "stops_s", "goes"),
    [
        (29, (40.0, 50.0, 45.0), False),
        (30, (40.0, 50.0, 45.0), True),  # measured by the next list: it may have taken one probe less
        (40, (40.0,) * 9, True),  # the last safe moment is never too late
        (3, (), True),  # no measurement
        (1, (8.0, 9.0, 7.0), True),  # quicker than the time between looks
        (1795, (7200.0,) * 3, True),  # no stop ever fits: it goes as soon as it may
    ],
)
def test_it_goes_while_the_quickest_stop_still_fits(left_s: float, stops_s: tuple[float, ...], goes: bool) -> None:
    assert too_late(left_s, stops_s).why("cloud1") == ("window_closes" if goes else "next_window_begins")


def test_where_windows_are_short_it_is_never_too_late() -> None:
    world = a_world(a_type(window_s=60.0), idle_timeout_s=300.0)
    world.idle_node("cloud1", hour_ends_in_s=3).but(stops_s={CLOUD_TYPE: (40.0,) * 3})
    assert orders(world.plan()) == ["drain cloud1-1"]


def test_a_limit_and_a_budget_do_not_wait_for_the_next_window() -> None:
    assert too_late(3, nodes_max=0).why("cloud1") == "above_nodes_max"
    assert too_late(3, budgets={("", "day"): Decimal("0.1")}).why("cloud1") == "budget_spent"


def test_a_lead_is_not_cut_where_an_idle_node_stays_for_longer_than_is_paid_at_once() -> None:
    world = a_world(a_type(window_s=60.0), idle_timeout_s=300).but(stops_s={CLOUD_TYPE: (7200.0,)})
    assert world.idle_node("cloud1").why("cloud1") == "window_closes"


def test_what_the_site_says_of_a_lead_is_not_cut() -> None:
    world = a_world(stop_lead_s=2000).but(stops_s={CLOUD_TYPE: (7200.0,)})
    assert world.idle_node("cloud1", hour_ends_in_s=1999).why("cloud1") == "window_closes"


# --- by billing -------------------------------------------------------------------------------------------


def test_for_a_short_job_a_node_billed_by_the_second_is_bought_though_its_hour_is_dearer() -> None:
    hourly = a_type("hourly", price="0.40", window_s=3600)
    by_the_second = a_type("second", price="0.60", window_s=1, minimum_s=60)
    short = a_world(hourly, by_the_second).job(tasks(1), duration_s=120.0)
    assert boots(short.plan()) == ["second1"]
    unlimited = a_world(hourly, by_the_second).job(tasks(1))
    assert boots(unlimited.plan()) == ["hourly1"]


@pytest.mark.parametrize("how", ["idle", "draining"])
def test_for_a_short_job_a_node_with_paid_time_left_goes_before_one_that_costs_anew(how: str) -> None:
    """Twenty minutes are already paid; a node billed by the second would cost its minimum."""
    by_the_second = a_type("second", price="0.01", window_s=1, minimum_s=60)
    world = a_world(CLOUD, by_the_second)
    world = world.idle_node("cloud1", hour_ends_in_s=1200) if how == "idle" else world.draining_node("cloud1")
    made = world.job(tasks(1), duration_s=120.0).plan()
    assert orders(made) == (["undrain cloud1-1"] if how == "draining" else [])
    assert made.types[TypeName("second")].code == "nothing_is_short"


def test_what_comes_is_filled_before_anything_is_bought_however_cheap() -> None:
    by_the_second = a_type("second", price="0.01", window_s=1, minimum_s=60)
    world = a_world(CLOUD, by_the_second).booting_node("cloud1").job(tasks(1), duration_s=120.0)
    assert boots(world.plan()) == []


def test_of_two_markets_the_cheaper_one_is_taken_while_it_has_capacity() -> None:
    spot = replace(a_type("spot", price="0.10"), market=Market.SPOT)
    world = a_world(CLOUD, spot).job(tasks(1))
    assert boots(world.plan()) == ["spot1"]
    block = Block(NOW_S + 60, FailureKind.CAPACITY, "none here")
    assert boots(world.but(blocks={Scope(TypeName("spot"), Market.SPOT, ""): block}).plan()) == ["cloud1"]


def test_walltime_packing_keeps_short_and_long_jobs_apart() -> None:
    def bought(packing: PackingPolicy) -> list[str]:
        world = a_world(CLOUD, packing=packing)
        world.job(tasks(1), tasks(1), duration_s=120.0).job(tasks(1), duration_s=86_400.0)
        return boots(world.plan())

    assert len(bought(PackingPolicy.SPREAD)) == 1
    assert len(bought(PackingPolicy.WALLTIME)) == 2


# --- spares -----------------------------------------------------------------------------------------------

SPARE = replace(CLOUD, spares=1)


def test_a_spare_stands_ready_beyond_what_jobs_need() -> None:
    world = a_world(SPARE).job(whole_nodes(1))
    made = world.decide()
    assert boots(made) == ["cloud1", "cloud2"]
    assert [action.reason.code for action in made.actions if isinstance(action, BootNode)] == ["demand", "spare"]
    assert boots(world.wait(2).decide()) == []


def test_a_spare_stays_at_the_end_of_its_window_and_no_more_than_the_spares_do() -> None:
    world = a_world(SPARE).idle_node("cloud1", hour_ends_in_s=5).idle_node("cloud2", hour_ends_in_s=5)
    assert orders(world.decide()) == ["drain cloud1-1"]
    assert world.why("cloud2") == "spare"


def test_no_spare_is_bought_beyond_a_limit() -> None:
    assert boots(a_world(SPARE, nodes_max=1).job(whole_nodes(1)).plan()) == ["cloud1"]


# --- zones ------------------------------------------------------------------------------------------------

ZONED = replace(CLOUD, zones=("a", "b"))


def _zone(world: World) -> str:
    (boot,) = (action for action in world.plan().actions if isinstance(action, BootNode))
    return boot.launch.zone


def _without_capacity(world: World, zone: str) -> World:
    launch = replace(world["cloud1"].launch, zone=zone)
    node = changed(world["cloud1"], launch=launch, sent_s=NOW_S, call=a_call(CallKind.CREATE), cloud=None)
    world.but(nodes={node.id: replace(node, state=NodeState.REQUESTED)})
    return world.see(CloudCallFailed("create", node.id, FailureKind.CAPACITY, "none here"))


def test_nodes_are_made_in_the_first_zone_and_in_the_next_where_that_has_none() -> None:
    world = a_world(ZONED, GPU).job(tasks(1))
    assert _zone(world) == "a"
    _without_capacity(world.node("cloud1", NodeState.REQUESTED), "a")
    assert list(world.snapshot.learned.blocks) == [Scope(CLOUD_TYPE, Market.ON_DEMAND, "a")]
    assert _zone(world) == "b"


def test_where_no_zone_has_any_the_next_type_is_bought_and_later_the_first_again() -> None:
    world = a_world(ZONED, GPU_FOR_ALL).job(tasks(1)).node("cloud1", NodeState.REQUESTED)
    _without_capacity(world, "a")
    _without_capacity(world, "b")
    assert boots(world.plan()) == ["gpu1"]
    world.wait(121).all_is_fresh()
    assert _zone(world) == "a"


def test_a_lease_that_waits_in_a_zone_without_capacity_is_given_back() -> None:
    world = a_world(ZONED, GPU).job(whole_nodes(2))
    for launch in [action.launch for action in world.decide().actions if isinstance(action, BootNode)]:
        world.see(LaunchesRecorded((launch,)))
    block = Block(NOW_S + 60, FailureKind.CAPACITY, "none here")
    world.but(blocks={Scope(CLOUD_TYPE, Market.ON_DEMAND, "a"): block})
    assert [order for order in orders(world.plan()) if order.startswith("end-lease")] == [
        f"end-lease {world.id('cloud1')}",
        f"end-lease {world.id('cloud2')}",
    ]


def test_a_node_that_ended_before_it_was_seen_running_does_not_count_as_a_boot() -> None:
    world = a_world().node("cloud1", NodeState.REQUESTED, sent_s=NOW_S - 60)
    launch = world["cloud1"].launch
    world.wait(1).see_cloud(a_cloud_node(launch, state=CloudState.TERMINATED))
    assert not world.snapshot.learned.boots_s
    assert JobId(1) not in world.plan().jobs
