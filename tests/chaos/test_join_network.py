"""Clients and services die at every step of a join: leases never leak or double, and the checks would notice."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

from nodemanager.core.nodes import LaunchId
from nodemanager.join.flux_node_join import JoinClient
from nodemanager.join.ticket_store import TicketStore
from tests.chaos import join_network
from tests.chaos.command import silence_logs
from tests.chaos.join_network import JoinScenario
from tests.chaos.run.invariants import Violation
from tests.chaos.run.script import draw_script

# For more seeds: JOIN_SEEDS=1000 pytest tests/chaos/test_join_network.py
SEEDS = range(int(os.environ.get("JOIN_SEEDS", "25")))
FAILED_ONCE: tuple[int, ...] = ()
SEEDS_MAX = 60


@pytest.fixture(autouse=True)
def _quiet() -> None:
    silence_logs()


def _run_of(seed: int) -> JoinScenario:
    return JoinScenario(draw_script(seed, joins=True))


@pytest.mark.parametrize("seed", [*SEEDS, *FAILED_ONCE])
def test_seed(seed: int) -> None:
    # It must not raise.
    _run_of(seed).run()


def test_the_seeds_meet_what_they_are_for() -> None:
    """Nodes join, clients die, tickets are refused, nodes end themselves, machines lack declared cores."""
    runs = [_run_of(seed) for seed in range(6)]
    for run in runs:
        run.run()
    joins = [run.joins for run in runs]
    assert all(join.broker_starts for join in joins)
    for count in ("client_deaths", "refusals", "power_offs", "short_machines"):
        assert sum(getattr(join, count) for join in joins) > 0, count


def test_the_same_seed_gives_the_same_run() -> None:
    assert _run_of(5).run() == _run_of(5).run()


# --- each rule broken on purpose is caught within a few seeds ----------------------------------------------


def a_ledger_that_forgets(patch: pytest.MonkeyPatch) -> None:
    def nobody(self: TicketStore, launch: LaunchId) -> None:
        return None

    patch.setattr(TicketStore, "nonce_hash_of", nobody)


def a_client_that_asks_once(patch: pytest.MonkeyPatch) -> None:
    """It starts its broker again with its first material, even if another machine has its slot now."""
    ended, start = JoinClient._note_broker_end, JoinClient._start
    given: dict[int, dict[str, Any]] = {}

    def keeping(self: JoinClient, now_s: float) -> None:
        given[id(self)] = self.start_data
        start(self, now_s)

    def going_on(self: JoinClient, now_s: float) -> None:
        ended(self, now_s)
        self.start_data = given[id(self)]

    def shrugging(self: JoinClient, code: str, now_s: float) -> None:
        self._call_later(now_s)

    patch.setattr(JoinClient, "_start", keeping)
    patch.setattr(JoinClient, "_note_broker_end", going_on)
    patch.setattr(JoinClient, "_handle_refusal", shrugging)
    patch.setattr(join_network, "SILENCE_MAX_S", math.inf)  # without this, its silence would end it


def a_switch_that_does_not_look(patch: pytest.MonkeyPatch) -> None:
    def is_over(self: JoinClient, now_s: float) -> bool:
        return bool(now_s - self.manager_heard_s >= self.silence_max_s)

    patch.setattr(JoinClient, "_should_end", is_over)
    patch.setattr(join_network, "SILENCE_MAX_S", 30.0)


# With each the first seed that caught it: it is tried first.
BROKEN_RULES: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    a_ledger_that_forgets: 1,
    a_client_that_asks_once: 42,
    a_switch_that_does_not_look: 1,
}


@pytest.mark.parametrize("broken", BROKEN_RULES)
def test_a_broken_rule_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    seeds = (BROKEN_RULES[broken], *range(SEEDS_MAX))
    assert any(breaks_a_rule(seed) for seed in seeds), "not one seed noticed"


def breaks_a_rule(seed: int) -> bool:
    try:
        _run_of(seed).run()
    except Violation:
        return True
    return False
