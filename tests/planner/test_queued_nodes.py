"""Nodes that wait in their provider's own queue, as a job of an outer Flux instance does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.facts import QueueProbed
from nodemanager.core.nodes import CloudNode, CloudState, NodeState
from nodemanager.core.orders import BootNode
from nodemanager.core.reason_codes import Code
from nodemanager.planner.billing import age_s
from tests.builders import World, a_cloud_node, a_launch, a_type, a_world, orders, whole_nodes

HOUR_S = 3600.0


def queued(slot: str = "cloud1") -> CloudNode:
    return a_cloud_node(a_launch(slot), state=CloudState.PENDING, queued=True)


def a_queued_node(**settings: object) -> World:
    world = a_world(boot_timeout_s=900.0, **settings)
    world.booting_node("cloud1", cloud=queued())
    return world.see_cloud(queued())


def later(world: World, seconds: float, *listed: CloudNode) -> World:
    """So much later, when everything has been looked at again."""
    return world.wait(seconds).see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud(*listed)


def test_it_is_not_given_up_however_long_it_waits() -> None:
    world = a_queued_node().job(whole_nodes(1))
    for _ in range(10):
        later(world, HOUR_S, queued())
        assert orders(world.plan()) == []
    assert float(str(world.plan().nodes[world.id("cloud1")].figures["waited_s"])) >= 10 * HOUR_S
    assert world.why_job(1).code is Code.NODE_QUEUED_OUTSIDE


def test_it_is_not_given_up_while_its_provider_does_not_answer() -> None:
    world = a_queued_node().job(whole_nodes(1)).wait(HOUR_S)
    assert [order for order in orders(world.plan()) if "cloud1" in order] == []


def test_its_boot_is_timed_from_when_it_leaves_the_queue() -> None:
    world = later(a_queued_node().job(whole_nodes(1)), HOUR_S, queued())
    runs = replace(queued(), state=CloudState.RUNNING, queued=False)
    later(world, 30.0, runs)
    assert world.why("cloud1") == "booting"
    later(world, 800.0, runs)
    assert world.why("cloud1") == "booting"
    later(world, 100.0, runs)
    assert world.why("cloud1") == "never_joined"


def test_it_costs_nothing_until_it_runs() -> None:
    world = later(a_queued_node().job(whole_nodes(1)), HOUR_S, queued())
    assert age_s(world["cloud1"], world.snapshot.now_s) == 0.0
    runs = replace(queued(), state=CloudState.RUNNING, queued=False)
    later(later(world, 60.0, runs), 600.0, runs)
    assert age_s(world["cloud1"], world.snapshot.now_s) == pytest.approx(660.0)


def test_it_leaves_the_queue_once_no_job_needs_it() -> None:
    world = later(a_queued_node(), 20.0, queued())
    assert orders(world.plan()) == ["drain cloud1-1"]
    assert world.why("cloud1") == "lease_not_wanted"


def test_it_stays_as_a_spare_and_for_nodes_min() -> None:
    spare = a_world(replace(a_type(), spares=1)).booting_node("cloud1", cloud=queued())
    assert orders(later(spare.see_cloud(queued()), 20.0, queued()).plan()) == []
    assert orders(later(a_queued_node(nodes_min=1), 20.0, queued()).plan()) == []


def test_it_is_neither_ended_nor_bought_again_while_its_job_waits() -> None:
    world = later(a_queued_node().job(whole_nodes(1)), 20.0, queued())
    for _ in range(5):
        made = world.decide()
        assert not any(isinstance(it, BootNode) for it in made.actions)
        assert world["cloud1"].state is NodeState.BOOTING
        later(world, 60.0, queued())
