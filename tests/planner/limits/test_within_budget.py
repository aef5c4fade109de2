"""Purchases stay within the budget, with all that was promised: on booting nodes, on existing nodes, to users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.facts import LaunchesRecorded, NodeCreated
from nodemanager.core.jobs import Job, JobId, JobState, QueuePolicy, RankAllocation, Shape
from nodemanager.core.orders import BootNode, CreateNode
from nodemanager.core.slots import TypeName
from nodemanager.planner.plan import Plan
from nodemanager.planner.spending import periods
from tests.builders import (
    GPU,
    GPU_FOR_ALL,
    NOW_S,
    WALL_AT,
    World,
    a_cloud_node,
    a_job,
    a_type,
    a_world,
    boots,
    rank_of,
    tasks,
    whole_nodes,
)

HOUR_S = 3600.0
BIG = a_type("cloud", slots=60, price="1.00")
MONTH = ("", "month")
LAID = ("fits_on_a_node_that_is_up", "node_coming", "node_ordered")


def world(budgets: Mapping[tuple[str, str], Any], *types: Any, **settings: Any) -> World:
    """A node costs 1.00 an hour, and only the budget limits purchases."""
    limits = {whose: Decimal(limit) for whose, limit in budgets.items()}
    wide: dict[str, Any] = {
        "nodes_max": 60,
        "price_per_hour_max": Decimal(1000),
        "calls_in_flight_max": 100,
        "creates_burst": 100,
    }
    return a_world(*(types or (BIG,)), budgets=limits, **(wide | settings))


def submits(fleet: World, count: int, hours: float, shape: Shape | None = None, **changes: Any) -> World:
    return fleet.job(*[shape or whole_nodes(1)] * count, duration_s=hours * HOUR_S, **changes)


def carried_out(fleet: World) -> Iterator[Plan]:
    """Carry out plans until nothing more is ordered: leases are recorded, and nodes are created and boot."""
    for _ in range(10):
        made = fleet.decide()
        yield made
        launches = tuple(it.launch for it in made.actions if isinstance(it, BootNode))
        created = [it.launch for it in made.actions if isinstance(it, CreateNode)]
        if not launches and not created:
            return
        if launches:
            fleet.see(LaunchesRecorded(launches))
        for launch in created:
            fleet.see(NodeCreated(launch.id, a_cloud_node(launch, created_at=fleet.snapshot.wall_at)))
        fleet.wait(1).all_is_fresh().wait(1)
    raise AssertionError("orders without end")


def bought(fleet: World) -> int:
    return sum(len(boots(made)) for made in carried_out(fleet))


# --- the site's -------------------------------------------------------------------------------------------


def test_nodes_that_boot_count_for_as_long_as_the_jobs_that_are_laid_on_them_may_run() -> None:
    """Ten jobs of ten hours again and again, while earlier purchases still boot: 1.00 an hour, of 100."""
    fleet = world({MONTH: 100})
    nodes = sum(bought(submits(fleet, 10, 10)) for _ in range(8))
    assert 5 <= nodes <= 10
    assert fleet.why_job(80).code == "behind_a_stuck_job"


def test_a_job_without_a_limit_counts_nothing_ahead() -> None:
    """It counts only the hour that is billed; if it counted more, nothing else could be bought."""
    fleet = world({MONTH: 500})
    assert bought(submits(fleet, 1, 0)) == 1
    assert bought(submits(fleet, 1, 0)) == 1


def test_what_begins_on_a_node_that_is_up_counts_too() -> None:
    """A day on the idle node, half an hour of which is paid; and a day on another."""

    def buys(budget: int) -> int:
        return bought(submits(world({MONTH: budget}).idle_node("cloud1"), 2, 24))

    assert buys(49) == 1
    assert buys(48) == 0


def test_a_short_job_that_begins_beside_a_long_one_does_not_shorten_what_that_takes() -> None:
    """The node is in use for a day. An hour of another one is to be paid too."""

    def buys(budget: int) -> int:
        fleet = world({MONTH: budget}).busy_node("cloud1", cores_free=3, billed_from_s=NOW_S)
        allocations = (RankAllocation(fleet["cloud1"].launch.rank, 1, 0),)
        times = {"began_at": WALL_AT, "ends_at": WALL_AT + 24 * HOUR_S}
        fleet.job(tasks(1), state=JobState.RUN, allocations=allocations, **times)
        return bought(submits(submits(fleet, 1, 1, tasks(1)), 1, 1))

    assert buys(27) == 1
    assert buys(24) == 0


def test_what_is_left_is_said_with_what_was_promised() -> None:
    """Four booting nodes for four hours each, plus the started fifth hour: 20 of 23.50."""
    fleet = world({MONTH: "23.50"})
    assert bought(submits(fleet, 4, 4)) == 4
    submits(fleet, 1, 4)
    why = fleet.why_job(5)
    assert (why.code, why.figures["forecast"], why.figures["hours"]) == ("budget_left", 20, 4)


def test_for_how_long_a_node_is_paid_has_its_boot_and_its_whole_windows_in_it() -> None:
    """A job of an hour on a node that boots for two minutes is billed for two hours."""

    def buys(budget: str) -> int:
        fleet = world({MONTH: budget}).but(boots_s={TypeName("cloud"): (120.0,) * 5})
        return bought(submits(fleet, 1, 1))

    assert buys("2") == 1
    assert buys("1.99") == 0


# --- users' and queues' -----------------------------------------------------------------------------------

USER_DAY = ("user", "day")


def test_jobs_that_are_submitted_together_are_bought_for_within_their_users_budget() -> None:
    fleet = world({USER_DAY: 10})
    assert bought(submits(fleet, 50, 10, userid=1000)) == 1
    why = fleet.why_job(2)
    assert why.code == "budget_of_account"
    assert why.figures["account"] == "user 1000"
    assert why.figures["forecast"] == 20


def test_what_is_on_its_way_for_a_user_counts_at_the_next_plan() -> None:
    fleet = world({USER_DAY: 10})
    assert bought(submits(fleet, 2, 4, userid=1000)) == 2
    assert bought(submits(fleet, 2, 4, userid=1000)) == 0
    assert fleet.why_job(3).code == "budget_of_account"


def test_what_runs_counts_beside_what_waits() -> None:
    fleet = world({USER_DAY: 10}).busy_node("cloud1")
    runs = a_job(
        99,
        state=JobState.RUN,
        userid=1000,
        began_at=WALL_AT,
        ends_at=WALL_AT + 7 * HOUR_S,
        allocations=(RankAllocation(rank_of(fleet.policy, "cloud1"), 4, 0),),
    )
    fleet.but(jobs={runs.id: runs})
    assert bought(submits(fleet, 3, 3, userid=1000)) == 1


def test_a_scheduler_that_fills_gaps_serves_the_others() -> None:
    """It serves as many of the user's jobs as the budget allows, and all jobs of another user behind them."""
    fleet = world({USER_DAY: 10}, queue_policy=QueuePolicy.BACKFILL)
    submits(fleet, 50, 4, userid=1000)
    submits(fleet, 2, 4, userid=1001)
    assert bought(fleet) == 4
    assert [fleet.why_job(number).code for number in (1, 2)] == ["node_coming"] * 2
    assert fleet.why_job(3).code == "budget_of_account"
    assert [fleet.why_job(number).code for number in (51, 52)] == ["node_coming"] * 2


def test_a_queue_counts_what_all_of_its_users_take() -> None:
    fleet = world({("queue", "day"): 10}, queue_policy=QueuePolicy.BACKFILL)
    for userid in (1000, 1001, 1002):
        submits(fleet, 1, 4, userid=userid, queue="debug")
    submits(fleet, 1, 4, userid=1000, queue="batch")
    assert bought(fleet) == 3
    assert fleet.why_job(3).code == "budget_of_account"
    assert fleet.why_job(3).figures["account"] == "queue debug"


@pytest.mark.parametrize("queue_policy", list(QueuePolicy))
def test_a_job_that_only_a_dearer_type_is_left_for_counts_at_its_price(queue_policy: QueuePolicy) -> None:
    """The cheap type's only slot goes to the first; a whole GPU node costs 3.00 an hour, of 10 a day."""
    few = replace(BIG, slots=BIG.slots[:1])
    fleet = world({USER_DAY: 10}, few, GPU_FOR_ALL, queue_policy=queue_policy)
    assert bought(submits(fleet, 3, 4, userid=1000)) == 1
    assert fleet.why_job(2).code == "budget_of_account"
    assert fleet.why_job(2).figures["forecast"] == 16


def test_a_job_without_a_limit_is_served_while_its_user_has_anything_left() -> None:
    assert bought(submits(world({USER_DAY: 10}), 3, 0, userid=1000)) == 3


# --- always -----------------------------------------------------------------------------------------------

BATCHES = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from([0.1, 1.0, 3.0, 10.0, 30.0]), st.integers(1000, 1002)),
    min_size=1,
    max_size=5,
)


def laid(made: Plan, jobs: Mapping[JobId, Job]) -> dict[str, list[Job]]:
    """The waiting jobs on each slot, from the plan's own reasons. Every job takes a whole node."""
    found: dict[str, list[Job]] = {}
    for id_, why in made.jobs.items():
        if why.code in LAID:
            (slot,) = _names(why.figures["nodes"])
            found.setdefault(slot, []).append(jobs[id_])
    return found


def _names(figure: object) -> Sequence[str]:
    assert isinstance(figure, tuple)
    return figure


def _costs(age_s: float, runs_s: float) -> Decimal:
    return Decimal(max(1, ceil((age_s + runs_s) / HOUR_S)))


@given(BATCHES, st.integers(1, 120), st.sampled_from(list(QueuePolicy)))
def test_nothing_is_bought_that_the_budget_does_not_pay_for(
    batches: list[tuple[int, float, int]], limit: int, queue_policy: QueuePolicy
) -> None:
    """When a node is bought, past cost and cost up to the jobs' time limits are within the budget."""
    fleet = world({MONTH: limit}, queue_policy=queue_policy)
    for count, hours, userid in batches:
        submits(fleet, count, hours, userid=userid)
        for made in carried_out(fleet):
            if not boots(made):
                continue
            on = laid(made, fleet.snapshot.jobs)
            ages = dict.fromkeys(boots(made), 0.0)
            ages |= {
                node.launch.slot: fleet.snapshot.wall_at - node.launch.requested_at
                for node in fleet.snapshot.nodes.values()
            }
            promised = sum(
                _costs(age_s, max((job.duration_s for job in on.get(slot, ())), default=0.0))
                for slot, age_s in ages.items()
            )
            assert promised <= limit


@given(BATCHES, st.integers(1, 40), st.sampled_from(list(QueuePolicy)), st.booleans())
def test_nothing_is_bought_that_a_users_budget_does_not_pay_for(
    batches: list[tuple[int, float, int]], limit: int, queue_policy: QueuePolicy, few: bool
) -> None:
    """The same for each user's jobs, with dear nodes if there are few cheap ones."""
    types = (replace(BIG, slots=BIG.slots[:3]), replace(GPU, price_per_hour=Decimal("2.5"))) if few else (BIG,)
    fleet = world({("user", "month"): limit}, *types, queue_policy=queue_policy)
    left_h = (periods(WALL_AT)[1].ends_at - WALL_AT) / HOUR_S
    for count, hours, userid in batches:
        submits(fleet, count, hours, userid=userid)
        for made in carried_out(fleet):
            taken: dict[int, Decimal] = {}
            for slot, jobs in laid(made, fleet.snapshot.jobs).items():
                price = next(it.price_per_hour for it in fleet.policy.node_types if slot in it.slots)
                for job in jobs:
                    hours_ = Decimal(min(job.duration_s / HOUR_S, left_h))
                    taken[job.userid] = taken.get(job.userid, Decimal(0)) + price * hours_
            if boots(made):
                assert all(amount <= limit + Decimal("1e-9") for amount in taken.values())


@given(BATCHES)
def test_a_budget_that_is_wide_changes_nothing(batches: list[tuple[int, float, int]]) -> None:
    free, wide = world({}), world({MONTH: 10**6, USER_DAY: 10**6, ("queue", "month"): 10**6})
    for count, hours, userid in batches:
        for fleet in (free, wide):
            submits(fleet, count, hours, tasks(1, cores=3), userid=userid)
        assert [boots(made) for made in carried_out(free)] == [boots(made) for made in carried_out(wide)]
