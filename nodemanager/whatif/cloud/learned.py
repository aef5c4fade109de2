"""How the site's nodes have fared, learned from the journal of the service: what the simulated cloud then does.

A boot took from the node's being asked for until it joined; that of a node which an earlier manager had ordered is
not known. A boot failed where it never came to be, at the provider or on its way in, not where somebody gave it up.
A node was lost where it ended by itself, or was taken back; what it was up for is the time in which it might have
been. Creates that follow one another within a minute are one ask; asks that found none make a shortage, which lasts
from the first of them to the next that was served.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodemanager.core.nodes import FailureKind
from nodemanager.core.slots import TypeName
from nodemanager.history.node_lives import NodeLife
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.planner.observe.backoff import BOOT_FAILURES
from nodemanager.whatif.cloud.cloud import ATTEMPT_S
from nodemanager.whatif.workload.workload import WorkloadError

LOOK_BACK_S = 100 * 86_400.0  # of the latest node: as long as the journal keeps the jobs
JOINED = "joined"
NEVER_UP = BOOT_FAILURES | {"dead_on_arrival"}
LOST = frozenset({"reclaimed", "broker_lost"})
ENDED_BY_ITSELF = "gone"  # of a node that was found standing it may only mean that nobody knows why it went
REFUSED_PREFIX = "create_"
NO_CAPACITY, NO_QUOTA = (REFUSED_PREFIX + str(kind) for kind in (FailureKind.CAPACITY, FailureKind.QUOTA))


@dataclass(slots=True)
class Observed:
    """What was seen of a type's nodes, or of several types' together. Durations in seconds."""

    boots_s: list[float] = field(default_factory=list)
    failing_s: list[float] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    nodes_up: int = 0
    up_s: float = 0.0
    lost: int = 0
    attempts: int = 0  # made while the type was to be had, as far as was known
    shortages_s: list[float] = field(default_factory=list)
    nodes_max: int | None = None  # how many stood when a quota was met, if no more have stood since
    other_refusals: Counter[str] = field(default_factory=Counter)

    def add(self, other: Observed) -> None:
        """Take in another type's; a quota is its own."""
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
class Learned:
    """What a journal tells, by the types' names."""

    source: str
    of_type: Mapping[TypeName, Observed]

    def merged(self, names: Iterable[TypeName]) -> Observed:
        seen = Observed()
        for name in sorted(set(names)):
            if name in self.of_type:
                seen.add(self.of_type[name])
        return seen


def learn_from(path: Path) -> Learned:
    """From the file that a service keeps, which may go on writing it. Raises :class:`WorkloadError`."""
    reader = HistoryReader(path)
    try:
        of_type = learn(reader.lives(LOOK_BACK_S), reader.stop_durations())
    except HistoryUnreadable as error:
        raise WorkloadError(f"--learn-from: {error}: no journal of a service") from error
    if not of_type:
        raise WorkloadError(f"--learn-from: {path}: no node's life stands in it: nothing can be learned")
    return Learned(path.name, of_type)


def learn(lives: Iterable[NodeLife], stops: Iterable[tuple[str, float]]) -> Mapping[TypeName, Observed]:
    """From lives in the order in which the nodes were asked for, and how long ends took by type."""
    types: dict[TypeName, _TypeHistory] = {}
    for life in lives:
        types.setdefault(TypeName(life.node_type), _TypeHistory()).add_life(life)
    for name, took_s in stops:
        types.setdefault(TypeName(name), _TypeHistory()).seen.stops_s.append(took_s)
    return {name: story.finish() for name, story in types.items()}


@dataclass(slots=True)
class _Attempt:
    """Creates of one type that follow one another closely."""

    began_at: float
    refused: bool = False


@dataclass(slots=True)
class _TypeHistory:
    """One type's lives, told one after the other."""

    seen: Observed = field(default_factory=Observed)
    standing: list[float] = field(default_factory=list)  # when those that stand will have ended: a heap
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
        took_s = _boot_s(life)
        if life.outcome == JOINED and took_s is not None:
            self.seen.boots_s.append(took_s)
        elif life.outcome in NEVER_UP and life.ended_at is not None:
            self.seen.failing_s.append(max(0.0, life.ended_at - life.requested_at))
        if life.joined_at is not None and life.ended_at is not None:
            self.seen.nodes_up += 1
            self.seen.up_s += max(0.0, life.ended_at - life.joined_at)
            self.seen.lost += life.why in LOST or (life.why == ENDED_BY_ITSELF and not life.found)

    def finish(self) -> Observed:
        self._close_attempt()
        if self.short_from_at is not None and self.attempt is not None:
            # Nobody knows how long it went on: as long as it was seen.
            self.seen.shortages_s.append(self.attempt.began_at - self.short_from_at)
        return self.seen

    def _note_attempt(self, at: float, *, refused: bool) -> None:
        if self.attempt is None or at - self.attempt.began_at >= ATTEMPT_S:
            self._close_attempt()
            self.attempt = _Attempt(at)
        self.attempt.refused = self.attempt.refused or refused

    def _close_attempt(self) -> None:
        ask = self.attempt
        if ask is None:
            return
        if self.short_from_at is not None and not ask.refused:
            self.seen.shortages_s.append(ask.began_at - self.short_from_at)
            self.short_from_at = None
            self.seen.attempts += 1
        elif self.short_from_at is None:
            self.seen.attempts += 1
            self.short_from_at = ask.began_at if ask.refused else None

    def _count_standing(self, life: NodeLife, *, refused: bool) -> None:
        """How many stand, for a quota: when one more is refused, so many are had."""
        while self.standing and self.standing[0] <= life.requested_at:
            heapq.heappop(self.standing)
        if life.outcome == NO_QUOTA:
            self.seen.nodes_max = len(self.standing)
        elif not refused:
            heapq.heappush(self.standing, float("inf") if life.ended_at is None else life.ended_at)
            if self.seen.nodes_max is not None and len(self.standing) > self.seen.nodes_max:
                self.seen.nodes_max = None


def _boot_s(life: NodeLife) -> float | None:
    if life.found or life.joined_at is None:
        return None
    return max(0.0, life.joined_at - life.requested_at)
