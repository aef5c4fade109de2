"""What outlives the manager, on record in the instance: operators' settings and the money spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType

from nodemanager.core.nodes import LaunchId


@dataclass(frozen=True, slots=True)
class Mark:
    """Who set something, and when."""

    by: str
    at: float


def _no_marks() -> Mapping[LaunchId, Mark]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Steering:
    """What operators have set, until they take it back. It outlives the manager, on record in the instance.

    A node of ``holds`` is never stopped and gets no work; one of ``retirements`` goes once nothing runs there.
    """

    holds: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)
    retirements: Mapping[LaunchId, Mark] = field(default_factory=_no_marks)
    paused: Mark | None = None

    def blocks_work_on(self, launch: LaunchId) -> bool:
        return launch in self.holds or launch in self.retirements


UNSTEERED = Steering()


def _no_amounts() -> Mapping[tuple[str, int, str], Decimal]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spend:
    """What nodes that are gone and jobs that have ended have cost. It outlives the manager, on record.

    ``amounts``: by the period ("day" or "month"), its begin (seconds since the epoch) and the account: "" for the
    whole site, "user 1000", "queue batch". ``counted``: the launches that are in it and still hold their slot, so
    that none is counted twice.
    """

    amounts: Mapping[tuple[str, int, str], Decimal] = field(default_factory=_no_amounts)
    counted: frozenset[LaunchId] = frozenset()


NOTHING_SPENT = Spend()
