"""Learns the behaviour of the simulated cloud from the history that the service has recorded of its own nodes.

- A boot lasts from a node's order until its join. It is unknown for nodes that an earlier manager ordered.
- A boot has failed if the node failed at the provider or before its join, but not if an operator gave it up.
- A node is lost if it ended by itself or was reclaimed. The rate is per hour that nodes were up.
- Creates of one type that follow one another within a minute are one attempt. A shortage lasts from the first
  attempt that met a lack of capacity until the next attempt that succeeded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodemanager.core.nodes import FailureKind
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import TypeName
from nodemanager.history.node_lives import BOOT_FAILURES, NodeLife
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.whatif.cloud.cloud import ATTEMPT_S
from nodemanager.whatif.workload.workload import WorkloadError

LOOK_BACK_S = 100 * 86_400.0  # before the latest node: as long as the history keeps jobs
JOINED = "joined"
NEVER_UP = BOOT_FAILURES | {"dead_on_arrival"}
LOST = frozenset({Code.RECLAIMED, Code.BROKER_LOST})
ENDED_BY_ITSELF = Code.GONE  # but for a node found by a later manager this may only mean that the reason is unknown
REFUSED_PREFIX = "create_"
NO_CAPACITY, NO_QUOTA = (REFUSED_PREFIX + str(kind) for kind in (FailureKind.CAPACITY, FailureKind.QUOTA))


@dataclass(slots=True)
class Observed:
    """The observations of one node type, or of several types together. Durations in seconds."""

    boots_s: list[float] = field(default_factory=list)
    failing_s: list[float] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    nodes_up: int = 0
    up_s: float = 0.0
    lost: int = 0
    attempts: int = 0  # made while no shortage of the type was known
    shortages_s: list[float] = field(default_factory=list)
    nodes_max: int | None = None  # how many nodes existed when a quota was met, unless more have existed since
    other_refusals: Counter[str] = field(default_factory=Counter)

    def add(self, other: Observed) -> None:
        """Add another type's observations, except its quota."""
        self.boots_s += other.boots_s
        self.failing_s += other.failing_s
        self.stops_s += other.stops_s
        self.nodes_up += other.nodes_up
        self.up_s += other.up_s
        self.lost += other.lost
        self.attempts += other.attempts
        self.shortages_s += other.shortages_s
        self.other_refusals += other.other_refusals


@dataclass(frozen=True, slots=True)
class LearnedCloud:
    """The observations in one history file, by type name."""

    source: str
    of_type: Mapping[TypeName, Observed]

    def merged(self, names: Iterable[TypeName]) -> Observed:
        seen = Observed()
        for name in sorted(set(names)):
            if name in self.of_type:
                seen.add(self.of_type[name])
        return seen


def learn_from(path: Path) -> LearnedCloud:
    """Learn from a service's history file, which the service may still write. Raises :class:`WorkloadError`."""
    reader = HistoryReader(path)
    try:
        of_type = learn(reader.lives(LOOK_BACK_S), reader.stop_durations())
    except HistoryUnreadable as error:
        raise WorkloadError(f"--learn-from: {error}: not a journal of the service") from error
    if not of_type:
        raise WorkloadError(f"--learn-from: {path}: this journal contains no nodes, so nothing can be learned")
    return LearnedCloud(path.name, of_type)


def learn(lives: Iterable[NodeLife], stops: Iterable[tuple[str, float]]) -> Mapping[TypeName, Observed]:
    """Learn from lives, in the order of the nodes' requests, and from (type, seconds) of each node's stop."""
    types: dict[TypeName, _TypeHistory] = {}
    for life in lives:
        types.setdefault(TypeName(life.node_type), _TypeHistory()).add_life(life)
    for name, took_s in stops:
        types.setdefault(TypeName(name), _TypeHistory()).seen.stops_s.append(took_s)
    return {name: history.finish() for name, history in types.items()}


@dataclass(slots=True)
class _Attempt:
    """Creates of one type within ``ATTEMPT_S`` of the first."""

    began_at: float
    refused: bool = False


@dataclass(slots=True)
class _TypeHistory:
    """Adds up the lives of one type's nodes, one after the other."""

    seen: Observed = field(default_factory=Observed)
    existing: list[float] = field(default_factory=list)  # a heap: the end of each node that exists
    attempt: _Attempt | None = None
    short_from_at: float | None = None

    def add_life(self, life: NodeLife) -> None:
        refused = life.outcome.startswith(REFUSED_PREFIX)
        if not life.found:
            self._note_attempt(life.requested_at, refused=life.outcome == NO_CAPACITY)
        self._count_standing(life, refused=refused)
        if refused and life.outcome not in (NO_CAPACITY, NO_QUOTA):
            self.seen.other_refusals[life.outcome.removeprefix(REFUSED_PREFIX)] += 1
        if refused:
            return
        boot_s = _boot_s(life)
        if life.outcome == JOINED and boot_s is not None:
            self.seen.boots_s.append(boot_s)
        elif life.outcome in NEVER_UP and life.ended_at is not None:
            self.seen.failing_s.append(max(0.0, life.ended_at - life.requested_at))
        if life.joined_at is not None and life.ended_at is not None:
            self.seen.nodes_up += 1
            self.seen.up_s += max(0.0, life.ended_at - life.joined_at)
            self.seen.lost += life.why in LOST or (life.why == ENDED_BY_ITSELF and not life.found)

    def finish(self) -> Observed:
        self._close_attempt()
        if self.short_from_at is not None and self.attempt is not None:
            # The end of the last shortage is unknown: count it as long as it was observed.
            self.seen.shortages_s.append(self.attempt.began_at - self.short_from_at)
        return self.seen

    def _note_attempt(self, at: float, *, refused: bool) -> None:
        if self.attempt is None or at - self.attempt.began_at >= ATTEMPT_S:
            self._close_attempt()
            self.attempt = _Attempt(at)
        self.attempt.refused = self.attempt.refused or refused

    def _close_attempt(self) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        if self.short_from_at is not None and not attempt.refused:
            self.seen.shortages_s.append(attempt.began_at - self.short_from_at)
            self.short_from_at = None
            self.seen.attempts += 1
        elif self.short_from_at is None:
            self.seen.attempts += 1
            self.short_from_at = attempt.began_at if attempt.refused else None

    def _count_standing(self, life: NodeLife, *, refused: bool) -> None:
        """Count the existing nodes. If a quota refuses one more, that count is the quota."""
        while self.existing and self.existing[0] <= life.requested_at:
            heapq.heappop(self.existing)
        if life.outcome == NO_QUOTA:
            self.seen.nodes_max = len(self.existing)
        elif not refused:
            heapq.heappush(self.existing, float("inf") if life.ended_at is None else life.ended_at)
            if self.seen.nodes_max is not None and len(self.existing) > self.seen.nodes_max:
                self.seen.nodes_max = None


def _boot_s(life: NodeLife) -> float | None:
    if life.found or life.joined_at is None:
        return None
    return max(0.0, life.joined_at - life.requested_at)
