"""The metrics as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodemanager.core.facts import CloudCallFailed, CloudListed, NodeCreated
from nodemanager.core.nodes import FailureKind, LaunchId, NodeState
from nodemanager.core.slots import CloudName, TypeName
from nodemanager.planner.snapshot import Block, FailureStreak, Scope
from nodemanager.planner.spending import periods
from tests.builders import (
    NOW_S,
    WALL_AT,
    a_cloud_node,
    a_launch,
    a_node,
    a_policy,
    a_rank,
    a_snapshot,
    drained,
    with_settings,
)
from tests.planner.test_clouds import EAST, WEST, a_stray, in_cloud, two_clouds
from tests.web.fleets import Stand, a_fleet, a_stand, published

NAMED = {  # what others rely on
    "nodes", "nodes_wanted", "jobs_pending", "jobs", "price_per_hour", "cost", "budget_left_per_hour",
    "node_up_seconds", "node_joined_seconds", "node_first_job_seconds", "decisions", "cloud_calls",
    "cloud_call_errors", "capacity_blocks", "boots", "orphans", "data_age_seconds", "phase_seconds",
    "silent_seconds",
}  # fmt: skip


def scraped(stand: Stand) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and its label values, in the order of the labels' names."""
    page = stand.served.metrics.render().decode()
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_every_metric_that_is_promised_is_there() -> None:
    stand = a_stand()
    stand.post(a_fleet(12))
    families = {it.name for it in text_string_to_metric_families(stand.served.metrics.render().decode())}
    assert {f"node_manager_{name}" for name in NAMED} <= families


def test_what_stands_is_as_of_the_latest_publication() -> None:
    stand = a_stand()
    stand.post(a_fleet(12))
    stand.post(a_fleet(5))
    samples = scraped(stand)
    nodes = [value for key, value in samples.items() if key[0] == "node_manager_nodes"]
    assert sum(nodes) == 5
    assert samples["node_manager_jobs", "inactive"] == 41
    assert samples["node_manager_data_age_seconds", "cloud"] == pytest.approx(1.0, abs=0.1)


def test_nodes_that_others_drained_are_counted_with_their_price_an_hour() -> None:
    stand = a_stand()
    policy = a_policy()
    up = a_rank("cloud1", policy, online=True)
    node = a_node("cloud1", policy=policy, rank=drained(up, "prolog failed for job ƒ2YXZLLFZPj"))
    stand.post(published(policy, a_snapshot(policy, nodes=[node])))
    samples = scraped(stand)
    price = float(policy.types[node.launch.type_name].price_per_hour)
    assert samples["node_manager_nodes_drained", "flux"] == 1
    assert samples["node_manager_nodes_drained_price_per_hour", "flux"] == price
    assert samples["node_manager_nodes_drained", "person"] == 0


def test_the_nodes_of_each_cloud_are_counted_with_their_price_and_the_rest_of_its_budget() -> None:
    """East has a busy node and a stray of 0.10, west one node of 0.40; a third cloud has been removed."""
    world = two_clouds(budgets={("cloud east", "day"): Decimal(5), ("", "day"): Decimal(9)})
    for slot, cloud in (("east1", EAST), ("west1", WEST), ("west2", CloudName("gone"))):
        world = in_cloud(world.busy_node(slot), slot, cloud)
    world.see(CloudListed(NOW_S, (a_stray("i-9", "east3", "east"),), EAST))
    day, _ = periods(WALL_AT)
    world.but(
        amounts={("day", day.begins_at, "cloud east"): Decimal("1.25"), ("day", day.begins_at, ""): Decimal(2)}
    )
    stand = a_stand()
    stand.post(published(world.policy, world.snapshot))
    samples = scraped(stand)

    def of_clouds(name: str) -> dict[tuple[str, ...], float]:
        return {key[1:]: round(value, 6) for key, value in samples.items() if key[0] == f"node_manager_{name}"}

    assert of_clouds("cloud_nodes") == {("east",): 2, ("west",): 1, ("gone",): 1}
    assert of_clouds("cloud_price_per_hour") == {("east",): 0.2, ("west",): 0.4, ("gone",): 0.4}
    # A busy node of each has had its first hour billed: 0.10 of the cloud, 0.90 of the site.
    assert of_clouds("cloud_budget_left") == {("east", "day"): 3.65}
    assert of_clouds("budget_left") == {("day",): 6.1}
    assert of_clouds("data_age_seconds")["cloud west",] == 1.0


def test_a_site_with_one_cloud_has_its_nodes_under_the_name_default() -> None:
    stand = a_stand()
    stand.post(a_fleet(12))
    samples = scraped(stand)
    assert samples["node_manager_cloud_nodes", "default"] == 12
    assert samples["node_manager_cloud_price_per_hour", "default"] == samples["node_manager_price_per_hour",]
    assert not [key for key in samples if key[0] == "node_manager_cloud_budget_left"]


def test_calls_are_counted_by_operation_and_failures_by_kind() -> None:
    stand = a_stand()
    fleet = a_fleet(3)
    facts = (
        CloudListed(NOW_S, ()),
        NodeCreated(LaunchId("cpu1-1"), a_cloud_node(a_launch())),
        CloudCallFailed("create", LaunchId("cpu2-1"), FailureKind.THROTTLED, "slow down"),
    )
    stand.post(replace(fleet, facts=facts, phases_s={"plan": 0.01}))
    samples = scraped(stand)
    assert samples["node_manager_cloud_calls_total", "list"] == 1
    assert samples["node_manager_cloud_calls_total", "create"] == 1
    assert samples["node_manager_cloud_call_errors_total", "throttled", "create"] == 1
    assert samples["node_manager_phase_seconds_count", "plan"] == 1


def test_what_is_not_bought_for_a_while_is_shown_while_that_lasts() -> None:
    policy = a_policy()
    stand = a_stand()
    block = Block(NOW_S + 60, FailureKind.CAPACITY, "none")
    snapshot = a_snapshot(policy, blocks={Scope(TypeName("gpu")): block})
    stand.post(published(policy, snapshot))
    key = ("node_manager_capacity_blocks", "", "gpu", "create_capacity", "")
    assert scraped(stand)[key] == 1
    stand.post(published(policy, replace(snapshot, now_s=NOW_S + 61)))
    assert key not in scraped(stand)


def test_a_boot_is_counted_by_how_it_ended_and_timed() -> None:
    policy = a_policy()
    stand = a_stand()
    booting = a_node("cloud1", NodeState.BOOTING)
    idle = a_node("cloud1", NodeState.IDLE, since_s=NOW_S)
    for node in (booting, idle):
        stand.post(published(policy, a_snapshot(policy, nodes=[node])))
    stand.post(published(policy, a_snapshot(policy)))
    samples = scraped(stand)
    assert samples["node_manager_boots_total", "cloud", "joined"] == 1
    assert samples["node_manager_node_joined_seconds_sum", "cloud"] == 600
    assert samples["node_manager_node_joined_seconds_count", "cloud"] == 1


def test_a_boot_that_failed_is_counted_by_its_cause() -> None:
    policy = a_policy()
    stand = a_stand()
    requested = a_node("cloud1", NodeState.REQUESTED)
    stand.post(published(policy, a_snapshot(policy, nodes=[requested])))
    failed = CloudCallFailed("create", requested.id, FailureKind.CAPACITY, "none left")
    stand.post(replace(published(policy, a_snapshot(policy)), facts=(failed,)))
    assert scraped(stand)["node_manager_boots_total", "cloud", "create_capacity"] == 1


def test_before_anything_is_known_only_the_silence_is_shown() -> None:
    assert ("node_manager_silent_seconds",) in scraped(a_stand())


def test_boots_are_counted_from_0_so_that_the_first_that_fails_is_an_increase() -> None:
    stand = a_stand()
    stand.post(published(a_policy(), a_snapshot(a_policy())))
    samples = scraped(stand)
    assert {samples["node_manager_boots_total", "cloud", outcome] for outcome in ("joined", "never_joined")} == {0}


@pytest.mark.parametrize(("failures", "shown"), [(2, 0), (3, 1)])
def test_the_breaker_of_a_type_is_shown_while_its_boots_fail(failures: int, shown: int) -> None:
    policy = with_settings(a_policy(), boot_failures_max=3)
    stand = a_stand()
    cloud = policy.types[TypeName("cloud")]
    streak = FailureStreak(failures, NOW_S - 1, 60, "never_joined")  # one is tried
    stand.post(published(policy, a_snapshot(policy, streaks={(cloud.name, cloud.image): streak})))
    assert scraped(stand)["node_manager_boot_breaker", "cloud"] == shown
    old = FailureStreak(failures, NOW_S + 60, 60, "never_joined")
    stand.post(published(policy, a_snapshot(policy, streaks={(cloud.name, "another-image"): old})))
    assert scraped(stand)["node_manager_boot_breaker", "cloud"] == 0


def test_the_ensembles_of_the_service_are_shown_once_there_are_any() -> None:
    stand = a_stand()
    assert not any("ensemble" in name for name, *_ in scraped(stand))
    summary = {"groups": {"sim": {"finished": 2, "success": 2, "running": 1}}, "rules": [{"runs": 3}]}
    stand.board.show_ensemble("work", summary)
    stand.board.nodes_kept = {"work": 4}
    seen = scraped(stand)
    assert seen["node_manager_ensemble_members", "work", "sim", "running"] == 1
    assert ("node_manager_ensemble_members", "work", "sim", "finished") not in seen
    assert seen["node_manager_ensemble_rule_runs", "work", "1"] == 3
    assert seen["node_manager_ensemble_nodes_kept", "work"] == 4
