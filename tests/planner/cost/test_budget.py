"""Budgets: what counts as spent, and how the fleet stays within them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import ClaimHeld, HoldPlaced, NodeCordoned, QueueSeen, SpendKept, SpendNotKept
from nodemanager.core.jobs import Job, JobState, QueuePolicy, RankAllocation, Unserved
from nodemanager.core.nodes import CloudState, NodeState
from nodemanager.core.orders import BootNode, KeepSpend
from nodemanager.core.records import Mark, Spend
from nodemanager.core.slots import Billing, Rank, Tariff
from nodemanager.planner.budget import budget_changes_s, left_by_period
from nodemanager.planner.plan import Plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.spending import PERIODS_KEPT, periods
from tests.builders import (
    CLOUD,
    GPU,
    NOW_S,
    WALL_AT,
    World,
    a_cloud_node,
    a_job,
    a_launch,
    a_rank,
    a_world,
    boots,
    busy,
    drained,
    orders,
    tasks,
    with_settings,
)

DAY = ("", "day")


def world(budgets: Mapping[tuple[str, str], str], **settings: Any) -> World:
    return a_world(CLOUD, GPU, budgets={whose: Decimal(limit) for whose, limit in budgets.items()}, **settings)


def spent(already: str, budgets: Mapping[tuple[str, str], str], account: str = "") -> World:
    """A fleet that has spent this amount today on nodes that are gone."""
    day, _ = periods(WALL_AT)
    return world(budgets).but(amounts={("day", day.begins_at, account): Decimal(already)})


def running(number: int = 9, *, began_s_ago: float, ends_in_s: float, **changes: Any) -> Job:
    return a_job(
        number,
        state=JobState.RUN,
        allocations=(RankAllocation(Rank(1), 2, 0),),
        began_at=WALL_AT - began_s_ago,
        ends_at=WALL_AT + ends_in_s,
        **changes,
    )


def without_gpu(policy: Policy) -> Policy:
    return replace(policy, node_types=(CLOUD,))


# --- periods ----------------------------------------------------------------------------------------------


@given(st.datetimes(datetime(1970, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC)))
def test_days_and_months_are_those_of_the_calendar(moment: datetime) -> None:
    day, month = periods(moment.timestamp())
    assert datetime.fromtimestamp(day.begins_at, UTC) == moment.replace(hour=0, minute=0, second=0, microsecond=0)
    assert day.ends_at - day.begins_at == 86_400
    first = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    assert datetime.fromtimestamp(month.begins_at, UTC) == first
    assert datetime.fromtimestamp(month.ends_at, UTC) == following


# --- what counts ------------------------------------------------------------------------------------------


def test_a_node_that_goes_has_cost_what_its_billing_rule_says() -> None:
    fleet = world({DAY: "100"}).stopping_node("cloud1", billed_from_s=NOW_S - 3700)
    launch = fleet["cloud1"].launch
    fleet.wait(1).see_cloud(a_cloud_node(launch, state=CloudState.TERMINATED))
    assert fleet["cloud1"].state is NodeState.GONE
    day, month = periods(fleet.snapshot.wall_at)
    two_hours = Decimal("0.80")
    assert fleet.snapshot.spending.amounts == {
        ("day", day.begins_at, ""): two_hours,
        ("month", month.begins_at, ""): two_hours,
    }


def test_a_job_that_ends_has_cost_its_share_of_the_cores_for_its_user_and_its_queue() -> None:
    fleet = world({("user", "day"): "100"}).busy_node("cloud1", billed_from_s=NOW_S - 7200)
    job = running(began_s_ago=1800, ends_in_s=600, userid=1000, queue="batch")
    fleet.but(jobs={job.id: job}).see(QueueSeen(NOW_S, ended=(job.id,)))
    today = {
        account: amount for (name, _, account), amount in fleet.snapshot.spending.amounts.items() if name == "day"
    }
    assert today == {"user 1000": Decimal("0.10"), "queue batch": Decimal("0.10")}


def test_a_job_that_ended_while_nobody_watched_is_charged_too() -> None:
    """The watch was away. The list of all jobs with which it begins again lacks the job."""
    fleet = world({("user", "day"): "100"}).busy_node("cloud1", billed_from_s=NOW_S - 7200)
    job = running(began_s_ago=1800, ends_in_s=600, userid=1000)
    fleet.but(jobs={job.id: job}).see(QueueSeen(NOW_S, complete=True))
    day, _ = periods(fleet.snapshot.wall_at)
    assert fleet.snapshot.spending.amounts["day", day.begins_at, "user 1000"] == Decimal("0.10")


def test_a_step_of_the_clock_charges_a_user_for_no_more_than_the_age_of_the_node() -> None:
    """The clock goes a day ahead under a running job: by it, the job has run for a day and half an hour."""
    fleet = world({("user", "day"): "100"}).busy_node("cloud1", billed_from_s=NOW_S - 1800)
    job = running(began_s_ago=1800, ends_in_s=600, userid=1000)
    fleet.but(jobs={job.id: job}).wait(1, wall_jumps_s=86_400).see(QueueSeen(NOW_S + 1, ended=(job.id,)))
    paid = sum(
        amount
        for (name, _, of), amount in fleet.snapshot.spending.amounts.items()
        if (name, of) == ("month", "user 1000")
    )
    assert paid <= Decimal("0.40") * 1801 / 3600


def test_a_node_whose_type_the_site_names_no_more_costs_what_it_was_bought_for() -> None:
    """The lease says 3.00 an hour, which is the most that is allowed now."""
    fleet = world({DAY: "100"}, price_per_hour_max=Decimal("3.00")).busy_node("gpu1").job(tasks(1))
    fleet.policy = without_gpu(fleet.policy)
    made = fleet.plan()
    assert made.price_per_hour == 3
    assert boots(made) == []
    assert fleet.why_job(1).code == "price_per_hour_max"
    assert left_by_period(fleet.snapshot, fleet.policy)[DAY] == 97
    day, _ = periods(WALL_AT)
    goes(fleet, "gpu1")
    assert fleet.snapshot.spending.amounts["day", day.begins_at, ""] == 3


def test_the_present_price_counts_where_the_site_names_the_type() -> None:
    fleet = world({DAY: "100"}).busy_node("gpu1")
    fleet.policy = replace(fleet.policy, node_types=(CLOUD, replace(GPU, price_per_hour=Decimal("5.00"))))
    assert fleet.plan().price_per_hour == 5
    assert left_by_period(fleet.snapshot, fleet.policy)[DAY] == 95


def test_a_job_that_holds_all_gpus_of_a_node_has_cost_the_whole_node() -> None:
    fleet = world({("user", "day"): "100"}).busy_node("gpu1", billed_from_s=NOW_S - 7200)
    held = (RankAllocation(Rank(5), 1, GPU.gpus),)
    job = replace(running(began_s_ago=3600, ends_in_s=600, userid=1000), allocations=held)
    fleet.but(jobs={job.id: job}).see(QueueSeen(NOW_S, ended=(job.id,)))
    day, _ = periods(WALL_AT)
    assert fleet.snapshot.spending.amounts["day", day.begins_at, "user 1000"] == GPU.price_per_hour


def test_what_a_job_took_of_such_a_node_is_its_users_too() -> None:
    fleet = world({("user", "day"): "100"}).busy_node("gpu1", billed_from_s=NOW_S - 7200)
    fleet.policy = without_gpu(fleet.policy)
    job = replace(
        running(began_s_ago=3600, ends_in_s=600, userid=1000), allocations=(RankAllocation(Rank(5), 4, 1),)
    )
    fleet.but(jobs={job.id: job}).see(QueueSeen(NOW_S, ended=(job.id,)))
    day, _ = periods(WALL_AT)
    assert fleet.snapshot.spending.amounts["day", day.begins_at, "user 1000"] == Decimal("1.5")


def test_of_an_old_lease_nobody_knows_what_it_costs() -> None:
    fleet = world({}, price_per_hour_max=Decimal("0.50")).job(tasks(1))
    fleet.busy_node("gpu1", launch=replace(a_launch("gpu1", fleet.policy), tariff=None))
    fleet.policy = without_gpu(fleet.policy)
    assert fleet.plan().price_per_hour == 0


def test_a_lease_says_what_its_node_costs() -> None:
    made = world({}).job(tasks(1, gpus=1)).plan()
    (bought,) = (action.launch for action in made.actions if isinstance(action, BootNode))
    assert bought.tariff == Tariff(GPU.price_per_hour, GPU.billing)


def test_without_a_budget_nothing_is_counted() -> None:
    fleet = a_world().stopping_node("cloud1")
    fleet.wait(1).see_cloud(a_cloud_node(fleet["cloud1"].launch, state=CloudState.TERMINATED))
    assert not fleet.snapshot.spending.amounts


# --- the steps --------------------------------------------------------------------------------------------


def test_within_the_budget_all_is_bought() -> None:
    assert boots(spent("50", {DAY: "100"}).job(tasks(1, gpus=1)).plan()) == ["gpu1"]


@pytest.mark.parametrize(("limit", "at_the_end_of_the_day"), [("0.40", True), ("0.41", False)])
def test_a_budget_that_is_used_up_exactly_changes_only_with_the_day(
    limit: str, *, at_the_end_of_the_day: bool
) -> None:
    """The node's hour has cost 0.40, and its next payment is due long before midnight."""
    fleet = world({DAY: limit}).busy_node("cloud1", billed_from_s=NOW_S - 60.0, requested_s=NOW_S - 60.0)
    day, _ = periods(WALL_AT)
    ends_s = NOW_S + day.ends_at - WALL_AT
    assert (budget_changes_s(fleet.snapshot, fleet.policy, jobs_wait=False) == ends_s) is at_the_end_of_the_day


def test_from_nine_tenths_on_only_the_cheapest_cores_are_bought() -> None:
    fleet = spent("90", {DAY: "100"}).job(tasks(1), tasks(1, gpus=1), duration_s=300.0)
    assert boots(fleet.plan()) == ["cloud1"]
    assert fleet.why_job(2).code == "budget_cheapest_only"
    assert fleet.why_job(2).figures["spent"] == 90


def test_what_running_jobs_may_still_take_is_counted_ahead() -> None:
    """One node runs for at most 2 more hours: 0.40 and 0.80, in addition to past cost."""
    fleet = spent("99", {DAY: "100"}).busy_node("cloud1")
    job = running(began_s_ago=60, ends_in_s=7000)
    fleet.but(jobs={job.id: job}).job(tasks(3))
    assert boots(fleet.plan()) == []
    assert fleet.why_job(2).code == "budget_no_new_nodes"
    assert Decimal(str(fleet.why_job(2).figures["forecast"])) > 100


@pytest.mark.parametrize(("whose", "price"), [(DAY, "0.40"), (("user", "day"), "0.20")])
def test_what_a_running_job_takes_after_midnight_is_not_of_today(whose: tuple[str, str], price: str) -> None:
    """Its node runs for a day after midnight. Its user pays for half of the node."""
    left_s = periods(WALL_AT)[0].ends_at - WALL_AT
    today = Decimal(price) * Decimal(left_s) / 3600

    def bought(more: str) -> list[str]:
        fleet = world({whose: str(today + Decimal(more))}).busy_node("cloud1", billed_from_s=NOW_S)
        job = running(began_s_ago=0, ends_in_s=left_s + 86_400, userid=1000)
        fleet.but(jobs={job.id: job}).job(tasks(1), userid=1000, duration_s=60.0)
        return boots(fleet.plan())

    assert left_s % 3600 == 0, "the node is billed by the hour"
    assert bought("0.50") == ["cloud2"]
    assert bought("0.00") == []


def test_what_a_user_spent_yesterday_is_not_of_today() -> None:
    """An ended job took 9.00 yesterday; one that still runs began yesterday, an hour before midnight."""
    day, _ = periods(WALL_AT)
    today_s = WALL_AT - day.begins_at
    yesterday = ("day", day.begins_at - 86_400, "user 1000")
    today = Decimal("0.20") * Decimal(today_s + 60) / 3600

    def bought(more: str) -> list[str]:
        fleet = world({("user", "day"): str(today + Decimal(more))}).but(amounts={yesterday: Decimal(9)})
        fleet.busy_node("cloud1", billed_from_s=NOW_S - today_s - 7200)
        job = running(began_s_ago=today_s + 3600, ends_in_s=60, userid=1000)
        fleet.but(jobs={job.id: job}).job(tasks(1), userid=1000, duration_s=60.0)
        return boots(fleet.plan())

    assert bought("0.01") == ["cloud2"]
    assert bought("-0.01") == []


def test_once_it_is_spent_idle_nodes_go_and_nobody_waits_for_them() -> None:
    fleet = spent("100", {DAY: "100"}).idle_node("cloud1").busy_node("cloud2").job(tasks(1))
    made = fleet.plan()
    assert orders(made) == ["cordon cloud2-1 flux-node-manager:cloud2-1", "drain cloud1-1"]
    assert made.nodes[fleet.id("cloud1")].code == "budget_spent"
    assert fleet.why_job(1).code == "budget_spent"
    assert fleet.why("cloud2") == "budget_spent"


def test_once_it_is_spent_a_node_that_was_only_just_seen_idle_is_given_no_time_to_take_a_job() -> None:
    assert orders(spent("100", {DAY: "100"}).idle_node("cloud1", idle_looks=1).plan()) == ["drain cloud1-1"]


def test_once_it_is_spent_what_runs_ends_in_its_time_and_nothing_begins() -> None:
    """A busy node is drained: its jobs finish, and then it is stopped as usual."""
    fleet = spent("100", {DAY: "100"}).busy_node("cloud1", cores_free=2).job(tasks(1))
    made = fleet.decide()
    assert orders(made) == ["cordon cloud1-1 flux-node-manager:cloud1-1"]
    assert made.nodes[fleet.id("cloud1")].code == "budget_spent"
    assert fleet.why_job(1).code == "budget_spent", "what is free there is no room any more"
    ours = busy(drained(a_rank("cloud1", online=True), drain_text(fleet.id("cloud1"))))
    fleet.see(NodeCordoned(fleet.id("cloud1"), NOW_S, ours)).wait(1)
    assert orders(fleet.decide()) == []
    assert fleet.why("cloud1") == "budget_spent"
    idle = drained(a_rank("cloud1", online=True), drain_text(fleet.id("cloud1")))
    fleet.see_ranks(idle)
    assert fleet["cloud1"].state is NodeState.DRAINING
    assert orders(fleet.decide()) == ["drain cloud1-1"]
    assert orders(fleet.see_drained("cloud1").decide()) == ["stop-broker cloud1-1"]
    assert fleet.why("cloud1") in ("budget_spent", "call_in_flight")
    retiring = fleet["cloud1"].stop.retiring
    assert retiring is not None
    assert retiring.code == "budget_spent"


def test_a_new_day_undrains_what_is_still_at_work_and_buys_again() -> None:
    fleet = spent("100", {DAY: "100"}).busy_node("cloud1")
    launch = fleet.id("cloud1")
    ours = busy(drained(a_rank("cloud1", online=True), drain_text(launch)))
    fleet.decide()
    fleet.see(NodeCordoned(launch, NOW_S, ours)).job(tasks(1))
    day, _ = periods(WALL_AT)
    fleet.wait(day.ends_at - WALL_AT + 1).see_ranks(ours).all_is_fresh().wait(1)
    made = fleet.decide()
    assert orders(made) == ["undrain cloud1-1", "boot cloud2"]
    assert made.nodes[launch].code == "busy_yet_drained_by_us"


def test_once_it_is_spent_what_comes_does_not_stay_and_what_was_not_made_is_not() -> None:
    fleet = spent("100", {DAY: "100"}).booting_node("cloud1").node("cloud2", NodeState.REQUESTED).job(tasks(1))
    made = fleet.plan()
    assert sorted(orders(made)) == ["drain cloud1-1", "end-lease cloud2-1"]
    assert {reason.code for reason in made.nodes.values()} == {"budget_spent"}


def test_what_somebody_else_drained_or_holds_is_his_whatever_is_spent() -> None:
    fleet = spent("100", {DAY: "100"}).busy_node("cloud1").busy_node("cloud2")
    fleet.see_ranks(replace(fleet.rank_now("cloud1"), drain_reason="bad fan"))
    fleet.see(HoldPlaced(fleet.id("cloud2"), Mark("ada", WALL_AT)))
    assert orders(fleet.plan()) == ["cordon cloud2-1 flux-node-manager:hold:cloud2-1"]
    assert fleet.why("cloud2") == "held_by_operator"


# --- across restarts --------------------------------------------------------------------------------------


def goes(fleet: World, slot: str) -> World:
    """Observe that a node is gone."""
    fleet.wait(1).see_ranks(a_rank(slot))
    return fleet.see_cloud(a_cloud_node(fleet[slot].launch, state=CloudState.TERMINATED))


def keeps(made: Plan) -> list[Spend]:
    return [ask.spend for ask in made.asks if isinstance(ask, KeepSpend)]


def test_a_lease_is_ended_only_when_what_the_node_cost_is_on_record() -> None:
    fleet = goes(world({DAY: "100"}).stopping_node("cloud1"), "cloud1")
    made = fleet.decide()
    (spend,) = keeps(made)
    assert spend.counted == {"cloud1-1"}
    assert orders(made) == []
    assert fleet.why("cloud1") == "spend_to_record"
    assert keeps(fleet.wait(1).decide()) == [], "it is under way"
    fleet.see(SpendKept(spend))
    assert orders(fleet.decide()) == ["end-lease cloud1-1"]


def test_what_could_not_be_put_on_record_is_tried_again() -> None:
    fleet = goes(world({DAY: "100"}).stopping_node("cloud1"), "cloud1")
    (spend,) = keeps(fleet.decide())
    fleet.see(SpendNotKept("no answer"))
    assert keeps(fleet.decide()) == []
    assert keeps(fleet.wait(1.1).decide()) == [spend]


@pytest.mark.parametrize("on_record", [True, False])
def test_a_node_counts_once_however_the_manager_is_killed(on_record: bool) -> None:
    """Killed after the node was gone and before its lease ended, with its cost on record or not yet."""
    fleet = goes(world({DAY: "100"}).stopping_node("cloud1", billed_from_s=NOW_S - 3700), "cloud1")
    (spend,) = keeps(fleet.decide())
    launch = fleet["cloud1"].launch
    after = world({DAY: "100"}).but(claimed=False, on_record=None, wall_at=WALL_AT + 30)
    after.see(ClaimHeld(NOW_S, (launch,), spend=spend if on_record else Spend()))
    ended = a_cloud_node(launch, state=CloudState.TERMINATED, created_at=WALL_AT - 3700)
    after.wait(1).see_cloud(ended)
    assert after["cloud1"].state is NodeState.GONE
    day, _ = periods(WALL_AT)
    assert after.snapshot.spending.amounts["day", day.begins_at, ""] == Decimal("0.80")
    made = after.decide()
    assert orders(made) == (["end-lease cloud1-1"] if on_record else [])


def test_a_restart_knows_what_was_spent_before() -> None:
    day, _ = periods(WALL_AT)
    spend = Spend({("day", day.begins_at, ""): Decimal(100)})
    after = world({DAY: "100"}).but(claimed=False, on_record=None).job(tasks(1))
    after.see(ClaimHeld(NOW_S, (), spend=spend))
    assert after.why_job(1).code == "budget_spent"


def test_nothing_is_added_or_kept_before_the_record_was_read() -> None:
    fleet = world({DAY: "100"}).but(on_record=None).stopping_node("cloud1")
    assert keeps(goes(fleet, "cloud1").decide()) == []
    assert not fleet.snapshot.spending.amounts


def test_when_the_claim_comes_back_the_larger_sum_counts() -> None:
    """Ours was not written yet; or another manager acted meanwhile."""
    day, month = periods(WALL_AT)
    today, this_month = ("day", day.begins_at, ""), ("month", month.begins_at, "")
    fleet = world({DAY: "100"}).but(amounts={today: Decimal(5), this_month: Decimal(50)})
    fleet.see(ClaimHeld(NOW_S, (), spend=Spend({today: Decimal(7), this_month: Decimal(7)})))
    assert fleet.snapshot.spending.amounts == {today: 7, this_month: 50}


def test_what_jobs_have_cost_is_kept_every_little_while() -> None:
    fleet = world({("user", "day"): "100"}, probe_s=10).busy_node("cloud1").but(kept_s=NOW_S)
    job = running(began_s_ago=1800, ends_in_s=600)
    fleet.but(jobs={job.id: job}).see(QueueSeen(NOW_S, ended=(job.id,)))
    assert keeps(fleet.decide()) == []
    assert len(keeps(fleet.wait(10).decide())) == 1


def test_without_a_budget_nothing_is_kept() -> None:
    fleet = goes(a_world().stopping_node("cloud1"), "cloud1")
    assert keeps(fleet.plan()) == []
    assert orders(fleet.plan()) == ["end-lease cloud1-1"]


@pytest.mark.parametrize("jumps_s", [40 * 86_400, -40 * 86_400])
def test_a_clock_that_is_wrong_for_a_moment_takes_nothing_from_the_sum(jumps_s: float) -> None:
    """A node ends meanwhile and counts in the day that the clock shows; earlier amounts stay, on record too."""
    day, month = periods(WALL_AT)
    before = {("day", day.begins_at, ""): Decimal(9), ("month", month.begins_at, ""): Decimal(49)}
    fleet = world({DAY: "10", ("", "month"): "50"}).stopping_node("cloud1").but(amounts=before)
    fleet.wait(1, wall_jumps_s=jumps_s)
    (kept,) = keeps(goes(fleet, "cloud1").decide())
    assert before.items() <= kept.amounts.items()
    fleet.wait(1, wall_jumps_s=-jumps_s)
    assert left_by_period(fleet.snapshot, fleet.policy) == {DAY: 1, ("", "month"): 1}


def test_what_is_long_over_is_forgotten() -> None:
    """After a year with a node ended every day, only a few days and months are kept."""
    fleet = world({DAY: "100"})
    for _ in range(365):
        fleet.stopping_node("cloud1", billed_from_s=fleet.snapshot.now_s - 600)
        goes(fleet.but(counted=frozenset()).wait(86_399), "cloud1")
    assert len(fleet.snapshot.spending.amounts) == 2 * PERIODS_KEPT
    assert {("day", periods(fleet.snapshot.wall_at)[0].begins_at, "")} <= fleet.snapshot.spending.amounts.keys()


# --- the last of what is left -----------------------------------------------------------------------------


def test_no_more_is_bought_at_once_than_what_is_left_pays_for() -> None:
    fleet = spent("85", {DAY: "100"}).job(*[tasks(1, gpus=2)] * 2, duration_s=3 * 3600.0)
    made = fleet.plan()
    assert boots(made) == ["gpu1"]
    assert fleet.why_job(2).code == "budget_left"


def test_nothing_is_bought_whose_least_bill_is_more_than_what_is_left() -> None:
    """Bought for an hour at 0.40, it would be billed for six, and the budget would be spent at once."""
    six_hours = replace(CLOUD, billing=Billing(60.0, 6 * 3600.0))
    day, _ = periods(WALL_AT)

    def bought(amount: str) -> list[str]:
        fleet = a_world(six_hours, budgets={DAY: Decimal(100)}).job(tasks(1), duration_s=300.0)
        return boots(fleet.but(amounts={("day", day.begins_at, ""): 100 - Decimal(amount)}).plan())

    assert bought("11") == ["cloud1"]
    assert bought("2.39") == []


def test_the_period_that_is_worst_off_decides() -> None:
    fleet = spent("10", {DAY: "100", ("", "month"): "5"})
    _, month = periods(WALL_AT)
    fleet.but(amounts={("month", month.begins_at, ""): Decimal(10)}).job(tasks(1))
    assert fleet.why_job(1).figures["period"] == "month"


@pytest.mark.parametrize(("userid", "bought"), [(1000, []), (1001, ["cloud1"])])
def test_a_user_whose_budget_is_used_up_gets_no_more_nodes_and_others_do(userid: int, bought: list[str]) -> None:
    fleet = spent("5", {("user", "day"): "5"}, "user 1000").job(tasks(1), userid=userid)
    assert boots(fleet.plan()) == bought
    if not bought:
        assert fleet.why_job(1).code == "budget_of_account"
        assert fleet.why_job(1).figures["account"] == "user 1000"


def test_what_is_up_is_theirs_all_the_same() -> None:
    """Unless the site holds such jobs, which is the default for budgets of users."""
    fleet = spent("5", {("user", "day"): "5"}, "user 1000").idle_node("cloud1").job(tasks(1), userid=1000)
    assert fleet.why_job(1).code == "budget_of_account"
    fleet.policy = with_settings(fleet.policy, unserved=Unserved.BLOCK)
    assert fleet.why_job(1).code == "fits_on_a_node_that_is_up"


def test_in_queue_order_nothing_is_bought_behind_a_job_whose_budget_is_used_up() -> None:
    fleet = spent("5", {("queue", "day"): "5"}, "queue debug").job(tasks(1), queue="debug").job(tasks(1))
    assert boots(fleet.plan()) == []
    assert fleet.why_job(1).code == "budget_of_account"
    assert fleet.why_job(2).code == "behind_a_stuck_job"


def test_a_scheduler_that_fills_gaps_passes_it_over() -> None:
    fleet = world({("queue", "day"): "5"}, queue_policy=QueuePolicy.BACKFILL)
    day, _ = periods(WALL_AT)
    fleet.but(amounts={("day", day.begins_at, "queue debug"): Decimal(5)}).job(tasks(1), queue="debug").job(
        tasks(1)
    )
    assert fleet.why_job(1).code == "budget_of_account"
    assert fleet.why_job(2).code == "node_ordered"
