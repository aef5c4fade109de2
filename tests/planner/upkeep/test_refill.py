"""A dear node whose jobs could run on a cheaper type gets no further job, so that it empties and leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.drains import emptying_text
from nodemanager.core.jobs import HasProperty, JobState, RankAllocation, Shape
from nodemanager.core.nodes import FailureKind, LaunchId, NodeState
from nodemanager.core.orders import BootNode, CordonNode, UndrainNode
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.core.upkeep.rules import Disruption
from nodemanager.planner.policy import CloudRules
from nodemanager.planner.snapshot import Account, Block, Scope, Source
from tests.builders import (
    NOW_S,
    WALL_AT,
    World,
    a_job,
    a_policy,
    a_rank,
    a_snapshot,
    a_type,
    busy,
    drained,
    rank_of,
    tasks,
)
from tests.planner.test_clouds import in_cloud

CPU = a_type("cpu", slots=4, cores=8, price="0.40", window_s=1.0)
GPU = a_type("gpu", slots=3, cores=8, gpus=2, price="3.00", window_s=1.0, properties=frozenset({"gpu"}))
BOOT_S = 90.0


def a_world(*node_types: NodeType, **changes: Any) -> World:
    settings = {"consolidate": True, "disruption": Disruption(nodes=1), "patience_s": 120.0, **changes}
    policy = a_policy(*(node_types or (CPU, GPU)), **settings)
    snapshot = a_snapshot(policy)
    learned = replace(snapshot.learned, boots_s={it.name: (BOOT_S,) * 3 for it in (CPU, GPU)})
    return World(policy, replace(snapshot, learned=learned))


def running(
    world: World, slot: str, *shapes: Shape, emptying: bool = False, ends_in_s: float | None = 100.0
) -> World:
    """A node with a running job of each shape."""
    cores, gpus = sum(it.cores_per_slot for it in shapes), sum(it.gpus_per_slot for it in shapes)
    rank = busy(a_rank(slot, world.policy), cores_free=8 - cores)
    rank = replace(rank, gpus_free=max(0, rank.gpus - gpus))
    if emptying:
        rank = drained(rank, emptying_text(LaunchId(f"{slot}-1")))
    world.busy_node(slot).node(slot, NodeState.BUSY, rank=rank)
    for shape in shapes:
        job = a_job(
            100 + len(world.snapshot.jobs),
            shape,
            state=JobState.RUN,
            allocations=(RankAllocation(rank_of(world.policy, slot), shape.cores_per_slot, shape.gpus_per_slot),),
            began_at=WALL_AT - 60,
            ends_at=WALL_AT + ends_in_s if ends_in_s is not None else None,
        )
        world.but(jobs={**world.snapshot.jobs, job.id: job})
    return world


def slots(world: World, kind: type[Any]) -> list[str]:
    actions = world.plan().actions
    return [it.launch.slot if kind is BootNode else world.snapshot.nodes[it.launch].launch.slot
            for it in actions if isinstance(it, kind)]  # fmt: skip


SMALL = tasks(1, cores=1)
WITH_GPU = tasks(1, cores=1, gpus=1)
ONLY_GPU_NODES = tasks(1, cores=1, where=HasProperty("gpu"))


def test_a_gpu_node_with_small_jobs_only_gets_no_further_job() -> None:
    world = running(a_world(), "gpu1", SMALL, SMALL)
    (order,) = (it for it in world.plan().actions if isinstance(it, CordonNode))
    assert (order.launch, order.text) == ("gpu1-1", emptying_text(LaunchId("gpu1-1")))
    assert order.reason.code == "not_refilled"
    figures = order.reason.figures
    assert (figures["node_type"], str(figures["price_per_hour"]), str(figures["instead_per_hour"])) == (
        "cpu", "3.00", "0.40",
    )  # fmt: skip


def test_not_unless_the_site_consolidates_nor_beyond_the_disruption_limit() -> None:
    assert not slots(running(a_world(consolidate=False), "gpu1", SMALL), CordonNode)
    assert not slots(running(a_world(disruption=Disruption(nodes=0)), "gpu1", SMALL), CordonNode)
    two = running(running(a_world(), "gpu1", SMALL), "gpu2", SMALL)
    assert slots(two, CordonNode) == ["gpu1"]


def test_a_cheaper_node_that_one_job_fills_does_as_well() -> None:
    assert slots(running(a_world(), "gpu1", tasks(1, cores=8)), CordonNode) == ["gpu1"]


def test_no_job_waits_for_a_full_node_that_begins_to_empty() -> None:
    """Its job ends before a new node would be up, but it will then take no other."""
    full = tasks(1, cores=8)
    world = running(a_world(), "gpu1", full, ends_in_s=30.0).job(full)
    assert (slots(world, CordonNode), slots(world, BootNode)) == (["gpu1"], ["cpu1"])
    kept = running(a_world(consolidate=False), "gpu1", full, ends_in_s=30.0).job(full)
    assert (slots(kept, CordonNode), slots(kept, BootNode)) == ([], [])


@pytest.mark.parametrize("shape", [WITH_GPU, ONLY_GPU_NODES])
def test_a_job_that_needs_the_dear_node_keeps_it(shape: Shape) -> None:
    assert not slots(running(a_world(), "gpu1", SMALL, shape), CordonNode)


@pytest.mark.parametrize("shape", [WITH_GPU, ONLY_GPU_NODES])
def test_a_waiting_job_that_needs_the_dear_node_gets_it_back(shape: Shape) -> None:
    world = running(a_world(), "gpu1", SMALL, emptying=True).job(shape)
    assert slots(world, UndrainNode) == ["gpu1"]
    assert not slots(world, BootNode)


def test_a_waiting_job_that_a_cheaper_node_can_take_gets_one_instead() -> None:
    world = running(a_world(), "gpu1", SMALL, emptying=True).job(SMALL)
    assert slots(world, BootNode) == ["cpu1"]
    assert not slots(world, UndrainNode)
    assert world.why("gpu1") == "not_refilled"


def test_a_job_that_would_wait_longer_than_patience_gets_the_dear_node_back() -> None:
    world = running(a_world(patience_s=BOOT_S - 1), "gpu1", SMALL, emptying=True).job(SMALL)
    assert slots(world, UndrainNode) == ["gpu1"]
    assert not slots(world, BootNode)


def test_without_patience_it_empties_only_if_nodes_that_are_up_have_room() -> None:
    assert not slots(running(a_world(patience_s=0.0), "gpu1", SMALL), CordonNode)
    world = running(running(a_world(patience_s=0.0), "gpu1", SMALL), "cpu1", SMALL)
    assert slots(world, CordonNode) == ["gpu1"]
    assert world.why("gpu1") == "empties"
    full = running(running(a_world(patience_s=0.0), "gpu1", SMALL), "cpu1", *[SMALL] * 8)
    assert not slots(full, CordonNode)


def refused(world: World) -> World:
    learned = world.snapshot.learned
    block = Block(NOW_S + 100.0, FailureKind.CAPACITY, "none left")
    return world.but(learned=replace(learned, blocks={Scope(CPU.name): block}))


@pytest.mark.parametrize("limit", [{"nodes_max": 1}, {"price_per_hour_max": 3}])
def test_a_cheaper_node_must_be_allowed_by_the_limits(limit: dict[str, Any]) -> None:
    assert not slots(running(a_world(**limit), "gpu1", SMALL), CordonNode)
    kept = running(a_world(**limit), "gpu1", SMALL, emptying=True).job(SMALL)
    assert slots(kept, UndrainNode) == ["gpu1"]


def test_a_cheaper_node_must_be_on_sale() -> None:
    assert slots(running(a_world(), "gpu1", SMALL), CordonNode)
    assert not slots(refused(running(a_world(), "gpu1", SMALL)), CordonNode)
    assert slots(refused(running(a_world(), "gpu1", SMALL, emptying=True).job(SMALL)), UndrainNode) == ["gpu1"]


def test_a_cheaper_node_that_boots_for_the_jobs_counts_as_one_that_can_be_had() -> None:
    world = running(a_world(nodes_max=2), "gpu1", SMALL, emptying=True).booting_node("cpu1").job(SMALL)
    assert not slots(world, UndrainNode)
    assert not slots(world, BootNode)


def test_if_not_all_waiting_jobs_can_be_served_without_it_they_get_it_back() -> None:
    world = running(a_world(nodes_max=2), "gpu1", SMALL, emptying=True).job(tasks(1, cores=8), SMALL)
    assert slots(world, UndrainNode) == ["gpu1"]


def test_the_memory_of_its_jobs_counts_for_how_many_cheaper_nodes_it_takes() -> None:
    """Three jobs of a core each fit on one cheaper node by their cores, and on three by their memory."""
    large = replace(SMALL, memory_bytes_per_slot=CPU.memory_bytes)
    (order,) = (it for it in running(a_world(), "gpu1", *[large] * 3).plan().actions if isinstance(it, CordonNode))
    assert str(order.reason.figures["instead_per_hour"]) == "1.20"


def test_a_cheaper_node_must_be_allowed_by_the_limits_of_its_cloud() -> None:
    east, west = CloudName("east"), CloudName("west")
    for nodes_max, expected in ((0, []), (1, ["gpu1"])):
        types = replace(CPU, cloud=east), replace(GPU, cloud=west)
        rules = {east: CloudRules(nodes_max=nodes_max), west: CloudRules()}
        world = in_cloud(running(a_world(*types, clouds=rules), "gpu1", SMALL), "gpu1", west)
        fresh = Account(source=Source(seen_s=NOW_S - 1), swept_s=NOW_S - 1)
        assert slots(world.but(accounts={east: fresh, west: fresh}), CordonNode) == expected


def test_a_full_dear_node_is_not_refilled_by_the_jobs_that_wait_for_its_room() -> None:
    world = running(a_world(), "gpu1", *[SMALL] * 8).job(SMALL)
    assert slots(world, CordonNode) == ["gpu1"]
    assert slots(world, BootNode) == ["cpu1"]
    patient = running(a_world(consolidate=False), "gpu1", *[SMALL] * 8).job(SMALL)
    assert not slots(patient, BootNode)


@pytest.mark.parametrize(("jobs", "cordoned"), [(1, ["gpu1"]), (8, [])])
def test_several_cheap_nodes_that_cost_more_together_are_no_reason(jobs: int, cordoned: list[str]) -> None:
    one_core = a_type("cpu", slots=8, cores=1, price="0.40", window_s=1.0)
    policy = a_policy(one_core, GPU, consolidate=True, disruption=Disruption(nodes=1), patience_s=120.0)
    world = World(policy, replace(a_snapshot(policy), learned=a_world().snapshot.learned))
    assert slots(running(world, "gpu1", *[SMALL] * jobs), CordonNode) == cordoned


def test_a_full_dear_node_that_stays_because_it_is_paid_for_gets_jobs_too() -> None:
    hourly = replace(GPU, billing=replace(GPU.billing, window_s=3600.0))
    world = a_world()
    world.policy = replace(world.policy, node_types=(CPU, hourly))
    world = running(world, "gpu1", *[SMALL] * 8, ends_in_s=30.0).job(SMALL)
    assert not slots(world, CordonNode)
    assert not slots(world, BootNode)
