"""Streaming statistics of groups: each datum is seen once and not kept.

Mean and variance follow Welford, Technometrics 4 (1962) 419. Quantiles are estimated by the P-square algorithm of
Jain and Chlamtac, CACM 28 (1985) 1076. The interquartile range and the median absolute deviation build on it as
in river, so that the figures are those that ensemble-python shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from nodemanager.ensemble.file.conditions import STATISTICS
from nodemanager.ensemble.file.model import Count, MetricName

_MARKERS = 5


class Quantile:
    """The P-square estimate of one quantile. ``fraction``: 0.5 is the median."""

    __slots__ = ("_count", "_fraction", "_heights", "_positions", "_steps", "_wanted")

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._count = 0
        self._heights: list[float] = []
        self._positions = [1.0, 2.0, 3.0, 4.0, 5.0]
        self._steps = (0.0, fraction / 2, fraction, (1 + fraction) / 2, 1.0)
        self._wanted = [1 + 4 * step for step in self._steps]

    def add(self, value: float) -> None:
        self._count += 1
        heights = self._heights
        if self._count <= _MARKERS:
            heights.append(value)
            heights.sort()
            return
        cell = self._cell_of(value)
        for marker in range(cell + 1, _MARKERS):
            self._positions[marker] += 1
        for marker, step in enumerate(self._steps):
            self._wanted[marker] += step
        for marker in range(1, _MARKERS - 1):
            self._adjust(marker)

    def get(self) -> float | None:
        """Return the estimate; None before the first datum."""
        if not self._heights:
            return None
        if self._count > _MARKERS:
            return self._heights[2]
        return self._heights[min(int(self._count * self._fraction), self._count - 1)]

    def _cell_of(self, value: float) -> int:
        heights = self._heights
        if value < heights[0]:
            heights[0] = value
            return 0
        for marker in range(1, _MARKERS - 1):
            if value < heights[marker]:
                return marker - 1
        heights[-1] = max(heights[-1], value)
        return _MARKERS - 2

    def _adjust(self, marker: int) -> None:
        heights, positions = self._heights, self._positions
        lag = self._wanted[marker] - positions[marker]
        if lag >= 1 and positions[marker + 1] - positions[marker] > 1:
            step = 1
        elif lag <= -1 and positions[marker - 1] - positions[marker] < -1:
            step = -1
        else:
            return
        parabolic = self._parabolic(marker, step)
        if not heights[marker - 1] < parabolic < heights[marker + 1]:
            other = marker + step
            slope = (heights[other] - heights[marker]) / (positions[other] - positions[marker])
            parabolic = heights[marker] + step * slope
        heights[marker] = parabolic
        positions[marker] += step

    def _parabolic(self, marker: int, step: int) -> float:
        low, here, high = self._positions[marker - 1 : marker + 2]
        below, height, above = self._heights[marker - 1 : marker + 2]
        upper = (here - low + step) * (above - height) / (high - here)
        lower = (high - here - step) * (height - below) / (here - low)
        return height + step / (high - low) * (upper + lower)


class Series:
    """All statistics of one stream of figures, in seconds here. ``fractions``: quantiles to estimate too."""

    __slots__ = ("_deviation", "_high", "_low", "_median", "_quantiles", "_squares", "count", "max", "mean", "min")

    def __init__(self, fractions: Iterable[float] = ()) -> None:
        self.count = 0
        self.mean = 0.0
        self.min = math.inf
        self.max = -math.inf
        self._squares = 0.0  # of the distances from the mean
        self._low, self._high = Quantile(0.25), Quantile(0.75)
        self._median, self._deviation = Quantile(0.5), Quantile(0.5)
        self._quantiles = {fraction: Quantile(fraction) for fraction in fractions}

    def add(self, value: float) -> None:
        self.count += 1
        distance = value - self.mean
        self.mean += distance / self.count
        self._squares += distance * (value - self.mean)
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self._low.add(value)
        self._high.add(value)
        self._median.add(value)
        self._deviation.add(abs(value - (self._median.get() or 0.0)))
        for quantile in self._quantiles.values():
            quantile.add(value)

    @property
    def variance(self) -> float:
        """The sample variance; 0 below two data."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0

    @property
    def iqr(self) -> float:
        """The interquartile range."""
        return (self._high.get() or 0.0) - (self._low.get() or 0.0)

    @property
    def mad(self) -> float:
        """The median absolute deviation."""
        return self._deviation.get() or 0.0

    def quantile(self, fraction: float) -> float | None:
        """Return a quantile's estimate; None if it was not asked for at the start."""
        asked = self._quantiles.get(fraction)
        return None if asked is None else asked.get()

    def get(self, statistic: str, fraction: float = 0.0) -> float | None:
        if statistic == "quantile":
            return self.quantile(fraction)
        return float(getattr(self, statistic))


class Metrics:
    """The figures of all groups. ``asked``: the metrics that rules use, for their quantiles."""

    def __init__(self, asked: Iterable[MetricName] = ()) -> None:
        self._fractions: dict[tuple[str, str], list[float]] = {}
        for metric in asked:
            if metric.statistic == "quantile":
                self._fractions.setdefault((metric.group, metric.of), []).append(metric.fraction)
        self._series: dict[tuple[str, str], Series] = {}
        self._counts: dict[str, dict[str, int]] = {}

    def add(self, group: str, span: str, seconds: float) -> None:
        """Add one datum of a group's "pending" or "duration"."""
        series = self._series.get((group, span))
        if series is None:
            series = self._series[group, span] = Series(self._fractions.get((group, span), ()))
        series.add(seconds)

    def count(self, group: str, count: Count) -> None:
        """Count one more member."""
        counts = self._counts.setdefault(group, {})
        counts[count] = counts.get(count, 0) + 1

    def value(self, metric: MetricName) -> float | None:
        """Return a figure; None if it has no datum yet, or nothing was counted there yet."""
        if metric.statistic == "count":
            return self._counts.get(metric.group, {}).get(metric.of)
        series = self._series.get((metric.group, metric.of))
        return None if series is None else series.get(metric.statistic, metric.fraction)

    def counts(self, group: str) -> dict[str, int]:
        """Return all counts of a group, 0 where nothing was counted."""
        counted = self._counts.get(group, {})
        return {str(count): counted.get(count, 0) for count in Count}

    def models(self) -> dict[str, dict[str, Any]]:
        """Return every figure, nested as in ensemble-python: ``{"mean": {"sim-pending": 1.5}, "count": ...}``."""
        shown: dict[str, dict[str, Any]] = {"count": {group: dict(known) for group, known in self._counts.items()}}
        for statistic in STATISTICS:
            shown[statistic] = {
                f"{group}-{span}": series.get(statistic) for (group, span), series in self._series.items()
            }
        for (group, span), fractions in self._fractions.items():
            if series := self._series.get((group, span)):
                for fraction in fractions:
                    name = f"p{fraction * 100:g}"
                    shown.setdefault(name, {})[f"{group}-{span}"] = series.quantile(fraction)
        return shown
