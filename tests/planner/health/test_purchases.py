"""Nothing is bought while leases cannot be recorded or nobody can steer. Everything else goes on."""

from __future__ import annotations

from nodemanager.core.facts import ClaimRefused, FluxCallFailed, LaunchesRecorded, SteeringSeen
from nodemanager.core.jobs import HasProperty
from nodemanager.core.nodes import LaunchId
from nodemanager.core.orders import BootNode, CreateNode, DrainNode
from nodemanager.planner.breakers import FORGOTTEN_S, RETRY_S_MAX
from tests.builders import World, a_world, orders, tasks, whole_nodes

FULL = "kvs-commit: No space left on device"
NO_TOKEN = "/var/lib/x/web-token: the token cannot be written: Read-only file system"


def booted(world: World) -> list[LaunchId]:
    return [action.launch.id for action in world.decide().actions if isinstance(action, BootNode)]


def refuse_record(world: World, launches: list[LaunchId]) -> None:
    """The write fails at once; the manager claims the instance again and reads the record, which is empty."""
    world.see(FluxCallFailed(tuple(launches), "RecordLaunches", FULL))
    world.see_claim().see_ranks().all_is_fresh()


def test_each_refused_record_doubles_the_wait_up_to_a_minute() -> None:
    world = a_world().job(whole_nodes(1))
    waits_s = []
    for _ in range(9):
        launches = booted(world)
        assert launches
        refuse_record(world, launches)
        began_s = world.snapshot.now_s
        while not (launches := booted(world)):
            world.wait(1).all_is_fresh()
        refuse_record(world, launches)
        waits_s.append(world.snapshot.now_s - began_s)
        world.wait(RETRY_S_MAX).all_is_fresh()
    assert waits_s == sorted(waits_s)
    assert waits_s[0] < 10
    assert waits_s[-1] == RETRY_S_MAX


def test_the_job_says_that_the_record_is_refused_not_that_the_queue_must_be_quiet() -> None:
    world = a_world().job(whole_nodes(1))
    refuse_record(world, booted(world))
    world.wait(0.5).all_is_fresh()
    why = world.why_job(1)
    assert why.code == "record_not_written"
    assert why.figures["failures"] == 1
    assert why.figures["why"] == FULL
    assert [it.code for it in world.plan().warnings] == ["record_not_written"]
    assert {it.code for it in world.plan().types.values()} == {"record_not_written"}


def test_the_warning_stays_while_nothing_is_decided_and_the_next_try_wakes_the_brain() -> None:
    world = a_world().job(whole_nodes(1))
    world.see(FluxCallFailed(tuple(booted(world)), "RecordLaunches", FULL))
    made = world.plan()
    assert made.stands_still is not None
    assert [it.code for it in made.warnings] == ["record_not_written"]
    fault = world.see_claim().see_ranks().all_is_fresh().snapshot.sources.record_fault
    assert fault is not None
    assert world.plan().again_at_s <= fault.retry_s


def test_a_record_that_was_written_ends_the_wait() -> None:
    world = a_world().job(whole_nodes(1))
    refuse_record(world, booted(world))
    (launch,) = booted(world.wait(20).all_is_fresh())
    world.see(LaunchesRecorded((world.snapshot.nodes[launch].launch,)))
    assert world.snapshot.sources.record_fault is None
    assert world.plan().warnings == ()
    assert any(isinstance(action, CreateNode) for action in world.decide().actions)


def test_another_manager_that_acts_writes_the_record() -> None:
    world = a_world().job(whole_nodes(1))
    refuse_record(world, booted(world))
    world.see(ClaimRefused(world.snapshot.now_s, "another manager holds the name"))
    assert world.plan().warnings == ()


def test_nothing_is_bought_while_nobody_can_steer() -> None:
    world = a_world().job(whole_nodes(1)).see(SteeringSeen(NO_TOKEN))
    assert orders(world.plan()) == []
    why = world.why_job(1)
    assert (why.code, why.figures["why"]) == ("not_steerable", NO_TOKEN)
    assert [it.code for it in world.plan().warnings] == ["not_steerable"]
    assert booted(world.see(SteeringSeen("")))
    assert world.plan().warnings == ()


def test_a_lease_on_record_is_not_created_while_nobody_can_steer() -> None:
    world = a_world().job(whole_nodes(1))
    (launch,) = booted(world)
    world.see(LaunchesRecorded((world.snapshot.nodes[launch].launch,)), SteeringSeen(NO_TOKEN))
    assert orders(world.plan()) == []
    assert world.why("cloud1") == "not_steerable"
    world.see(SteeringSeen(""))
    assert any(isinstance(action, CreateNode) for action in world.decide().actions)


def test_idle_nodes_end_although_nobody_can_steer() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=50).see(SteeringSeen(NO_TOKEN))
    assert any(isinstance(action, DrainNode) for action in world.decide().actions)


def test_a_node_whose_call_failed_says_how() -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=50)
    world.decide()
    world.see(FluxCallFailed((world.id("cloud1"),), "DrainNode", "resource.drain: Invalid argument"))
    reason = world.plan().nodes[world.id("cloud1")]
    assert (reason.code, reason.figures["detail"]) == ("retry_later", "resource.drain: Invalid argument")


def test_a_refusal_is_forgotten_once_nothing_needs_to_be_recorded_any_more() -> None:
    world = a_world().job(whole_nodes(1))
    refuse_record(world, booted(world))
    world.but(jobs={}).wait(RETRY_S_MAX).all_is_fresh()
    assert [it.code for it in world.plan().warnings] == ["record_not_written"]
    assert [it.code for it in world.wait(FORGOTTEN_S).all_is_fresh().plan().warnings] == []


def test_no_node_gives_way_to_a_job_that_cannot_buy_one() -> None:
    world = a_world(nodes_max=1).idle_node("cloud1").job(tasks(1, where=HasProperty("gpu")))
    assert [type(it) for it in world.plan().actions if isinstance(it, DrainNode)] == [DrainNode]
    world.see(SteeringSeen(NO_TOKEN))
    assert not [it for it in world.plan().actions if isinstance(it, DrainNode)]


def test_waiting_jobs_are_counted_by_their_reasons() -> None:
    world = a_world().idle_node("cloud1").job(*[tasks(1)] * 30)
    world.see(SteeringSeen(NO_TOKEN))
    made = world.plan()
    counts: dict[str, int] = {}
    for reason in made.jobs.values():
        code = "node_ordered" if reason.code == "fits_on_a_node_that_is_up" else str(reason.code)
        counts[code] = counts.get(code, 0) + 1
    assert counts["not_steerable"] > 0
    assert made.count_by_reason() == counts
