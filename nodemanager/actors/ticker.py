"""The thread that tells the manager the time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from nodemanager.actors.messages import Mailbox, ManagerMessage
from nodemanager.core.facts import Tick
from nodemanager.core.ports import Clock

PERIOD_S = 0.025  # the longest that a fact waits for a decision; a tick without work costs some microseconds
# When idle: waking two threads forty times a second would be half of the idle service's CPU time.
QUIET_PERIOD_S = 0.25
# After a message, for so long the short period applies: longer than a queue takes to settle. An idle service has a
# message every ten seconds, from its look at the ranks.
LIVELY_S = 2.0
GATHER_S = 0.01  # after a quiet time: facts that arrive together are decided on together


@dataclass(frozen=True, slots=True)
class WakingMailbox:
    """The manager's mailbox. Any message except a tick wakes the ticker."""

    manager: Mailbox[ManagerMessage]
    news: threading.Event

    def tell(self, message: ManagerMessage) -> None:
        self.manager.tell(message)
        if not isinstance(message, Tick) and not self.news.is_set():
            self.news.set()


class Ticker(threading.Thread):
    """Sends ticks to the manager until stopped. It knows no deadlines: their owners compare them with the time."""

    def __init__(
        self,
        clock: Clock,
        manager: Mailbox[Tick],
        news: threading.Event,
        quiet_period_s: float = QUIET_PERIOD_S,
        lively_s: float = LIVELY_S,
    ) -> None:
        super().__init__(name="ticker", daemon=True)
        self._clock = clock
        self._manager = manager
        self._news = news
        self._quiet_period_s = quiet_period_s
        self._lively_s = lively_s
        self._stopped = threading.Event()

    def run(self) -> None:
        lively_until_s = time.monotonic() + self._lively_s
        while not self._stopped.is_set():
            if time.monotonic() < lively_until_s:
                self._stopped.wait(PERIOD_S)
            elif self._news.wait(self._quiet_period_s):
                self._stopped.wait(GATHER_S)
            if self._news.is_set():
                self._news.clear()
                lively_until_s = time.monotonic() + self._lively_s
            self._manager.tell(Tick(self._clock.monotonic_s(), self._clock.wall_at()))

    def stop(self) -> None:
        self._stopped.set()
        self._news.set()
