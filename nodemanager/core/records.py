"""Records kept in the instance, which outlive the manager: operators' settings and the money spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from types import MappingProxyType

from nodemanager.core.nodes import LaunchId
from nodemanager.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Mark:
    """The operator who set something, and when.

    ``why``: in the operator's words, or "". ``until_at``: it lapses then (wall clock); None if it lasts.
    """

    by: str
    at: float
    why: str = ""
    until_at: float | None = None

    def says_as(self, other: Mark | None) -> bool:
        """Whether the other mark gives the same reason and end, so that this one adds nothing."""
        return other is not None and (other.why, other.until_at) == (self.why, self.until_at)


def _no_marks() -> Mapping[LaunchId, Mark]:
    return MappingProxyType({})


def with_words(reason: Reason, mark: Mark) -> Reason:
    """The reason of something that an operator set, with the operator's own reason and its end, if given."""
    if mark.why:
        reason = reason.with_figures(why=mark.why)
    return reason.with_figures(until_at=mark.until_at) if mark.until_at is not None else reason


@dataclass(frozen=True, slots=True)
class Steering:
    """The operators' settings, valid until an operator withdraws them.

    A node in ``holds`` is never stopped and gets no work. A node in ``retirements`` is terminated once nothing runs
    there. A node in ``replacements`` is replaced when its turn comes, and works until then.
    """

    holds: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)
    retirements: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)
    paused: Mark | None = None
    replacements: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)

    @property
    def launches(self) -> Mapping[LaunchId, Mark]:
        """All launches for which something is set."""
        return {**self.holds, **self.retirements, **self.replacements}

    @property
    def lapses_at(self) -> float:
        """When the first of the settings lapses (wall clock); infinite if none does."""
        marks = (*self.holds.values(), *self.retirements.values(), *self.replacements.values(), self.paused)
        return min((mark.until_at for mark in marks if mark and mark.until_at is not None), default=inf)

    def blocks_work_on(self, launch: LaunchId) -> bool:
        """Whether an operator's hold or retirement keeps work off the node."""
        return launch in self.holds or launch in self.retirements


UNSTEERED = Steering()


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that the manager holds by urgency 0: its urgency and priority before."""

    urgency: int
    priority: int


def _no_amounts() -> Mapping[tuple[str, int, str], Decimal]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spend:
    """The cost of nodes that are gone and of jobs that have ended.

    ``amounts``: by period ("day" or "month"), start of the period (seconds since the epoch) and account ("" for the
    whole site, "user 1000", "queue batch"). ``counted``: launches already included that still hold their slot, so
    that none is counted twice.
    """

    amounts: Mapping[tuple[str, int, str], Decimal] = field(default_factory=_no_amounts)
    counted: frozenset[LaunchId] = frozenset()


NOTHING_SPENT = Spend()
