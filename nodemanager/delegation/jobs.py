"""The two sides of a delegated job, each folded from the events of its eventlog.

The job of our instance is the *proxy*: it shows the state, and never runs anything. The job at the peer is the
*copy*: it runs. Event names and contexts are those of RFC 21; names that begin with ``delegate::`` are ours.
A fold may see an event twice, because a new connection begins with the whole eventlog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NewType

from nodemanager.core.jobs import JobId

PeerName = NewType("PeerName", str)

# The hold of a proxy: the builtin ``begin-time`` dependency, at a moment that no user asks for (2100-01-01).
HOLD_UNTIL_AT = 4102444800.0
HOLD = f"begin-time={HOLD_UNTIL_AT:.3f}"
SUBMITTED = "delegate::submit"
STARTED = "delegate::start"
REFUSED = "delegate::refused"
TAKEN = "delegate::take"
RETURNED = "delegate::return"
EXEC = "attributes.system.exec"
DURATION = "attributes.system.duration"
PROXY_R = "attributes.system.alloc-bypass.R"
_SECONDS_MAX = 1e15
_STATUS_MAX = 0xFFFF  # of ``waitpid``
_NOTE_MAX = 1000  # characters
_EXCEPTION_TYPE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OTHER_TYPE = "delegate"


@dataclass(frozen=True, slots=True)
class EventlogEntry:
    """One event of a job's eventlog."""

    name: str
    at: float
    context: Mapping[str, Any] = field(default_factory=dict)


class Phase(Enum):
    """How far a job has come, in this order."""

    NEW = 0
    WAITING = 1  # for a dependency
    QUEUED = 2  # for a priority or for resources
    ALLOCATED = 3
    RUNNING = 4
    ENDING = 5  # finished or failed; some of it remains
    ENDED = 6


@dataclass(frozen=True, slots=True)
class Failure:
    """A fatal exception of a job."""

    type: str
    note: str


@dataclass(frozen=True, slots=True)
class Placed:
    """The peer and the copy that our job's eventlog names. Only this copy may run."""

    peer: PeerName
    remote: JobId


@dataclass(frozen=True, slots=True)
class Proxy:
    """The job of our instance. ``target`` is what its user asked for: a peer's name, a URI, or ``any``."""

    id: JobId
    target: str = ""
    userid: int = 0
    submitted_at: float = 0.0
    urgency: int = 16
    duration_s: float = 0.0
    duration_wanted_s: float | None = None  # if it was changed after the submission
    phase: Phase = Phase.NEW
    waits_for: frozenset[str] = frozenset()  # its dependencies, with our hold
    placed: Placed | None = None
    refusals: Mapping[PeerName, str] = field(default_factory=dict)  # the peers that refused it, with their words
    start_recorded: bool = False
    nodelist: str = ""  # of the resources that it seems to hold
    # When the plugin alloc-bypass last took note of the job with these resources, by the clock of Flux. The order
    # of events tells whether that was after they were named, because we post the naming with the manager's time.
    bypass_at: float = 0.0
    failure: Failure | None = None
    # Of a job without the dependency (``[Policy] burst = peers``): whether we took it to run it at a peer, or gave
    # it back, so that it runs here; and the urgency that its user wants, if ours is 0 meanwhile.
    taken: bool = False
    returned: bool = False
    urgency_wanted: int = 0
    inert: bool = False  # job-exec would start nothing for it
    runs_here: bool = False  # it got nodes of our instance before it was made inert
    stranded: bool = (
        False  # it got nodes after that, so job-exec holds them and starts nothing: only a peer can run it
    )

    @property
    def copy_urgency(self) -> int:
        """The urgency that its copy must have."""
        return self.urgency_wanted if self.taken else self.urgency

    @property
    def held(self) -> bool:
        """Whether our hold is still on the job."""
        return HOLD in self.waits_for

    def after(self, events: Iterable[EventlogEntry]) -> Proxy:
        """Return the job after more events."""
        job = self
        for event in events:
            job = _proxy_after(job, event)
        return job


@dataclass(frozen=True, slots=True)
class Copy:
    """The job at the peer. It is submitted with urgency 0, so that it waits until our eventlog names it."""

    remote: JobId
    urgency: int = 0
    duration_s: float = 0.0
    phase: Phase = Phase.NEW
    cores: int = 0  # that it asks for
    made_for_at: float = 0.0  # when the job at home was submitted, by its marker
    started_at: float | None = None
    ended_at: float | None = None  # when its tasks ended, by the peer's clock
    status: int | None = None  # of ``waitpid``, once it has finished
    failure: Failure | None = None
    expected_at: float | None = None  # when the peer's scheduler expects it to start

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.phase is Phase.ENDED

    @property
    def was_refused(self) -> bool:
        """Whether the peer's scheduler says that the job can never run there."""
        return self.started_at is None and self.failure is not None and self.failure.type == "alloc"

    def after(self, events: Iterable[EventlogEntry]) -> Copy:
        """Return the job after more events."""
        job = self
        for event in events:
            job = _copy_after(job, event)
        return job


_PHASE_OF_EVENT = {
    "validate": Phase.WAITING,
    "depend": Phase.QUEUED,
    "alloc": Phase.ALLOCATED,
    "start": Phase.RUNNING,
    "finish": Phase.ENDING,
    "clean": Phase.ENDED,
    "invalidate": Phase.ENDED,
}
# What the folds below read: an instance need not send the other events.
COPY_EVENTS = frozenset({*_PHASE_OF_EVENT, "submit", "urgency", "jobspec-update", "annotations", "exception"})
PROXY_EVENTS = frozenset(
    {*_PHASE_OF_EVENT, "submit", "urgency", "jobspec-update", "dependency-add", "dependency-remove", "set-flags"}
    | {"exception", SUBMITTED, STARTED, REFUSED, TAKEN, RETURNED}
)


def _later(phase: Phase, event: EventlogEntry) -> Phase:
    reached = _PHASE_OF_EVENT.get(event.name, phase)
    return reached if reached.value > phase.value else phase


def _fatal(job: Proxy | Copy, event: EventlogEntry) -> Failure | None:
    """Return the job's first fatal exception. One before ``validate`` only explains an ``invalidate``."""
    context = event.context
    if job.failure is not None or context.get("severity") != 0:
        return job.failure
    type_, note = str(context.get("type", "")), str(context.get("note", ""))
    return Failure(type_ if _EXCEPTION_TYPE.fullmatch(type_) else _OTHER_TYPE, note[:_NOTE_MAX])


def _whole(context: Mapping[str, Any], key: str, default: int) -> int:
    value = context.get(key)
    return value if isinstance(value, int) else default


def read_number(value: object) -> float | None:
    """Read a number of seconds; None if it is none, or is one that no clock shows."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        return None
    return float(value)


def _status(context: Mapping[str, Any]) -> int | None:
    value = context.get("status")
    return value if isinstance(value, int) and 0 <= value <= _STATUS_MAX else None


def _proxy_after(job: Proxy, event: EventlogEntry) -> Proxy:  # noqa: C901, PLR0912 - one arm an event
    context = event.context
    match event.name:
        case "submit":
            job = replace(
                job,
                submitted_at=event.at,
                urgency=_whole(context, "urgency", 16),
                userid=_whole(context, "userid", 0),
            )
        case "urgency":
            job = replace(job, urgency=_whole(context, "urgency", job.urgency))
            if job.urgency:  # by its user, or we gave back its urgency: from then on a 0 is its user's
                job = replace(job, urgency_wanted=job.urgency if job.taken else 0)
        case _ if event.name == TAKEN:
            wanted, target = _whole(context, "urgency", 16), str(context.get("target", ""))
            too_late = Phase.ALLOCATED.value <= job.phase.value
            job = replace(job, taken=True, returned=False, target=target, urgency_wanted=wanted, runs_here=too_late)
        case _ if event.name == RETURNED and not job.stranded:
            refused = {PeerName(job.target): str(context.get("why", ""))} if context.get("for_good") else {}
            refusals = {**job.refusals, **refused}
            job = replace(job, taken=False, returned=True, placed=None, refusals=refusals)
        case "alloc" if job.taken and not job.inert and context.get("bypass") is not True:
            job = replace(job, runs_here=True)
        case "alloc" if job.inert and context.get("bypass") is not True:
            wanted = job.urgency_wanted or job.urgency  # it may have been given back, and have its urgency again
            job = replace(job, stranded=True, taken=True, returned=False, urgency_wanted=wanted)
        case "dependency-add":
            job = replace(job, waits_for=job.waits_for | {str(context.get("description", ""))})
        case "dependency-remove":
            job = replace(job, waits_for=job.waits_for - {str(context.get("description", ""))})
        case "set-flags" if _has_flag(context, "alloc-bypass"):
            job = replace(job, bypass_at=max(job.bypass_at, event.at))
        case "jobspec-update":
            job = _updated(job, event)
        case _ if event.name == SUBMITTED and job.placed is None and not job.returned:
            placed = Placed(PeerName(str(context.get("peer", ""))), JobId(_whole(context, "jobid", 0)))
            if placed.peer not in job.refusals:
                job = replace(job, placed=placed)
        case _ if event.name == REFUSED:
            peer = PeerName(str(context.get("peer", "")))
            job = replace(job, refusals={**job.refusals, peer: str(context.get("why", ""))})
            if job.placed is not None and job.placed.peer == peer:
                job = replace(job, placed=None)
        case _ if event.name == STARTED:
            job = replace(job, start_recorded=True)
        case "exception" if context.get("severity") == 0:
            ending = Phase.ENDING if job.phase.value < Phase.ENDING.value else job.phase
            job = replace(job, failure=_fatal(job, event), phase=ending)
        case _:
            pass
    return replace(job, phase=_later(job.phase, event))


def _has_flag(context: Mapping[str, Any], flag: str) -> bool:
    flags = context.get("flags")
    return isinstance(flags, list) and flag in flags


def _updated(job: Proxy, event: EventlogEntry) -> Proxy:
    duration_s = read_number(event.context.get(DURATION))
    if duration_s is not None and (job.duration_wanted_s is not None or duration_s != job.duration_s):
        job = replace(job, duration_wanted_s=duration_s)
    if isinstance(exec_ := event.context.get(EXEC), Mapping):
        job = replace(job, inert="test" in exec_)
    r = event.context.get(PROXY_R)
    if isinstance(r, Mapping):
        job = replace(job, nodelist=nodelist_of(r), bypass_at=0.0)
    return job


def nodelist_of(r: object) -> str:
    """Return the node list of a resource set (RFC 20); "" if it has none."""
    execution = r.get("execution") if isinstance(r, Mapping) else None
    nodelist = execution.get("nodelist") if isinstance(execution, Mapping) else None
    return ",".join(map(str, nodelist)) if isinstance(nodelist, list) else ""


def _copy_after(job: Copy, event: EventlogEntry) -> Copy:
    context = event.context
    match event.name:
        case "submit" | "urgency":
            job = replace(job, urgency=_whole(context, "urgency", job.urgency))
        case "jobspec-update" if (duration_s := read_number(context.get(DURATION))) is not None:
            job = replace(job, duration_s=duration_s)
        case "annotations":
            annotations = context.get("annotations")
            sched = annotations.get("sched") if isinstance(annotations, Mapping) else None
            if isinstance(sched, Mapping) and "t_estimate" in sched:
                job = replace(job, expected_at=read_number(sched["t_estimate"]))
        case "start":
            job = replace(job, started_at=job.started_at or event.at)
        case "finish":
            job = replace(job, status=_status(context), ended_at=job.ended_at or event.at)
        case "clean":
            job = replace(job, ended_at=job.ended_at or event.at)
        case "exception" if context.get("severity") == 0:
            ending = Phase.ENDING if job.phase.value < Phase.ENDING.value else job.phase
            job = replace(job, failure=_fatal(job, event), phase=ending)
        case _:
            pass
    return replace(job, phase=_later(job.phase, event))
