"""Jobs that limits or a budget keep from being served for long: held, passed over, or in everybody's way."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from nodemanager.core.facts import ClaimHeld, FluxCallFailed, JobsHeld, JobsReleased, QueueSeen
from nodemanager.core.jobs import Job, JobId, QueuePolicy, Unserved
from nodemanager.core.records import HeldJob
from nodemanager.planner.limits import JOBS_PER_ORDER_MAX
from nodemanager.planner.snapshot import DrainStreak
from nodemanager.planner.spending import periods
from tests.builders import CLOUD, WALL_AT, World, a_job, a_world, orders, tasks, whole_nodes

POOR, OTHER = 1001, 1002
WAS = HeldJob(16, 16)


def a_site(*jobs: Job, spent: str = "5", **settings: object) -> World:
    """User 1001 has a budget of 5 a day, and has spent it."""
    fleet = a_world(CLOUD, **{"budgets": {("user", "day"): Decimal(5)}, **settings})
    day, _ = periods(WALL_AT)
    fleet.but(amounts={("day", day.begins_at, f"user {POOR}"): Decimal(spent)})
    return see(fleet, *jobs)


def see(world: World, *jobs: Job) -> World:
    world.see(QueueSeen(world.wait(1.0).snapshot.now_s, jobs))
    return world.wait(world.policy.timing.settle_max_s).all_is_fresh()


def poor(number: int, **changes: object) -> Job:
    return replace(a_job(number, tasks(1)), userid=POOR, **changes)  # type: ignore[arg-type]


def other(number: int) -> Job:
    return replace(a_job(number, tasks(1)), userid=OTHER)


def held_in_flux(job: Job) -> Job:
    return replace(job, urgency=0, priority=0)


def jobs_ordered(world: World) -> list[str]:
    return [it for it in orders(world.decide()) if it.startswith(("hold", "release"))]


def test_a_job_beyond_its_user_s_budget_is_held_and_the_jobs_behind_it_get_their_nodes() -> None:
    world = a_site(poor(1), other(2))
    made = world.plan()
    assert sorted(orders(made)) == ["boot cloud1", "hold 1"]
    assert (made.jobs[JobId(1)].code, made.jobs[JobId(2)].code) == ("budget_of_account", "node_ordered")


@pytest.mark.parametrize(
    ("unserved", "ordered", "second"),
    [
        (Unserved.BLOCK, [], "behind_a_stuck_job"),
        (Unserved.HOLD_USERS, ["hold 1"], "node_ordered"),
        (Unserved.HOLD, ["hold 1"], "node_ordered"),
        (Unserved.SKIP, [], "node_ordered"),
    ],
)
def test_the_site_says_what_happens_to_it(unserved: Unserved, ordered: list[str], second: str) -> None:
    world = a_site(poor(1), other(2), unserved=unserved)
    assert world.why_job(2).code == second
    assert jobs_ordered(world) == ordered


@pytest.mark.parametrize(("unserved", "holds"), [(Unserved.HOLD_USERS, False), (Unserved.HOLD, True)])
def test_a_job_that_can_never_run_is_held_only_if_the_site_says_so(unserved: Unserved, *, holds: bool) -> None:
    world = a_site(a_job(1, whole_nodes(4)), other(2), nodes_max=2, unserved=unserved)
    assert world.why_job(1).code == "beyond_limits"
    assert world.why_job(2).code == ("node_ordered" if holds else "behind_a_stuck_job")
    assert jobs_ordered(world) == (["hold 1"] if holds else [])


def test_a_scheduler_that_fills_gaps_needs_no_hold() -> None:
    assert jobs_ordered(a_site(poor(1), other(2), queue_policy=QueuePolicy.BACKFILL)) == []


def test_jobs_of_a_user_whose_jobs_drain_nodes_are_held_until_the_wait_is_over() -> None:
    world = a_site(spent="0")
    until_s = world.snapshot.now_s + 600.0
    world.but(drain_streaks={POOR: DrainStreak(frozenset(), until_s, 600.0, 0.0, JobId(7))})
    see(world, poor(1), other(2))
    assert jobs_ordered(world) == ["hold 1"]
    world.see(JobsHeld({JobId(1): WAS}))
    see(world, held_in_flux(poor(1)))
    assert jobs_ordered(world) == []
    world.wait(600.0).all_is_fresh()
    assert jobs_ordered(world) == ["release 1"]


def test_it_is_released_when_it_can_be_served_and_nodes_are_bought_for_it_at_once() -> None:
    world = a_site(poor(1), other(2))
    assert jobs_ordered(world) == ["hold 1"]
    assert jobs_ordered(world) == [], "one order at a time"
    world.see(JobsHeld({JobId(1): WAS}))
    see(world, held_in_flux(poor(1)))
    held = world.snapshot.jobs[JobId(1)]
    assert (held.held_by_us, held.urgency, held.priority) == (True, 16, 16)
    assert jobs_ordered(world) == []
    assert world.why_job(1).code == "budget_of_account"

    day, _ = periods(WALL_AT)
    world.but(amounts={("day", day.begins_at, f"user {POOR}"): Decimal(0)})
    made = world.plan()
    assert "release 1" in orders(made)
    assert made.jobs[JobId(1)].code == "node_coming"
    world.decide()
    world.see(JobsReleased(frozenset({JobId(1)})))
    see(world, poor(1))
    assert not world.snapshot.jobs[JobId(1)].held_by_us
    assert not world.snapshot.queues.held_jobs
    assert jobs_ordered(world) == []


def test_a_job_that_its_user_holds_is_left_alone() -> None:
    world = a_site(held_in_flux(poor(1)), other(2))
    assert jobs_ordered(world) == []
    assert world.why_job(1).code == "held"


@pytest.mark.parametrize("urgency_first", [True, False])
def test_after_a_restart_the_record_says_which_jobs_are_held_by_us(*, urgency_first: bool) -> None:
    world = a_site(spent="0")
    claim = ClaimHeld(world.snapshot.now_s + 1.0, (), held_jobs={JobId(1): HeldJob(20, 20), JobId(9): WAS})
    job = held_in_flux(poor(1))
    if urgency_first:
        see(world, job).see(claim)
    else:
        see(world.see(claim), job)
    assert world.snapshot.jobs[JobId(1)].urgency == 20
    assert jobs_ordered(world) == ["release 1 9"], "job 9 has ended meanwhile"


def test_a_hold_that_was_recorded_but_not_carried_out_is_repeated_or_forgotten() -> None:
    world = a_site(poor(1), other(2)).but(held_jobs={JobId(1): WAS})
    assert jobs_ordered(world) == ["hold 1"]
    rich = a_site(poor(1), spent="0").but(held_jobs={JobId(1): WAS})
    assert jobs_ordered(rich) == ["release 1"]


def test_after_a_failure_the_record_is_read_again() -> None:
    world = a_site(poor(1), other(2))
    assert jobs_ordered(world) == ["hold 1"]
    world.see(FluxCallFailed((), "HoldJobs", "no answer"))
    assert not world.snapshot.sources.claimed
    world.see(ClaimHeld(world.wait(10.0).snapshot.now_s, (), held_jobs={JobId(1): WAS}))
    world.all_is_fresh()
    assert jobs_ordered(world) == ["hold 1"]


def test_many_jobs_are_held_in_several_orders() -> None:
    world = a_site(*(poor(number) for number in range(1, JOBS_PER_ORDER_MAX + 3)), other(1000))
    (first,) = jobs_ordered(world)
    assert len(first.split()) == 1 + JOBS_PER_ORDER_MAX
    world.see(JobsHeld({JobId(int(number)): WAS for number in first.split()[1:]}))
    see(world, *(held_in_flux(poor(number)) for number in range(1, JOBS_PER_ORDER_MAX + 1)))
    assert jobs_ordered(world) == ["hold 101 102"]
