"""An instance whose slots or resources differ from the site's is refused, with the difference."""

from __future__ import annotations

from dataclasses import replace

from nodemanager.core.facts import RanksSeen
from nodemanager.planner.hardware import find_mismatch
from tests.builders import World, a_rank, a_world, orders, whole_nodes


def _looked(world: World, *, without: str = "", cores: int = 8) -> World:
    ranks = [
        replace(rank, cores=cores) if rank.host == "gpu1" else rank
        for rank in world.snapshot.ranks.values()
        if rank.host != without
    ]
    world.but(ranks={}, rank_of_slot={}).wait(1.0)
    return world.see(RanksSeen(world.snapshot.now_s, tuple(ranks)))


def test_the_site_s_own_instance_is_served() -> None:
    world = _looked(a_world().job(whole_nodes(1)))
    assert world.plan().stands_still is None


def test_a_smaller_instance_is_refused_with_what_it_lacks() -> None:
    world = _looked(a_world().idle_node("cloud1").job(whole_nodes(2)), without="gpu2")
    made = world.plan()
    assert made.stands_still is not None
    assert made.stands_still.code == "instance_differs"
    assert made.stands_still.figures["why"] == "it lacks the slots gpu2"
    assert made.actions == ()


def test_an_instance_whose_slots_have_other_cores_is_refused_with_both_figures() -> None:
    stands_still = _looked(a_world(), cores=4).plan().stands_still
    assert stands_still is not None
    assert stands_still.figures["why"] == "gpu1 has 4 cores and 2 GPUs, a gpu 8 and 2"


def _below_cloud1(world: World) -> World:
    ranks = [replace(it, below=16 if it.host == "cloud1" else 0) for it in world.snapshot.ranks.values()]
    world.but(ranks={}, rank_of_slot={}).wait(1.0)
    return world.see(RanksSeen(world.snapshot.now_s, tuple(ranks)))


def test_an_instance_whose_slots_have_others_below_them_is_refused() -> None:
    made = _below_cloud1(a_world().idle_node("cloud1").job(whole_nodes(2))).plan()
    assert made.stands_still is not None
    assert str(made.stands_still.figures["why"]).startswith("16 ranks are below cloud1 in the tree")
    assert made.actions == ()


def test_a_stack_of_nodes_may_have_any_tree_because_it_ends_from_its_top() -> None:
    world = a_world()
    ranks = [replace(it, below=1) for it in world.snapshot.ranks.values()]
    assert find_mismatch(ranks, world.policy) is not None
    assert find_mismatch(ranks, replace(world.policy, stacked=True)) is None


def test_an_instance_with_more_slots_than_the_site_is_served() -> None:
    world = a_world().job(whole_nodes(1))
    more = replace(a_rank("gpu2", world.policy), rank=world.rank_now("gpu2").rank + 1, host="static1")  # type: ignore[arg-type]
    world.wait(1.0).see_ranks(more)
    assert world.plan().stands_still is None


def test_once_it_is_as_the_site_says_it_is_served_again() -> None:
    world = _looked(a_world().job(whole_nodes(1)), without="gpu2")
    world.wait(1.0).see_ranks(a_rank("gpu2", world.policy))
    made = world.plan()
    assert made.stands_still is None
    assert "boot cloud1" in orders(world.wait(2.0).plan())
