"""A run's result: plain values, as ``--json`` prints them. Money in the site's currency, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

from nodemanager.whatif.replay.time_series import TimeSeries
from nodemanager.whatif.replay.totals import RunTotals


@dataclass(frozen=True, slots=True)
class TypeOutcome:
    """One node type's part. Hours are node-hours."""

    market: str
    nodes: int
    cost: float
    cost_lost: float  # with jobs that had to begin anew, by their cores
    cost_idle: float
    cost_boot: float  # of nodes coming and going
    cost_unused: float  # of windows paid beyond the end
    hours: float
    hours_paid: float

    @property
    def cost_busy(self) -> float:
        """With jobs that ended well."""
        return max(0.0, self.cost - self.cost_lost - self.cost_idle - self.cost_boot - self.cost_unused)


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure over time: the mean of each step of ``step_s``."""

    step_s: float
    means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a workload came to under one policy."""

    policy: str
    jobs: int
    jobs_served: int
    jobs_unserved: Mapping[str, int]  # by reason
    unserved_examples: tuple[tuple[str, str], ...]
    restarts: int
    lost_core_hours: float  # of runs that had to begin anew
    cost: float
    types: Mapping[str, TypeOutcome]
    wait_mean_s: float  # a wait: from submission to the end, less the run itself
    wait_median_s: float
    wait_p95_s: float
    wait_p99_s: float
    slowdown_mean: float  # bounded, by 10 s
    utilisation: float  # core-seconds of jobs, of those paid
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
    took_s: float = field(default=0.0, compare=False)  # of this machine's time: not of the result
    waiting: Curve = Curve(0.0, ())
    nodes: Curve = Curve(0.0, ())
    busy: Curve = Curve(0.0, ())

    def serves_as_many(self, other: Outcome) -> bool:
        """Whether costs and waits say which is better: what is not served costs nothing."""
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


def build_outcome(policy: str, ledger: RunTotals, *, events: int, plans: int, took_s: float) -> Outcome:
    """Sum the books up."""
    waits = sorted(ledger.waits_s)
    bills = ledger.bills.values()
    paid_core_s = sum(bill.core_paid_s for bill in bills)
    lived_s = sum(bill.boot_s + bill.busy_s + bill.idle_s + bill.stop_s for bill in bills)
    return Outcome(
        policy=policy,
        jobs=ledger.jobs,
        jobs_served=ledger.jobs_ended,
        jobs_unserved=dict(ledger.unserved_by),
        unserved_examples=tuple(ledger.unserved_names),
        restarts=ledger.restarts,
        lost_core_hours=ledger.lost_core_s / 3600,
        cost=float(ledger.cost),
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
            )
            for name, bill in ledger.bills.items()
        },
        wait_mean_s=fmean(waits) if waits else 0.0,
        wait_median_s=quantile(waits, 0.5),
        wait_p95_s=quantile(waits, 0.95),
        wait_p99_s=quantile(waits, 0.99),
        slowdown_mean=fmean(ledger.slowdowns) if waits else 0.0,
        utilisation=ledger.work_core_s / paid_core_s if paid_core_s else 0.0,
        node_hours=lived_s / 3600,
        boots=ledger.boots,
        boot_failures=ledger.boot_failures,
        reclaims=ledger.reclaims,
        creates_refused=ledger.refusals,
        churn=ledger.churn,
        cap_hits=ledger.cap_hits,
        capped_s=ledger.capped_s,
        peak_nodes=ledger.peak_nodes,
        ended_s=ledger.ended_s,
        events=events,
        plans=plans,
        took_s=took_s,
        waiting=_curve(ledger.waiting),
        nodes=_curve(ledger.nodes),
        busy=_curve(ledger.busy),
    )


def quantile(ordered: list[float], share: float) -> float:
    """The least value that at least this share of them does not exceed; 0 of none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _curve(series: TimeSeries) -> Curve:
    return Curve(series.width_s, tuple(round(mean, 3) for mean in series.means()))
