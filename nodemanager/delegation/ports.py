"""The two ports of delegation: to our own instance, called *home*, and to a peer.

Each has a thread and a connection of its own, because opening a peer by ssh blocks its thread, and an instance may
hang. So no method waits: ``send`` passes a request on, and facts come back to the listener, in the port's thread.
Each request is safe to repeat: the adapters treat "already done" as done. A request knows the event that it causes
in its job's eventlog, so that the next step need not wait for the journal. ``tests/contract/test_home_*.py`` and
``test_peer_port.py`` check the adapters, real and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import DURATION, EventlogEntry, Failure, PeerName
from nodemanager.delegation.jobspec import Marker


class _Request:
    """A request. ``events``: what it causes in the eventlog of its job, as far as the next step depends on that."""

    __slots__ = ()

    def events(self, at: float) -> Sequence[EventlogEntry]:  # noqa: ARG002 - see the requests that cause one
        return ()


def _fatal(failure: Failure, at: float) -> EventlogEntry:
    return EventlogEntry("exception", at, {"type": failure.type, "severity": 0, "note": failure.note})


# --- requests to our instance -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadJobspec(_Request):
    """Read the jobspec as the user submitted it. Answered by ``JobspecRead``."""

    job: JobId


@dataclass(frozen=True, slots=True)
class PostEvent(_Request):
    """Post an event to a job's eventlog."""

    job: JobId
    event: EventlogEntry

    def events(self, at: float) -> Sequence[EventlogEntry]:  # noqa: ARG002 - it has its time
        return (self.event,)


@dataclass(frozen=True, slots=True)
class RemoveDependency(_Request):
    """Remove a dependency. One that is gone already is no error.

    Without our hold a proxy passes to the scheduler, where alloc-bypass gives it its pretended resources.
    """

    job: JobId
    description: str

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("dependency-remove", at, {"description": self.description}),)


@dataclass(frozen=True, slots=True)
class Validate(_Request):
    """Have the job validated again, by an update of its time limit to the value that it has.

    So the plugin alloc-bypass takes note of it again.
    """

    job: JobId
    duration_s: float

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("set-flags", at, {"flags": ["alloc-bypass"]}),)


@dataclass(frozen=True, slots=True)
class ShowRunning(_Request):
    """Show a proxy as running. One that runs already is no error."""

    job: JobId

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("start", at),)


@dataclass(frozen=True, slots=True)
class ShowFinished(_Request):
    """End a running proxy with a status, as ``waitpid`` gives it."""

    job: JobId
    status: int

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("finish", at, {"status": self.status}),)


@dataclass(frozen=True, slots=True)
class RaiseOnJob(_Request):
    """Raise a fatal exception, with which the job ends with the status. One that has ended already is no error."""

    job: JobId
    failure: Failure
    status: int | None = None

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (_fatal(self.failure, at),)


@dataclass(frozen=True, slots=True)
class ShowMemo(_Request):
    """Show a text as ``user.delegated`` of ``flux jobs``."""

    job: JobId
    text: str


@dataclass(frozen=True, slots=True)
class CountOutput(_Request):
    """Count the events of output that a running proxy has. Answered by ``OutputCounted``."""

    job: JobId


@dataclass(frozen=True, slots=True)
class AppendOutput(_Request):
    """Append lines to the logs of a running proxy, all at once. Their keys are those of ``relay``."""

    job: JobId
    lines: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HoldJob(_Request):
    """Set a waiting job's urgency to 0. Once it is done, every ``alloc`` that came before has been reported.

    It is refused if the job has its resources already.
    """

    job: JobId

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("urgency", at, {"urgency": 0}),)


@dataclass(frozen=True, slots=True)
class ReleaseJob(_Request):
    """Give a waiting job that we gave back the urgency that its user wants."""

    job: JobId
    urgency: int

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("urgency", at, {"urgency": self.urgency}),)


@dataclass(frozen=True, slots=True)
class FindJob(_Request):
    """Ask whether our instance knows a job that is not active. Answered by ``JobFound``."""

    job: JobId


HomeRequest = (
    ReadJobspec
    | PostEvent
    | RemoveDependency
    | Validate
    | ShowRunning
    | ShowFinished
    | RaiseOnJob
    | ShowMemo
    | CountOutput
    | AppendOutput
    | HoldJob
    | ReleaseJob
    | FindJob
)

# --- facts about our instance -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HomeSynced:
    """Every active job has been reported. ``started_at``: when the instance started."""

    started_at: float


@dataclass(frozen=True, slots=True)
class HomeLost:
    """The connection is lost, or this manager may not act, or the set-up is incomplete. No request is answered."""

    why: str
    setup_fault: bool = False


@dataclass(frozen=True, slots=True)
class HomeEvents:
    """Events of one delegated job, in order. With ``submit`` first they are its whole eventlog."""

    job: JobId
    events: Sequence[EventlogEntry]
    target: str = ""  # with ``submit``
    duration_s: float = 0.0
    nodelist: str = ""


@dataclass(frozen=True, slots=True)
class JobspecRead:
    """The jobspec as the user submitted it."""

    job: JobId
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutputCounted:
    """The events of output that a proxy has, by key."""

    job: JobId
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobFound:
    """Whether our instance knows the job. It is not active."""

    job: JobId
    known: bool


@dataclass(frozen=True, slots=True)
class HomeDone:
    """A request is carried out."""

    request: HomeRequest


@dataclass(frozen=True, slots=True)
class HomeRefused:
    """A request failed, and the connection is sound."""

    request: HomeRequest
    why: str


HomeFact = HomeSynced | HomeLost | HomeEvents | JobspecRead | OutputCounted | JobFound | HomeDone | HomeRefused


class HomePort(Protocol):
    """Our instance, for delegation. Only the manager that holds the name changes anything."""

    def start(self, listener: Callable[[HomeFact], None]) -> None:
        """Connect, report every active delegated job of the instance's owner, then ``HomeSynced``, then changes.

        A job without the dependency is reported once an event of its says that it was taken.

        After a lost connection it sends ``HomeLost``, connects again, and reports everything again.
        """
        ...

    def send(self, request: HomeRequest) -> None:
        """Carry out a request. It is answered once, unless the connection is lost."""
        ...

    def stop(self) -> None:
        """Stop. On return the listener is not called any more, unless the connection hangs."""
        ...


# --- requests to a peer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckFit(_Request):
    """Ask whether a job could ever run at the peer. Answered by ``FitChecked``."""

    key: str
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SubmitCopy(_Request):
    """Submit a copy that is held. Answered by ``Submitted`` or ``SubmitRefused``."""

    job: JobId
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadCopy(_Request):
    """Read the eventlog of a copy that is not active. Answered by ``CopyEvents`` or ``CopyMissing``."""

    remote: JobId


@dataclass(frozen=True, slots=True)
class FindCopies(_Request):
    """Report every copy with our cluster's marker once more, also those that have ended, as ``CopyEvents``.

    ``PeerDone`` follows the last one.
    """


@dataclass(frozen=True, slots=True)
class ChangeUrgency(_Request):
    """Set the urgency of a copy. The first time, this releases it."""

    remote: JobId
    urgency: int

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("urgency", at, {"urgency": self.urgency}),)


@dataclass(frozen=True, slots=True)
class ChangeDuration(_Request):
    """Set the time limit of a copy."""

    remote: JobId
    duration_s: float

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (EventlogEntry("jobspec-update", at, {DURATION: self.duration_s}),)


@dataclass(frozen=True, slots=True)
class EndCopy(_Request):
    """Cancel a copy: our job has ended, or another copy is the one on record. One that has ended is no error."""

    remote: JobId
    note: str

    def events(self, at: float) -> Sequence[EventlogEntry]:
        return (_fatal(Failure("cancel", self.note), at),)


@dataclass(frozen=True, slots=True)
class FollowOutput(_Request):
    """Send the output of a copy, from its beginning, as ``CopyOutput``, and then ``CopyOutputEnded``.

    ``stream`` is in each answer, so that a stream can be told from an earlier one of the same copy.
    """

    remote: JobId
    stream: int


@dataclass(frozen=True, slots=True)
class StopOutput(_Request):
    """Stop sending the output of a copy. There is no answer."""

    remote: JobId


PeerRequest = (
    CheckFit
    | SubmitCopy
    | ReadCopy
    | FindCopies
    | ChangeUrgency
    | ChangeDuration
    | EndCopy
    | FollowOutput
    | StopOutput
)

# --- facts about a peer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerSynced:
    """Connected, and every active copy has been reported."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection is lost. Requests without an answer get none; what they did is seen after the next sync."""

    peer: PeerName
    why: str


@dataclass(frozen=True, slots=True)
class PeerLoadSeen:
    """How busy the peer is."""

    peer: PeerName
    load: PeerLoad


@dataclass(frozen=True, slots=True)
class CopyEvents:
    """Events of one copy, in order. With ``submit`` first they are its whole eventlog, and ``marker`` is given.

    ``cores``: that its jobspec asks for, given with ``marker``.
    """

    peer: PeerName
    remote: JobId
    events: Sequence[EventlogEntry]
    marker: Marker | None = None
    duration_s: float = 0.0
    cores: int = 0


@dataclass(frozen=True, slots=True)
class CopyMissing:
    """The peer does not know this job."""

    peer: PeerName
    remote: JobId


@dataclass(frozen=True, slots=True)
class Submitted:
    """A copy is submitted, and held."""

    peer: PeerName
    job: JobId
    remote: JobId


@dataclass(frozen=True, slots=True)
class SubmitRefused:
    """The peer refused the submission, so there is no copy."""

    peer: PeerName
    job: JobId
    why: str


@dataclass(frozen=True, slots=True)
class FitChecked:
    """Whether a job could ever run at the peer: ``misfit`` is "" or the peer's words."""

    peer: PeerName
    key: str
    misfit: str


@dataclass(frozen=True, slots=True)
class CopyOutput:
    """Some of a copy's output. ``key`` is one of ``relay``."""

    peer: PeerName
    remote: JobId
    stream: int
    key: str
    events: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CopyOutputEnded:
    """All output of a copy has been sent."""

    peer: PeerName
    remote: JobId
    stream: int


@dataclass(frozen=True, slots=True)
class PeerDone:
    """A request is carried out."""

    peer: PeerName
    request: PeerRequest


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """A request failed, and the connection is sound."""

    peer: PeerName
    request: PeerRequest
    why: str


PeerFact = (
    PeerSynced
    | PeerLost
    | PeerLoadSeen
    | CopyEvents
    | CopyMissing
    | Submitted
    | SubmitRefused
    | FitChecked
    | CopyOutput
    | CopyOutputEnded
    | PeerDone
    | PeerRefused
)


class PeerPort(Protocol):
    """A peer. Requests are carried out in their order."""

    def start(self, listener: Callable[[PeerFact], None]) -> None:
        """Connect, report every active copy that carries our cluster's marker, then ``PeerSynced``, then changes.

        After a lost connection it sends ``PeerLost``, connects again, and reports everything again.
        """
        ...

    def send(self, request: PeerRequest) -> None:
        """Carry out a request. It is answered once, unless the connection is lost."""
        ...

    def stop(self) -> None:
        """Stop. On return the listener is not called any more, unless the connection hangs."""
        ...
