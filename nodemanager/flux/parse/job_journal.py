"""Fold the job manager's journal into the queue: the active jobs and their states.

RFC 21 defines the states and the events that change them. Every connection needs a new ``JobQueue``, because the
journal begins again with the active jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, UnreadableJob
from nodemanager.core.notation import NotationError, escape_unprintable, parse_job_id
from nodemanager.core.untrusted import TooDeep
from nodemanager.flux.parse.eventlog import LAST_EVENTS
from nodemanager.flux.parse.jobspec import (
    ALL_BYTES_MAX,
    NOT_RUN,
    PLAIN_BYTES,
    USER_BYTES_MAX,
    WHY_MAX,
    DroppedJobspec,
    Run,
    Unread,
    shown_state,
    size_bytes,
    trim_jobspec,
    try_request,
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
_JOBSPEC_EVENTS = frozenset({"submit", "jobspec-update"})
_ALLOCATION_EVENTS = frozenset({"alloc", "release", "free"})


BEGIN_AT_MAX = 253_402_300_799.0  # the end of the year 9999: later moments cannot be shown
AWAITED_MAX = 10  # dependencies of a job; further ones are not named


def changes_allocation(event_name: str) -> bool:
    """Whether the event changes an allocation. The end of housekeeping also does, but it posts no event."""
    return event_name in _ALLOCATION_EVENTS


@dataclass(slots=True)
class _TrackedJob:
    """A job after the events applied so far."""

    jobspec: KeptJobspec | DroppedJobspec
    told: Job | UnreadableJob | None = None  # as last reported
    counted_bytes: int = 0  # of its jobspec, as far as it is larger than a plain one
    state: JobState = JobState.NEW
    submitted_at: float = 0.0
    urgency: int = 16
    priority: int = 16
    userid: int | None = None  # None until its submit event was read
    run: Run = NOT_RUN
    awaits: tuple[str, ...] = ()  # its dependencies on jobs and its begin time, in Flux's words
    fault: str = ""  # the error of the first event that could not be read


class JobQueue:
    """The active jobs after the events applied so far, and the changes not yet reported."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, _TrackedJob] = {}
        self._jobspecs = JobspecPool()
        self._touched: dict[JobId, None] = {}  # in the order of their first change
        self._ended: dict[JobId, None] = {}
        self._bytes_of_user: dict[int | None, int] = {}  # the counted bytes of all their jobspecs

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
            before = self._jobs.get(of)
            self._discount(before)
            told = before.told if before is not None else None
            self._jobs[of] = _TrackedJob(self._jobspecs.keep(jobspec), told)
        job = self._jobs.get(of)
        if job is None:
            return
        if event_name in LAST_EVENTS:
            self._end(of)
            return
        self._touched[of] = None
        try:
            self._advance(job, event_name, timestamp, context)
            if event_name == "alloc" and r is not None:
                job.run = *read_holdings(r), seconds_at(timestamp, "timestamp")
        except ValueError as error:
            job.fault = job.fault or escape_unprintable(f"event {event_name}: {error}"[:WHY_MAX])
        if event_name in _JOBSPEC_EVENTS:
            self._recount(job)

    def _advance(self, job: _TrackedJob, event_name: str, timestamp: object, context: object) -> None:
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
                whole = job.jobspec.parse() if isinstance(job.jobspec, KeptJobspec) else job.jobspec
                job.jobspec = self._jobspecs.keep(with_updates(whole, context))
            case "resource-update":  # a changed expiration (RFC 21)
                ends_at = seconds_at(object_at(context, "context").get("expiration"), "context.expiration") or None
                job.run = job.run[0], ends_at, job.run[2]
            case "dependency-add" if len(job.awaits) < AWAITED_MAX and _is_named(found := _description(context)):
                job.awaits += (found,)
            case "dependency-remove" if job.awaits:
                gone = _description(context)
                job.awaits = tuple(it for it in job.awaits if it != gone)
            case "exception" if job.state is not JobState.NEW and _whole(context, "severity") == 0:
                job.state = JobState.CLEANUP
        job.state = _NEXT_STATE.get((event_name, job.state), job.state)

    def _recount(self, job: _TrackedJob) -> None:
        """Count the job's jobspec for its user, or drop it if the user's jobspecs, or all, would take too much."""
        self._discount(job)
        size = job.jobspec.size_bytes - PLAIN_BYTES if isinstance(job.jobspec, KeptJobspec) else 0
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
        changed: list[Job | UnreadableJob] = []
        for job_id in self._touched:
            job = self._jobs[job_id]
            reading = _read_tracked(job_id, job)
            if reading != job.told:
                job.told = reading
                changed.append(reading)
        ended = tuple(self._ended)
        self._forget_changes()
        return _queue_seen(started_s, changed, ended=ended)

    def complete(self, started_s: float) -> QueueSeen:
        """Return all active jobs."""
        readings: list[Job | UnreadableJob] = []
        for job_id, job in self._jobs.items():
            job.told = _read_tracked(job_id, job)
            readings.append(job.told)
        self._forget_changes()
        return _queue_seen(started_s, readings, complete=True)

    def _end(self, job_id: JobId) -> None:
        job = self._jobs.pop(job_id)
        self._discount(job)
        self._touched.pop(job_id, None)
        if job.told is not None:
            self._ended[job_id] = None

    def _forget_changes(self) -> None:
        self._touched.clear()
        self._ended.clear()


def _whole(context: object, key: str) -> int:
    return whole_at(object_at(context, "context").get(key), f"context.{key}")


def _description(context: object) -> str:
    found = object_at(context, "context").get("description")
    return found if isinstance(found, str) else ""


def _awaited(description: str) -> JobId | None:
    """The job of a dependency such as ``after-success=f1234``; None if it is one on something else."""
    scheme, _, value = description.partition("=")
    if scheme.startswith("after-"):
        with suppress(NotationError):
            return JobId(parse_job_id(value))
    return None


def _begin_at(description: str) -> float | None:
    """The moment of a dependency such as ``begin-time=1795490531.735``; None if it is one on something else."""
    scheme, _, value = description.partition("=")
    if scheme == "begin-time":
        with suppress(ValueError):
            begin_at = seconds_at(float(value), "begin-time")
            return begin_at if begin_at <= BEGIN_AT_MAX else None
    return None


def _is_named(description: str) -> bool:
    return _awaited(description) is not None or _begin_at(description) is not None


def _read_tracked(job_id: JobId, job: _TrackedJob) -> Job | UnreadableJob:
    if job.fault:
        return _unreadable(job_id, job, job.fault)
    if isinstance(job.jobspec, DroppedJobspec):
        return _unreadable(job_id, job, job.jobspec.why)
    request = job.jobspec.request
    if isinstance(request, Unread):
        return _unreadable(job_id, job, request.why, set_aside=request.set_aside)
    state = shown_state(job.state, request)
    awaits: tuple[JobId, ...] = ()
    not_before_at: float | None = None
    if job.state is JobState.DEPEND:
        awaits = tuple(dict.fromkeys(it for it in map(_awaited, job.awaits) if it is not None))
        if not request.delegated_to:  # its hold is a begin time too
            not_before_at = max((it for it in map(_begin_at, job.awaits) if it is not None), default=None)
    values = state, request, job.submitted_at, job.urgency, job.priority, job.userid or 0
    return Job(job_id, *values, *_run_of(job), awaits=awaits, not_before_at=not_before_at)


def _run_of(job: _TrackedJob) -> Run:
    """What a running job holds. One that is cleaned up holds nothing more, but it is known when it began."""
    match job.state:
        case JobState.RUN:
            return job.run
        case JobState.CLEANUP:
            _, _, began_at = job.run
            return (), None, began_at
        case _:
            return NOT_RUN


def _unreadable(job_id: JobId, job: _TrackedJob, why: str, *, set_aside: bool = False) -> UnreadableJob:
    return UnreadableJob(job_id, why, job.state in {JobState.RUN, JobState.CLEANUP}, job.userid, set_aside)


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


# --- keep each distinct jobspec once ----------------------------------------------------------------------
#
# A queue of a million jobs has few distinct ones, once trimmed.
#
# A jobspec is kept as text, which takes a tenth of the memory of its objects, and with what it asks for.


class KeptJobspec:
    """A trimmed jobspec. It never changes, and equal ones are one object as long as a job has it."""

    __slots__ = ("__weakref__", "_text", "request", "size_bytes")

    def __init__(self, text: str, jobspec: object) -> None:
        self._text = text
        self.size_bytes = size_bytes(jobspec)  # of its objects, an estimate
        self.request: JobRequest | Unread = try_request(jobspec)

    def parse(self) -> Any:
        """Return the jobspec as objects."""
        return json.loads(self._text)


class JobspecPool:
    """The jobspecs of the jobs of one queue."""

    def __init__(self) -> None:
        self._kept: WeakValueDictionary[str, KeptJobspec] = WeakValueDictionary()

    def keep(self, jobspec: object) -> KeptJobspec | DroppedJobspec:
        """Trim a jobspec, and return the kept one that equals it. Never raises."""
        if isinstance(jobspec, TooDeep):
            return DroppedJobspec(f"jobspec: it {jobspec.why}")
        trimmed = trim_jobspec(jobspec)
        if isinstance(trimmed, DroppedJobspec):
            return trimmed
        try:
            text = json.dumps(trimmed, separators=(",", ":"))
        except RecursionError:
            return DroppedJobspec("jobspec: its objects nest too deeply")
        kept = self._kept.get(text)
        if kept is None:
            kept = self._kept[text] = KeptJobspec(text, trimmed)
        return kept
