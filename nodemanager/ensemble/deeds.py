"""What the engine orders, as frozen values. Each has a key that identifies it for ever within its run.

A key is ``RULE.RUN``, the rule's number and how often the rule had run; a submission adds ``.SET.INDEX``, and
each further attempt ``+ATTEMPT``. An action that a custom function returned adds ``c`` to the key of its rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemanager.ensemble.file.model import JobSet


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit one job."""

    key: str
    jobs: JobSet


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel jobs. A job that has ended is no error."""

    key: str
    jobs: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Publish a message, and show it on the job that caused it, if there is one."""

    key: str
    text: str
    job: int | None


@dataclass(frozen=True, slots=True)
class Resize:
    """Keep at least ``floor`` nodes for this ensemble: ``change`` more, or fewer, than so far.

    ``asked``: the change that the rule asks for. It may shrink by more than was given.
    """

    key: str
    change: int
    floor: int
    asked: int


@dataclass(frozen=True, slots=True)
class Call:
    """Call a custom function. ``event``: the event of the job that caused it; None for a metric rule."""

    key: str
    function: str
    rule: int
    event: Mapping[str, Any] | None = field(default=None, hash=False)
    metrics: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Terminate:
    """The ensemble ends. Its jobs are left alone."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule ran, for the run's events: nothing is to be done."""

    rule: int
    run: int
    at: float
    job: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that the user of the ensemble should see: nothing is to be done."""

    at: float
    text: str


Order = Submit | Cancel | Notify | Resize | Call | Terminate
Deed = Order | Fired | Noted
