"""How nodes of one type behave at their provider: the distribution of durations, and the rates of failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

QUANTILES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of durations in seconds, given by its quantiles at even shares, in ascending order.

    A draw is uniform between two neighbouring quantiles.
    """

    quantiles: tuple[float, ...]

    @classmethod
    def from_samples(cls, samples: Iterable[float]) -> Distribution:
        """Return the distribution of samples. Of many samples it keeps ``QUANTILES_MAX`` quantiles."""
        ordered = sorted(samples)
        if len(ordered) > QUANTILES_MAX:
            ordered = [ordered[(len(ordered) - 1) * index // (QUANTILES_MAX - 1)] for index in range(QUANTILES_MAX)]
        return cls(tuple(ordered))

    def draw(self, draws: Random) -> float:
        return self.quantile(draws.random())

    def quantile(self, share: float) -> float:
        """The duration that a share (0 to 1) of all draws does not exceed."""
        place = share * (len(self.quantiles) - 1)
        below = int(place)
        if below + 1 >= len(self.quantiles):
            return self.quantiles[-1]
        low, high = self.quantiles[below], self.quantiles[below + 1]
        return min(high, low + (high - low) * (place - below))


@dataclass(frozen=True, slots=True)
class TypeBehaviour:
    """How nodes of one type behave. ``p_`` is a probability."""

    boot_s: Distribution  # from the create call to the join
    stop_s: Distribution  # from the destroy call to the node's end
    failing_s: Distribution  # of a failed boot: from the create call to the node's end
    p_boot_failure: float = 0.0
    lost_per_hour: float = 0.0  # how often a running node ends by itself or is reclaimed
    p_shortage: float = 0.0  # that an attempt to create nodes meets a shortage
    shortage_s: Distribution = Distribution((0.0,))  # how long a shortage lasts
    nodes_max: int | None = None  # a quota: the most nodes of the type at once
