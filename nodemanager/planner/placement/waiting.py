"""The jobs of one placement that existing nodes do not serve: which, at which positions, and how much they need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice

from nodemanager.core.jobs import JobId, Shape
from nodemanager.planner.allocation.work import Work, unplaced_work
from nodemanager.planner.scheduler.sched_simple import cores_of_piece, pieces_of
from nodemanager.planner.scheduler.seating import Seating
from nodemanager.planner.state.queue_index import BatchKey, count_up_to

JobKind = tuple[Shape, float]  # jobs of a kind share their shape, and the step of their time limit (``span_s``)
QueuePosition = tuple[int, int]  # (-priority, id)
QUEUE_END: QueuePosition = (2**63, 2**63)


def kind_of(key: BatchKey) -> JobKind:
    return key.shape, key.span_s


def count_served_before(
    end: QueuePosition, key: BatchKey, ids: Sequence[JobId], failed: Mapping[JobKind, QueuePosition]
) -> int:
    """How many jobs of a batch are before a position and before the first failed job of their kind."""
    if not failed:
        return count_before(key, ids, end)
    return min(count_before(key, ids, end), count_before(key, ids, failed.get(kind_of(key), QUEUE_END)))


def count_before(key: BatchKey, ids: Sequence[JobId], position: QueuePosition) -> int:
    return count_up_to(key, ids, (position[0], position[1] - 1))


def positions_of(works: Sequence[Work]) -> Iterator[QueuePosition]:
    """The queue positions of their jobs, in order."""
    return merge(*(_positions_in(*run) for work in works for run in work.runs))


def _positions_in(key: BatchKey, ids: Sequence[JobId], begin: int, stop: int) -> Iterator[QueuePosition]:
    return ((-key.priority, int(ids[index])) for index in range(begin, stop))


def batch_at(works: Sequence[Work], position: QueuePosition) -> BatchKey:
    """The batch of the job at a position."""
    for key, ids, begin, stop in (run for work in works for run in work.runs):
        at = bisect_left(ids, position[1], begin, stop)
        if at < stop and ids[at] == position[1]:
            return key
    raise AssertionError(f"job {position[1]} is in none of these batches")


def works_before(works: Sequence[Work], position: QueuePosition) -> list[Work]:
    """The part of the work before a position."""
    front = []
    for work in works:
        runs = (
            (key, ids, begin, min(stop, count_before(key, ids, position))) for key, ids, begin, stop in work.runs
        )
        there = tuple(run for run in runs if run[2] < run[3])
        if there:
            front.append(Work(work.shape, work.span_s, work.pieces_each, there))
    return front


@dataclass(slots=True)
class WaitingJobs:
    """The jobs that are not fully seated. ``failed_from``: from which position on jobs of a kind get nothing."""

    batches: Mapping[BatchKey, Sequence[JobId]]
    seating: Seating
    failed_from: dict[JobKind, QueuePosition] = field(default_factory=dict)
    known_unseated: list[tuple[BatchKey, Sequence[JobId], int]] | None = None

    @property
    def unseated(self) -> list[tuple[BatchKey, Sequence[JobId], int]]:
        """The batches with jobs that may need booting or new nodes, and how many jobs of each are seated."""
        if self.known_unseated is None:
            seated, failed = self.seating.seated, self.failed_from
            self.known_unseated = [
                (key, ids, begin)
                for key, ids in self.batches.items()
                if (begin := seated.get(key, 0)) < len(ids)
                and (-key.priority, ids[begin]) < (failed.get(kind_of(key), QUEUE_END) if failed else QUEUE_END)
            ]
        return self.known_unseated

    def _count_before_failure(self, key: BatchKey, ids: Sequence[JobId], end: QueuePosition) -> int:
        """How many jobs of a batch are before a position and before the first failed job of their kind."""
        return count_served_before(end, key, ids, self.failed_from)

    def first_of(self, priority: int, end: QueuePosition, most: int) -> list[JobId]:
        """The first jobs of a priority that are not fully seated on existing nodes, in order."""
        ids: list[JobId] = [
            id_
            for id_, (key, _) in self.seating.short.items()
            if key.priority == priority and (-priority, id_) < end
        ]
        for key, batch, begin in self.unseated:
            if key.priority == priority:
                ids += batch[begin : min(self._count_before_failure(key, batch, end), begin + most)]
        return sorted(ids)[:most]

    def key_at(self, priority: int, job: JobId) -> BatchKey:
        for key, ids in self.batches.items():
            if key.priority == priority:
                at = bisect_left(ids, job)
                if at < len(ids) and ids[at] == job:
                    return key
        raise AssertionError(f"job {job} is in no batch of priority {priority}")

    def _has_failed(self, key: BatchKey, job: JobId) -> bool:
        return (-key.priority, job) >= self.failed_from.get(kind_of(key), QUEUE_END)

    def is_partly_seated(self, stuck: tuple[BatchKey, QueuePosition]) -> bool:
        return JobId(stuck[1][1]) in self.seating.short

    def cores_short(self, end: QueuePosition) -> int:
        """A lower bound for the cores that the unseated jobs before a position need."""
        cores = 0
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                cores += short * cores_of_piece(key.shape)
        for key, ids, begin in self.unseated:
            jobs = self._count_before_failure(key, ids, end) - begin
            if jobs > 0:
                cores += jobs * pieces_of(key.shape) * cores_of_piece(key.shape)
        return cores

    def unplaced_works(self, end: QueuePosition) -> list[Work]:
        """The work before a position that is not seated, in the order of the batches."""
        runs: dict[JobKind, list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        parts: dict[tuple[JobKind, int], list[tuple[BatchKey, Sequence[JobId], int, int]]] = {}
        for id_, (key, short) in self.seating.short.items():
            if (-key.priority, id_) < end and not self._has_failed(key, id_):
                ids = self.batches[key]
                at = bisect_left(ids, id_)
                parts.setdefault((kind_of(key), short), []).append((key, ids, at, at + 1))
        for key, ids, begin in self.unseated:
            stop = self._count_before_failure(key, ids, end)
            if begin < stop:
                runs.setdefault(kind_of(key), []).append((key, ids, begin, stop))
        return [
            *(Work(kind[0], kind[1], short, tuple(those)) for (kind, short), those in parts.items()),
            *(unplaced_work(shape, span_s, those) for (shape, span_s), those in runs.items()),
        ]

    def work_behind(self, after: QueuePosition) -> list[list[Work]]:
        """The unserved work behind a position, kind by kind, in the order of each kind's first job."""
        done = {
            (work.shape, work.span_s, work.pieces_each, key, begin): stop
            for work in self.unplaced_works(after)
            for key, _, begin, stop in work.runs
        }
        behind: dict[JobKind, list[Work]] = {}
        for work in self.unplaced_works(QUEUE_END):
            kind = (work.shape, work.span_s, work.pieces_each)
            runs = [(key, ids, done.get((*kind, key, begin), begin), stop) for key, ids, begin, stop in work.runs]
            rest = Work(*kind, tuple(run for run in runs if run[2] < run[3]))
            if rest.jobs:
                behind.setdefault((work.shape, work.span_s), []).append(rest)
        return sorted(behind.values(), key=lambda works: next(positions_of(works)))

    def work_of_job(self, key: BatchKey, job: JobId) -> Work:
        """The work of a single job."""
        _, short = self.seating.short.get(job, (key, pieces_of(key.shape)))
        return self.work_of_pieces(key, job, short)

    def work_of_pieces(self, key: BatchKey, job: JobId, short: int) -> Work:
        ids = self.batches[key]
        at = bisect_left(ids, job)
        return Work(key.shape, key.span_s, short, ((key, ids, at, at + 1),))

    def first_unseated(self, key: BatchKey, ids: Sequence[JobId], begin: int) -> JobId | None:
        seated = self.seating.seated.get(key, 0)
        behind = enumerate(islice(ids, begin, None), begin)
        return next((id_ for index, id_ in behind if index >= seated or id_ in self.seating.short), None)
