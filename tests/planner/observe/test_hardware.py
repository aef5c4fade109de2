"""Compare a node's real hardware with what its slot declares."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.facts import NodeCordoned, NodeMeasured, RanksMeasured, SlotsChanged, SlotsRefused
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import BootNode, ChangeSlots, CordonNode, DrainNode
from nodemanager.core.slots import Hardware, Market, Misfit, NodeType, Promise, Rank, Size, SlotName, TypeName
from nodemanager.planner.hardware import WISH_PREFIX, drop_promise, find_misfit, with_promises
from nodemanager.planner.slot_types import redeclare_type
from tests.builders import (
    CLOUD,
    GPU,
    GPU_FOR_ALL,
    NOW_S,
    World,
    a_job,
    a_rank,
    a_type,
    a_world,
    busy,
    drained,
    nodes,
    orders,
    tasks,
)

SMALL = Hardware(cores=2, threads=2, gpus=0, memory_bytes=2**34)
WHOLE = Hardware(cores=4, threads=4, gpus=0, memory_bytes=2**34)


def measured(world: World, slot: str = "cloud1", had: Hardware = SMALL) -> World:
    return world.see(NodeMeasured(world.id(slot), had, 0.0))


# --- what counts as less ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("had", "lacks"),
    [
        (WHOLE, None),
        (replace(WHOLE, threads=8), None),  # counted by cores
        (replace(WHOLE, cores=2), None),  # counted by hardware threads
        (replace(WHOLE, cores=64, threads=64, gpus=8, memory_bytes=2**40), None),  # more than declared is fine
        (SMALL, ("cores",)),
        (replace(WHOLE, memory_bytes=int(0.9 * 2**34)), None),  # what firmware and kernel reserve
        (replace(WHOLE, memory_bytes=2**33), ("memory_bytes",)),
        (replace(SMALL, memory_bytes=2**33), ("cores", "memory_bytes")),
    ],
)
def test_a_machine_is_short_of_what_it_has_less_of(had: Hardware, lacks: tuple[str, ...] | None) -> None:
    found = find_misfit(had, a_type(), None)
    assert (found.figures["lacks"] if found is not None else None) == lacks


def test_a_missing_gpu_is_told_with_its_figures() -> None:
    found = find_misfit(Hardware(8, 8, 1, 2**34), GPU, None)
    assert found is not None
    assert (found.figures["has_gpus"], found.figures["declared_gpus"]) == (1, 2)


def test_what_the_instance_declares_goes_before_the_site() -> None:
    assert find_misfit(SMALL, a_type(), a_rank("cloud1", cores=2)) is None


types = st.builds(lambda cores, gpus: a_type(cores=cores, gpus=gpus), st.integers(1, 200), st.integers(0, 16))
machines = st.builds(
    lambda cores, smt, gpus, memory: Hardware(cores, cores * smt, gpus, memory),
    st.integers(1, 200),
    st.integers(1, 2),
    st.integers(0, 16),
    st.integers(2**28, 2**36),
)


@given(types, machines)
def test_a_type_that_is_declared_as_measured_fits_and_is_only_reduced_if_the_node_has_less(
    node_type: NodeType, had: Hardware
) -> None:
    world = a_world(a_type("cloud", cores=node_type.cores, gpus=node_type.gpus), misfit=Misfit.RETYPE)
    before = world.policy.types[TypeName("cloud")]
    measured(world.booting_node(), had=had)
    declared = Promise(before.cores, before.gpus, before.memory_bytes)
    is_misfit = find_misfit(had, before, None) is not None
    for promise in world.snapshot.slots.to_promise.values():
        assert find_misfit(had, before.with_promise(promise), None) is None
        assert promise != declared
        assert declared.covers(promise) if is_misfit else promise.covers(declared)
    assert is_misfit <= bool(world.snapshot.slots.to_promise)


# --- drain ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [NodeState.BOOTING, NodeState.IDLE, NodeState.LOST])
def test_one_that_has_less_goes_and_flux_says_why(state: NodeState) -> None:
    world = measured(a_world().node("cloud1", state, since_s=NOW_S, requested_s=NOW_S))
    assert world.why("cloud1") == "less_than_declared"
    (drain,) = [action for action in world.decide().actions if isinstance(action, DrainNode)]
    assert drain.note == "has 2 of 4 cores"


def test_a_job_that_runs_there_runs_to_its_end_and_no_other_begins() -> None:
    world = measured(a_world().busy_node())
    (cordon,) = [action for action in world.decide().actions if isinstance(action, CordonNode)]
    assert cordon.text == f"flux-node-manager:{world.id('cloud1')} has 2 of 4 cores"
    mark = f"flux-node-manager:{world.id('cloud1')}"
    world.see(NodeCordoned(world.id("cloud1"), NOW_S, drained(busy(a_rank("cloud1", online=True)), mark)))
    assert orders(world.decide()) == []
    world.snapshot = replace(world.snapshot, now_s=NOW_S + 1)
    world.see_ranks(drained(a_rank("cloud1", online=True), mark))
    assert world["cloud1"].state is NodeState.DRAINING
    assert world["cloud1"].stop.retiring == world["cloud1"].health.misfit


def test_a_job_that_slipped_in_before_the_drain_is_waited_for() -> None:
    world = measured(a_world().idle_node())
    world.decide()
    world.see_drained("cloud1", busy(world.rank_now("cloud1")))
    assert world.why("cloud1") == "job_slipped_in"
    assert orders(world.decide()) == []


def test_it_is_not_kept_for_jobs_that_wait() -> None:
    world = measured(a_world(CLOUD, GPU_FOR_ALL).draining_node())
    world.job(tasks(1), nodes(1))
    assert not [order for order in orders(world.plan()) if order.startswith("undrain")]
    assert {reason.code for reason in world.plan().jobs.values()} == {"node_ordered"}  # of another type


def test_a_drain_of_somebody_elses_is_a_hold_all_the_same() -> None:
    held = a_rank("cloud1", online=True, drain_reason="bad fan")
    assert measured(a_world().idle_node(rank=held)).why("cloud1") == "held_by_drain"


def test_the_type_is_not_bought_in_a_loop() -> None:
    world = measured(a_world(a_type()).booting_node(since_s=NOW_S, requested_s=NOW_S))
    world.decide()
    world.job(a_job(1, nodes(1)).shape)
    made = world.plan()
    assert [action for action in made.actions if isinstance(action, BootNode)] == []
    assert made.jobs[JobId(1)].code == "blocked_create_config"


def test_the_same_said_again_is_no_news() -> None:
    world = measured(a_world().idle_node())
    before = world.snapshot
    assert measured(world).snapshot == before


def test_news_of_a_launch_that_is_no_more_is_old_news() -> None:
    world = a_world().idle_node()
    before = world.snapshot
    assert world.see(NodeMeasured(LaunchId("cloud9-9"), SMALL, 0.0)).snapshot == before


def test_a_site_may_accept_it() -> None:
    world = measured(a_world(misfit=Misfit.ACCEPT).idle_node())
    assert world.why("cloud1") == "paid_time_left"
    assert world["cloud1"].join_report.hardware == SMALL
    assert world.snapshot.learned.blocks == {}


# --- retype -----------------------------------------------------------------------------------------------


def a_short_one(state: NodeState = NodeState.BOOTING) -> World:
    return measured(a_world(misfit=Misfit.RETYPE).node("cloud1", state, since_s=NOW_S, requested_s=NOW_S))


def test_a_type_is_declared_as_it_is_once_none_of_its_slots_is_in_use() -> None:
    world = a_short_one()
    assert redeclare_type(world.snapshot, world.policy) is None
    assert world.why("cloud1") == "less_than_declared"
    world.snapshot = replace(world.snapshot, nodes={})
    (change,) = world.plan().actions
    assert isinstance(change, ChangeSlots)
    assert change.wish.promises == {TypeName("cloud"): Promise(2, 0, 2**34)}
    assert set(change.moves.items()) == {(SlotName(f"cloud{number}"), TypeName("cloud")) for number in range(1, 5)}


def test_a_slot_of_it_that_is_in_use_is_waited_for() -> None:
    world = a_short_one()
    world.busy_node("cloud2")
    world.snapshot = replace(world.snapshot, nodes={world.id("cloud2"): world["cloud2"]})
    assert redeclare_type(world.snapshot, world.policy) is None


def test_once_it_is_declared_so_the_type_is_bought_again() -> None:
    world = a_short_one()
    world.snapshot = replace(world.snapshot, nodes={})
    (change,) = world.decide().actions
    assert isinstance(change, ChangeSlots)
    ranks = tuple(replace(rank, cores=2) if rank.gpus == 0 else rank for rank in world.snapshot.ranks.values())
    world.see(SlotsChanged(change.wish.id, NOW_S, ranks))
    assert world.snapshot.learned.blocks == {}
    assert with_promises(world.policy, world.snapshot.slots.promised).types[TypeName("cloud")].cores == 2
    assert redeclare_type(world.snapshot, world.policy) is None


def test_one_that_could_not_be_done_is_not_tried_for_ever() -> None:
    world = a_short_one()
    world.snapshot = replace(world.snapshot, nodes={})
    (change,) = world.decide().actions
    assert isinstance(change, ChangeSlots)
    world.see(SlotsRefused(change.wish.id))
    assert redeclare_type(world.snapshot, world.policy) is None
    assert world.snapshot.learned.blocks


def test_a_wish_of_somebody_elses_that_is_refused_changes_nothing_of_it() -> None:
    world = a_short_one()
    before = world.snapshot.slots.to_promise
    world.see(SlotsRefused("hardware-cloud"))
    assert world.snapshot.slots.to_promise == before


def test_a_wish_of_another_kind_drops_no_promise_though_it_names_the_type() -> None:
    world = a_short_one()
    before = world.snapshot.slots.to_promise
    assert before.keys() == {"cloud"}
    assert drop_promise(world.snapshot, "cloud-1").slots.to_promise == before
    assert not drop_promise(world.snapshot, f"{WISH_PREFIX}cloud-1").slots.to_promise


# --- more than declared -----------------------------------------------------------------------------------

LARGE = Hardware(8, 16, 0, 2**36)


def a_larger_one(misfit: Misfit = Misfit.RETYPE) -> World:
    return measured(a_world(misfit=misfit).booting_node(), had=LARGE)


def redeclared(world: World) -> ChangeSlots:
    """All nodes leave, and the type is declared as measured."""
    world.snapshot = replace(world.snapshot, nodes={})
    (change,) = world.decide().actions
    assert isinstance(change, ChangeSlots)
    ranks = tuple(replace(rank, cores=8) if rank.gpus == 0 else rank for rank in world.snapshot.ranks.values())
    world.see(SlotsChanged(change.wish.id, NOW_S, ranks))
    return change


def test_what_nodes_have_beyond_it_is_declared_once_none_of_the_slots_is_in_use() -> None:
    world = a_larger_one()
    assert redeclare_type(world.snapshot, world.policy) is None
    assert world["cloud1"].health.misfit is None
    assert world.snapshot.learned.blocks == {}
    assert redeclared(world).wish.promises == {TypeName("cloud"): Promise(8, 0, 2**36)}
    assert with_promises(world.policy, world.snapshot.slots.promised).types[TypeName("cloud")].cores == 8
    assert redeclare_type(world.snapshot, world.policy) is None


def test_a_job_that_no_slot_could_hold_is_served_then() -> None:
    world = a_larger_one()
    redeclared(world)
    world.policy = with_promises(world.policy, world.snapshot.slots.promised)
    world.snapshot = replace(world.snapshot, now_s=NOW_S + 10)
    world.job(tasks(1, cores=8))
    assert {reason.code for reason in world.plan().jobs.values()} == {"node_ordered"}


@pytest.mark.parametrize("misfit", [Misfit.DRAIN, Misfit.ACCEPT])
def test_without_retype_it_is_left_unused(misfit: Misfit) -> None:
    assert a_larger_one(misfit).snapshot.slots.to_promise == {}


def test_threads_are_no_cores() -> None:
    world = measured(a_world(misfit=Misfit.RETYPE).idle_node(), had=Hardware(4, 8, 0, 2**34))
    assert world.snapshot.slots.to_promise == {}


def test_of_nodes_that_differ_the_least_is_declared() -> None:
    world = measured(a_larger_one().idle_node("cloud2"), "cloud2", Hardware(6, 12, 0, 2**37))
    assert world.snapshot.slots.to_promise == {TypeName("cloud"): Promise(6, 0, 2**36)}
    measured(world.idle_node("cloud3"), "cloud3", WHOLE)
    assert world.snapshot.slots.to_promise == {}


def test_a_type_that_a_node_had_less_of_is_not_raised() -> None:
    world = measured(a_short_one().idle_node("cloud2"), "cloud2", LARGE)
    assert world.snapshot.slots.to_promise == {TypeName("cloud"): Promise(2, 0, 2**34)}


def test_a_type_of_several_sizes_keeps_its_declaration() -> None:
    sizes = tuple(Size(name, Market.ON_DEMAND, Decimal(1)) for name in ("m5.large", "m5.xlarge"))
    world = a_world(replace(a_type("cloud"), sizes=sizes), misfit=Misfit.RETYPE)
    assert measured(world.idle_node(), had=LARGE).snapshot.slots.to_promise == {}


# --- as Flux found it -------------------------------------------------------------------------------------


def test_what_flux_finds_of_a_rank_is_of_the_node_that_stands_there() -> None:
    world = a_world().idle_node()
    world.see(RanksMeasured({world["cloud1"].launch.rank: Hardware(2, 2), Rank(99): Hardware(1, 1)}))
    assert world.why("cloud1") == "less_than_declared"


def test_of_gpus_and_memory_it_says_nothing() -> None:
    assert find_misfit(Hardware(8, 8), GPU, None) is None


def test_what_a_node_said_itself_goes_before_it() -> None:
    world = measured(a_world().idle_node(), had=WHOLE)
    world.see(RanksMeasured({world["cloud1"].launch.rank: Hardware(2, 2)}))
    assert world["cloud1"].join_report.hardware == WHOLE


def test_a_change_that_was_cut_short_and_repaired_is_found_by_the_next_look() -> None:
    world = a_short_one()
    ranks = [replace(rank, cores=2) for rank in world.snapshot.ranks.values() if rank.gpus == 0]
    world.see_ranks(*ranks)
    assert world.snapshot.slots.promised == {TypeName("cloud"): Promise(2, 0, 2**34)}
    assert world.snapshot.slots.to_promise == {}
