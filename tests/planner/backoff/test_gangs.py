"""Jobs of several nodes of which the provider refuses one."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.facts import CloudCallFailed
from nodemanager.core.jobs import HasProperty, JobId, OnHosts, Unserved
from nodemanager.core.nodes import CallKind, FailureKind, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import NodeType, TypeLimits, TypeName
from nodemanager.planner.backoff import LAST_TRY_S, end_pauses, gangs_put_off
from nodemanager.planner.policy import BLOCK_S
from nodemanager.planner.snapshot import Block, Quota, Scope
from tests.builders import (
    CLOUD,
    GPU,
    GPU_FOR_ALL,
    NOW_S,
    World,
    a_call,
    a_launch,
    a_rank,
    a_type,
    a_world,
    boots,
    busy,
    tasks,
    whole_nodes,
)

PAUSE_S = BLOCK_S[FailureKind.CAPACITY]
GANG = whole_nodes(3)


def _refused(world: World, *, at: str = "cloud3", shape: object = GANG) -> World:
    """Two nodes of three boot, and the third is refused."""
    for slot in ("cloud1", "cloud2"):
        if not world.has(slot):
            world.booting_node(slot)
    load = ((shape, float("inf"), 3, 1),)
    world.node(at, NodeState.REQUESTED, sent_s=NOW_S, call=a_call(CallKind.CREATE), load=load)
    return world.see(CloudCallFailed("create", world.id(at), FailureKind.CAPACITY, "none left"))


def _after_its_pause(world: World) -> World:
    return world.wait(world.snapshot.learned.gangs[GANG].until_s - world.snapshot.now_s).all_is_fresh()


def test_a_gang_of_which_one_node_is_refused_is_put_off_and_says_so() -> None:
    world = _refused(a_world(CLOUD).job(GANG, whole_nodes(1)))
    made = world.plan()
    assert made.jobs[JobId(1)].code == Code.GANG_REFUSED
    assert made.jobs[JobId(1)].figures["node_count"] == 2
    assert Code.GANG_REFUSED in {warning.code for warning in made.warnings}
    assert made.jobs[JobId(2)].code == "node_coming"  # a job behind it takes one of the nodes


def test_a_gang_that_another_type_fills_is_not_put_off() -> None:
    assert not _refused(a_world(CLOUD, GPU_FOR_ALL).job(GANG)).snapshot.learned.gangs


@pytest.mark.parametrize(
    ("other", "settings"),
    [
        (GPU, {}),  # bought for such a job only if no other type could ever serve it
        (replace(GPU_FOR_ALL, limits=TypeLimits(nodes_max=0)), {}),
        (GPU_FOR_ALL, {"observed": frozenset({TypeName("gpu")})}),
        (GPU_FOR_ALL, {"nodes_max": 2}),
        (GPU_FOR_ALL, {"price_per_hour_max": Decimal(3)}),  # two nodes for 0.40 exist, and it costs 3
    ],
    ids=["reserved", "limited", "observed", "nodes", "price"],
)
def test_a_type_that_is_never_bought_for_it_does_not_make_up_for_it(
    other: NodeType, settings: dict[str, Any]
) -> None:
    assert GANG in _refused(a_world(CLOUD, other, **settings).job(GANG)).snapshot.learned.gangs


def test_slots_whose_properties_do_not_suit_it_do_not_make_up_for_it() -> None:
    typed = replace(CLOUD, properties=frozenset({"cpu"}))
    gang = whole_nodes(3, where=HasProperty("cpu"))
    world = _refused(a_world(typed, GPU_FOR_ALL).job(gang), shape=gang)
    assert gang in world.snapshot.learned.gangs


def test_nodes_that_are_too_small_in_memory_do_not_make_up_for_it() -> None:
    large, small = replace(a_type("cloud", slots=3), memory_bytes=2**36), a_type("small")
    gang = replace(GANG, memory_bytes_per_slot=2**35)
    assert gang in _refused(a_world(large, small).job(gang), shape=gang).snapshot.learned.gangs


def test_busy_nodes_do_not_make_up_for_it() -> None:
    world = a_world(a_type("cloud", slots=12), nodes_max=20).busy_node("cloud5").busy_node("cloud6")
    assert GANG in _refused(world.job(GANG)).snapshot.learned.gangs


def test_a_try_counts_its_own_types() -> None:
    gang = whole_nodes(4)
    world = a_world(CLOUD, a_type("gpu", slots=1, gpus=1), nodes_max=20).busy_node("gpu1")
    made = _refused(world.job(gang), shape=gang).plan()
    assert made.jobs[JobId(1)].figures["node_count"] == 2


def test_a_type_with_too_few_slots_does_not_make_up_for_it() -> None:
    small = replace(a_type("few", slots=1), cores=CLOUD.cores)
    gang = whole_nodes(4)
    world = _refused(a_world(CLOUD, small, nodes_max=20).job(gang), shape=gang)
    assert gang in world.snapshot.learned.gangs


def test_a_type_whose_nodes_are_too_small_does_not_make_up_for_it() -> None:
    """Flux would start an exclusive job on any empty node, but nothing is bought for it that has too few cores."""
    small = replace(a_type("thin", slots=8), cores=1)
    gang = replace(whole_nodes(3), cores_per_slot=2)
    world = _refused(a_world(CLOUD, small, nodes_max=20).job(gang), shape=gang)
    assert gang in world.snapshot.learned.gangs


def test_no_node_of_a_gang_is_bought_that_a_known_quota_does_not_let_have_all_of_them() -> None:
    """All but one were bought, stood idle and were ended."""
    world = a_world(CLOUD).job(GANG)
    quota = Quota(cap=2, probe_s=NOW_S + PAUSE_S, pause_s=PAUSE_S, detail="limit reached")
    learned = replace(world.snapshot.learned, quotas={Scope(CLOUD.name): quota})
    world.snapshot = replace(world.snapshot, learned=learned)
    made = world.plan()
    assert not boots(made)
    assert made.jobs[JobId(1)].code == Code.AT_QUOTA


def test_a_job_of_one_node_is_not_put_off() -> None:
    world = a_world(CLOUD).job(tasks(1))
    world.node(
        "cloud1",
        NodeState.REQUESTED,
        sent_s=NOW_S,
        call=a_call(CallKind.CREATE),
        load=((tasks(1), float("inf"), 1, 1),),
    )
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.CAPACITY, "none left"))
    assert not world.snapshot.learned.gangs


def test_the_pause_doubles_up_to_an_hour_for_nodes_that_are_billed_by_the_second() -> None:
    world = _refused(a_world(a_type("cloud", slots=12, window_s=1)).job(GANG))
    pauses = [world.snapshot.learned.gangs[GANG].pause_s]
    for number in range(4, 10):
        _refused(_after_its_pause(world), at=f"cloud{number}")
        pauses.append(world.snapshot.learned.gangs[GANG].pause_s)
    assert pauses == [PAUSE_S, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]


@pytest.mark.parametrize("window_s", [3600.0, 30 * 86400.0])
def test_the_pause_is_an_hour_at_most_whatever_the_billing(window_s: float) -> None:
    """After a shortage, a job on nodes that are billed by the hour waited for up to four hours."""
    world = _refused(a_world(a_type("cloud", slots=14, window_s=window_s)).job(GANG))
    for number in range(4, 14):
        _refused(_after_its_pause(world), at=f"cloud{number}")
    assert world.snapshot.learned.gangs[GANG].pause_s == 3600.0


def test_a_try_comes_before_the_paid_time_of_its_nodes_ends() -> None:
    """A minute later they leave, and a try would pay for another hour of all of them."""
    world = a_world(a_type("cloud", slots=12)).job(GANG)
    world.node("cloud1", NodeState.BOOTING, load=((GANG, float("inf"), 3, 1),))
    ends_s = world["cloud1"].create.requested_s + 3600.0
    _refused(world)
    for number in range(4, 8):
        _refused(_after_its_pause(world), at=f"cloud{number}")
    gang = world.snapshot.learned.gangs[GANG]
    assert (gang.pause_s, gang.until_s) == (1920.0, ends_s - world.policy.rules.stop_lead_s - LAST_TRY_S)


def test_the_pause_ends_when_the_nodes_of_others_have_made_room() -> None:
    """Four nodes existed, two of them busy. Three are enough, so one of the busy ones may stay."""
    world = a_world(a_type("cloud", slots=12), nodes_max=20).busy_node("cloud5").busy_node("cloud6")
    _refused(world.job(GANG))

    def is_put_off_without(*slots: str) -> bool:
        gone = {world.id(slot) for slot in slots}
        left = {id_: node for id_, node in world.snapshot.nodes.items() if id_ not in gone}
        return GANG in gangs_put_off(end_pauses(replace(world.snapshot, nodes=left)))

    assert is_put_off_without("cloud1", "cloud2")  # its own
    assert is_put_off_without("cloud1", "cloud2", "cloud5") is False
    assert is_put_off_without("cloud5") is False, "it can use its own"


def test_the_pause_of_a_gang_in_one_zone_ends_when_the_nodes_of_others_there_have_made_room() -> None:
    gang = replace(GANG, one_zone=True)
    zoned = replace(a_type("cloud", slots=12), zones=("a", "b"))
    world, at_work = a_world(zoned, nodes_max=20), {}
    for slot, zone in {"cloud4": "b", "cloud5": "a", "cloud6": "a", "cloud7": "b", "cloud8": "b"}.items():
        at_work[slot] = a_rank(slot, world.policy, online=True)
        launch = replace(a_launch(slot, world.policy), zone=zone)
        world.node(slot, NodeState.BUSY, rank=busy(at_work[slot]), launch=launch)
    load = ((gang, float("inf"), 3, 1),)
    for slot in ("cloud1", "cloud2", "cloud3"):
        launch = replace(a_launch(slot, world.policy), zone="a")
        call = a_call(CallKind.CREATE) if slot == "cloud3" else None
        state = NodeState.REQUESTED if slot == "cloud3" else NodeState.BOOTING
        world.node(slot, state, sent_s=NOW_S, call=call, load=load, launch=launch)
    full = Block(NOW_S + PAUSE_S, FailureKind.CAPACITY, "none left")
    world.job(gang).but(blocks={Scope(CLOUD.name, zoned.market, "b"): full})
    world.see(CloudCallFailed("create", world.id("cloud3"), FailureKind.CAPACITY, "none left"))

    def is_put_off_without(*slots: str) -> bool:
        gone = {world.id(slot) for slot in slots}
        left = {id_: node for id_, node in world.snapshot.nodes.items() if id_ not in gone}
        return gang in gangs_put_off(end_pauses(replace(world.snapshot, nodes=left)))

    assert world.snapshot.learned.gangs[gang].granted == 4, "four nodes existed in its zone"
    assert is_put_off_without("cloud4", "cloud7", "cloud8"), "those in another zone say nothing"
    assert not is_put_off_without("cloud5")


def test_the_pause_ends_when_busy_nodes_are_idle() -> None:
    world = a_world(a_type("cloud", slots=12), nodes_max=20)
    for slot in ("cloud5", "cloud6"):
        world.busy_node(slot)
    _refused(world.job(GANG))
    assert gangs_put_off(world.snapshot)
    world.wait(10.0).see_ranks(a_rank("cloud5", world.policy, online=True))
    assert not gangs_put_off(world.snapshot)


def test_idle_nodes_that_do_not_suit_it_do_not_end_its_pause() -> None:
    gang = whole_nodes(3, where=OnHosts(("cloud[1-3]",)))
    world = a_world(a_type("cloud", slots=12), nodes_max=20).idle_node("cloud5").idle_node("cloud6")
    _refused(world.job(gang), shape=gang)
    world.wait(10.0).see_ranks(a_rank("cloud5", world.policy, online=True))
    assert gangs_put_off(world.snapshot)


def test_a_gang_that_is_refused_after_its_pause_has_ended_early_waits_for_longer() -> None:
    world = a_world(a_type("cloud", slots=12), nodes_max=20).busy_node("cloud5").busy_node("cloud6")
    _refused(world.job(GANG))
    last = world["cloud6"]
    assert last.cloud is not None
    for _ in range(world.policy.timing.absences):
        world.wait(60.0).see_cloud(last.cloud)
    assert not gangs_put_off(world.snapshot)
    _refused(world, at="cloud7")
    assert world.snapshot.learned.gangs[GANG].pause_s == 2 * PAUSE_S


def test_a_gang_that_was_served_in_between_begins_anew() -> None:
    world = _refused(a_world(CLOUD).job(GANG))
    _refused(_after_its_pause(world).wait(2000.0), at="cloud4")
    assert world.snapshot.learned.gangs[GANG].pause_s == PAUSE_S


def test_in_queue_order_it_is_held_meanwhile_or_nothing_is_bought_behind_it() -> None:
    held = _refused(a_world(CLOUD).job(GANG)).plan()
    assert [type(action).__name__ for action in held.actions if hasattr(action, "jobs")] == ["HoldJobs"]
    world = _refused(a_world(CLOUD, unserved=Unserved.BLOCK, nodes_max=20).job(GANG).job(*[whole_nodes(1)] * 5))
    world.wait(PAUSE_S / 2).all_is_fresh()
    made = world.plan()
    assert boots(made) == []
    assert made.jobs[JobId(2)].code == "behind_a_stuck_job"


def test_a_gang_in_a_stopped_queue_is_not_held() -> None:
    """Its user would see an urgency of 0 and a hold, although only the queue keeps the job."""
    world = _refused(a_world(CLOUD).job(GANG, queue="batch"))
    world.but(queues=replace(world.snapshot.queues, stopped=frozenset({"batch"})))
    made = world.plan()
    assert [type(action).__name__ for action in made.actions if hasattr(action, "jobs")] == []
    assert made.jobs[JobId(1)].code == Code.QUEUE_STOPPED


def test_a_gang_in_a_stopped_queue_blocks_no_other_queue() -> None:
    world = _refused(a_world(CLOUD, unserved=Unserved.BLOCK, nodes_max=20).job(GANG, queue="batch"))
    world.job(whole_nodes(1), queue="debug")
    world.but(queues=replace(world.snapshot.queues, stopped=frozenset({"batch"})))
    codes = [world.why_job(number).code for number in (1, 2)]
    assert codes == [Code.QUEUE_STOPPED, Code.NODE_COMING]
