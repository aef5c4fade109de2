"""Runs with two clouds, one of which has all the faults: ``flux-node-manager chaos --provider two-clouds``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.nodes import CloudNode, CloudState, Identity, Launch, LaunchId, RosterEntry, stamp_of
from nodemanager.core.ports import CloudError
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.join import tickets
from nodemanager.join.admission import JoinAdmission
from nodemanager.join.identity.proof import ProvenInstance
from nodemanager.planner import budgets, observe_cloud, placement, plan, spending, trust
from nodemanager.planner.budget import BudgetLimits, current_limits
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.spending import Period
from nodemanager.simulation.cloud.provider import Machine, SimulatedProvider
from tests.chaos.command import run_seed, scenario_for_seed, silence_logs
from tests.chaos.join_network import JoinScenario
from tests.chaos.run.script import FAILING, SIZES_EVERY, SOUND, Script, draw_script
from tests.chaos.run.site import nodes_per_call, one_provider

SEEDS = range(6)  # more: flux-node-manager chaos --provider two-clouds --seeds 0-499
SEEDS_MAX = 40
WITH_TICKETS = range(6, 1000, 8)  # batches in two clouds, whose nodes join by ticket

WITH_OWN_HOSTS = range(3, 163, 4)

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


def test_in_every_fourth_seed_the_second_cloud_is_own_hosts_with_faults_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence_logs()
    assert [seed for seed in range(8) if scenario_for_seed(seed, twin=True).script.own_hosts] == [3, 7]
    found: Counter[tuple[CloudState, str]] = Counter()
    set_state = SimulatedProvider._set_state

    def note(self: SimulatedProvider, machine: Machine, state: CloudState, why: str = "") -> None:
        if self is scenario.twin:
            found[state, why] += 1
        set_state(self, machine, state, why)

    monkeypatch.setattr(SimulatedProvider, "_set_state", note)
    for seed in WITH_OWN_HOSTS:
        scenario = scenario_for_seed(seed, twin=True)
        scenario.run()
        if found[CloudState.TERMINATED, "lost power"] and any(state is CloudState.FAILED for state, _ in found):
            return
    pytest.fail(f"no host lost power, or none failed to wake: {found}")


def test_some_seeds_have_jobs_that_say_where_their_data_is() -> None:
    assert {scenario_for_seed(seed, twin=True).script.near for seed in SEEDS} == {True, False}


def every_list_is_about_all_nodes(patch: Patch) -> None:
    def all_nodes(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Mapping[LaunchId, Node]:
        return snapshot.nodes

    patch.setattr(observe_cloud, "_nodes_of_cloud", all_nodes)


def one_cloud_stops_all(patch: Patch) -> None:
    stale = trust.stale_clouds

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

    patch.setattr(budgets, "current_limits", without_clouds)


def nobody_asks_where_the_data_is(patch: Patch) -> None:
    patch.setattr(placement, "homes_of", lambda *_: {})


def test_budgets_of_clouds_are_drawn_and_nothing_else_changes_with_them() -> None:
    drawn = [draw_script(seed, twin=True) for seed in range(40)]
    assert {tuple(it.cloud_budgets) for it in drawn} == {(), ("failing",), ("sound",), ("failing", "sound")}
    for script in drawn:
        if script.seed % SIZES_EVERY == 0:  # with one cloud it has several sizes, and other faults
            continue
        plain = draw_script(script.seed)
        added = "operator.cuts_a_budget"
        drawn_too = [replace(it, number=0) for it in script.acts if it.kind != added]
        assert drawn_too == [replace(it, number=0) for it in plain.acts]
        assert Script.from_data(json.loads(json.dumps(script.as_data()))) == script


# With each the first seed that caught it: it is tried first.
MUTATIONS: dict[Callable[[Patch], None], int] = {
    every_list_is_about_all_nodes: 5,
    one_cloud_stops_all: 5,
    no_cloud_is_closed: 3,
    the_cost_of_a_cloud_is_not_added_up: 4,
    a_spent_budget_of_a_cloud_stops_nothing: 10,
    nobody_asks_where_the_data_is: 0,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_rule_that_is_broken_on_purpose_is_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    silence_logs()
    mutation(monkeypatch)
    assert any(run_seed(seed, twin=True) is not None for seed in (MUTATIONS[mutation], *range(SEEDS_MAX)))


# --- batches in two clouds, whose nodes join by ticket ----------------------------------------------------


def test_every_eighth_seed_joins_by_ticket_and_has_batches() -> None:
    scripts = [scenario_for_seed(seed, twin=True).script for seed in range(16)]
    assert [it.seed for it in scripts if it.joins] == [*WITH_TICKETS][:2]
    assert all(nodes_per_call(it) > 1 for it in scripts if it.joins)
    assert [it.seed for it in scripts if one_provider(it)] == [14]


def test_nodes_of_batches_join_in_both_clouds_and_no_rule_is_broken() -> None:
    silence_logs()
    joined: Counter[CloudName] = Counter()
    for seed in WITH_TICKETS[:6]:
        scenario = scenario_for_seed(seed, twin=True)
        assert isinstance(scenario, JoinScenario)
        scenario.run()
        joined += scenario.joins.grants.in_batches
    assert set(joined) == {FAILING, SOUND}, joined


def an_instance_passes_for_another_of_its_batch(patch: Patch) -> None:
    """The tickets of a batch are alike, and so is the stamp of all launches of a plan, whatever their cloud."""
    entry_of = JoinAdmission._entry_of

    def any_other(self: JoinAdmission, proven: ProvenInstance) -> RosterEntry | None:
        own = entry_of(self, proven)
        if own is None:
            return None
        stamp = stamp_of(own.launch, own.slot)
        entries = self._current_view()[0].entries.values()
        return next(
            (it for it in entries if it.launch != own.launch and stamp_of(it.launch, it.slot) == stamp), own
        )

    patch.setattr(JoinAdmission, "_entry_of", any_other)


def an_instance_is_let_in_whoever_shows_it(patch: Patch) -> None:
    """A copy of a machine proves the same instance: only the nonce tells them apart."""
    patch.setattr(tickets, "hash_nonce", lambda _: "0" * 64)


def the_sound_cloud_makes_each_batch_twice(patch: Patch) -> None:
    create_many = SimulatedProvider.create_many

    def twice(
        self: SimulatedProvider, launches: Sequence[Launch], node_type: NodeType, identities: Sequence[Identity]
    ) -> list[CloudNode | CloudError]:
        if node_type.cloud == SOUND:
            create_many(self, launches, node_type, identities)
            self._by_batch_token.clear()
        return create_many(self, launches, node_type, identities)

    patch.setattr(SimulatedProvider, "create_many", twice)


MUTATIONS_OF_BATCHES: dict[Callable[[Patch], None], int] = {
    an_instance_passes_for_another_of_its_batch: 6,
    an_instance_is_let_in_whoever_shows_it: 54,
    the_sound_cloud_makes_each_batch_twice: 14,
}


@pytest.mark.parametrize("mutation", MUTATIONS_OF_BATCHES)
def test_a_rule_of_joining_in_batches_that_is_broken_is_caught(
    mutation: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    silence_logs()
    mutation(monkeypatch)
    seeds = (MUTATIONS_OF_BATCHES[mutation], *WITH_TICKETS[:SEEDS_MAX])
    caught = (run_seed(seed, twin=True) for seed in seeds)
    assert any(it is not None for it in caught)


def test_the_grants_are_checked_without_the_services_own_records(monkeypatch: Patch) -> None:
    """An instance that passes for another is noticed by the providers' records, before its client starts."""
    silence_logs()
    an_instance_passes_for_another_of_its_batch(monkeypatch)
    found = (run_seed(seed, twin=True) for seed in WITH_TICKETS[:SEEDS_MAX])
    assert any("was made for" in it.rule for it in found if it is not None)
