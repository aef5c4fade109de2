"""Time, told: one thread that says what time it is."""

from __future__ import annotations

import threading

from nodemanager.facts import Tick
from nodemanager.messages import Mailbox
from nodemanager.ports import Clock

PERIOD_S = 0.025  # what an order may wait for its turn; a tick with nothing to do costs some microseconds


class Ticker(threading.Thread):
    """Tells the manager the time until stopped. Deadlines are data, compared by whoever holds them."""

    def __init__(self, clock: Clock, manager: Mailbox[Tick], period_s: float = PERIOD_S) -> None:
        super().__init__(name="ticker", daemon=True)
        self._clock = clock
        self._manager = manager
        self._period_s = period_s
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._manager.tell(Tick(self._clock.monotonic_s(), self._clock.wall_at()))

    def stop(self) -> None:
        self._stopped.set()
