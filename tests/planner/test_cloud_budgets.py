"""The budget of one cloud: what is spent there stops nothing of the others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import HasProperty, JobState, RankAllocation
from nodemanager.core.slots import Billing, Rank, TypeName
from nodemanager.planner.budget import left_by_period
from nodemanager.planner.reasons import NodeReasons
from nodemanager.planner.spending import periods
from tests.builders import WALL_AT, World, a_job, a_snapshot, boots, orders, whole_nodes
from tests.planner.test_clouds import EAST, WEST, in_cloud, two_clouds

OF_EAST = "cloud east"
DAY = (OF_EAST, "day")


def with_budget(limit: str, already: str = "0", **settings: Any) -> World:
    """Two clouds, of which the cheap one has a budget for the day, and has spent this much of it."""
    day, _ = periods(WALL_AT)
    world = two_clouds(budgets={DAY: Decimal(limit)}, **settings)
    return world.but(amounts={("day", day.begins_at, OF_EAST): Decimal(already)})


def test_a_cloud_is_used_as_long_as_its_budget_lasts() -> None:
    assert boots(with_budget("5").job(whole_nodes(1)).plan()) == ["east1"]


def test_a_cloud_whose_budget_is_spent_gets_no_more_nodes_and_the_other_serves() -> None:
    made = with_budget("5", "5").job(whole_nodes(1)).plan()
    assert boots(made) == ["west1"]
    reason = made.types[TypeName("east")]
    assert (reason.code, reason.figures["cloud"], reason.figures["spent"]) == ("cloud_budget_spent", "east", 5)
    assert str(made.stands_still) == "None"


def test_what_is_left_pays_for_some_nodes_and_the_rest_is_bought_elsewhere() -> None:
    # 0.25 is left for at least an hour: two nodes at 0.10.
    world = with_budget("5", "4.75").job(*[whole_nodes(1)] * 4, duration_s=1800.0)
    assert sorted(boots(world.plan())) == ["east1", "east2", "west1", "west2"]


def test_with_too_little_left_for_a_single_node_the_others_are_on_sale() -> None:
    made = with_budget("5", "4.95").job(whole_nodes(1)).plan()
    assert boots(made) == ["west1"]
    reason = made.types[TypeName("east")]
    assert reason.code == "cloud_budget_left"
    assert (reason.figures["spent"], reason.figures["budget"]) == (Decimal("4.95"), Decimal(5))


WIDE_IN_EAST = whole_nodes(3, where=HasProperty("near"))


def only_in_east(limit: str, already: str = "0", **settings: Any) -> World:
    """The same, with jobs that only nodes of the cloud with the budget suit."""
    world = with_budget(limit, already, **settings)
    east, west = world.policy.node_types
    policy = replace(world.policy, node_types=(replace(east, properties=frozenset({"near"})), west))
    return World(policy, replace(world.snapshot, ranks=a_snapshot(policy).ranks))


def test_a_wide_job_waits_for_the_budget_of_its_cloud_and_the_reason_has_its_figures() -> None:
    """0.25 pays for two nodes of 0.10, and the job needs three."""
    world = only_in_east("5", "4.75").job(WIDE_IN_EAST, whole_nodes(1), duration_s=1800.0)
    assert boots(world.plan()) == []
    why = world.why_job(1)
    assert (why.code, why.figures["cloud"], why.figures["period"]) == ("cloud_budget_left", "east", "day")
    assert (why.figures["budget"], why.figures["spent"], why.figures["hours"]) == (5, Decimal("4.75"), 1)
    assert world.why_job(2).code == "behind_a_stuck_job"
    # Nodes that are wanted for longer cost more of it: 0.30 an hour is too much for that long.
    world = only_in_east("2").job(WIDE_IN_EAST, duration_s=10 * 3600.0 - 60.0)
    assert world.why_job(1).code == "cloud_budget_left"
    assert float(str(world.why_job(1).figures["hours"])) >= 10


def test_a_wide_job_for_which_the_budget_of_its_cloud_never_suffices_is_told_so() -> None:
    world = only_in_east("0.25").job(WIDE_IN_EAST, whole_nodes(1))
    why = world.why_job(1)
    assert (why.code, why.figures["account"], why.figures["period"]) == ("beyond_budget", "the cloud east", "day")
    assert (why.figures["node_count"], str(why.figures["price_per_hour"])) == (3, "0.30")
    assert str(why.figures["budget"]) == "0.25"
    (warning,) = world.plan().warnings
    assert (warning.code, warning.figures["job"], warning.figures["job_count"]) == ("job_never_runs", "1", 1)
    assert only_in_east("0.30").job(WIDE_IN_EAST, duration_s=1800.0).why_job(1).code == "node_ordered"


def with_an_idle_node(limit: str) -> World:
    """East bills by the second. One of its nodes is up, and has cost 0.10 or less."""
    world = in_cloud(only_in_east(limit).idle_node("east1"), "east1", EAST)
    types = replace(world.policy.node_types[0], billing=Billing(1.0)), world.policy.node_types[1]
    return World(replace(world.policy, node_types=types), world.snapshot)


def test_a_wide_job_is_bought_nothing_if_the_rest_does_not_pay_for_all_that_it_lacks() -> None:
    """The three nodes cost 0.30 an hour. What the job itself will cost on the idle node counts too."""
    world = with_an_idle_node("0.29").job(WIDE_IN_EAST, duration_s=1800.0)
    assert boots(world.plan()) == []
    assert world.why_job(1).code == "beyond_budget"


def test_nodes_that_are_idle_by_chance_leave_less_to_buy() -> None:
    world = with_an_idle_node("0.36").job(WIDE_IN_EAST, duration_s=1800.0)
    assert sorted(boots(world.plan())) == ["east2", "east3"]


def test_if_a_cloud_never_pays_for_all_nodes_of_a_job_another_has_the_rest() -> None:
    world = with_budget("0.25").job(whole_nodes(3), duration_s=1800.0)
    assert sorted(boots(world.plan())) == ["east1", "east2", "west1"]


def test_a_budget_of_the_site_that_never_suffices_is_told_too() -> None:
    world = two_clouds(budgets={("", "month"): Decimal("0.50"), ("", "day"): Decimal("0.25")})
    why = world.job(whole_nodes(3)).why_job(1)
    assert (why.code, why.figures["account"], why.figures["period"]) == ("beyond_budget", "the site", "day")
    assert str(world.job(whole_nodes(2)).why_job(2).code) == "behind_a_stuck_job"


def test_only_the_nodes_of_the_cloud_that_spent_its_budget_leave() -> None:
    world = with_budget("5", "5").idle_node("east1").idle_node("west1").busy_node("east2").busy_node("west2")
    for slot, cloud in (("east1", EAST), ("east2", EAST), ("west1", WEST), ("west2", WEST)):
        world = in_cloud(world, slot, cloud)
    idle, at_work = world.id("east1"), world.id("east2")
    assert sorted(orders(world.plan())) == [f"cordon {at_work} {drain_text(at_work)}", f"drain {idle}"]
    assert world.why("east1") == world.why("east2") == "cloud_budget_spent"


def test_the_nodes_of_other_clouds_are_looked_at_as_if_it_were_not_spent() -> None:
    world = with_budget("5", "5").busy_node("east2").idle_node("west1", hour_ends_in_s=30.0).busy_node("west2")
    for slot, cloud in (("east2", EAST), ("west1", WEST), ("west2", WEST)):
        world = in_cloud(world, slot, cloud)
    made = world.plan()
    assert f"drain {world.id('west1')}" in orders(made)
    assert isinstance(made.nodes, NodeReasons)
    assert set(made.nodes.decided) == {world.id("east2"), world.id("west1")}  # nothing is decided for a busy node


def test_a_node_that_leaves_there_is_not_kept_for_a_job() -> None:
    world = in_cloud(with_budget("5", "5").draining_node("east1"), "east1", EAST).job(whole_nodes(1))
    assert sorted(orders(world.plan())) == ["boot west1", f"stop-broker {world.id('east1')}"]


def test_nodes_that_boot_there_are_given_up() -> None:
    world = in_cloud(with_budget("5", "5").booting_node("east1"), "east1", EAST)
    assert orders(world.plan()) == [f"drain {world.id('east1')}"]


def test_the_next_day_brings_the_cloud_back() -> None:
    world = with_budget("5", "5").job(whole_nodes(1))
    assert boots(world.plan()) == ["west1"]
    day, _ = periods(WALL_AT)
    world.but(amounts={("day", day.begins_at - 86_400, OF_EAST): Decimal(5)})
    assert boots(world.plan()) == ["east1"]


def test_running_jobs_count_until_their_end() -> None:
    """A node of the cloud whose job runs three more hours has 0.30 of the budget in advance."""
    world = in_cloud(with_budget("5", "4.75").busy_node("east1"), "east1", EAST)
    running = a_job(
        9,
        state=JobState.RUN,
        allocations=(RankAllocation(Rank(1), 4, 0),),
        began_at=WALL_AT - 60.0,
        ends_at=WALL_AT + 3 * 3600.0,
    )
    made = world.but(jobs={running.id: running}).job(whole_nodes(1)).plan()
    assert boots(made) == ["west1"]
    assert made.types[TypeName("east")].code == "cloud_budget_used_up"


def test_the_same_budget_for_the_other_cloud_changes_nothing() -> None:
    world = two_clouds(budgets={("cloud west", "day"): Decimal(0)}).job(whole_nodes(1))
    assert boots(world.plan()) == ["east1"]


def test_what_is_left_is_told_by_owner() -> None:
    world = with_budget("5", "1.5")
    assert left_by_period(world.snapshot, world.policy) == {DAY: Decimal("3.5")}
