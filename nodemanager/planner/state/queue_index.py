"""The queue as counts: equal jobs of one account stand in one batch, in the order in which Flux takes them.

``observe`` keeps the line in the snapshot beside the jobs, so that a change costs what changed. A line knows which
jobs it was read off; one that was read off others is read anew (:func:`line_of`), so it is never out of step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from nodemanager.planner.state.frozen import worked_out
from nodemanager.core.jobs import Job, JobId, JobState, Shape
from nodemanager.core.reasons import Reason, because

# How long jobs run, in steps: those of one step count as ending together.
SPANS_S = (300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, inf)

STARTED = (JobState.RUN, JobState.CLEANUP)
INSERTED_SINGLY_MAX = 64  # changes that are put in their places one by one


class BatchKey(NamedTuple):
    """What makes waiting jobs interchangeable."""

    priority: int
    shape: Shape
    span_s: float
    userid: int
    queue: str


@dataclass(frozen=True)
class QueueIndex:
    """``batches``: the ids of each in ascending order, which is the order of submission (RFC 19)."""

    jobs: Mapping[JobId, Job] = field(default_factory=lambda: MappingProxyType({}))  # what it was read off
    batches: Mapping[BatchKey, Sequence[JobId]] = field(default_factory=lambda: MappingProxyType({}))
    withheld: Mapping[JobId, Reason] = field(default_factory=lambda: MappingProxyType({}))
    unheeded: Mapping[JobId, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    job_ends: Sequence[tuple[float, JobId]] = ()  # of running jobs whose end is known, the earliest first

    @worked_out
    def in_order(self) -> Mapping[BatchKey, Sequence[JobId]]:
        """The batches by priority, then by their first jobs."""
        return dict(sorted(self.batches.items(), key=lambda batch: (-batch[0].priority, batch[1][0])))

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        return len(self.withheld) + sum(map(len, self.batches.values()))


def queue_index_of(jobs: Mapping[JobId, Job], known: QueueIndex) -> QueueIndex:
    """The line of these jobs: the one that is known, if it is theirs."""
    return known if known.jobs is jobs else updated_queue_index(QueueIndex(), jobs, (), jobs.values())


def updated_queue_index(line: QueueIndex, jobs: Mapping[JobId, Job], gone: Iterable[Job], come: Iterable[Job]) -> QueueIndex:
    """The line of ``jobs``, made from one that lacks those that come and still has those that are gone."""
    changes = _Changes()
    for job in gone:
        changes.note(job, there=False)
    for job in come:
        changes.note(job, there=True)
    batches = dict(line.batches)
    for key in {**changes.left, **changes.joined}:
        ids = _changed(batches.get(key, ()), changes.left.get(key, []), changes.joined.get(key, []))
        if ids:
            batches[key] = ids
        else:
            batches.pop(key, None)
    ends = _changed(line.job_ends, changes.ended, changes.begun) if changes.ended or changes.begun else line.job_ends
    withheld, unheeded = line.withheld, line.unheeded
    if changes.withheld:
        withheld = {id_: why for id_, why in {**withheld, **changes.withheld}.items() if why is not None}
    if changes.unheeded:
        unheeded = {id_: what for id_, what in {**unheeded, **changes.unheeded}.items() if what}
    return QueueIndex(jobs, batches, withheld, unheeded, ends)


def key_of(job: Job) -> BatchKey:
    return BatchKey(job.priority, job.shape, span_s(job), job.userid, job.queue)


def span_s(job: Job) -> float:
    """How long it may run at the most, rounded up to a step. A duration of 0 is unlimited."""
    if job.duration_s <= 0:
        return inf
    return next(step_s for step_s in SPANS_S if job.duration_s <= step_s)


def count_up_to(key: BatchKey, ids: Sequence[JobId], cut: tuple[int, int]) -> int:
    """How many of a batch come before or at a place in the queue, which is ``(-priority, id)``."""
    priority = -cut[0]
    if key.priority != priority:
        return len(ids) if key.priority > priority else 0
    return bisect_right(ids, cut[1])


def _not_for_want_of_nodes(job: Job) -> Reason | None:
    if job.urgency == 0 or job.priority == 0:
        return because("held", urgency=job.urgency, priority=job.priority)
    if job.state is JobState.DEPEND:
        return because("dependency")
    if job.state is not JobState.SCHED:
        return because("not_yet_scheduled", state=str(job.state))
    return None


@dataclass(slots=True)
class _Changes:
    """Where jobs left and came, sorted out."""

    left: dict[BatchKey, list[JobId]] = field(default_factory=dict)
    joined: dict[BatchKey, list[JobId]] = field(default_factory=dict)
    ended: list[tuple[float, JobId]] = field(default_factory=list)
    begun: list[tuple[float, JobId]] = field(default_factory=list)
    withheld: dict[JobId, Reason | None] = field(default_factory=dict)
    unheeded: dict[JobId, tuple[str, ...]] = field(default_factory=dict)

    def note(self, job: Job, *, there: bool) -> None:
        if job.state in STARTED:
            if job.state is JobState.RUN and job.ends_at is not None:
                (self.begun if there else self.ended).append((job.ends_at, job.id))
            return
        obstacle = _not_for_want_of_nodes(job)
        if obstacle is not None:
            self.withheld[job.id] = obstacle if there else None
            return
        (self.joined if there else self.left).setdefault(key_of(job), []).append(job.id)
        if job.unheeded:
            self.unheeded[job.id] = job.unheeded if there else ()


def _changed(ids: Sequence, left: list, joined: list) -> list:  # type: ignore[type-arg] # of ids, or of ends
    """Those that are there, sorted, without some and with others."""
    made = list(ids)
    if len(left) + len(joined) > INSERTED_SINGLY_MAX:
        leaving = set(left)
        made = [id_ for id_ in made if id_ not in leaving] if leaving else made
        made += joined
        made.sort()
        return made
    for id_ in left:
        place = bisect_left(made, id_)
        if place < len(made) and made[place] == id_:
            del made[place]
    for id_ in joined:
        insort(made, id_)
    return made
