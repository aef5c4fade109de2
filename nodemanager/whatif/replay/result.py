"""A run's result as plain values, as ``--json`` prints them. Money is a number in the site's currency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

from nodemanager.whatif.replay.time_series import TimeSeries
from nodemanager.whatif.replay.totals import RunTotals


@dataclass(frozen=True, slots=True)
class TypeOutcome:
    """One node type's part of a result. Hours are node-hours."""

    market: str
    nodes: int
    cost: float
    cost_lost: float  # of runs that were lost, by their shares of the nodes
    cost_idle: float
    cost_boot: float  # of nodes that boot or stop
    cost_unused: float  # of billing windows after the nodes' end
    hours: float
    hours_paid: float
    misused: int = 0  # nodes with GPUs that ran only jobs without GPUs
    cost_misused: float = 0.0

    @property
    def cost_busy(self) -> float:
        """The cost of runs that were not lost."""
        return max(0.0, self.cost - self.cost_lost - self.cost_idle - self.cost_boot - self.cost_unused)


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure over time: its mean in each step of ``step_s`` seconds."""

    step_s: float
    means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one workload under one policy."""

    policy: str
    jobs: int
    jobs_served: int
    jobs_unserved: Mapping[str, int]  # by reason
    unserved_examples: tuple[tuple[str, str], ...]
    restarts: int
    lost_core_hours: float  # of runs that were lost
    cost: float
    types: Mapping[str, TypeOutcome]
    wait_mean_s: float  # a wait: the time from submission to end, minus the last run
    wait_median_s: float
    wait_p95_s: float
    wait_p99_s: float
    slowdown_mean: float  # the bounded slowdown: runs below 10 s count as 10 s
    utilisation: float  # the share of the paid core-seconds in which jobs ran
    node_hours: float
    boots: int
    boot_failures: int
    reclaims: int
    creates_refused: int
    churn: int
    cap_hits: int
    capped_s: float
    peak_nodes: int
    ended_s: float
    events: int
    plans: int
    took_s: float = field(default=0.0, compare=False)  # on this machine: not part of the result
    waiting: Curve = Curve(0.0, ())
    nodes: Curve = Curve(0.0, ())
    busy: Curve = Curve(0.0, ())
    broken: tuple[str, ...] = ()  # rules of ``invariants`` that the planner broke

    def serves_as_many(self, other: Outcome) -> bool:
        """Whether the costs and waits can be compared: both must serve equally many jobs, and at least one."""
        return self.jobs_served == other.jobs_served > 0

    @property
    def cost_lost(self) -> float:
        return sum(it.cost_lost for it in self.types.values())

    @property
    def cost_idle(self) -> float:
        return sum(it.cost_idle for it in self.types.values())

    @property
    def cost_boot(self) -> float:
        return sum(it.cost_boot for it in self.types.values())

    @property
    def cost_unused(self) -> float:
        return sum(it.cost_unused for it in self.types.values())

    @property
    def cost_busy(self) -> float:
        return self.cost - self.cost_lost - self.cost_idle - self.cost_boot - self.cost_unused


def build_outcome(policy: str, totals: RunTotals, *, events: int, plans: int, took_s: float) -> Outcome:
    """Build the result from a run's totals."""
    waits = sorted(totals.waits_s)
    bills = totals.bills.values()
    paid_core_s = sum(bill.core_paid_s for bill in bills)
    lived_s = sum(bill.boot_s + bill.busy_s + bill.idle_s + bill.stop_s for bill in bills)
    return Outcome(
        policy=policy,
        jobs=totals.jobs,
        jobs_served=totals.jobs_ended,
        jobs_unserved=dict(totals.unserved_by),
        unserved_examples=tuple(totals.unserved_names),
        restarts=totals.restarts,
        lost_core_hours=totals.lost_core_s / 3600,
        cost=float(totals.cost),
        types={
            name: TypeOutcome(
                market=bill.market,
                nodes=bill.nodes,
                cost=float(bill.cost),
                cost_lost=float(bill.cost_lost),
                cost_idle=float(bill.cost_idle),
                cost_boot=float(bill.cost_boot),
                cost_unused=float(bill.cost_unused),
                hours=(bill.boot_s + bill.busy_s + bill.idle_s + bill.stop_s) / 3600,
                hours_paid=bill.paid_s / 3600,
                misused=bill.misused,
                cost_misused=float(bill.cost_misused),
            )
            for name, bill in totals.bills.items()
        },
        wait_mean_s=fmean(waits) if waits else 0.0,
        wait_median_s=quantile(waits, 0.5),
        wait_p95_s=quantile(waits, 0.95),
        wait_p99_s=quantile(waits, 0.99),
        slowdown_mean=fmean(totals.slowdowns) if waits else 0.0,
        utilisation=totals.work_core_s / paid_core_s if paid_core_s else 0.0,
        node_hours=lived_s / 3600,
        boots=totals.boots,
        boot_failures=totals.boot_failures,
        reclaims=totals.reclaims,
        creates_refused=totals.refusals,
        churn=totals.churn,
        cap_hits=totals.cap_hits,
        capped_s=totals.capped_s,
        peak_nodes=totals.peak_nodes,
        ended_s=totals.ended_s,
        events=events,
        plans=plans,
        took_s=took_s,
        waiting=_curve(totals.waiting),
        nodes=_curve(totals.nodes),
        busy=_curve(totals.busy),
    )


def quantile(ordered: list[float], share: float) -> float:
    """The lowest value that at least ``share`` of the ascending values do not exceed; 0 if there are none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _curve(series: TimeSeries) -> Curve:
    return Curve(series.width_s, tuple(round(mean, 3) for mean in series.means()))
