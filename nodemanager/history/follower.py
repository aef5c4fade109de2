"""The thread that follows what the manager publishes, and tells whoever keeps count: metrics, events, the journal.

The brain only puts a reference into a queue. Under load several publications are taken together: every decision and
fact of each still counts, and what became of nodes and jobs is read off the newest. Where even that is not enough,
publications are left out, and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodemanager.actors.manager import Published
from nodemanager.core.facts import Fact
from nodemanager.history.backlog import Waiting, passed
from nodemanager.history.cost_ledger import Spend, Spent
from nodemanager.history.ended_jobs import EndedJob, EndedJobs
from nodemanager.history.events import Entries, Entry
from nodemanager.history.node_lives import Life, Lives
from nodemanager.history.observe_savings import Advice, Advised

# It shares the interpreter with the brain, so it rests for so many times as long as it has worked; but not so long
# that people would miss what has happened.
REST = 19.0
REST_MAX_S = 1.0


def rest_s(worked_s: float) -> float:
    """For how long the chronicle leaves the interpreter to the brain."""
    return min(REST_MAX_S, REST * worked_s)


@dataclass(frozen=True, slots=True)
class Happened:
    """What publications show to have happened since those before; ``published`` is the newest of them."""

    published: Published
    facts: tuple[Fact, ...]
    phases_s: tuple[Mapping[str, float], ...]
    entries: tuple[Entry, ...]
    lives: tuple[tuple[Life | None, Life], ...]
    spent: Spent
    advised: Advised | None = None
    ended: tuple[EndedJob, ...] = ()

    @property
    def to_write(self) -> bool:
        """Whether the journal has anything of it to keep."""
        return any((self.entries, self.lives, self.spent, self.advised, self.ended))

    @property
    def in_short(self) -> Happened:
        """What happened, without all that was known: for who keeps it a while."""
        return replace(self, published=passed(self.published), facts=(), phases_s=())


class Follower:
    """Works out what happened."""

    def __init__(self) -> None:
        self._entries = Entries()
        self._lives = Lives()
        self._spend = Spend()
        self._advice = Advice()
        self._ended = EndedJobs()

    def of(self, publications: Sequence[Published]) -> Happened:
        """From one publication at the least, in their order: the newest whole, those before it as ``passed``."""
        newest = publications[-1]
        facts = tuple(fact for it in publications for fact in it.facts)
        return Happened(
            published=newest,
            facts=facts,
            phases_s=tuple(it.phases_s for it in publications),
            entries=self._entries.of(publications),
            lives=self._lives.of(newest, facts),
            spent=self._spend.of(newest),
            advised=self._advice.of(publications),
            ended=self._ended.of(publications),
        )


class Chronicle:
    """Its ``publish`` is the manager's; the sinks are called from its own thread, in their order."""

    def __init__(self, sinks: Sequence[Callable[[Happened], None]]) -> None:
        self._sinks = sinks
        self._waiting = Waiting()
        self._thread = threading.Thread(target=self._follow, name="chronicle", daemon=True)
        self._ended = threading.Event()

    @property
    def left_out(self) -> int:
        """How many publications were not followed."""
        return self._waiting.left_out

    def start(self) -> None:
        self._thread.start()

    def publish(self, published: Published) -> None:
        self._waiting.add(published)

    def stop(self, within_s: float) -> None:
        """End after what waits is taken in, but within a time."""
        self._ended.set()
        self._waiting.end()
        self._thread.join(within_s)

    def _follow(self) -> None:
        follower = Follower()
        while publications := self._waiting.take():
            began_s = time.monotonic()
            happened = follower.of(publications)
            for sink in self._sinks:
                sink(happened)
            self._ended.wait(rest_s(time.monotonic() - began_s))
