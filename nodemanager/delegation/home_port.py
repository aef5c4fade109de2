"""The port of delegation to our instance.

It has a thread and a connection of its own. So no method waits: ``send`` passes a request on, and facts come back
to the listener, in the port's thread. ``tests/contract/test_home_*.py`` checks the adapters, real and simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import EventlogEntry, Failure

# --- requests -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadJobspec:
    """Read the jobspec as the user submitted it. Answered by ``JobspecRead``."""

    job: JobId


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Post an event to a job's eventlog."""

    job: JobId
    event: EventlogEntry


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
    """Append lines to the logs of a running proxy, all at once. Their keys are those of ``relay``."""

    job: JobId
    lines: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TakeJob:
    """Record that a waiting job without the dependency is to run at a peer. From then on the job is reported."""

    job: JobId
    target: str
    urgency: int


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Set a waiting job's urgency to 0. Once it is done, every ``alloc`` that came before has been reported.

    It is refused if the job has its resources already.
    """

    job: JobId


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Set a waiting job's urgency again."""

    job: JobId
    urgency: int


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
    | TakeJob
    | HoldJob
    | ReleaseJob
    | FindJob
)

# --- facts ----------------------------------------------------------------------------------------------


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
