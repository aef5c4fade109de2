"""How nodes of a type fare at their provider: times as they are spread, and how often things go wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

QUANTILES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations in seconds, as they come: drawn evenly between neighbours of ``marks``, which ascend."""

    quantiles: tuple[float, ...]

    @classmethod
    def from_samples(cls, seen: Iterable[float]) -> Distribution:
        """As those that were seen; of very many, as many marks at even shares as are kept."""
        ordered = sorted(seen)
        if len(ordered) > QUANTILES_MAX:
            ordered = [ordered[(len(ordered) - 1) * mark // (QUANTILES_MAX - 1)] for mark in range(QUANTILES_MAX)]
        return cls(tuple(ordered))

    def draw(self, draws: Random) -> float:
        return self.quantile(draws.random())

    def quantile(self, share: float) -> float:
        """What a share (0 to 1) of them stays below."""
        place = share * (len(self.quantiles) - 1)
        below = int(place)
        if below + 1 >= len(self.quantiles):
            return self.quantiles[-1]
        low, high = self.quantiles[below], self.quantiles[below + 1]
        return min(high, low + (high - low) * (place - below))


@dataclass(frozen=True, slots=True)
class TypeBehaviour:
    """How nodes of one type fare. ``p_`` is a probability."""

    boot_s: Distribution  # from the create to the joining
    stop_s: Distribution  # from the order to end it to its end
    failing_s: Distribution  # of a boot that fails: from the create to its end
    p_boot_failure: float = 0.0
    lost_per_hour: float = 0.0  # how often a node that is up ends by itself, or is taken back
    p_shortage: float = 0.0  # that none is to be had, when some are asked for
    shortage_s: Distribution = Distribution((0.0,))  # how long that lasts
    nodes_max: int | None = None  # a quota: so many of the type at once
