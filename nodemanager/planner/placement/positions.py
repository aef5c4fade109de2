"""Positions in the queue, and the work before them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge

from nodemanager.core.jobs import JobId, Shape
from nodemanager.planner.allocation.work import Work
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
