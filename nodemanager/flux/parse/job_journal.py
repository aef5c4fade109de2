"""The job manager's journal, folded into the queue: which jobs are active, and in which state.

The states and the events that move them are RFC 21's. A new ``Queue`` goes with every connection, as the
journal starts anew with the active jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, RankAllocation, UnreadableJob
from nodemanager.flux.parse.jobspec import WHY_MAX, read_job, trim_jobspec, with_updates
from nodemanager.flux.parse.json_fields import object_at, seconds_at, whole_at
from nodemanager.flux.parse.resources import read_holdings

_NEXT: Mapping[tuple[str, JobState], JobState] = {
    ("validate", JobState.NEW): JobState.DEPEND,
    ("depend", JobState.DEPEND): JobState.PRIORITY,
    ("priority", JobState.PRIORITY): JobState.SCHED,
    # A job that waits goes back for a new priority whenever it changes, and when the instance was restarted.
    ("urgency", JobState.SCHED): JobState.PRIORITY,
    ("jobspec-update", JobState.SCHED): JobState.PRIORITY,
    ("flux-restart", JobState.SCHED): JobState.PRIORITY,
    ("alloc", JobState.SCHED): JobState.RUN,
    ("finish", JobState.RUN): JobState.CLEANUP,
}
# "clean" is the last event of a job; "invalidate" that of one that was refused at submission.
_ENDS = frozenset({"clean", "invalidate"})
_MOVES_RESOURCES = frozenset({"alloc", "release", "free"})


def changes_allocation(event_name: str) -> bool:
    """Whether the event changes what is allocated. The end of housekeeping does too, but no event tells."""
    return event_name in _MOVES_RESOURCES


@dataclass(slots=True)
class _Tracked:
    """A job as far as its events were folded."""

    jobspec: object
    state: JobState = JobState.NEW
    submitted_at: float = 0.0
    urgency: int = 16
    priority: int = 16
    userid: int = 0
    holds: tuple[RankAllocation, ...] = ()
    ends_at: float | None = None
    began_at: float | None = None
    fault: str = ""  # of the first event that could not be read


class JobQueue:
    """The active jobs, by the events applied so far, and what of them has not been told yet."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Tracked] = {}
        self._told: dict[JobId, Job | UnreadableJob] = {}
        self._touched: dict[JobId, None] = {}  # in the order in which they were
        self._ended: dict[JobId, None] = {}

    def apply(
        self,
        job_id: int,
        event_name: str,
        timestamp: object,
        context: object,
        jobspec: object = None,
        r: object = None,
    ) -> None:
        """Take in one event; ``jobspec`` comes with ``submit``, ``r`` (RFC 20) with ``alloc``.

        Never raises: a job with an event that cannot be read becomes unreadable. Events of a job whose
        ``submit`` was not seen are ignored, and so are those that change nothing here.
        """
        of = JobId(int(job_id))
        if event_name == "submit":
            self._jobs[of] = _Tracked(trim_jobspec(jobspec))
            self._ended.pop(of, None)
        job = self._jobs.get(of)
        if job is None:
            return
        if event_name in _ENDS:
            self._end(of)
            return
        self._touched[of] = None
        try:
            _advance(job, event_name, timestamp, context)
            if event_name == "alloc" and r is not None:
                job.holds, job.ends_at = read_holdings(r)
                job.began_at = seconds_at(timestamp, "timestamp")
        except ValueError as error:
            job.fault = job.fault or f"event {event_name}: {error}"[:WHY_MAX]

    def changes(self, started_s: float) -> QueueSeen:
        """What has changed since this or ``complete`` was last called: jobs new or other, and jobs ended."""
        changed = [
            reading
            for job_id in self._touched
            if (reading := _read(job_id, self._jobs[job_id])) != self._told.get(job_id)
        ]
        self._told.update((reading.id, reading) for reading in changed)
        ended = tuple(self._ended)
        self._forget_changes()
        return _seen(started_s, changed, ended=ended)

    def complete(self, started_s: float) -> QueueSeen:
        """All active jobs."""
        self._told = {job_id: _read(job_id, job) for job_id, job in self._jobs.items()}
        self._forget_changes()
        return _seen(started_s, list(self._told.values()), complete=True)

    def _end(self, job_id: JobId) -> None:
        del self._jobs[job_id]
        self._touched.pop(job_id, None)
        if self._told.pop(job_id, None) is not None:
            self._ended[job_id] = None

    def _forget_changes(self) -> None:
        self._touched.clear()
        self._ended.clear()


def _advance(job: _Tracked, event_name: str, timestamp: object, context: object) -> None:
    """Apply one event to its job. Raises ``ValueError`` for what cannot be read."""
    match event_name:
        case "submit":
            job.submitted_at = seconds_at(timestamp, "timestamp")
            # Until the priority is computed it is taken to be what it is by default: the urgency.
            job.urgency = job.priority = _whole(context, "urgency")
            job.userid = _whole(context, "userid")
        case "urgency":
            job.urgency = _whole(context, "urgency")
        case "priority" if job.state in {JobState.PRIORITY, JobState.SCHED}:
            job.priority = _whole(context, "priority")
        case "jobspec-update":
            job.jobspec = with_updates(job.jobspec, context)
        case "resource-update":  # a longer or shorter time (RFC 21)
            job.ends_at = seconds_at(object_at(context, "context").get("expiration"), "context.expiration") or None
        case "exception" if job.state is not JobState.NEW and _whole(context, "severity") == 0:
            job.state = JobState.CLEANUP
    job.state = _NEXT.get((event_name, job.state), job.state)


def _whole(context: object, key: str) -> int:
    return whole_at(object_at(context, "context").get(key), f"context.{key}")


def _read(job_id: JobId, job: _Tracked) -> Job | UnreadableJob:
    if job.fault:
        return UnreadableJob(job_id, job.fault)
    running = job.state is JobState.RUN
    reading = read_job(
        job_id,
        job.jobspec,
        state=job.state,
        submitted_at=job.submitted_at,
        urgency=job.urgency,
        priority=job.priority,
        userid=job.userid,
    )
    if running and isinstance(reading, Job):
        return replace(reading, allocations=job.holds, ends_at=job.ends_at, began_at=job.began_at)
    return reading


def _seen(
    started_s: float,
    readings: list[Job | UnreadableJob],
    *,
    ended: tuple[JobId, ...] = (),
    complete: bool = False,
) -> QueueSeen:
    return QueueSeen(
        started_s=started_s,
        jobs=tuple(reading for reading in readings if isinstance(reading, Job)),
        unreadable=tuple(reading for reading in readings if isinstance(reading, UnreadableJob)),
        ended=ended,
        complete=complete,
    )
