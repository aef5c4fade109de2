"""Samples of the fleet: nodes by state, jobs, cost per hour, and how many of the paid cores jobs use.

The board keeps samples of the last hour in memory, the history one for each minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodemanager.actors.manager import Publication
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import Rank
from nodemanager.history.cost_ledger import billed_nodes
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.ranks_and_queue import queue_index_of

SAMPLE_EVERY_S = 5.0
MINUTE_S = 60.0
SPAN_MAX_S = 600.0  # after a longer pause of this process nobody knows which cores were used meanwhile
# Why a job waits although no node would help it now.
NEEDS_NO_NODE = frozenset({Code.HELD, Code.DEPENDENCY, Code.COPY_WAITS, Code.NOT_YET_SCHEDULED, Code.QUEUE_STOPPED})


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at one moment.

    ``by_type``: of each type with nodes that are charged for, their number and their price per hour.
    ``cores_paid``: the cores of these nodes; ``cores_used``: those of them that running jobs hold. In the sample of
    a minute both are means over ``span_s``.
    """

    at: float
    by_state: Mapping[str, int]
    by_type: Mapping[str, tuple[int, float]]
    jobs_waiting: int  # for nodes
    jobs_running: int
    price_per_hour: float
    cores_used: float
    cores_paid: float
    span_s: float = 0.0


def count_waiting_for_nodes(published: Publication) -> int:
    """Count the jobs that wait, but not for their owner or another job. Without a plan: all that wait."""
    if published.plan.stands_still is not None:
        return queue_index_of(published.snapshot.jobs, published.snapshot.indexes.queue).waiting
    return sum(count for code, count in published.plan.count_by_reason().items() if code not in NEEDS_NO_NODE)


def sample_fleet(published: Publication) -> FleetSample:
    """Sample a publication."""
    snapshot, policy = published.snapshot, published.policy
    held: defaultdict[Rank, int] = defaultdict(int)
    for job in snapshot.jobs.values():
        for allocation in job.allocations:
            held[allocation.rank] += allocation.cores
    by_type: dict[str, tuple[int, float]] = {}
    used = paid = 0
    for node, tariff in billed_nodes(snapshot, policy):
        name, rank = node.launch.type_name, node.launch.rank
        count, price = by_type.get(name, (0, 0.0))
        by_type[name] = (count + 1, price + float(tariff.price_per_hour))
        node_type = policy.types.get(name)
        cores = node_type.cores if node_type is not None else node.rank.cores if node.rank is not None else 0
        paid += cores
        used += min(cores, held.get(rank, 0))
    return FleetSample(
        at=snapshot.wall_at,
        by_state={str(state): count for state, count in node_index_of(snapshot).count_by_state.items() if count},
        by_type=by_type,
        jobs_waiting=count_waiting_for_nodes(published),
        jobs_running=len(snapshot.jobs) - queue_index_of(snapshot.jobs, snapshot.indexes.queue).waiting,
        price_per_hour=float(published.plan.price_per_hour),
        cores_used=used,
        cores_paid=paid,
    )


class FleetSampler:
    """Samples the fleet every few seconds, and sums up each minute."""

    def __init__(self) -> None:
        self._last: FleetSample | None = None
        self._last_s = 0.0
        self._minute: float | None = None
        self._used_s = self._paid_s = self._span_s = 0.0  # since the last minute

    def update(self, published: Publication) -> tuple[FleetSample | None, FleetSample | None]:
        """Return a sample if it is time for one, and the sample of a minute if one is over."""
        now_s = published.snapshot.now_s
        if self._last is not None and 0 <= now_s - self._last_s < SAMPLE_EVERY_S:
            return None, None
        sample = sample_fleet(published)
        if self._last is not None and 0 < (span_s := now_s - self._last_s) <= SPAN_MAX_S:
            self._used_s += self._last.cores_used * span_s
            self._paid_s += self._last.cores_paid * span_s
            self._span_s += span_s
        self._last, self._last_s = sample, now_s
        minute = sample.at // MINUTE_S
        if minute == self._minute:
            return sample, None
        self._minute = minute
        return sample, self._sum_up(sample)

    def _sum_up(self, sample: FleetSample) -> FleetSample:
        if self._span_s <= 0:
            return sample
        used, paid, span_s = self._used_s / self._span_s, self._paid_s / self._span_s, self._span_s
        self._used_s = self._paid_s = self._span_s = 0.0
        return replace(sample, cores_used=used, cores_paid=paid, span_s=span_s)
