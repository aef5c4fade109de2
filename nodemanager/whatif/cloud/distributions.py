"""How nodes of a type fare at their provider: times as they are spread, and how often things go wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

MARKS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Durations in seconds, as they come: drawn evenly between neighbours of ``marks``, which ascend."""

    marks: tuple[float, ...]

    @classmethod
    def of(cls, seen: Iterable[float]) -> Spread:
        """As those that were seen; of very many, as many marks at even shares as are kept."""
        ordered = sorted(seen)
        if len(ordered) > MARKS_MAX:
            ordered = [ordered[(len(ordered) - 1) * mark // (MARKS_MAX - 1)] for mark in range(MARKS_MAX)]
        return cls(tuple(ordered))

    def draw(self, draws: Random) -> float:
        return self.at(draws.random())

    def at(self, share: float) -> float:
        """What a share (0 to 1) of them stays below."""
        place = share * (len(self.marks) - 1)
        below = int(place)
        if below + 1 >= len(self.marks):
            return self.marks[-1]
        low, high = self.marks[below], self.marks[below + 1]
        return min(high, low + (high - low) * (place - below))


@dataclass(frozen=True, slots=True)
class Habit:
    """How nodes of one type fare. ``p_`` is a probability."""

    boot_s: Spread  # from the create to the joining
    stop_s: Spread  # from the order to end it to its end
    failing_s: Spread  # of a boot that fails: from the create to its end
    p_boot_failure: float = 0.0
    lost_per_hour: float = 0.0  # how often a node that is up ends by itself, or is taken back
    p_shortage: float = 0.0  # that none is to be had, when some are asked for
    shortage_s: Spread = Spread((0.0,))  # how long that lasts
    nodes_max: int | None = None  # a quota: so many of the type at once
