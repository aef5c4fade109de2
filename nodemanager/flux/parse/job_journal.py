"""Fold the job manager's journal into the queue: the active jobs and their states.

RFC 21 defines the states and the events that change them. Every connection needs a new ``JobQueue``, because the
journal begins again with the active jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, RankAllocation, UnreadableJob
from nodemanager.core.notation import escape_unprintable
from nodemanager.flux.parse.jobspec import (
    ALL_BYTES_MAX,
    PLAIN_BYTES,
    USER_BYTES_MAX,
    WHY_MAX,
    DroppedJobspec,
    read_job,
    size_bytes,
    trim_jobspec,
    with_updates,
)
from nodemanager.flux.parse.json_fields import object_at, seconds_at, whole_at
from nodemanager.flux.parse.resources import read_holdings

_NEXT_STATE: Mapping[tuple[str, JobState], JobState] = {
    ("validate", JobState.NEW): JobState.DEPEND,
    ("depend", JobState.DEPEND): JobState.PRIORITY,
    ("priority", JobState.PRIORITY): JobState.SCHED,
    # A waiting job gets a new priority whenever it changes, and when the instance restarts.
    ("urgency", JobState.SCHED): JobState.PRIORITY,
    ("jobspec-update", JobState.SCHED): JobState.PRIORITY,
    ("flux-restart", JobState.SCHED): JobState.PRIORITY,
    ("alloc", JobState.SCHED): JobState.RUN,
    ("finish", JobState.RUN): JobState.CLEANUP,
}
# "clean" is the last event of a job, "invalidate" the last one of a job that was refused at submission.
_LAST_EVENTS = frozenset({"clean", "invalidate"})
_JOBSPEC_EVENTS = frozenset({"submit", "jobspec-update"})
_ALLOCATION_EVENTS = frozenset({"alloc", "release", "free"})


def changes_allocation(event_name: str) -> bool:
    """Whether the event changes an allocation. The end of housekeeping also does, but it posts no event."""
    return event_name in _ALLOCATION_EVENTS


@dataclass(slots=True)
class _TrackedJob:
    """A job after the events applied so far."""

    jobspec: object
    counted_bytes: int = 0  # of its jobspec, as far as it is larger than a plain one
    state: JobState = JobState.NEW
    submitted_at: float = 0.0
    urgency: int = 16
    priority: int = 16
    userid: int = 0
    holds: tuple[RankAllocation, ...] = ()
    ends_at: float | None = None
    began_at: float | None = None
    fault: str = ""  # the error of the first event that could not be read


class JobQueue:
    """The active jobs after the events applied so far, and the changes not yet reported."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _TrackedJob] = {}
        self._told: dict[JobId, Job | UnreadableJob] = {}
        self._touched: dict[JobId, None] = {}  # in the order of their first change
        self._ended: dict[JobId, None] = {}
        self._bytes_of_user: dict[int, int] = {}  # the counted bytes of all their jobspecs

    def apply(
        self,
        job_id: int,
        event_name: str,
        timestamp: object,
        context: object,
        jobspec: object = None,
        r: object = None,
    ) -> None:
        """Apply one event. A ``submit`` event has a ``jobspec``, an ``alloc`` event has ``r`` (RFC 20).

        Never raises: an unreadable event makes its job unreadable. Events are ignored if they change nothing here,
        or if their job's ``submit`` was not seen.
        """
        of = JobId(int(job_id))
        if event_name == "submit":
            self._discount(self._jobs.get(of))
            self._jobs[of] = _TrackedJob(trim_jobspec(jobspec))
            self._ended.pop(of, None)
        job = self._jobs.get(of)
        if job is None:
            return
        if event_name in _LAST_EVENTS:
            self._end(of)
            return
        self._touched[of] = None
        try:
            _advance(job, event_name, timestamp, context)
            if event_name == "alloc" and r is not None:
                job.holds, job.ends_at = read_holdings(r)
                job.began_at = seconds_at(timestamp, "timestamp")
        except ValueError as error:
            job.fault = job.fault or escape_unprintable(f"event {event_name}: {error}"[:WHY_MAX])
        if event_name in _JOBSPEC_EVENTS:
            self._recount(job)

    def _recount(self, job: _TrackedJob) -> None:
        """Count the job's jobspec for its user, or drop it if the user's jobspecs, or all, would take too much."""
        self._discount(job)
        size = size_bytes(job.jobspec) - PLAIN_BYTES
        if size <= 0:
            return
        of_user = self._bytes_of_user.get(job.userid, 0)
        if of_user + size > USER_BYTES_MAX:
            whose, limit = "the user's", USER_BYTES_MAX
        elif sum(self._bytes_of_user.values()) + size > ALL_BYTES_MAX:
            whose, limit = "all users'", ALL_BYTES_MAX
        else:
            job.counted_bytes = size
            self._bytes_of_user[job.userid] = of_user + size
            return
        why = f"jobspec: {whose} large jobspecs take more than {limit // 2**20} MiB together"
        job.jobspec = DroppedJobspec(f"{why}: submit it again when others have ended, or with a shorter constraint")

    def _discount(self, job: _TrackedJob | None) -> None:
        if job is not None and job.counted_bytes:
            left = self._bytes_of_user[job.userid] - job.counted_bytes
            self._bytes_of_user[job.userid] = left
            if not left:
                del self._bytes_of_user[job.userid]
            job.counted_bytes = 0

    def changes(self, started_s: float) -> QueueSeen:
        """Return the new, changed and ended jobs since the last call of this or ``complete``."""
        changed = [
            reading
            for job_id in self._touched
            if (reading := _read_tracked(job_id, self._jobs[job_id])) != self._told.get(job_id)
        ]
        self._told.update((reading.id, reading) for reading in changed)
        ended = tuple(self._ended)
        self._forget_changes()
        return _queue_seen(started_s, changed, ended=ended)

    def complete(self, started_s: float) -> QueueSeen:
        """Return all active jobs."""
        self._told = {job_id: _read_tracked(job_id, job) for job_id, job in self._jobs.items()}
        self._forget_changes()
        return _queue_seen(started_s, list(self._told.values()), complete=True)

    def _end(self, job_id: JobId) -> None:
        self._discount(self._jobs.pop(job_id))
        self._touched.pop(job_id, None)
        if self._told.pop(job_id, None) is not None:
            self._ended[job_id] = None

    def _forget_changes(self) -> None:
        self._touched.clear()
        self._ended.clear()


def _advance(job: _TrackedJob, event_name: str, timestamp: object, context: object) -> None:
    """Apply one event to its job. Raises ``ValueError`` if it cannot be read."""
    match event_name:
        case "submit":
            job.submitted_at = seconds_at(timestamp, "timestamp")
            # Until Flux computes the priority, assume its default, the urgency.
            job.urgency = job.priority = _whole(context, "urgency")
            job.userid = _whole(context, "userid")
        case "urgency":
            job.urgency = _whole(context, "urgency")
        case "priority" if job.state in {JobState.PRIORITY, JobState.SCHED}:
            job.priority = _whole(context, "priority")
        case "jobspec-update":
            job.jobspec = trim_jobspec(with_updates(job.jobspec, context))
        case "resource-update":  # a changed expiration (RFC 21)
            job.ends_at = seconds_at(object_at(context, "context").get("expiration"), "context.expiration") or None
        case "exception" if job.state is not JobState.NEW and _whole(context, "severity") == 0:
            job.state = JobState.CLEANUP
    job.state = _NEXT_STATE.get((event_name, job.state), job.state)


def _whole(context: object, key: str) -> int:
    return whole_at(object_at(context, "context").get(key), f"context.{key}")


def _read_tracked(job_id: JobId, job: _TrackedJob) -> Job | UnreadableJob:
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


def _queue_seen(
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
