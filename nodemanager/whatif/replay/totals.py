"""The totals of a run, added up as it proceeds. Their memory does not grow with the number of nodes."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf

from nodemanager.core.slots import TypeName
from nodemanager.planner.billing import cost_of_time
from nodemanager.whatif.cloud.cloud import ReplayMachine, time_breakdown
from nodemanager.whatif.replay.lower_bounds import UnitDemand
from nodemanager.whatif.replay.sched_simple import QueuedJob
from nodemanager.whatif.replay.time_series import TimeSeries

SLOWDOWN_FLOOR_S = 10.0  # shorter jobs count as this long, as usual for the bounded slowdown
CHURN_S = 600.0
UNSERVED_MAX = 20  # how many are named; all are counted


@dataclass(slots=True)
class TypeBill:
    """The totals of one type's nodes. Money is in the site's currency, time in node-seconds."""

    market: str
    nodes: int = 0
    cost: Decimal = Decimal(0)
    paid_s: float = 0.0
    boot_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    stop_s: float = 0.0
    unused_s: float = 0.0
    core_s: float = 0.0  # core-seconds of jobs
    core_paid_s: float = 0.0
    cost_lost: Decimal = Decimal(0)  # of runs that were lost
    cost_idle: Decimal = Decimal(0)
    cost_boot: Decimal = Decimal(0)  # of nodes that boot or stop
    cost_unused: Decimal = Decimal(0)
    misused: int = 0  # nodes with GPUs that ran only jobs without GPUs
    cost_misused: Decimal = Decimal(0)


@dataclass(slots=True)
class RunTotals:
    """The totals of one run."""

    jobs: int = 0
    jobs_ended: int = 0
    restarts: int = 0
    lost_core_s: float = 0.0  # core-seconds of runs that were lost
    busy_nodes: int = 0
    boots: int = 0
    boot_failures: int = 0
    reclaims: int = 0
    refusals: int = 0  # creates that the cloud refused for lack of capacity or quota
    churn: int = 0  # nodes created within ten minutes of the end of a node of their type
    peak_nodes: int = 0
    cap_hits: int = 0
    capped_s: float = 0.0
    ended_s: float = 0.0
    last_job_s: float = 0.0
    work_core_s: float = 0.0
    waits_s: array[float] = field(default_factory=lambda: array("d"))
    slowdowns: array[float] = field(default_factory=lambda: array("d"))
    bills: dict[TypeName, TypeBill] = field(default_factory=dict)
    unserved_by: Counter[str] = field(default_factory=Counter)
    unserved_names: list[tuple[str, str]] = field(default_factory=list)
    waiting: TimeSeries = field(default_factory=TimeSeries)
    nodes: TimeSeries = field(default_factory=TimeSeries)
    busy: TimeSeries = field(default_factory=TimeSeries)
    unit_demand: UnitDemand | None = None  # for the lower bounds; None if they are not wanted
    _capped_from_s: float | None = None
    _lately_gone: dict[TypeName, deque[float]] = field(default_factory=dict)

    # --- jobs ---

    def note_submitted(self, job: QueuedJob) -> None:
        del job
        self.jobs += 1

    def note_started(self, job: QueuedJob) -> None:
        if self.unit_demand is not None:
            self.unit_demand.begin_job(job.id, job.shape, job.started_s or 0.0)

    def note_ended(self, job: QueuedJob, now_s: float) -> None:
        """Count a finished job. Its wait is all the time before its last run: lost runs count as wait."""
        self.jobs_ended += 1
        wait_s = (job.started_s or 0.0) - job.submitted_s
        self.waits_s.append(wait_s)
        self.slowdowns.append(max(1.0, (wait_s + job.run_s) / max(job.run_s, SLOWDOWN_FLOOR_S)))
        self.last_job_s = now_s
        self.work_core_s += job.run_s * sum(grant.cores for grant in job.grants)
        if self.unit_demand is not None:
            self.unit_demand.end_job(job.id, job.shape, job.run_s, now_s)

    def note_lost(self, job: QueuedJob, now_s: float) -> None:
        """Count a run that was lost because one of its nodes left."""
        self.lost_core_s += (now_s - (job.started_s or 0.0)) * sum(grant.cores for grant in job.grants)
        if self.unit_demand is not None:
            self.unit_demand.lose_job(job.id, job.shape)

    def note_unserved(self, name: str, why: str) -> None:
        self.unserved_by[why] += 1
        if len(self.unserved_names) < UNSERVED_MAX:
            self.unserved_names.append((name, why))

    # --- nodes ---

    def note_created(self, machine: ReplayMachine) -> None:
        self.boots += 1
        gone = self._lately_gone.get(machine.node_type.name)
        while gone:
            ended_s = gone.popleft()
            if machine.created_s - ended_s <= CHURN_S:
                self.churn += 1
                break

    def note_gone(self, machine: ReplayMachine, now_s: float) -> None:
        node_type = machine.node_type
        bill = self.bills.setdefault(node_type.name, TypeBill(str(node_type.market)))
        life = time_breakdown(machine, now_s)
        bill.nodes += 1
        bill.cost += life.cost
        bill.paid_s += life.paid_s
        bill.boot_s += life.boot_s
        bill.busy_s += life.busy_s
        bill.idle_s += life.idle_s
        bill.stop_s += life.stop_s
        bill.unused_s += life.unused_s
        bill.core_s += machine.core_s
        bill.core_paid_s += life.paid_s * node_type.cores
        price = node_type.price_per_hour
        bill.cost_lost += cost_of_time(price, life.lost_s)
        bill.cost_idle += cost_of_time(price, life.idle_s)
        bill.cost_boot += cost_of_time(price, life.boot_s + life.stop_s)
        bill.cost_unused += cost_of_time(price, life.unused_s)
        if node_type.gpus and machine.job_s and not machine.used_gpus:
            bill.misused += 1
            bill.cost_misused += life.cost
        self._lately_gone.setdefault(node_type.name, deque()).append(now_s)

    # --- time ---

    def note_state(self, now_s: float, waiting: int, nodes: int, busy: int, *, capped: bool) -> None:
        self.peak_nodes = max(self.peak_nodes, nodes)
        self.waiting.note(now_s, waiting)
        self.nodes.note(now_s, nodes)
        self.busy.note(now_s, busy)
        if self.unit_demand is not None:
            self.unit_demand.settle(now_s)
        if capped and self._capped_from_s is None:
            self.cap_hits += 1
            self._capped_from_s = now_s
        elif not capped and self._capped_from_s is not None:
            self.capped_s += now_s - self._capped_from_s
            self._capped_from_s = None

    def close(self, now_s: float) -> None:
        self.note_state(now_s, 0, 0, 0, capped=False)
        if self.unit_demand is not None:
            self.unit_demand.settle(inf)
        self.ended_s = now_s

    @property
    def cost(self) -> Decimal:
        return sum((bill.cost for bill in self.bills.values()), Decimal(0))
