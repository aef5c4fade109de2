"""A user whose jobs make Flux drain node after node gets no more of them for a while; others do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.notation import format_job_id
from nodemanager.core.orders import BootNode
from nodemanager.core.reason_codes import Code
from nodemanager.planner.breakers import FORGET_S, TRIAL_PAUSE_S_MAX, USERS_REMEMBERED, users_put_off
from tests.builders import CLOUD, World, a_job, a_rank, a_world, drained, whole_nodes

GUEST, OTHER = 1001, 1002
SLOTS = ("cloud1", "cloud2", "cloud3", "cloud4")


def by_flux(job: int) -> str:
    return f"{format_job_id(job)} terminated before first barrier"


def a_fleet() -> World:
    world = a_world(CLOUD)
    for slot in SLOTS:
        world.idle_node(slot)
    return world


def drain(world: World, job: int, *slots: str, userid: int = GUEST, ended: bool = True) -> World:
    """A job runs, makes Flux drain nodes, and ends before that is seen, or after."""
    ran = a_job(job, state=JobState.RUN, userid=userid)
    world.see(QueueSeen(world.snapshot.now_s, (ran,), complete=False))
    if ended:
        world.see(QueueSeen(world.snapshot.now_s, ended=(JobId(job),), complete=False))
    return world.wait(1.0).see_ranks(*(drained(a_rank(slot, online=True), by_flux(job)) for slot in slots))


def undrain(world: World) -> World:
    return world.wait(1.0).see_ranks(*(a_rank(slot, online=True) for slot in SLOTS))


@pytest.mark.parametrize("ended", [True, False])
def test_after_three_jobs_of_a_user_nothing_is_bought_for_that_user_and_others_are_served(*, ended: bool) -> None:
    world = a_fleet()
    for number, slot in enumerate(SLOTS[:3], 1):
        assert not users_put_off(world.snapshot)
        drain(world, number, slot, ended=ended)
    (reason,) = users_put_off(world.snapshot).values()
    assert reason.code == Code.USER_DRAINS_NODES
    assert (reason.figures["account"], reason.figures["job"], reason.figures["failures"]) == ("user 1001", "3", 3)
    assert reason.figures["retry_s"] == world.snapshot.now_s + world.policy.timing.boot_retry_s

    jobs = [replace(a_job(10, whole_nodes(1)), userid=GUEST), replace(a_job(11, whole_nodes(1)), userid=OTHER)]
    empty = a_world(CLOUD)
    empty.but(drain_streaks=world.snapshot.learned.drain_streaks).see_queue(*jobs)
    empty.wait(world.policy.timing.settle_max_s).all_is_fresh()
    made = empty.plan()
    assert made.jobs[JobId(10)].code == Code.USER_DRAINS_NODES
    bought = [action for action in made.actions if isinstance(action, BootNode)]
    assert [job for action in bought for job in action.serves] == [11]
    assert Code.USER_DRAINS_NODES in {warning.code for warning in made.warnings}


def test_one_job_that_drains_many_nodes_counts_once() -> None:
    world = drain(a_fleet(), 1, *SLOTS)
    assert len(world.snapshot.learned.drain_streaks[GUEST].jobs) == 1
    assert not users_put_off(world.snapshot)


def test_each_further_job_doubles_the_wait_up_to_a_limit() -> None:
    world = a_fleet()
    waits = []
    for number in range(1, 12):
        drain(world, number, "cloud1")
        until_s = world.snapshot.learned.drain_streaks[GUEST].until_s
        if until_s:
            waits.append(until_s - world.snapshot.now_s)
            world.wait(waits[-1] + 1.0)
            assert not users_put_off(world.snapshot)
        undrain(world)
    assert waits[:3] == [world.policy.timing.boot_retry_s * factor for factor in (1, 2, 4)]
    assert max(waits) == waits[-1] == TRIAL_PAUSE_S_MAX


def test_who_has_drained_nothing_for_long_begins_again() -> None:
    world = a_fleet()
    for number, slot in enumerate(SLOTS[:2], 1):
        drain(world, number, slot)
    world.wait(FORGET_S)
    undrain(world)
    drain(world, 3, "cloud1")
    assert world.snapshot.learned.drain_streaks[GUEST].jobs == {3}


@pytest.mark.parametrize("reason", ["broken fan", "fzzzzzzzzzzzzzzzzzzzzzzzz terminated before first barrier"])
def test_a_drain_of_a_person_or_of_an_unknown_job_counts_for_nobody(reason: str) -> None:
    world = a_fleet()
    world.wait(1.0).see_ranks(drained(a_rank("cloud1", online=True), reason))
    drain(world, 1, "cloud2", userid=OTHER)
    assert set(world.snapshot.learned.drain_streaks) == {OTHER}


def test_only_the_latest_ended_jobs_are_remembered() -> None:
    world = a_world(CLOUD)
    for begin in range(1, 2 * USERS_REMEMBERED, 256):
        jobs = tuple(a_job(begin + number, state=JobState.RUN, userid=GUEST) for number in range(256))
        ids = tuple(job.id for job in jobs)
        now_s = world.wait(1.0).snapshot.now_s
        world.see(QueueSeen(now_s, jobs, complete=False), QueueSeen(now_s, ended=ids, complete=False))
    assert len(world.snapshot.learned.ended_users) == USERS_REMEMBERED
