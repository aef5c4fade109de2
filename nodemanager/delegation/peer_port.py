"""The port of delegation to a peer.

It has a thread and a connection of its own, because opening a peer by ssh blocks its thread, and a peer may hang.
So no method waits: ``send`` passes a request on, and facts come back to the listener, in the port's thread.
``tests/contract/test_peer_port.py`` checks the adapters, real and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import EventlogEntry, PeerName
from nodemanager.delegation.jobspec import Marker

# --- requests -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckFit:
    """Ask whether a job could ever run at the peer. Answered by ``FitChecked``."""

    key: str
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlaceCopy:
    """Submit a copy that is held. Answered by ``Submitted`` or ``SubmitRefused``."""

    job: JobId
    jobspec: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadCopy:
    """Read the eventlog of a copy that is not active. Answered by ``CopyEvents`` or ``CopyMissing``."""

    remote: JobId


@dataclass(frozen=True, slots=True)
class FindCopies:
    """Report every copy with our cluster's marker once more, also those that have ended, as ``CopyEvents``.

    ``PeerDone`` follows the last one.
    """


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
class EndCopy:
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


PeerRequest = (
    CheckFit
    | PlaceCopy
    | ReadCopy
    | FindCopies
    | ChangeUrgency
    | ChangeDuration
    | EndCopy
    | FollowOutput
    | StopOutput
)

# --- facts ----------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer of the site, or a URI that a user gave."""

    name: PeerName
    uri: str
    price_per_core_hour: Decimal = Decimal(0)
    jobs_max: int = 1000
    output_max_bytes: int = 10 << 20
    configured: bool = True


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
