"""The thread that follows what the manager publishes, and tells whoever keeps count: metrics, events, the journal.

The brain only puts a reference into a queue. Where the followers cannot keep up, publications are left out, and
counted: the next one that is taken shows what became of everything, but not each step on the way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodemanager.actors.manager import Published
from nodemanager.journal.entries import Entries, Entry
from nodemanager.journal.lives import Life, Lives
from nodemanager.journal.spend import Spend, Spent

WAITING_MAX = 500


@dataclass(frozen=True, slots=True)
class Happened:
    """One publication, and what it shows to have happened since the one before."""

    published: Published
    entries: tuple[Entry, ...]
    lives: tuple[tuple[Life | None, Life], ...]
    spent: Spent


class Follower:
    """Works out what happened, publication by publication."""

    def __init__(self) -> None:
        self._entries = Entries()
        self._lives = Lives()
        self._spend = Spend()

    def of(self, published: Published) -> Happened:
        return Happened(
            published, self._entries.of(published), self._lives.of(published), self._spend.of(published)
        )


class Chronicle:
    """Its ``publish`` is the manager's; the sinks are called from its own thread, in their order."""

    def __init__(self, sinks: Sequence[Callable[[Happened], None]]) -> None:
        self._sinks = sinks
        self._waiting: queue.Queue[Published | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._follow, name="chronicle", daemon=True)
        self.left_out = 0

    def start(self) -> None:
        self._thread.start()

    def publish(self, published: Published) -> None:
        try:
            self._waiting.put_nowait(published)
        except queue.Full:
            self.left_out += 1

    def stop(self, within_s: float) -> None:
        """End after what waits is taken in, but within a time."""
        try:
            self._waiting.put(None, timeout=within_s)
        except queue.Full:
            return
        self._thread.join(within_s)

    def _follow(self) -> None:
        follower = Follower()
        while (published := self._waiting.get()) is not None:
            happened = follower.of(published)
            for sink in self._sinks:
                sink(happened)
