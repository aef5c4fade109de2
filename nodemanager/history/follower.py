"""The thread that turns the manager's publications into history, and passes it on: board, metrics, history file.

The manager only puts a reference into the backlog. Under load this thread takes several publications together: each
one's decisions and facts still count, while nodes and jobs are read from the newest. If even that is too slow, the
backlog drops publications and counts them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import Fact
from nodemanager.delegation.view import PeerRun
from nodemanager.history.backlog import Backlog, condense
from nodemanager.history.cost_ledger import CostLedger, Costs
from nodemanager.history.ended_jobs import EndedJob, EndedJobTracker
from nodemanager.history.events import EventTracker, HistoryEvent
from nodemanager.history.node_lives import LifeTracker, NodeLife
from nodemanager.history.observe_savings import ObserveSavings, SavingsTracker

# This thread shares the interpreter with the manager. So after working it rests this many times as long, but at
# most a second, to keep the dashboard up to date.
REST_FACTOR = 19.0
REST_MAX_S = 1.0


def rest_s(worked_s: float) -> float:
    """How long the history thread rests, to leave the interpreter to the manager, after working ``worked_s``."""
    return min(REST_MAX_S, REST_FACTOR * worked_s)


@dataclass(frozen=True, slots=True)
class HistoryUpdate:
    """What happened in some publications since those before. ``newest``: the last of them.

    ``life_changes``: each changed life as (before, now), before being None for a new node.
    """

    newest: Publication
    facts: tuple[Fact, ...]
    phases_s: tuple[Mapping[str, float], ...]
    events: tuple[HistoryEvent, ...]
    life_changes: tuple[tuple[NodeLife | None, NodeLife], ...]
    costs: Costs
    savings: ObserveSavings | None = None
    ended_jobs: tuple[EndedJob, ...] = ()
    peer_runs: tuple[PeerRun, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to write to the history file."""
        return any((self.events, self.life_changes, self.costs, self.savings, self.ended_jobs, self.peer_runs))

    @property
    def condensed(self) -> HistoryUpdate:
        """The same without the large snapshot, the facts and the phases: for a reader that keeps it for a while."""
        return replace(self, newest=condense(self.newest), facts=(), phases_s=())


class Follower:
    """Derives the history from publications, by one tracker for each kind of record."""

    def __init__(self) -> None:
        self._entries = EventTracker()
        self._lives = LifeTracker()
        self._spend = CostLedger()
        self._advice = SavingsTracker()
        self._ended = EndedJobTracker()

    def follow(self, publications: Sequence[Publication]) -> HistoryUpdate:
        """Take at least one publication: the newest last and complete, the earlier ones possibly condensed."""
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
    """The thread between the manager, which calls ``publish``, and the sinks, which the thread calls in order."""

    def __init__(self, sinks: Sequence[Callable[[HistoryUpdate], None]]) -> None:
        self._sinks = sinks
        self._backlog = Backlog()
        self._thread = threading.Thread(target=self._follow, name="history", daemon=True)
        self._ended = threading.Event()

    @property
    def dropped(self) -> int:
        """How many publications were dropped."""
        return self._backlog.dropped

    def start(self) -> None:
        self._thread.start()

    def publish(self, published: Publication) -> None:
        """Hand a publication over. Never blocks."""
        self._backlog.add(published)

    def stop(self, within_s: float) -> None:
        """Process the backlog and end, but wait no longer than ``within_s``."""
        self._ended.set()
        self._backlog.end()
        self._thread.join(within_s)

    def _follow(self) -> None:
        follower = Follower()
        while publications := self._backlog.take():
            began_s = time.monotonic()
            update = follower.follow(publications)
            for sink in self._sinks:
                sink(update)
            self._ended.wait(rest_s(time.monotonic() - began_s))
