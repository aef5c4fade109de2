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

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import Fact
from nodemanager.history.backlog import Backlog, condense
from nodemanager.history.cost_ledger import CostLedger, Costs
from nodemanager.history.ended_jobs import EndedJob, EndedJobTracker
from nodemanager.history.events import EventTracker, HistoryEvent
from nodemanager.history.node_lives import LifeTracker, NodeLife
from nodemanager.history.observe_savings import ObserveSavings, SavingsTracker

# It shares the interpreter with the brain, so it rests for so many times as long as it has worked; but not so long
# that people would miss what has happened.
REST_FACTOR = 19.0
REST_MAX_S = 1.0


def rest_s(worked_s: float) -> float:
    """For how long the chronicle leaves the interpreter to the brain."""
    return min(REST_MAX_S, REST_FACTOR * worked_s)


@dataclass(frozen=True, slots=True)
class HistoryUpdate:
    """What publications show to have happened since those before; ``published`` is the newest of them."""

    newest: Publication
    facts: tuple[Fact, ...]
    phases_s: tuple[Mapping[str, float], ...]
    events: tuple[HistoryEvent, ...]
    life_changes: tuple[tuple[NodeLife | None, NodeLife], ...]
    costs: Costs
    savings: ObserveSavings | None = None
    ended_jobs: tuple[EndedJob, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether the journal has anything of it to keep."""
        return any((self.events, self.life_changes, self.costs, self.savings, self.ended_jobs))

    @property
    def condensed(self) -> HistoryUpdate:
        """What happened, without all that was known: for who keeps it a while."""
        return replace(self, newest=condense(self.newest), facts=(), phases_s=())


class Follower:
    """Works out what happened."""

    def __init__(self) -> None:
        self._entries = EventTracker()
        self._lives = LifeTracker()
        self._spend = CostLedger()
        self._advice = SavingsTracker()
        self._ended = EndedJobTracker()

    def follow(self, publications: Sequence[Publication]) -> HistoryUpdate:
        """From one publication at the least, in their order: the newest whole, those before it as ``passed``."""
        newest = publications[-1]
        facts = tuple(fact for it in publications for fact in it.facts)
        return HistoryUpdate(
            newest=newest,
            facts=facts,
            phases_s=tuple(it.phases_s for it in publications),
            events=self._entries.update(publications),
            life_changes=self._lives.update(newest, facts),
            costs=self._spend.accrue(newest),
            savings=self._advice.update(publications),
            ended_jobs=self._ended.update(publications),
        )


class HistoryThread:
    """Its ``publish`` is the manager's; the sinks are called from its own thread, in their order."""

    def __init__(self, sinks: Sequence[Callable[[HistoryUpdate], None]]) -> None:
        self._sinks = sinks
        self._waiting = Backlog()
        self._thread = threading.Thread(target=self._follow, name="chronicle", daemon=True)
        self._ended = threading.Event()

    @property
    def dropped(self) -> int:
        """How many publications were not followed."""
        return self._waiting.dropped

    def start(self) -> None:
        self._thread.start()

    def publish(self, published: Publication) -> None:
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
            happened = follower.follow(publications)
            for sink in self._sinks:
                sink(happened)
            self._ended.wait(rest_s(time.monotonic() - began_s))
