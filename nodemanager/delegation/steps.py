"""The steps of a delegated job: what there is to do next, and what that depends on.

Each step is safe to repeat: the adapters treat "already done" as done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from nodemanager.core.jobs import JobId
from nodemanager.core.reasons import Reason
from nodemanager.delegation.jobs import Copy, PeerName, Proxy

LOST = "delegate"  # the type of our own exceptions
HELD_URGENCY = 0


class Relay(Enum):
    """How far the output of a copy has been passed on to our job."""

    IDLE = "idle"
    FLOWING = "flowing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PeerView:
    """The facts at one peer about one job.

    ``synced``: every active copy of the peer is known. ``missing``: the peer says that it does not know these ids.
    ``why``: why the peer cannot be reached. ``refused``: the peer's words if it refused the submission.
    ``searched``: the copies that had ended before are known too.
    """

    name: PeerName
    synced: bool = False
    copies: Sequence[Copy] = ()
    missing: frozenset[JobId] = frozenset()
    why: str = ""
    refused: str = ""
    searched: bool = False

    def copy(self, remote: JobId) -> Copy | None:
        """Return one copy."""
        return next((copy for copy in self.copies if copy.remote == remote), None)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until an event arrives."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose a peer."""


@dataclass(frozen=True, slots=True)
class SearchCopies:
    """Ask a peer also for the copies that have ended."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class SubmitCopy:
    """Submit a copy that is held."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class RecordCopy:
    """Write into our job's eventlog which copy it is. From then on this copy may run."""

    peer: PeerName
    remote: JobId


@dataclass(frozen=True, slots=True)
class LookUpCopy:
    """Ask the peer for a copy that is not among its active jobs."""

    peer: PeerName
    remote: JobId


@dataclass(frozen=True, slots=True)
class SetUrgency:
    """Give the copy the urgency of our job. The first time, this releases it."""

    peer: PeerName
    remote: JobId
    urgency: int


@dataclass(frozen=True, slots=True)
class SetDuration:
    """Give the copy the time limit of our job."""

    peer: PeerName
    remote: JobId
    duration_s: float


@dataclass(frozen=True, slots=True)
class CancelCopy:
    """Cancel a copy: our job has ended, or another copy is the one on record."""

    peer: PeerName
    remote: JobId
    note: str


@dataclass(frozen=True, slots=True)
class RecordRefusal:
    """Write into our job's eventlog that a peer refused it, so that no restart asks that peer again."""

    peer: PeerName
    why: str


@dataclass(frozen=True, slots=True)
class RecordStart:
    """Write into our job's eventlog when its copy started."""

    at: float


@dataclass(frozen=True, slots=True)
class NameNodes:
    """Show the peer's name as the node that our job runs on."""

    nodelist: str


@dataclass(frozen=True, slots=True)
class Revalidate:
    """Make the plugin alloc-bypass take note of our job again."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class RemoveHold:
    """Let our job pass to the scheduler, where alloc-bypass gives it its pretended resources."""


@dataclass(frozen=True, slots=True)
class StartProxy:
    """Show our job as running."""


@dataclass(frozen=True, slots=True)
class HoldHere:
    """Keep our scheduler from starting a job that we took: set its urgency to 0."""


@dataclass(frozen=True, slots=True)
class MakeInert:
    """Have job-exec start nothing for a job that we took, whatever its scheduler does. ``undo``: not any more."""

    undo: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Write into the eventlog of a job that we took that it runs here after all.

    ``for_good``: the peer will never take it.
    """

    why: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseHere:
    """Give a job that we gave back the urgency that its user wants."""

    urgency: int


@dataclass(frozen=True, slots=True)
class RelayOutput:
    """Begin to pass on the copy's output."""

    peer: PeerName
    remote: JobId


@dataclass(frozen=True, slots=True)
class FinishProxy:
    """End our job with the copy's status."""

    status: int


@dataclass(frozen=True, slots=True)
class RaiseFailure:
    """End our job by an exception, and with the copy's status if it has one."""

    type: str
    note: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Both jobs have ended: forget them."""


Step = (
    Wait
    | Choose
    | SearchCopies
    | SubmitCopy
    | RecordCopy
    | LookUpCopy
    | SetUrgency
    | SetDuration
    | CancelCopy
    | RecordRefusal
    | RecordStart
    | NameNodes
    | Revalidate
    | RemoveHold
    | StartProxy
    | HoldHere
    | MakeInert
    | GiveBack
    | ReleaseHere
    | RelayOutput
    | FinishProxy
    | RaiseFailure
    | Done
)


@dataclass(frozen=True, slots=True)
class Sides:
    """Everything that the next step depends on.

    ``peers`` holds the peers at which the job has a copy or may get one; of a job that waited when our instance
    started, every peer that it may go to. ``chosen``: the peer chosen for a job that
    is not on record anywhere. ``home_started_at``: when our instance started.
    """

    proxy: Proxy
    peers: Mapping[PeerName, PeerView] = field(default_factory=dict)
    chosen: PeerName | None = None
    home_started_at: float = 0.0
    relay: Relay = Relay.IDLE
    no_peer: str = ""  # why no peer takes a job that we took
    never: bool = False  # nor ever will
