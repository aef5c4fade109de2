"""Virtual time: a clock that moves only on request, the events scheduled on it, and the seed of all random draws.

A world is a pure function of its seed and of the calls made to it. Each part draws from its own stream
(:meth:`World.draws_for`), so an additional draw in one part does not change the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from threading import RLock


@dataclass(slots=True)
class Scheduled:
    """A scheduled event. A cancelled event stays in the heap until its time, and does nothing."""

    at_s: float
    action: Callable[[], None] | None

    def cancel(self) -> None:
        self.action = None


@dataclass(frozen=True, slots=True)
class WorldClock:
    """The world's clock as a port. ``skew_s``: how far this reader's wall clock is ahead of the world's."""

    world: World
    skew_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.world.now_s

    def wall_at(self) -> float:
        return self.world.wall_at() + self.skew_s


class World:
    """One simulated world: its time, its scheduled events, and the lock that all its parts share.

    ``start_at``: the wall clock at time 0, in seconds since the epoch. Set ``skew_s`` at any time to make the wall
    clock jump; ``now_s`` never jumps.
    """

    def __init__(self, seed: int, start_at: float = 1_700_000_000.0) -> None:
        self.seed = seed
        self.start_at = start_at
        self.skew_s = 0.0
        self.random = Random(seed)
        self.lock = RLock()
        self._now_s = 0.0
        self._sequence = 0
        self._events: list[tuple[float, int, Scheduled]] = []

    @property
    def now_s(self) -> float:
        return self._now_s

    def wall_at(self) -> float:
        return self.start_at + self._now_s + self.skew_s

    def steady_at(self) -> float:
        """The wall clock of a machine whose clock does not jump."""
        return self.start_at + self._now_s

    def clock(self, skew_s: float = 0.0) -> WorldClock:
        return WorldClock(self, skew_s)

    def draws_for(self, part: str) -> Random:
        """Return a random stream that depends only on the seed and the part's name."""
        return Random(f"{self.seed}/{part}")

    def after(self, delay_s: float, action: Callable[[], None]) -> Scheduled:
        """Schedule ``action`` in ``delay_s`` seconds. Events at the same time run in the order of these calls."""
        if delay_s < 0:
            raise ValueError(f"cannot schedule {delay_s:g} s from now: time does not run backwards")
        return self.at(self._now_s + delay_s, action)

    def at(self, at_s: float, action: Callable[[], None]) -> Scheduled:
        """Schedule ``action`` at ``at_s``, or now if that is past. Events at the same time run in their order."""
        with self.lock:
            scheduled = Scheduled(max(at_s, self._now_s), action)
            self._sequence += 1
            heapq.heappush(self._events, (scheduled.at_s, self._sequence, scheduled))
            return scheduled

    def next_event_s(self) -> float | None:
        """The time of the next event; None if none is scheduled."""
        with self.lock:
            self._drop_cancelled()
            return self._events[0][0] if self._events else None

    def advance_to(self, now_s: float) -> None:
        """Move the clock to ``now_s`` and run every event on the way at its own time.

        The lock is released between two events, so other threads can take it. A time in the past is no error: two
        threads may advance at once.
        """
        while self._run_next_event(now_s):
            pass
        with self.lock:
            self._now_s = max(self._now_s, now_s)

    def advance_by(self, delay_s: float) -> None:
        self.advance_to(self._now_s + delay_s)

    def _run_next_event(self, until_s: float) -> bool:
        with self.lock:
            self._drop_cancelled()
            if not self._events or self._events[0][0] > until_s:
                return False
            at_s, _, scheduled = heapq.heappop(self._events)
            self._now_s = max(self._now_s, at_s)
            action, scheduled.action = scheduled.action, None
            if action is not None:
                action()
            return True

    def _drop_cancelled(self) -> None:
        while self._events and self._events[0][2].action is None:
            heapq.heappop(self._events)
