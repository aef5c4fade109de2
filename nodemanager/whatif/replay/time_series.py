"""A figure over time, kept in a bounded number of steps. Each step holds the mean of its span."""

from __future__ import annotations

from dataclasses import dataclass, field

BINS_MAX = 960


@dataclass(slots=True)
class TimeSeries:
    """A step function of time, added up in bins. The bins' width doubles when there are too many."""

    width_s: float = 60.0
    sums: list[float] = field(default_factory=list)  # value x seconds
    _value: float = 0.0
    _at_s: float = 0.0

    def note(self, now_s: float, value: float) -> None:
        """Set the value from ``now_s`` on. The value noted before holds until then."""
        if self._value and now_s > self._at_s:
            self._add(self._at_s, now_s, self._value)
        self._at_s, self._value = now_s, value

    def _add(self, from_s: float, to_s: float, value: float) -> None:
        while to_s > self.width_s * BINS_MAX:
            self.sums = [sum(self.sums[index : index + 2]) for index in range(0, len(self.sums), 2)]
            self.width_s *= 2
        first, last = int(from_s // self.width_s), int(to_s // self.width_s)
        self.sums += [0.0] * (last + 1 - len(self.sums))
        if first == last:
            self.sums[first] += value * (to_s - from_s)
            return
        self.sums[first] += value * ((first + 1) * self.width_s - from_s)
        for index in range(first + 1, last):
            self.sums[index] += value * self.width_s
        self.sums[last] += value * (to_s - last * self.width_s)

    def means(self) -> list[float]:
        return [total / self.width_s for total in self.sums]
