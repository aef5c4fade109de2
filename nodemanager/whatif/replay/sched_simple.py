"""A fast sched-simple: decides which job starts on which ranks, and in what order.

The rule is ``planner/seating.py``. Here ranks are indexed by their free resources, so the cost of a
start depends only on the ranks that it uses.

- ``fifo``: a job that cannot start blocks all jobs behind it.
- ``backfill`` (EASY): a job behind it may start first if its time limit ends before the first job could start, or
  if it uses none of the ranks reserved for the first job. If the first job waits for nodes that are not up, no
  ranks are reserved.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from nodemanager.core.jobs import ANYWHERE, Constraint, JobId, QueuePolicy, Shape
from nodemanager.core.slots import SlotName
from nodemanager.planner.constraints import holds
from nodemanager.planner.seating import pieces_in_theory, pieces_of, pieces_that_fit, preference, resources_held

BACKFILL_DEPTH = 64  # how many jobs behind the first are tried

FreeRanks = dict[tuple[int, int], list[int]]  # by free cores and GPUs: the ranks, ascending


@dataclass(slots=True, eq=False)
class RankCapacity:
    """One rank: its resources, those that are free, and whether it accepts jobs."""

    rank: int
    host: SlotName
    cores: int
    gpus: int
    properties: frozenset[str]
    cores_free: int = 0
    gpus_free: int = 0
    jobs: int = 0
    up: bool = False  # online and not drained

    def __post_init__(self) -> None:
        self.cores_free, self.gpus_free = self.cores, self.gpus

    @property
    def is_empty(self) -> bool:
        return self.jobs == 0


class GrantCounts(NamedTuple):
    """How many cores and GPUs of one rank a job holds."""

    rank: int
    cores: int
    gpus: int


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job while it is active."""

    id: JobId
    name: str
    submitted_s: float
    run_s: float
    limit_s: float
    shape: Shape
    userid: int
    narrow_s: float = 0.0  # after which it uses only its first node; 0: never
    started_s: float | None = None
    grants: tuple[GrantCounts, ...] = ()
    restarts: int = 0

    @property
    def ends_by_s(self) -> float:
        """The latest time of its end that the scheduler knows: by its time limit."""
        return (self.started_s or 0.0) + (self.limit_s or math.inf)


@dataclass(slots=True)
class Scheduler:
    """The ranks, the queue and the running jobs."""

    ranks: dict[int, RankCapacity]
    queue_policy: QueuePolicy
    queue: deque[QueuedJob] = field(default_factory=deque)
    held: dict[JobId, QueuedJob] = field(default_factory=dict)  # by urgency 0
    running: dict[JobId, QueuedJob] = field(default_factory=dict)
    free: FreeRanks = field(default_factory=dict)  # of the ranks that are up
    _generation: int = 0  # grows whenever a job that could not start before may be able to now
    _blocked: tuple[JobId, int] | None = None
    _changes: int = 0  # counts all changes of free resources
    # The first job and the change at which backfilling was tried last, and how many jobs could not start then.
    _tried: tuple[tuple[JobId, int] | None, int] = (None, 0)
    _eligible: dict[Constraint, frozenset[int]] = field(default_factory=dict)
    _infeasible: dict[Shape, str] = field(default_factory=dict)

    # --- ranks ---

    def set_up(self, rank: int, *, up: bool) -> None:
        capacity = self.ranks[rank]
        if capacity.up == up:
            return
        if up:
            capacity.up = True
            self._index(capacity)
            self._generation += 1
        else:
            self._unindex(capacity)
            capacity.up = False

    def _index(self, capacity: RankCapacity) -> None:
        self._changes += 1
        if capacity.up:
            add_rank(self.free, (capacity.cores_free, capacity.gpus_free), capacity.rank)

    def _unindex(self, capacity: RankCapacity) -> None:
        self._changes += 1
        if capacity.up:
            remove_rank(self.free, (capacity.cores_free, capacity.gpus_free), capacity.rank)

    # --- jobs ---

    def submit(self, job: QueuedJob, *, first: bool = False) -> None:
        """Add a job to the queue. ``first``: at its head, because it lost a node and restarts."""
        if first:
            self.queue.appendleft(job)
            self._blocked = None
        else:
            self.queue.append(job)

    def hold(self, ids: Container[JobId]) -> None:
        """Take waiting jobs out of the queue until they are released."""
        self.held.update((job.id, job) for job in self.queue if job.id in ids)
        self.queue = deque(job for job in self.queue if job.id not in self.held)
        self._forget_tries()

    def release(self, ids: Iterable[JobId]) -> None:
        """Put held jobs back into the queue, in order of submission."""
        back = [self.held.pop(id_) for id_ in ids if id_ in self.held]
        self.queue = deque(sorted([*self.queue, *back], key=lambda job: job.id))
        self._forget_tries()

    def _forget_tries(self) -> None:
        self._blocked = None
        self._tried = None, 0

    def why_infeasible(self, shape: Shape) -> str:
        """Explain why the site's ranks, up or not, can never serve the shape; "" if they can."""
        if shape not in self._infeasible:
            self._infeasible[shape] = self._find_infeasibility(shape)
        return self._infeasible[shape]

    def _find_infeasibility(self, shape: Shape) -> str:
        eligible = self._matching(shape.constraint)
        found = sum(
            pieces_in_theory(shape, capacity.cores, capacity.gpus)
            for capacity in self.ranks.values()
            if capacity.rank in eligible
        )
        want = pieces_of(shape)
        if found >= want:
            return ""
        slots = "whole nodes" if shape.exclusive else "slots"
        what = slots if shape.nodes is None else "nodes with slots"
        each = f"{shape.cores_per_slot} cores" + (f" and {shape.gpus_per_slot} GPUs" if shape.gpus_per_slot else "")
        return f"larger than the site: needs {want} {what} of {each}, all its slots together have {found}"

    def start_ready(self, now_s: float) -> list[QueuedJob]:
        """Start the jobs that can start now, in order, and return them."""
        started: list[QueuedJob] = []
        while self.queue:
            job = self.queue[0]
            if self._blocked == (job.id, self._generation):
                break
            grants = self._find_fit(job.shape)
            if grants is None:
                self._blocked = (job.id, self._generation)
                break
            self.queue.popleft()
            started.append(self._start(job, grants, now_s))
        if self.queue and self.queue_policy is QueuePolicy.BACKFILL:
            started += self._backfill(now_s)
        return started

    def finish(self, job: QueuedJob) -> None:
        del self.running[job.id]
        for grant in job.grants:
            capacity = self.ranks[grant.rank]
            self._unindex(capacity)
            capacity.cores_free += grant.cores
            capacity.gpus_free += grant.gpus
            capacity.jobs -= 1
            self._index(capacity)
        self._generation += 1

    def _start(self, job: QueuedJob, grants: tuple[GrantCounts, ...], now_s: float) -> QueuedJob:
        for grant in grants:
            capacity = self.ranks[grant.rank]
            self._unindex(capacity)
            capacity.cores_free -= grant.cores
            capacity.gpus_free -= grant.gpus
            capacity.jobs += 1
            self._index(capacity)
        job.grants = grants
        job.started_s = now_s
        self.running[job.id] = job
        return job

    # --- what fits ---

    def matches_constraint(self, shape: Shape, rank: int) -> bool:
        """Whether a rank satisfies the shape's constraint."""
        return rank in self._matching(shape.constraint)

    def _matching(self, constraint: Constraint) -> AbstractSet[int]:
        if constraint == ANYWHERE:
            return self.ranks.keys()
        if constraint not in self._eligible:
            self._eligible[constraint] = frozenset(
                capacity.rank
                for capacity in self.ranks.values()
                if holds(constraint, properties=capacity.properties, host=capacity.host, rank=capacity.rank)
            )
        return self._eligible[constraint]

    def _find_fit(self, shape: Shape, without: AbstractSet[int] = frozenset()) -> tuple[GrantCounts, ...] | None:
        """Find ranks for a shape among those that are up; None if too few are free."""
        eligible = self._matching(shape.constraint)
        if without or len(eligible) != len(self.ranks):
            return find_fit(
                shape, self.free, lambda rank: rank in eligible and rank not in without and self._suits(shape, rank)
            )
        return find_fit(shape, self.free, partial(self._suits, shape) if shape.exclusive else None)

    def _suits(self, shape: Shape, rank: int) -> bool:
        return not shape.exclusive or self.ranks[rank].is_empty

    # --- backfilling ---

    def _backfill(self, now_s: float) -> list[QueuedJob]:
        """Start jobs behind the first one without delaying it.

        A job that could not start cannot start later either, until free resources change: it is not tried again.
        """
        state = self.queue[0].id, self._changes
        tried = self._tried[1] if self._tried[0] == state else 0
        behind = list(islice(self.queue, 1 + tried, 1 + BACKFILL_DEPTH))
        if not behind:
            return []
        started: list[QueuedJob] = []
        failed: set[tuple[Shape, bool]] = set()  # not tried again: free resources only shrink during this pass
        starts_s, kept = self._reservation(self.queue[0].shape)
        for job in behind:
            ends_in_time = now_s + (job.limit_s or math.inf) <= starts_s
            if (job.shape, ends_in_time) in failed:
                continue
            grants = self._find_fit(job.shape, frozenset() if ends_in_time else kept)
            if grants is None:
                failed |= {(job.shape, ends_in_time), (job.shape, False)}
                continue
            self.queue.remove(job)
            started.append(self._start(job, grants, now_s))
        self._tried = state, tried + len(behind)
        return started

    def _reservation(self, shape: Shape) -> tuple[float, frozenset[int]]:
        """The time and ranks for the first job, if all jobs run to their limits and no more nodes come up."""
        eligible = self._matching(shape.constraint)
        free = {
            rank: (self.ranks[rank].cores_free, self.ranks[rank].gpus_free, self.ranks[rank].jobs)
            for ranks in self.free.values()
            for rank in ranks
            if rank in eligible
        }
        want = pieces_of(shape)
        found = sum(pieces_that_fit(shape, cores, gpus, is_empty=jobs == 0) for cores, gpus, jobs in free.values())
        for job in sorted(self.running.values(), key=lambda job: (job.ends_by_s, job.id)):
            if job.ends_by_s == math.inf:
                break
            for grant in job.grants:
                if grant.rank in free:
                    cores, gpus, jobs = free[grant.rank]
                    free[grant.rank] = now = (cores + grant.cores, gpus + grant.gpus, jobs - 1)
                    found += pieces_that_fit(shape, now[0], now[1], is_empty=now[2] == 0)
                    found -= pieces_that_fit(shape, cores, gpus, is_empty=jobs == 0)
            if found >= want and (kept := choose_ranks(shape, free)) is not None:
                return job.ends_by_s, kept
        return math.inf, frozenset()


def add_rank(free: FreeRanks, of: tuple[int, int], rank: int) -> None:
    """Add a rank with these free cores and GPUs."""
    insort(free.setdefault(of, []), rank)


def remove_rank(free: FreeRanks, of: tuple[int, int], rank: int) -> None:
    """Remove a rank that has these free cores and GPUs."""
    ranks = free[of]
    del ranks[bisect_left(ranks, rank)]
    if not ranks:
        del free[of]


def find_fit(
    shape: Shape, free: FreeRanks, suits: Callable[[int], bool] | None = None
) -> tuple[GrantCounts, ...] | None:
    """Find ranks by worst fit: most free cores, then most free GPUs, then lowest rank; None if they do not suffice.

    Ranks with equal free resources differ only in what ``suits`` tells: whether the job may use the rank at all.
    """
    want = pieces_of(shape)
    most = (len(ranks) * pieces_that_fit(shape, *of, is_empty=True) for of, ranks in free.items())
    if sum(most) < want:
        return None
    grants: list[GrantCounts] = []
    for cores, gpus in sorted(free, reverse=True):
        fits = pieces_that_fit(shape, cores, gpus, is_empty=True)
        if fits == 0:
            if cores < (1 if shape.exclusive else shape.cores_per_slot):
                break  # the remaining ranks have even fewer free cores
            continue
        for rank in free[cores, gpus]:
            if suits is not None and not suits(rank):
                continue
            grants.append(GrantCounts(rank, *resources_held(shape, min(fits, want), cores, gpus)))
            want -= min(fits, want)
            if want == 0:
                return tuple(sorted(grants))
    return None


def choose_ranks(shape: Shape, free: Mapping[int, tuple[int, int, int]]) -> frozenset[int] | None:
    """Choose ranks for a shape by worst fit; None if they do not suffice.

    ``free``: by rank, the free cores, the free GPUs, and the number of running jobs.
    """
    want = pieces_of(shape)
    kept: list[int] = []
    for rank, (cores, gpus, jobs) in sorted(free.items(), key=lambda it: preference(it[1][0], it[1][1], it[0])):
        if want <= 0:
            break
        fits = pieces_that_fit(shape, cores, gpus, is_empty=jobs == 0)
        if fits:
            kept.append(rank)
            want -= fits
    return frozenset(kept) if want <= 0 else None
