"""The two ports of delegation: our instance, and a peer.

Both have a thread and a connection of their own, because opening a peer by ssh blocks its thread, and a peer may
hang. So no method waits: ``send`` passes a request on, and facts come back to the listener, in the port's thread.
``tests/contract/test_peer_port.py`` checks the adapters, real and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import Failure, JobEvent, PeerName
from nodemanager.delegation.jobspec import Marker

# --- requests to our instance ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadJobspec:
    """Read the jobspec as the user submitted it. Answered by ``JobspecRead``."""

    job: JobId


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Post an event to a job's eventlog."""

    job: JobId
    event: JobEvent


@dataclass(frozen=True, slots=True)
class RemoveDependency:
    """Remove a dependency. One that is gone already is no error."""

    job: JobId
    description: str


@dataclass(frozen=True, slots=True)
class Validate:
    """Have the job validated again, by an update of its time limit to the value that it has."""

    job: JobId
    duration_s: float


@dataclass(frozen=True, slots=True)
class ShowRunning:
    """Show a proxy as running. One that runs already is no error."""

    job: JobId


@dataclass(frozen=True, slots=True)
class ShowFinished:
    """End a running proxy with a status, as ``waitpid`` gives it."""

    job: JobId
    status: int


@dataclass(frozen=True, slots=True)
class RaiseOnJob:
    """Raise a fatal exception, with which the job ends with the status. One that has ended already is no error."""

    job: JobId
    failure: Failure
    status: int | None = None


@dataclass(frozen=True, slots=True)
class ShowMemo:
    """Show a text as ``user.delegated`` of ``flux jobs``."""

    job: JobId
    text: str


@dataclass(frozen=True, slots=True)
class CountOutput:
    """Count the events of output that a running proxy has. Answered by ``OutputCounted``."""

    job: JobId


@dataclass(frozen=True, slots=True)
class AppendOutput:
    """Append lines to the output of a running proxy. ``key`` is one of ``relay``."""

    job: JobId
    key: str
    lines: str


@dataclass(frozen=True, slots=True)
class FindJob:
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
    | FindJob
)

# --- facts of our instance ---------------------------------------------------------------------------------


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
    events: Sequence[JobEvent]
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

# --- requests to a peer ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckFit:
    """Ask whether a job could ever run at the peer. Answered by ``FitChecked``."""

    key: str
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit a copy that is held. Answered by ``Submitted`` or ``SubmitRefused``."""

    job: JobId
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadCopy:
    """Read the eventlog of a copy that is not active. Answered by ``CopyEvents`` or ``CopyMissing``."""

    remote: JobId


@dataclass(frozen=True, slots=True)
class ChangeUrgency:
    """Set the urgency of a copy."""

    remote: JobId
    urgency: int


@dataclass(frozen=True, slots=True)
class ChangeDuration:
    """Set the time limit of a copy."""

    remote: JobId
    duration_s: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a copy. One that has ended is no error."""

    remote: JobId
    note: str


@dataclass(frozen=True, slots=True)
class FollowOutput:
    """Send the output of a copy, from its beginning, as ``CopyOutput``, and then ``CopyOutputEnded``.

    ``stream`` is in each answer, so that a stream can be told from an earlier one of the same copy.
    """

    remote: JobId
    stream: int


@dataclass(frozen=True, slots=True)
class StopOutput:
    """Stop sending the output of a copy. There is no answer."""

    remote: JobId


PeerRequest = CheckFit | Submit | ReadCopy | ChangeUrgency | ChangeDuration | Cancel | FollowOutput | StopOutput

# --- facts of a peer ---------------------------------------------------------------------------------------


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
    """Events of one copy, in order. With ``submit`` first they are its whole eventlog, and ``marker`` is given."""

    peer: PeerName
    remote: JobId
    events: Sequence[JobEvent]
    marker: Marker | None = None
    duration_s: float = 0.0


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


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer of the site, or a URI that a user gave."""

    name: PeerName
    uri: str
    price_per_core_hour: Decimal = Decimal(0)
    jobs_max: int = 1000
    output_max_bytes: int = 10 << 20
    configured: bool = True


class HomePort(Protocol):
    """Our instance, for delegation. Only the manager that holds the name changes anything."""

    def start(self, listener: Callable[[HomeFact], None]) -> None:
        """Connect, report every active delegated job of the instance's owner, then ``HomeSynced``, then changes.

        After a lost connection it sends ``HomeLost``, connects again, and reports everything again.
        """
        ...

    def send(self, request: HomeRequest) -> None:
        """Carry out a request. It is answered once, unless the connection is lost."""
        ...

    def stop(self) -> None:
        """Stop. On return the listener is not called any more, unless the connection hangs."""
        ...


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
