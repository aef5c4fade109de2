"""An index of the queue: equal jobs of one user and queue form a batch, in the order in which Flux starts them.

``observe`` keeps the index in the snapshot with the jobs, so an update costs only what changed. The index knows
from which jobs it was built. If the snapshot has others, :func:`queue_index_of` builds a new one, so it is never
wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from nodemanager.core.jobs import Job, JobId, JobState, Shape
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.frozen import lazy_property

# Steps of time limits: jobs within one step count as ending together.
SPANS_S = (300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0, inf)

STARTED = (JobState.RUN, JobState.CLEANUP)
INSERTED_SINGLY_MAX = 64  # up to so many changes are inserted one by one; more are sorted


class BatchKey(NamedTuple):
    """What makes waiting jobs interchangeable."""

    priority: int
    shape: Shape
    span_s: float
    userid: int
    queue: str


@dataclass(frozen=True)
class QueueIndex:
    """The queue, by batch. The ids of a batch ascend, which is their order of submission (RFC 19)."""

    jobs: Mapping[JobId, Job] = field(default_factory=lambda: MappingProxyType({}))  # what the index was built from
    batches: Mapping[BatchKey, Sequence[JobId]] = field(default_factory=lambda: MappingProxyType({}))
    withheld: Mapping[JobId, Reason] = field(default_factory=lambda: MappingProxyType({}))
    unheeded: Mapping[JobId, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    copies: Mapping[JobId, JobId] = field(
        default_factory=lambda: MappingProxyType({})
    )  # copies that wait: the originals
    job_ends: Sequence[tuple[float, JobId]] = ()  # running jobs whose end is known, the earliest first

    @lazy_property
    def in_order(self) -> Mapping[BatchKey, Sequence[JobId]]:
        """The batches by priority, then by their first jobs."""
        return dict(sorted(self.batches.items(), key=lambda batch: (-batch[0].priority, batch[1][0])))

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        return len(self.withheld) + sum(map(len, self.batches.values()))


def queue_index_of(jobs: Mapping[JobId, Job], known: QueueIndex) -> QueueIndex:
    """The index of these jobs: ``known`` if it was built from them, else a new one."""
    return known if known.jobs is jobs else updated_queue_index(QueueIndex(), jobs, (), jobs.values())


def updated_queue_index(
    index: QueueIndex, jobs: Mapping[JobId, Job], gone: Iterable[Job], come: Iterable[Job]
) -> QueueIndex:
    """An index of ``jobs``. ``gone``: the changed jobs as they were; ``come``: the changed and new jobs now."""
    changes = _Changes()
    for job in gone:
        changes.note(job, present=False)
    for job in come:
        changes.note(job, present=True)
    batches = dict(index.batches)
    for key in {**changes.left, **changes.joined}:
        ids = with_changes(batches.get(key, ()), changes.left.get(key, []), changes.joined.get(key, []))
        if ids:
            batches[key] = ids
        else:
            batches.pop(key, None)
    ends = (
        with_changes(index.job_ends, changes.ended, changes.begun)
        if changes.ended or changes.begun
        else index.job_ends
    )
    withheld, unheeded = index.withheld, index.unheeded
    if changes.withheld:
        withheld = {id_: why for id_, why in {**withheld, **changes.withheld}.items() if why is not None}
    if changes.unheeded:
        unheeded = {id_: what for id_, what in {**unheeded, **changes.unheeded}.items() if what}
    copies = index.copies
    if changes.copies:
        copies = {id_: it for id_, it in {**copies, **changes.copies}.items() if it is not None}
    return QueueIndex(jobs, batches, withheld, unheeded, copies, ends)


def key_of(job: Job) -> BatchKey:
    """The batch to which a waiting job belongs."""
    return BatchKey(job.priority, job.shape, span_s(job), job.userid, job.queue)


def span_s(job: Job) -> float:
    """The job's time limit in seconds, rounded up to a step. A duration of 0 is unlimited."""
    if job.duration_s <= 0:
        return inf
    return next(step_s for step_s in SPANS_S if job.duration_s <= step_s)


def count_up_to(key: BatchKey, ids: Sequence[JobId], cut: tuple[int, int]) -> int:
    """How many jobs of a batch are at or before a queue position, which is ``(-priority, id)``."""
    priority = -cut[0]
    if key.priority != priority:
        return len(ids) if key.priority > priority else 0
    return bisect_right(ids, cut[1])


def _why_withheld(job: Job) -> Reason | None:
    if job.urgency == 0 or job.priority == 0:
        return because(Code.HELD, urgency=job.urgency, priority=job.priority)
    if job.state is JobState.DEPEND:
        if job.request.requeued_from is not None:
            return because(Code.COPY_WAITS, job=str(job.request.requeued_from))
        return because(Code.DEPENDENCY)
    if job.state is not JobState.SCHED:
        return because(Code.NOT_YET_SCHEDULED, state=str(job.state))
    return None


@dataclass(slots=True)
class _Changes:
    """Changes to the queue, sorted by the part of the index that they concern."""

    left: dict[BatchKey, list[JobId]] = field(default_factory=dict)
    joined: dict[BatchKey, list[JobId]] = field(default_factory=dict)
    ended: list[tuple[float, JobId]] = field(default_factory=list)
    begun: list[tuple[float, JobId]] = field(default_factory=list)
    withheld: dict[JobId, Reason | None] = field(default_factory=dict)
    unheeded: dict[JobId, tuple[str, ...]] = field(default_factory=dict)
    copies: dict[JobId, JobId | None] = field(default_factory=dict)

    def note(self, job: Job, *, present: bool) -> None:
        if job.state in STARTED:
            if job.state is JobState.RUN and job.ends_at is not None:
                (self.begun if present else self.ended).append((job.ends_at, job.id))
            return
        if job.state is JobState.DEPEND and job.request.requeued_from is not None:
            self.copies[job.id] = job.request.requeued_from if present else None
        obstacle = _why_withheld(job)
        if obstacle is not None:
            self.withheld[job.id] = obstacle if present else None
            return
        (self.joined if present else self.left).setdefault(key_of(job), []).append(job.id)
        if job.request.unheeded:
            self.unheeded[job.id] = job.request.unheeded if present else ()


def with_changes(ids: Sequence, left: list, joined: list) -> list:  # type: ignore[type-arg] # of ids, or of ends
    """The sorted list without ``left`` and with ``joined``."""
    made = list(ids)
    if len(left) + len(joined) > INSERTED_SINGLY_MAX:
        leaving = set(left)
        made = [id_ for id_ in made if id_ not in leaving] if leaving else made
        made += joined
        made.sort()
        return made
    for id_ in left:
        index = bisect_left(made, id_)
        if index < len(made) and made[index] == id_:
            del made[index]
    for id_ in joined:
        insort(made, id_)
    return made
