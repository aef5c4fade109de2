"""Flux's scheduler in short: who runs where, in what order, by the rules of sched-simple.

The same rules as ``simulation/flux/sched_simple.py``, which a test holds this to, arranged for many jobs: rooms
are kept sorted by what is free on them, so that a start costs by the ranks it takes. ``fifo``: a job that cannot
start holds up all behind it. ``backfill``: those behind it may go first if they end before it could start, by
their time limits, or leave alone what it will get (EASY); where it waits for nodes that are not up, nothing is
kept for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from nodemanager.core.jobs import ANYWHERE, Constraint, JobId, QueuePolicy, Shape
from nodemanager.core.slots import SlotName
from nodemanager.planner.state.constraints import holds

BACKFILL_DEPTH = 64  # how many behind the first are tried


@dataclass(slots=True, eq=False)
class RankCapacity:
    """One rank: what it has, what is free, and what of it takes jobs."""

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
    """What a job holds of one rank."""

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
    started_s: float | None = None
    grants: tuple[GrantCounts, ...] = ()
    restarts: int = 0

    @property
    def ends_by_s(self) -> float:
        """When it ends at the latest, as the scheduler knows."""
        return (self.started_s or 0.0) + (self.limit_s or math.inf)


@dataclass(slots=True)
class Scheduler:
    """The rooms by rank, the line, and what runs."""

    ranks: dict[int, RankCapacity]
    queue_policy: QueuePolicy
    queue: deque[QueuedJob] = field(default_factory=deque)
    running: dict[JobId, QueuedJob] = field(default_factory=dict)
    _free: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # ranks that are up, by what is free
    _generation: int = 0  # grows whenever something that was not to be had may be now
    _blocked: tuple[JobId, int] | None = None
    _changes: int = 0  # of what is free anywhere
    _tried: tuple[tuple[JobId, int] | None, int] = (
        None,
        0,
    )  # behind which first job, at which change: so many in vain
    _eligible: dict[Constraint, frozenset[int]] = field(default_factory=dict)
    _infeasible: dict[Shape, str] = field(default_factory=dict)

    # --- rooms ---

    def set_up(self, rank: int, *, up: bool) -> None:
        room = self.ranks[rank]
        if room.up == up:
            return
        if up:
            room.up = True
            self._index(room)
            self._generation += 1
        else:
            self._unindex(room)
            room.up = False

    def _index(self, room: RankCapacity) -> None:
        self._changes += 1
        if room.up:
            insort(self._free.setdefault((room.cores_free, room.gpus_free), []), room.rank)

    def _unindex(self, room: RankCapacity) -> None:
        self._changes += 1
        if room.up:
            key = (room.cores_free, room.gpus_free)
            ranks = self._free[key]
            del ranks[bisect_left(ranks, room.rank)]
            if not ranks:
                del self._free[key]

    # --- jobs ---

    def submit(self, job: QueuedJob, *, first: bool = False) -> None:
        """``first``: again, after its node was lost; it keeps its place."""
        if first:
            self.queue.appendleft(job)
            self._blocked = None
        else:
            self.queue.append(job)

    def why_infeasible(self, shape: Shape) -> str:
        """Why no rank of the site, up or not, could ever serve the shape; "" where they could."""
        if shape not in self._infeasible:
            self._infeasible[shape] = self._find_infeasibility(shape)
        return self._infeasible[shape]

    def _find_infeasibility(self, shape: Shape) -> str:
        eligible = self._matching(shape.constraint)
        there = sum(
            count_fits(shape, room.cores, room.gpus, whole=True)
            for room in self.ranks.values()
            if room.rank in eligible
        )
        want, what = wanted_count(shape)
        if there >= want:
            return ""
        each = f"{shape.cores_per_slot} cores" + (f" and {shape.gpus_per_slot} GPUs" if shape.gpus_per_slot else "")
        return f"larger than the site: needs {want} {what} of {each}, all its slots together have {there}"

    def start_ready(self, now_s: float) -> list[QueuedJob]:
        """Start what can start now, in order."""
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
            room = self.ranks[grant.rank]
            self._unindex(room)
            room.cores_free += grant.cores
            room.gpus_free += grant.gpus
            room.jobs -= 1
            self._index(room)
        self._generation += 1

    def _start(self, job: QueuedJob, grants: tuple[GrantCounts, ...], now_s: float) -> QueuedJob:
        for grant in grants:
            room = self.ranks[grant.rank]
            self._unindex(room)
            room.cores_free -= grant.cores
            room.gpus_free -= grant.gpus
            room.jobs += 1
            self._index(room)
        job.grants = grants
        job.started_s = now_s
        self.running[job.id] = job
        return job

    # --- what fits ---

    def matches_constraint(self, shape: Shape, rank: int) -> bool:
        """Whether the shape's constraint holds there."""
        return rank in self._matching(shape.constraint)

    def _matching(self, constraint: Constraint) -> AbstractSet[int]:
        if constraint == ANYWHERE:
            return self.ranks.keys()
        if constraint not in self._eligible:
            self._eligible[constraint] = frozenset(
                room.rank
                for room in self.ranks.values()
                if holds(constraint, properties=room.properties, host=room.host, rank=room.rank)
            )
        return self._eligible[constraint]

    def _find_fit(self, shape: Shape, without: AbstractSet[int] = frozenset()) -> tuple[GrantCounts, ...] | None:
        """Worst fit: the most free cores first, then GPUs, then the lowest rank. None where there is not enough.

        Rooms with as much free are alike, but for whether they are whole, and whether they suit.
        """
        want, _ = wanted_count(shape)
        most = (len(ranks) * count_fits(shape, *free, whole=True) for free, ranks in self._free.items())
        if sum(most) < want:
            return None
        eligible = self._matching(shape.constraint)
        everywhere = len(eligible) == len(self.ranks)
        grants: list[GrantCounts] = []
        for cores, gpus in sorted(self._free, reverse=True):
            fits = count_fits(shape, cores, gpus, whole=True)
            if fits == 0:
                if cores < shape.cores_per_slot:
                    break  # nor do those that have less
                continue
            for rank in self._free[cores, gpus]:
                if rank in without or not (everywhere or rank in eligible):
                    continue
                if shape.exclusive and not self.ranks[rank].is_empty:
                    continue
                grants.append(_grant(rank, cores, gpus, shape, min(fits, want)))
                want -= min(fits, want)
                if want == 0:
                    return tuple(sorted(grants))
        return None

    # --- those behind ---

    def _backfill(self, now_s: float) -> list[QueuedJob]:
        """Start what can start behind the first, and leaves that one its time.

        Until something changes whoever could not start cannot, for time only runs out: those are not tried again.
        """
        stands = self.queue[0].id, self._changes
        tried = self._tried[1] if self._tried[0] == stands else 0
        behind = list(islice(self.queue, 1 + tried, 1 + BACKFILL_DEPTH))
        if not behind:
            return []
        started: list[QueuedJob] = []
        in_vain: set[tuple[Shape, bool]] = set()  # what is free only shrinks
        starts_s, kept = self._reservation(self.queue[0].shape)
        for job in behind:
            ends_in_time = now_s + (job.limit_s or math.inf) <= starts_s
            if (job.shape, ends_in_time) in in_vain:
                continue
            grants = self._find_fit(job.shape, frozenset() if ends_in_time else kept)
            if grants is None:
                in_vain |= {(job.shape, ends_in_time), (job.shape, False)}
                continue
            self.queue.remove(job)
            started.append(self._start(job, grants, now_s))
        self._tried = stands, tried + len(behind)
        return started

    def _reservation(self, shape: Shape) -> tuple[float, frozenset[int]]:
        """When the first in line could start on what is up, as jobs run to their limits, and on which ranks."""
        eligible = self._matching(shape.constraint)
        free = {
            rank: (self.ranks[rank].cores_free, self.ranks[rank].gpus_free, self.ranks[rank].jobs)
            for ranks in self._free.values()
            for rank in ranks
            if rank in eligible
        }
        want, _ = wanted_count(shape)
        there = sum(count_fits(shape, cores, gpus, whole=jobs == 0) for cores, gpus, jobs in free.values())
        for job in sorted(self.running.values(), key=lambda job: (job.ends_by_s, job.id)):
            if job.ends_by_s == math.inf:
                break
            for grant in job.grants:
                if grant.rank in free:
                    cores, gpus, jobs = free[grant.rank]
                    free[grant.rank] = now = (cores + grant.cores, gpus + grant.gpus, jobs - 1)
                    there += count_fits(shape, now[0], now[1], whole=now[2] == 0)
                    there -= count_fits(shape, cores, gpus, whole=jobs == 0)
            if there >= want and (kept := choose_ranks(shape, free)) is not None:
                return job.ends_by_s, kept
        return math.inf, frozenset()


def choose_ranks(shape: Shape, free: Mapping[int, tuple[int, int, int]]) -> frozenset[int] | None:
    """The ranks that would serve the shape, worst fit, given what is free on each and how many jobs run there."""
    want, _ = wanted_count(shape)
    kept: list[int] = []
    for rank, (cores, gpus, jobs) in sorted(free.items(), key=lambda item: (-item[1][0], -item[1][1], item[0])):
        if want <= 0:
            break
        fits = count_fits(shape, cores, gpus, whole=jobs == 0)
        if fits:
            kept.append(rank)
            want -= fits
    return frozenset(kept) if want <= 0 else None


def wanted_count(shape: Shape) -> tuple[int, str]:
    """How many of what has to be found: nodes where the shape counts nodes (or takes them whole), else slots."""
    if shape.nodes is not None:
        return shape.nodes, "nodes with slots"
    return shape.slots, "whole nodes" if shape.exclusive else "slots"


def count_fits(shape: Shape, cores: int, gpus: int, *, whole: bool) -> int:
    """How many of what is wanted there is room for: nodes (0 or 1), or slots."""
    if shape.exclusive:
        return int(whole and cores >= max(1, shape.cores_per_slot) and gpus >= shape.gpus_per_slot)
    slots = cores // max(1, shape.cores_per_slot)
    if shape.gpus_per_slot:
        slots = min(slots, gpus // shape.gpus_per_slot)
    return slots if shape.nodes is None else int(slots >= shape.slots)


def _grant(rank: int, cores: int, gpus: int, shape: Shape, fits: int) -> GrantCounts:
    """``cores``, ``gpus``: what is free there."""
    if shape.exclusive:
        return GrantCounts(rank, cores, gpus)
    slots = fits if shape.nodes is None else shape.slots
    return GrantCounts(rank, slots * shape.cores_per_slot, slots * shape.gpus_per_slot)
