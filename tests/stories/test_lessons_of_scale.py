"""A fleet's size and age must not slow the service down. See ``test_lessons`` for the numbers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from types import FrameType

from nodemanager.core.facts import CloudListed, LaunchesRecorded, LeaseEnded, NodeCreated, QueueSeen, RanksSeen
from nodemanager.core.nodes import CloudState, NodeState
from nodemanager.core.orders import BootNode, DrainNode
from nodemanager.planner.brain import Brain
from tests.builders import (
    NOW_S,
    World,
    a_cloud_node,
    a_job,
    a_node,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    a_world,
    busy,
    whole_nodes,
)

# --- 54: a round over many nodes --------------------------------------------------------------------------

CALLS_A_NODE = 150  # it takes about 130, each of which is ordered drained with its reason


def of_idle_nodes(count: int) -> World:
    """A fleet of idle nodes, all at the end of their paid windows."""
    policy = a_policy(a_type("cloud", slots=count), nodes_max=count, price_per_hour_max=Decimal(count))
    idle = [
        a_node(f"cloud{number}", NodeState.IDLE, policy, billed_from_s=NOW_S - 3590)
        for number in range(1, count + 1)
    ]
    return World(policy, a_snapshot(policy, nodes=idle))


def calls_of(act: Callable[[], object]) -> int:
    """How many functions it calls: a measure of time that is equal on every machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def test_54_a_thousand_idle_nodes_at_a_window_s_end_are_decided_in_one_round_in_proportion() -> None:
    few, many = of_idle_nodes(100), of_idle_nodes(1000)
    drains = [action for action in many.plan().actions if isinstance(action, DrainNode)]
    assert len(drains) == 1000

    def a_round(world: World) -> None:
        Brain(world.policy, snapshot=world.snapshot).decide()

    a_hundred, a_thousand = calls_of(lambda: a_round(few)), calls_of(lambda: a_round(many))
    assert a_thousand <= CALLS_A_NODE * 1000
    assert a_thousand <= 11 * a_hundred, "ten times the nodes, ten times the work"


# --- 55: memory over many boots ---------------------------------------------------------------------------

AT_ONCE = 100


def test_55_memory_is_the_same_after_a_thousand_boots_and_after_ten_thousand() -> None:
    world = a_world(
        a_type("cloud", slots=AT_ONCE),
        nodes_max=AT_ONCE,
        price_per_hour_max=Decimal(1000),
        calls_in_flight_max=AT_ONCE,
        creates_burst=AT_ONCE,
        creates_per_s=float(AT_ONCE),
    )
    for _ in range(10):
        boot_all_and_lose_them(world)
    early = what_is_kept(world)
    for _ in range(90):
        boot_all_and_lose_them(world)
    assert what_is_kept(world) <= early + AT_ONCE


def test_55_looks_that_show_nothing_new_leave_nothing_behind() -> None:
    world = a_world().idle_node("cloud1").busy_node("cloud2").job(whole_nodes(9))
    for _ in range(100):
        world.wait(1.0).all_is_fresh().decide()
    early = what_is_kept(world)
    for _ in range(1000):
        world.wait(1.0).all_is_fresh().decide()
    assert what_is_kept(world) <= early + 10


def what_is_kept(world: World) -> int:
    """How many objects exist, in the snapshot or anywhere else."""
    world.decide()
    gc.collect()
    return len(gc.get_objects())


def boot_all_and_lose_them(world: World) -> None:
    """Submit a hundred jobs: each gets a node and runs, and its node dies."""
    jobs = [a_job(number, whole_nodes(1)) for number in range(1, AT_ONCE + 1)]
    world.see(QueueSeen(world.snapshot.now_s, tuple(jobs), complete=True)).wait(2.0)
    launches = [action.launch for action in world.decide().actions if isinstance(action, BootNode)]
    assert len(launches) == AT_ONCE
    world.see(LaunchesRecorded(tuple(launches))).wait(1.0).decide()
    nodes = [a_cloud_node(launch, created_at=world.snapshot.wall_at) for launch in launches]
    world.see(*(NodeCreated(launch.id, node) for launch, node in zip(launches, nodes, strict=True)))
    world.wait(30.0)
    at_work = [busy(a_rank(launch.slot, world.policy, online=True)) for launch in launches]
    world.see(RanksSeen(world.snapshot.now_s, tuple(at_work)))
    world.see(QueueSeen(world.snapshot.now_s, complete=True)).wait(30.0)
    away = [a_rank(launch.slot, world.policy) for launch in launches]
    ended = tuple(replace(node, state=CloudState.TERMINATED) for node in nodes)
    world.see(CloudListed(world.snapshot.now_s, ended))
    world.see(RanksSeen(world.snapshot.now_s, tuple(away))).decide()
    world.see(*(LeaseEnded(launch.id) for launch in launches)).wait(30.0)
    assert not world.snapshot.nodes
