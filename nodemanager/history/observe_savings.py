"""What the fleet would have cost if the decisions of observe mode had been carried out.

The tracker compares the fleet that exists with the advised one, for every node type that is only observed. The
result is a conservative estimate:

- A node that would have been terminated costs nothing more. A job that starts there is charged a whole boot.
- A node that would have been bought costs from its order on, as long as plans want it. Its jobs start once it
  would have booted.
- A boot takes as long as was learned for the type, or ``boot_timeout_s`` if none was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import BootNode, DrainNode
from nodemanager.core.reason_text import format_money
from nodemanager.core.slots import Rank, TypeName
from nodemanager.history.cost_ledger import HOUR_S, STEP_MAX_S
from nodemanager.planner import billing, timings
from nodemanager.planner.plan import Action
from nodemanager.planner.snapshot import Node, Snapshot

REPORT_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class WaitComparison:
    """How long a job waited before it started, and how long it would have waited, in seconds."""

    actual_s: float
    advised_s: float


@dataclass(frozen=True, slots=True)
class ObserveSavings:
    """What the fleet cost in ``span_s``, and what it would have cost; both are estimates.

    ``busy_touched``: nodes that would have been drained while a job ran there. It should stay 0.
    """

    hour: int  # since the epoch
    span_s: float
    cost: float
    cost_advised: float
    busy_touched: int
    waits: Mapping[JobId, WaitComparison] = field(default_factory=dict)


class SavingsTracker:
    """Compares the fleet with the advised fleet. It reports once a minute, and whenever a job starts."""

    def __init__(self) -> None:
        self._last: Publication | None = None
        self._jobs: Mapping[JobId, Job] | None = None  # as last seen; None: not yet
        self._away: frozenset[LaunchId] = frozenset()  # nodes that would have been terminated by now
        self._bought = 0.0  # the price per hour of the nodes that would have been bought
        self._ordered: dict[
            JobId, tuple[float, TypeName]
        ] = {}  # the first order for each job: when, and which type
        self._span_s = self._cost = self._cost_advised = 0.0
        self._busy_touched = 0
        self._waits: dict[JobId, WaitComparison] = {}

    def update(self, publications: Sequence[Publication]) -> ObserveSavings | None:
        """Take at least one publication, the newest last. Jobs are read from the newest only."""
        newest = publications[-1]
        away = self._away
        for it in publications:
            if it.acts and not it.policy.observed:
                self._reset()
                away = self._away
                continue
            if self._last is not None:
                self._charge(self._last, it)
            if it is newest:
                self._compare_waits(newest, away)
            self._apply_advice(it)
            away |= self._away
            self._last = it
        return self._report_if_due(newest.snapshot)

    def _reset(self) -> None:
        self._last = self._jobs = None
        self._away = frozenset()
        self._bought = 0.0
        self._ordered = {}

    def _report_if_due(self, snapshot: Snapshot) -> ObserveSavings | None:
        if not self._waits and self._span_s < REPORT_EVERY_S:
            return None
        hour = int(snapshot.wall_at // HOUR_S)
        savings = ObserveSavings(
            hour, self._span_s, self._cost, self._cost_advised, self._busy_touched, self._waits
        )
        self._span_s = self._cost = self._cost_advised = 0.0
        self._busy_touched = 0
        self._waits = {}
        return savings

    # --- cost ---

    def _charge(self, last: Publication, now: Publication) -> None:
        span_s = min(STEP_MAX_S, max(0.0, now.snapshot.now_s - last.snapshot.now_s))
        prices = {
            node.id: float(billing.price_per_hour(node.launch, last.policy))
            for node in last.snapshot.nodes.values()
            if node.may_be_billed and _is_observed(node.launch.type_name, last)
        }
        actual = sum(prices.values())
        away = sum(price for id_, price in prices.items() if id_ in self._away)
        self._span_s += span_s
        self._cost += actual * span_s / HOUR_S
        self._cost_advised += (actual - away + self._bought) * span_s / HOUR_S

    # --- waits ---

    def _compare_waits(self, now: Publication, away: Collection[LaunchId]) -> None:
        """Compare the waits of the jobs that have started since the last call.

        ``away``: the nodes that would have been terminated at any time since then.
        """
        jobs = now.snapshot.jobs
        before, self._jobs = self._jobs, jobs
        if before is None or jobs is before:
            return
        for id_, job in jobs.items():
            was = before.get(id_)
            if was is not job and job.state is JobState.RUN and (was is None or was.state is not JobState.RUN):
                self._waits[id_] = self._compare_wait(job, now, away)
        waiting = (id_ for id_ in self._ordered if id_ in jobs and jobs[id_].state is not JobState.RUN)
        self._ordered = {id_: self._ordered[id_] for id_ in waiting}

    def _compare_wait(self, job: Job, now: Publication, away: Collection[LaunchId]) -> WaitComparison:
        snapshot = now.snapshot
        began_at = job.began_at if job.began_at is not None else snapshot.wall_at
        wait_s = max(0.0, began_at - job.submitted_at)
        missed = _nodes_on({held.rank for held in job.allocations}, away, snapshot)
        if missed:
            return WaitComparison(wait_s, wait_s + max(_boot_s(node.launch.type_name, now) for node in missed))
        if job.id not in self._ordered:
            return WaitComparison(wait_s, wait_s)
        ordered_at, type_name = self._ordered[job.id]
        return WaitComparison(
            wait_s, min(wait_s, max(0.0, ordered_at + _boot_s(type_name, now) - job.submitted_at))
        )

    # --- advice ---

    def _apply_advice(self, published: Publication) -> None:
        """Update the advised fleet by the decisions of one plan."""
        plan, nodes = published.plan, published.snapshot.nodes
        if plan.stands_still is not None:
            return
        advice: Sequence[Action] = plan.would if published.acts else plan.actions
        drains = {order.launch for order in advice if isinstance(order, DrainNode) and order.launch in nodes}
        self._busy_touched += sum(1 for id_ in drains - self._away if _is_at_work(nodes[id_]))
        # A terminated node stays away, even if the real one starts a new billing window, until a job starts there.
        self._away = frozenset(id_ for id_ in self._away | drains if id_ in nodes and not _is_at_work(nodes[id_]))
        if plan.settled:  # until then a plan has no decisions on buying
            boots = [order for order in advice if isinstance(order, BootNode)]
            self._bought = sum(float(billing.price_per_hour(order.launch, published.policy)) for order in boots)
            for order in boots:
                for job in order.serves:
                    self._ordered.setdefault(job, (published.snapshot.wall_at, order.launch.type_name))


def _is_observed(name: TypeName, published: Publication) -> bool:
    return not published.acts or name in published.policy.observed


def _boot_s(name: TypeName, published: Publication) -> float:
    return timings.boot_s(published.snapshot, name) or published.policy.timing.boot_timeout_s


def _nodes_on(ranks: Collection[Rank], launches: Collection[LaunchId], snapshot: Snapshot) -> list[Node]:
    nodes = (snapshot.nodes[id_] for id_ in launches if id_ in snapshot.nodes)
    return [node for node in nodes if node.launch.rank in ranks]


def _is_at_work(node: Node) -> bool:
    return node.state is NodeState.BUSY or (node.rank is not None and node.rank.online and node.rank.allocated)


# --- as text ----------------------------------------------------------------------------------------------


def format_savings(
    span_s: float, cost: float, cost_advised: float, busy_touched: int, p95_longer_s: float | None
) -> str:
    """Summarise in one line: ``7 days: 41 % cheaper, p95 wait +2 min, 0 busy nodes touched``."""
    waits = f"p95 wait {_format_wait_change(p95_longer_s)}" if p95_longer_s is not None else "no job started"
    change = _format_cost_change(cost, cost_advised)
    return f"{_format_span(span_s)}: {change}, {waits}, {busy_touched} busy nodes touched"


def _format_cost_change(cost: float, cost_advised: float) -> str:
    if cost <= 0:
        return f"{format_money(cost_advised)} instead of 0"
    percent = round(100 * (cost_advised - cost) / cost)
    if percent == 0:
        return "same cost"
    return f"{abs(percent)} % {'cheaper' if percent < 0 else 'dearer'}"


def _format_wait_change(longer_s: float) -> str:
    amount = f"{round(abs(longer_s) / 60)} min" if abs(longer_s) >= 60 else f"{round(abs(longer_s))} s"
    return f"{'-' if longer_s < 0 else '+'}{amount}"


def _format_span(span_s: float) -> str:
    for name, unit_s in (("days", 86_400.0), ("hours", 3600.0)):
        if span_s >= 2 * unit_s:
            return f"{round(span_s / unit_s)} {name}"
    return f"{round(span_s / 60)} minutes"
