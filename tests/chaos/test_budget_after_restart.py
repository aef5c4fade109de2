"""The spending survives every restart: the service is killed repeatedly and compared with the provider's bill.

Every node costs the same, however long it lives, because none outlives its minimum charge. So the amounts can be
compared to the last cent, and a node counted twice or never is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pytest

from nodemanager.core.facts import RetirementRequested
from nodemanager.core.records import Mark
from nodemanager.core.slots import Billing, NodeType
from nodemanager.planner.spending import periods
from tests.builders import with_settings
from tests.chaos.command import silence_logs
from tests.chaos.run.invariants import Invariants
from tests.chaos.run.script import FAULTS_S, JOB, Act, Script, draw_script
from tests.chaos.scenario import Scenario

SEEDS = range(2)
MINIMUM_H = 6


@pytest.fixture(autouse=True)
def _quiet() -> None:
    silence_logs()


def _flat(node_type: NodeType) -> NodeType:
    return replace(node_type, billing=Billing(60.0, MINIMUM_H * 3600.0))


@dataclass
class SpendScenario(Scenario):
    """A run with kills and an occasional KVS failure, and no other faults."""

    budget: Decimal = Decimal(10**6)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy = with_settings(
            self.policy,
            node_types=tuple(map(_flat, self.policy.node_types)),
            budgets={("", "month"): self.budget},
            stop_lead_s=86_400.0,  # so the minimum charge keeps no node
        )
        self.invariants = Invariants(self.flux, self.provider, self.policy, self.upkeep)

    def _release_holds(self) -> None:
        """At the end every node is retired: the paid minimum would keep it for hours."""
        super()._release_holds()
        if not self.flux.active_jobs():
            for launch in self.flux.leases.values():
                self.tell_manager(RetirementRequested(launch.id, Mark("operator", self.world.wall_at())))

    def start_and_run_for(self, seconds: float) -> None:
        """Run with faults all the time: once the budget is spent, pending jobs keep waiting."""
        self.begin()
        self._run_until(seconds, lambda: False)

    def on_record(self) -> Decimal:
        _, month = periods(self.world.wall_at())
        return self.flux.spend.amounts.get(("month", month.begins_at, ""), Decimal(0))

    def billed(self) -> Decimal:
        """The provider's bill for the nodes that have ended."""
        ended = [line for line in self.provider.bill() if line.type_name is not None and line.to_s is not None]
        assert all(line.to_s is None or line.to_s - line.from_s < MINIMUM_H * 3600 for line in ended)
        prices = [self.policy.types[line.type_name].price_per_hour for line in ended if line.type_name is not None]
        return sum(prices, Decimal(0)) * MINIMUM_H


def _story(seed: int, phases: int, apart_s: float, kill_every_s: float) -> Script:
    """Combine the jobs of several seeds, ``apart_s`` from each other."""
    drawn = [(phase, act) for phase in range(phases) for act in draw_script(1000 * seed + phase).acts]
    jobs = [replace(act, at_s=act.at_s + phase * apart_s) for phase, act in drawn if act.kind == JOB]
    kills = [
        Act(0, count * kill_every_s, "manager.killed", 0.5, 5.0)
        for count in range(1, int((phases * apart_s + FAULTS_S) / kill_every_s))
    ]
    knobs = [Act(0, 0.0, name, 1.0, FAULTS_S) for name in ("flux.fails", "flux.lost_reply")]
    acts = (*knobs, *jobs, *kills)
    return replace(draw_script(seed), acts=tuple(replace(act, number=number) for number, act in enumerate(acts)))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_node_is_on_record_once(seed: int) -> None:
    story = _story(seed, phases=4, apart_s=0.0, kill_every_s=20.0)
    run = SpendScenario(story)
    outcome = run.run()
    assert outcome.kills > 5
    assert outcome.creates > 5
    assert run.on_record() == run.billed() > 0
    assert not run.flux.spend.counted or run.flux.spend.counted.isdisjoint(
        launch.id for launch in run.flux.leases.values()
    )


def test_a_budget_that_is_spent_stays_spent_across_restarts() -> None:
    """Killed every minute and a half, the manager keeps to the budget: spending never restarts at 0."""
    limit = Decimal(20)
    run = SpendScenario(_story(1, phases=8, apart_s=FAULTS_S, kill_every_s=90.0), budget=limit)
    run.start_and_run_for(8 * FAULTS_S)
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
