"""The thread that turns the manager's publications into history, and passes it on: board, metrics, history file.

The manager only puts a reference into the backlog. Under load this thread takes several publications together: each
one's decisions and facts still count, while nodes and jobs are read from the newest. If even that is too slow, the
backlog drops publications and counts them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import Fact
from nodemanager.delegation.view import PeerRun
from nodemanager.history.cost_ledger import CostLedger, Costs
from nodemanager.history.ended_jobs import EndedJob, EndedJobTracker
from nodemanager.history.events import EventTracker, HistoryEvent
from nodemanager.history.fleet_samples import FleetSample, FleetSampler
from nodemanager.history.node_lives import LifeTracker, NodeLife
from nodemanager.history.observe_savings import ObserveSavings, SavingsTracker
from nodemanager.planner.frozen import replace
from nodemanager.planner.snapshot import Account, Snapshot

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

    ``life_changes``: each changed life as (before, now), before being None for a new node. ``sample``: the fleet,
    if it is time for one; ``minute``: the sample of the last minute, if one is over.
    """

    newest: Publication
    facts: tuple[Fact, ...]
    phases_s: tuple[Mapping[str, float], ...]
    events: tuple[HistoryEvent, ...]
    life_changes: tuple[tuple[NodeLife | None, NodeLife], ...]
    costs: Costs
    charged_until_at: float = inf  # until when the costs, with those before, are charged
    savings: ObserveSavings | None = None
    ended_jobs: tuple[EndedJob, ...] = ()
    peer_runs: tuple[PeerRun, ...] = ()
    sample: FleetSample | None = None
    minute: FleetSample | None = None

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to write to the history file."""
        lists = (self.events, self.life_changes, self.costs, self.ended_jobs, self.peer_runs)
        return any(lists) or self.savings is not None or self.minute is not None

    @property
    def condensed(self) -> HistoryUpdate:
        """The same without the large snapshot, the facts and the phases: for a reader that keeps it for a while."""
        return replace(self, newest=condense(self.newest), facts=(), phases_s=())


class Follower:
    """Derives the history from publications, by one tracker for each kind of record.

    ``charged_until_at``: until when the costs are on record, as seconds since the epoch; infinity to charge nothing
    from before the first publication.
    """

    def __init__(self, charged_until_at: float = inf) -> None:
        self._entries = EventTracker()
        self._lives = LifeTracker()
        self._spend = CostLedger(charged_until_at)
        self._advice = SavingsTracker()
        self._ended = EndedJobTracker()
        self._fleet = FleetSampler()

    def follow(self, publications: Sequence[Publication]) -> HistoryUpdate:
        """Take at least one publication: the newest last and complete, the earlier ones possibly condensed."""
        newest = publications[-1]
        sample, minute = self._fleet.update(newest)
        facts = tuple(fact for it in publications for fact in it.facts)
        return HistoryUpdate(
            newest=newest,
            facts=facts,
            phases_s=tuple(it.phases_s for it in publications),
            events=self._entries.update(publications),
            life_changes=self._lives.update(newest, facts),
            costs=self._spend.accrue(newest),
            charged_until_at=self._spend.charged_until_at,
            savings=self._advice.update(publications),
            ended_jobs=self._ended.update(publications),
            sample=sample,
            minute=minute,
        )


class HistoryThread:
    """The thread between the manager, which calls ``publish``, and the sinks, which the thread calls in order."""

    def __init__(
        self, sinks: Sequence[Callable[[HistoryUpdate], None]], charged_until_at: Callable[[], float] = lambda: inf
    ) -> None:
        self._sinks = sinks
        self._charged_until_at = charged_until_at  # called once, at the first publication
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
        follower: Follower | None = None
        while publications := self._backlog.take():
            began_s = time.monotonic()
            follower = follower or Follower(self._charged_until_at())
            update = follower.follow(publications)
            for sink in self._sinks:
                sink(update)
            self._ended.wait(rest_s(time.monotonic() - began_s))


# --- the publications waiting for the history thread: the newest complete, the earlier ones condensed -----
#
# Each publication holds a whole snapshot. Under load that is a megabyte or two that no other publication shares,
# and a complete backlog took a quarter of the service's memory.


BACKLOG_MAX = 500

_EMPTY_SNAPSHOT = Snapshot()


def condense(published: Publication) -> Publication:
    """Return the parts of a publication that still count once there is a newer one.

    These are its time, facts, decisions, policy and nodes. Its jobs, and the reasons for what was left unchanged,
    are dropped: the newest publication has them.
    """
    known, made = published.snapshot, published.plan
    return Publication(
        snapshot=replace(
            _EMPTY_SNAPSHOT,
            now_s=known.now_s,
            wall_at=known.wall_at,
            nodes=known.nodes,
            accounts={name: Account(strays=it.strays) for name, it in known.accounts.items()},
        ),
        plan=replace(made, jobs={}, nodes={}, basis=None),
        policy=published.policy,
        acts=published.acts,
        facts=published.facts,
        phases_s=published.phases_s,
    )


class Backlog:
    """A queue of publications. The manager's thread adds and never blocks; the history thread takes."""

    def __init__(self) -> None:
        self.dropped = 0
        self._publications: deque[Publication] = deque()
        self._news = threading.Condition()
        self._ended = False

    def __len__(self) -> int:
        return len(self._publications)

    def add(self, published: Publication) -> None:
        """Add the newest publication. If the backlog is full, the one before it is dropped and counted."""
        with self._news:
            if self._publications:
                before = self._publications.pop()
                if len(self._publications) < BACKLOG_MAX - 1:
                    self._publications.append(condense(before))
                else:
                    self.dropped += 1
            self._publications.append(published)
            self._news.notify()

    def end(self) -> None:
        """Say that nothing more will be added."""
        with self._news:
            self._ended = True
            self._news.notify()

    def take(self) -> list[Publication]:
        """Wait for publications and return all of them, the newest last. Empty once the backlog has ended."""
        with self._news:
            self._news.wait_for(lambda: self._publications or self._ended)
            taken = list(self._publications)
            self._publications.clear()
            return taken
