"""What the history says about a time up to now. It is kept for a while: many pages ask every two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nodemanager.history.cost_ledger import HOUR_S
from nodemanager.history.fleet_samples import FleetSample
from nodemanager.history.store.reader import (
    DAY_S,
    AlwaysOn,
    BootFigures,
    CoreHours,
    HistoryReader,
    HistoryUnreadable,
    WaitFigures,
)

RANGES_S: Mapping[str, float] = {"1h": 3600.0, "6h": 6 * 3600.0, "1d": DAY_S, "7d": 7 * DAY_S, "30d": 30 * DAY_S}
RANGE = "6h"  # unless the request names another
POINTS = 240  # of a chart
KEPT_S = 10.0
KEPT_FACTOR = 50.0  # figures that took long to compute are kept longer


@dataclass(frozen=True, slots=True)
class RangeFigures:
    """The figures of one range. ``cost_per_hour``: the mean of the last 24 hours; None if there are no costs.

    ``failure``: why the history cannot be read; "" if it can. All figures are then empty.
    """

    since_at: float
    samples: Sequence[FleetSample] = ()
    core_hours: CoreHours = field(default_factory=lambda: CoreHours(0.0, 0.0))
    waits: WaitFigures = field(default_factory=lambda: WaitFigures(0, None, None))
    boots: Mapping[str, BootFigures] = field(default_factory=dict)
    always_on: AlwaysOn | None = None
    cost_per_hour: float | None = None
    failure: str = ""


class RangeCache:
    """The figures of each range, computed again after a while. Threads that ask meanwhile wait for them."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._locks = {name: threading.Lock() for name in RANGES_S}
        self._kept: dict[str, tuple[float, RangeFigures]] = {}  # until when

    def figures(self, name: str, now_at: float, reader: HistoryReader) -> RangeFigures:
        """Return the figures of a range that ends now. ``name``: of ``RANGES_S``."""
        with self._locks[name]:
            kept = self._kept.get(name)
            began_s = self._clock_s()
            # A simulated site may begin again at an earlier time.
            if kept is not None and began_s < kept[0] and kept[1].since_at <= now_at:
                return kept[1]
            found = _read(name, now_at, reader)
            took_s = self._clock_s() - began_s
            self._kept[name] = (began_s + max(KEPT_S, KEPT_FACTOR * took_s), found)
            return found


def _read(name: str, now_at: float, reader: HistoryReader) -> RangeFigures:
    range_s = RANGES_S[name]
    since_at = now_at - range_s
    try:
        return RangeFigures(
            since_at,
            reader.fleet(since_at, now_at, range_s / POINTS),
            reader.core_hours(since_at, now_at),
            reader.waits(since_at),
            reader.boots_by_type(since_at),
            reader.always_on(since_at, now_at),
            _cost_per_hour(now_at, reader),
        )
    except HistoryUnreadable as unreadable:
        return RangeFigures(since_at, failure=str(unreadable))


def _cost_per_hour(now_at: float, reader: HistoryReader) -> float | None:
    """The mean cost per hour of the last 24 hours, or since the history begins, but of an hour at least."""
    begins_at = reader.begins_at()
    if begins_at is None:
        return None
    since_at = max(begins_at, (now_at - DAY_S) // HOUR_S * HOUR_S)
    return reader.cost_since(since_at) / max(1.0, (now_at - since_at) / HOUR_S)


def chart_samples(kept: Sequence[FleetSample], live: Sequence[FleetSample], range_s: float) -> list[FleetSample]:
    """Join the samples of the history and those in memory, about ``POINTS`` of them, oldest first."""
    if not live:
        return list(kept)
    oldest_at, step_s = live[-1].at - range_s, range_s / POINTS
    thinned = {it.at // step_s: it for it in live if it.at >= oldest_at}  # the last of each step
    recent = list(thinned.values())
    return [it for it in kept if oldest_at <= it.at < recent[0].at] + recent
