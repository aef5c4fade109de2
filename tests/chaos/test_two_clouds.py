"""Runs with two clouds, one of which has all the faults: ``flux-node-manager chaos --provider two-clouds``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from nodemanager.chaos.command import run_seed, scenario_for_seed, silence_logs
from nodemanager.chaos.run.site import SOUND
from nodemanager.core.nodes import LaunchId
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName
from nodemanager.planner import plan
from nodemanager.planner.health import standstill
from nodemanager.planner.observe import cloud_facts
from nodemanager.planner.placement import placement
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

SEEDS = range(6)  # more: flux-node-manager chaos --provider two-clouds --seeds 0-499
SEEDS_MAX = 40

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", SEEDS)
def test_no_seed_breaks_a_rule(seed: int) -> None:
    silence_logs()
    assert run_seed(seed, twin=True) is None


def test_both_clouds_get_nodes() -> None:
    silence_logs()
    used = set()
    for seed in SEEDS:
        scenario = scenario_for_seed(seed, twin=True)
        scenario.run()
        clouds = scenario.policy.types
        used |= {clouds[it.type_name].cloud for it in scenario.invariants.providers[1].bill() if it.type_name}
        assert scenario.invariants.creates > 0
    assert used == {SOUND}


def test_some_seeds_have_jobs_that_say_where_their_data_is() -> None:
    assert {scenario_for_seed(seed, twin=True).script.near for seed in SEEDS} == {True, False}


def every_list_is_about_all_nodes(patch: Patch) -> None:
    def all_nodes(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Mapping[LaunchId, Node]:
        return snapshot.nodes

    patch.setattr(cloud_facts, "_nodes_of_cloud", all_nodes)


def one_cloud_stops_all(patch: Patch) -> None:
    stale = standstill.stale_clouds

    def all_of_them(snapshot: Snapshot, policy: Policy) -> Mapping[CloudName, Reason]:
        found = stale(snapshot, policy)
        return dict.fromkeys(policy.cloud_names, next(iter(found.values()))) if found else {}

    patch.setattr(plan, "stale_clouds", all_of_them)


def no_cloud_is_closed(patch: Patch) -> None:
    patch.setattr(plan, "closed_clouds", lambda *_: {})


def nobody_asks_where_the_data_is(patch: Patch) -> None:
    patch.setattr(placement, "homes_of", lambda *_: {})


@pytest.mark.parametrize(
    "mutation",
    [every_list_is_about_all_nodes, one_cloud_stops_all, no_cloud_is_closed, nobody_asks_where_the_data_is],
)
def test_a_rule_that_is_broken_on_purpose_is_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    silence_logs()
    mutation(monkeypatch)
    assert any(run_seed(seed, twin=True) is not None for seed in range(SEEDS_MAX))
