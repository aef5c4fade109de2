"""Runs with two clouds, one of which has all the faults: ``flux-node-manager chaos --provider two-clouds``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.chaos.command import run_seed, scenario_for_seed, silence_logs
from nodemanager.chaos.run.script import SOUND, Script, draw_script
from nodemanager.core.nodes import LaunchId
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName
from nodemanager.planner import plan
from nodemanager.planner.cost import spending
from nodemanager.planner.cost.budget import BudgetLimits, current_limits
from nodemanager.planner.cost.cloud_room import CloudRoom
from nodemanager.planner.cost.spending import Period
from nodemanager.planner.health import standstill
from nodemanager.planner.limits import within_budget
from nodemanager.planner.observe import cloud_facts
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


def the_cost_of_a_cloud_is_not_added_up(patch: Patch) -> None:
    add = spending._add

    def only_for_others(amounts: dict[Any, Decimal], period: Period, account: str, amount: Decimal) -> None:
        if not account.startswith(spending.CLOUD):
            add(amounts, period, account, amount)

    patch.setattr(spending, "_add", only_for_others)


def a_spent_budget_of_a_cloud_stops_nothing(patch: Patch) -> None:
    """Neither the obstacle nor the rest of a cloud's budget is heeded."""

    def without_clouds(*given: Any) -> BudgetLimits:
        return replace(current_limits(*given), clouds={})

    patch.setattr(within_budget, "current_limits", without_clouds)


def the_nodes_of_a_plan_do_not_add_up_in_a_cloud(patch: Patch) -> None:
    patch.setattr(CloudRoom, "take", lambda *_: None)


def test_budgets_of_clouds_are_drawn_and_nothing_else_changes_with_them() -> None:
    drawn = [draw_script(seed, twin=True) for seed in range(40)]
    assert {tuple(it.cloud_budgets) for it in drawn} == {(), ("failing",), ("sound",), ("failing", "sound")}
    for script in drawn:
        plain = draw_script(script.seed)
        assert script.acts[: len(plain.acts)] == plain.acts
        assert {act.kind for act in script.acts[len(plain.acts) :]} <= {"operator.cuts_a_budget"}
        assert Script.from_data(json.loads(json.dumps(script.as_data()))) == script


MUTATIONS = [
    every_list_is_about_all_nodes,
    one_cloud_stops_all,
    no_cloud_is_closed,
    the_cost_of_a_cloud_is_not_added_up,
    a_spent_budget_of_a_cloud_stops_nothing,
    the_nodes_of_a_plan_do_not_add_up_in_a_cloud,
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_rule_that_is_broken_on_purpose_is_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    silence_logs()
    mutation(monkeypatch)
    assert any(run_seed(seed, twin=True) is not None for seed in range(SEEDS_MAX))
