"""What was spent is known after any restart: the service killed again and again, against the provider's bill.

Every node costs the same however long it lives (a minimum that none outlives), so that what is counted can be
compared to the last cent: once too often, or not at all, is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pytest
import structlog

from nodemanager.fleet.spending import periods
from nodemanager.model import Billing, NodeType
from nodemanager.simulation.invariants import Rules
from nodemanager.simulation.scenario import Scenario

SEEDS = range(2)
MINIMUM_H = 6


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def _flat(node_type: NodeType) -> NodeType:
    return replace(node_type, billing=Billing(60.0, MINIMUM_H * 3600.0))


@dataclass
class SpendScenario(Scenario):
    """Kills, and a KVS that now and then fails; nothing else goes wrong."""

    budget: Decimal = Decimal(10**6)
    kill_every_s: float = 90.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy = replace(
            self.policy,
            node_types=tuple(map(_flat, self.policy.node_types)),
            budgets={("", "month"): self.budget},
            stop_lead_s=86_400.0,  # what the minimum pays for keeps no node
        )
        self.rules = Rules(self.flux, self.provider, self.policy)

    def _let_things_go_wrong(self) -> None:
        self.flux.faults.p_fail = 0.1
        self.flux.faults.p_lost_reply = 0.1
        self._now_and_then(self.kill_every_s, self.kill)

    def start_and_run_for(self, seconds: float) -> None:
        """Faults from beginning to end: with the budget spent, jobs that wait go on waiting."""
        self._submit_over(seconds)
        self._start()
        self._let_things_go_wrong()
        self._until(seconds, lambda: False)

    def on_record(self) -> Decimal:
        _, month = periods(self.world.wall_at())
        return self.flux.spend.amounts.get(("month", month.begins_at, ""), Decimal(0))

    def billed(self) -> Decimal:
        """By the provider's own word, of those that are gone."""
        ended = [line for line in self.provider.bill() if line.type_name is not None and line.to_s is not None]
        assert all(line.to_s is None or line.to_s - line.from_s < MINIMUM_H * 3600 for line in ended)
        prices = [self.policy.types[line.type_name].price_per_hour for line in ended if line.type_name is not None]
        return sum(prices, Decimal(0)) * MINIMUM_H


@pytest.mark.parametrize("seed", SEEDS)
def test_each_node_is_on_record_once(seed: int) -> None:
    run = SpendScenario(seed)
    outcome = run.run()
    assert outcome.kills > 5
    assert outcome.creates > 5
    assert run.on_record() == run.billed() > 0
    assert not run.flux.spend.counted or run.flux.spend.counted.isdisjoint(
        launch.id for launch in run.flux.records.values()
    )


def test_a_budget_that_is_spent_stays_spent_across_restarts() -> None:
    """Killed every minute and a half, it buys no more than the budget allows: what is spent never begins anew."""
    limit = Decimal(20)
    run = SpendScenario(1, budget=limit)
    run.start_and_run_for(2400.0)
    assert run.kills > 5
    dearest = max(node_type.price_per_hour for node_type in run.policy.node_types) * MINIMUM_H
    total = sum(
        (
            run.policy.types[line.type_name].price_per_hour * MINIMUM_H
            for line in run.provider.bill()
            if line.type_name is not None
        ),
        Decimal(0),
    )
    assert limit * Decimal("0.5") < total <= limit + dearest
