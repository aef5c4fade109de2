"""The outside of an ensemble's run: the Flux instance, the custom functions, the nodes.

Each method's docstring is a contract, which ``tests/contract`` checks for the real and the simulated adapter.
Calls return at once; ``then`` is called later by the thread that drives the port, never from within the call. If
the connection is lost, ``then`` is never called: the run is restored from its record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from nodemanager.ensemble.deeds import Call

Then = Callable[[str], None]  # called with why it failed; "" if it was done


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of the last run of a name.

    ``text``: the file's content. ``folder``: where its jobs run. ``starts``: the processes that have driven it.
    """

    run: str
    file: str
    text: str
    folder: str
    begun_at: float
    starts: int = 1
    outcome: str = ""  # why it ended; "" while it goes on
    ended_at: float = 0.0
    summary: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)


class NameTaken(Exception):
    """Another process runs the ensemble of this name."""


class EnsemblePort(Protocol):
    """One Flux instance, as one run of an ensemble uses it."""

    def wall_at(self) -> float:
        """Seconds since the epoch."""
        ...

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call ``action`` after a delay."""
        ...

    def read_log(self) -> str:
        """Take over the run's log: read it as far as it was written; "" if nothing was.

        What an earlier process has sent to be appended, and is not stored yet, never comes into the log.
        """
        ...

    def append(self, lines: str, then: Callable[[], None]) -> None:
        """Append lines to the log. Lines of earlier calls come first. ``then`` is called when they are stored."""
        ...

    def follow(self, on_record: Callable[[Mapping[str, Any]], None]) -> None:
        """Follow the job manager's journal, beginning with the jobs that have ended and are still remembered."""
        ...

    def submit(self, jobspec: Mapping[str, Any], urgency: int, then: Then) -> None:
        """Submit a job. ``then`` gets the reason if the instance refuses the job."""
        ...

    def cancel(self, job: int, why: str, then: Then) -> None:
        """Cancel a job. A job that has ended is no error."""
        ...

    def show_on_job(self, job: int, text: str, then: Then) -> None:
        """Show a text as the memo ``ensemble`` of an active job. A job that has ended is no error."""
        ...

    def finish(self, outcome: str, summary: Mapping[str, Any]) -> None:
        """Record the run's end, and remove its log. Returns when that is stored."""
        ...


class CustomPort(Protocol):
    """Calls the custom functions of one ensemble."""

    def call(self, call: Call, then: Callable[[Mapping[str, Any] | None, str], None]) -> None:
        """Call a function. ``then`` gets the action that it returned, if any, and why it failed, if it did."""
        ...


class NodesPort(Protocol):
    """Keeps nodes for one ensemble."""

    def keep(self, floor: int, change: int, then: Then) -> None:
        """Keep at least ``floor`` nodes; 0 keeps none. ``then`` gets the reason of a refusal.

        ``change``: what a rule asks for, which led to this floor; 0 if an earlier floor is asked for again. A floor
        lapses after some minutes, unless it is asked for again.
        """
        ...
