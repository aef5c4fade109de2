"""Which slots change their type, and which never do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.facts import FluxCallFailed, RanksSeen, SlotsChanged, SlotsRefused
from nodemanager.core.jobs import HasProperty
from nodemanager.core.nodes import CallKind, NodeState, ProviderId
from nodemanager.core.orders import BootNode, ChangeSlots, ClaimInstance
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import SlotName, SlotsWish, TypeName
from nodemanager.planner.slot_types import SlotMoves, choose_moves, with_slot_types
from nodemanager.planner.snapshot import Stray
from tests.builders import World, a_call, a_cloud_node, a_launch, a_world, boots, nodes, orders

TYPES = [TypeName(name) for name in ("small", "large", "gpu")]


@st.composite
def divisions(draw: st.DrawFn) -> dict[SlotName, TypeName]:
    count = draw(st.integers(1, 12))
    return {SlotName(f"s{number}"): draw(st.sampled_from(TYPES)) for number in range(count)}


@given(st.data(), divisions())
def test_what_moves_is_free_and_makes_the_counts_as_wished(
    data: st.DataObject, before: dict[SlotName, TypeName]
) -> None:
    free = data.draw(st.lists(st.sampled_from(sorted(before)), unique=True))
    wanted = data.draw(st.dictionaries(st.sampled_from(TYPES), st.integers(0, 8)))
    found = choose_moves(wanted, before, free, TYPES)
    if isinstance(found, Reason):
        return
    after = before | dict(found.slot_types)
    assert set(found.slot_types) <= set(free)
    assert {name: Counter(after.values())[name] for name in wanted} == wanted
    others = {slot for slot, name in before.items() if name not in wanted}
    assert not others & set(found.slot_types)
    assert all(before[slot] != name for slot, name in found.slot_types.items())


@given(st.data(), divisions())
def test_whatever_adds_up_can_be_had_when_all_are_free(
    data: st.DataObject, before: dict[SlotName, TypeName]
) -> None:
    after = {slot: data.draw(st.sampled_from(TYPES)) for slot in before}
    wanted = {name: Counter(after.values())[name] for name in TYPES}
    assert isinstance(choose_moves(wanted, before, list(before), TYPES), SlotMoves)


@given(divisions())
def test_it_is_so_already(before: dict[SlotName, TypeName]) -> None:
    wanted = {name: Counter(before.values())[name] for name in TYPES}
    assert choose_moves(wanted, before, [], TYPES) == SlotMoves({})


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ({"huge": 1}, "slots_unknown_type"),
        ({"large": 2}, "slots_do_not_add_up"),
        ({"large": 3, "small": 0}, "slots_in_use"),
    ],
)
def test_what_cannot_be_is_said(counts: dict[str, int], code: str) -> None:
    before = {SlotName("a"): TYPES[0], SlotName("b"): TYPES[0], SlotName("c"): TYPES[1]}
    wanted = {TypeName(name): count for name, count in counts.items()}
    found = choose_moves(wanted, before, [SlotName("a")], TYPES)
    assert isinstance(found, Reason)
    assert found.code == code


# --- in the fleet -----------------------------------------------------------------------------------------


def wished(world: World, **counts: int) -> World:
    wish = SlotsWish("wish-1", {TypeName(name): count for name, count in counts.items()})
    return world.see(RanksSeen(world.snapshot.now_s, tuple(world.snapshot.ranks.values()), wish))


def test_the_last_free_slot_moves() -> None:
    world = wished(a_world(), cloud=3, gpu=3)
    assert orders(world.plan()) == ["change cloud4=gpu"]


@pytest.mark.parametrize("state", list(NodeState))
def test_a_leased_slot_never_moves(state: NodeState) -> None:
    world = a_world(unready_nodes=4)
    for number in range(1, 5):
        world = world.node(f"cloud{number}", state)
    assert orders(wished(world, cloud=3, gpu=3).plan()) == ["refuse slots_in_use"]


@pytest.mark.parametrize(
    "taken",
    [{"online": True}, {"allocated": True}, {"excluded": True}, {"drain_reason": "bad fan"}],
    ids=str,
)
def test_a_slot_that_somebody_has_or_holds_does_not_move(taken: dict[str, Any]) -> None:
    world = wished(a_world().rank("cloud4", **taken), cloud=3, gpu=3)
    assert orders(world.plan()) == ["change cloud3=gpu"]


def test_a_drain_that_a_former_change_left_keeps_no_slot() -> None:
    world = wished(a_world().rank("cloud4", drain_reason="flux-node-manager:slots"), cloud=3, gpu=3)
    assert orders(world.plan()) == ["change cloud4=gpu"]


def test_a_slot_that_a_stray_may_stand_on_does_not_move() -> None:
    launch = a_launch("cloud4")
    world = a_world().but(strays={ProviderId("i-1"): Stray(a_cloud_node(launch, provider_id="i-1"), 0.0)})
    assert orders(wished(world, cloud=3, gpu=3).plan()) == ["change cloud3=gpu"]


def test_while_slots_change_nothing_is_decided_and_afterwards_the_new_types_are_bought() -> None:
    world = wished(a_world().job(nodes(3, where=HasProperty("gpu"))), cloud=3, gpu=3)
    world.decide()
    assert world.plan().stands_still == because(Code.SLOTS_CHANGING)

    now = {slot: of_type.name for slot, of_type in world.policy.type_of_slot.items()}
    now[SlotName("cloud4")] = TypeName("gpu")
    of = {node_type.name: node_type for node_type in world.policy.node_types}
    changed = tuple(
        replace(rank, type_name=name, cores=of[name].cores, gpus=of[name].gpus)
        for rank in world.snapshot.ranks.values()
        for name in (now[rank.host],)
    )
    world.wait(1.0).see(SlotsChanged("wish-1", world.snapshot.now_s, changed)).wait(1.0)
    made = world.plan()
    assert sorted(boots(made)) == ["cloud4", "gpu1", "gpu2"]
    assert {boot.launch.type_name for boot in made.actions if isinstance(boot, BootNode)} == {"gpu"}


def test_a_refusal_lets_things_go_on() -> None:
    world = wished(a_world().job(nodes(1)), cloud=9, gpu=9)
    world.decide()
    world.see(SlotsRefused("wish-1"))
    assert boots(world.plan()) == ["cloud1"]


@pytest.mark.parametrize("lost", ["failed", "late"])
def test_a_change_that_may_be_half_done_is_repaired_by_claiming_anew(lost: str) -> None:
    world = wished(a_world(), cloud=3, gpu=3)
    world.decide()
    if lost == "failed":
        world.see(FluxCallFailed((), "ChangeSlots", "no answer"))
    else:
        world.wait(world.policy.calls.call_timeout_s)
    assert not world.snapshot.sources.claimed
    assert ClaimInstance() in world.wait(1.0).plan().asks
    # Earlier looks are void, even after the claim is held again.
    world.see_claim()
    assert world.plan().stands_still == because(Code.NOT_SEEN_YET, source="flux", failure="")


def test_a_lease_that_is_being_recorded_is_awaited_first() -> None:
    world = a_world().node("cloud4", NodeState.REQUESTED, call=a_call(CallKind.RECORD))
    assert not any(isinstance(action, ChangeSlots) for action in wished(world, cloud=3, gpu=3).plan().actions)


def test_a_stray_of_another_type_than_its_slot_s_is_not_taken_back() -> None:
    launch = replace(a_launch("cloud4"), type_name=TypeName("gpu"))
    world = a_world().see_cloud(a_cloud_node(launch)).wait(1.0)
    assert orders(world.plan()) == []


def test_what_the_instance_does_not_say_the_site_does() -> None:
    policy = a_world().policy
    assert with_slot_types(policy, {}) is policy
    assert with_slot_types(policy, {SlotName("cloud4"): TypeName("cloud")}) is policy
    grown = with_slot_types(policy, {SlotName("cloud5"): TypeName("cloud")})
    assert grown.type_of_slot[SlotName("cloud5")].name == "cloud"
    assert grown.type_of_slot[SlotName("cloud1")].name == "cloud"
