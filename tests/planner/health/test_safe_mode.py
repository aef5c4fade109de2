"""Safe mode begins when too many nodes are away at once, says what ends it, and ends by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import ListCloud
from tests.builders import CLOUD, World, a_cloud_node, a_rank, a_type, a_world, orders, whole_nodes

SLOTS = [f"cloud{number}" for number in range(1, 9)]
EIGHT = a_type("cloud", slots=10)


def _fleet(**settings: float) -> World:
    world = a_world(EIGHT, nodes_max=10, **settings)
    for slot in SLOTS:
        world.busy_node(slot)
    return world


def _away(world: World, count: int) -> World:
    """A look finds some nodes away, and the others busy."""
    gone = [a_rank(slot, world.policy) for slot in SLOTS[:count]]
    there = [replace(world.rank_now(slot), online=True, allocated=True) for slot in SLOTS[count:]]
    return world.wait(1.0).see_ranks(*gone, *there)


def test_where_too_large_a_part_is_away_at_once_nothing_is_done_and_it_is_said_what_ends_it() -> None:
    world = _away(_fleet(), 5).job(whole_nodes(1))
    made = world.wait(20.0).plan()
    assert made.actions == ()
    assert made.stands_still is not None
    assert made.stands_still.code == "safe_mode"
    figures = made.stands_still.figures
    assert (figures["unready"], figures["node_count"], figures["unready_max"]) == (5, 8, 4)
    assert figures["ends"]


def test_fewer_are_each_its_own_case() -> None:
    world = _away(_fleet(rejoin_timeout_s=10.0), 4).wait(20.0)
    assert world.plan().stands_still is None
    assert len([order for order in orders(world.plan()) if order.startswith("drain ")]) == 4


def test_so_few_are_never_too_many() -> None:
    world = a_world(EIGHT)
    for slot in SLOTS[:3]:
        world.busy_node(slot)
    world.wait(1.0).see_ranks(*(a_rank(slot, world.policy) for slot in SLOTS[:3]))
    assert world.plan().stands_still is None


def test_it_ends_when_they_are_back() -> None:
    world = _away(_away(_fleet(), 8), 1)
    assert world.plan().stands_still is None
    assert world.snapshot.account_of().unready_since_s is None


def test_nodes_that_hang_are_unready_too() -> None:
    world = _fleet()
    hung = [replace(world.rank_now(slot), torpid=True) for slot in SLOTS[:5]]
    stands_still = world.wait(1.0).see_ranks(*hung).plan().stands_still
    assert stands_still is not None
    assert stands_still.code == "safe_mode"


def test_nodes_that_do_not_come_back_are_given_up_in_the_end() -> None:
    world = _away(_fleet(safe_mode_max_s=600.0), 8)
    world.wait(599.0).all_is_fresh()
    assert world.plan().stands_still is not None
    world.wait(2.0).all_is_fresh()
    made = world.plan()
    assert made.stands_still is None
    assert all(world[slot].state is NodeState.LOST for slot in SLOTS)
    assert len([order for order in orders(made) if order.startswith("drain ")]) == 8


def test_each_new_look_does_not_put_its_end_off() -> None:
    world = _away(_fleet(safe_mode_max_s=600.0), 8)
    since_s = world.snapshot.account_of().unready_since_s
    for _ in range(5):
        _away(world, 7)
    assert world.snapshot.account_of().unready_since_s == since_s


def test_44_a_list_that_lacks_a_large_part_is_safe_mode_until_it_is_confirmed() -> None:
    world = _fleet().job(whole_nodes(1))
    for _ in range(world.policy.timing.absences):
        world.wait(10.0).see_ranks().see_cloud()
        stands_still = world.plan().stands_still
        assert stands_still is not None
        assert stands_still.code == "safe_mode"
    world.wait(10.0).see_ranks().see_cloud()
    assert world.plan().stands_still is None


@pytest.mark.parametrize(("lacking", "doubted"), [(4, False), (5, True)])
def test_44_a_list_is_doubted_if_it_lacks_more_than_half(lacking: int, *, doubted: bool) -> None:
    world = _fleet().wait(10.0).see_ranks()
    world.see_cloud(*(a_cloud_node(world[slot].launch) for slot in SLOTS[lacking:]))
    assert (world.plan().stands_still is not None) is doubted


def test_44_safe_mode_lists_more_often_so_that_it_ends_soon() -> None:
    world = _fleet()
    world.wait(10.0).see_ranks().see_cloud()
    world.wait(world.policy.timing.probe_s).see_ranks()
    assert ListCloud() in world.plan().asks


@pytest.mark.parametrize("count", [1, 4])
def test_a_fleet_at_work_is_not_looked_through_for_it(count: int) -> None:
    world = a_world(replace(CLOUD, slots=EIGHT.slots))
    for slot in SLOTS[:count]:
        world.busy_node(slot)
    world.wait(1.0).see_ranks()
    assert world.snapshot.account_of().unready_since_s is None
