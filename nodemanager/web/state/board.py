"""The board that pages and verbs read: the latest publication, recent events, and samples of the fleet over time.

The manager's thread and the history thread write it, the web server's threads read it. Each list is bounded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nodemanager.actors.manager import Publication
from nodemanager.delegation.view import DelegationView
from nodemanager.ensemble.fair_share import NodeClaim
from nodemanager.history.events import HistoryEvent
from nodemanager.history.fleet_samples import FleetSample
from nodemanager.history.follower import HistoryUpdate

EVENTS_MAX = 2000
# Events that happen to every node and job all the time. The history has them; here they would crowd out the others.
HISTORY_ONLY_KINDS = frozenset({"because", "job"})
SAMPLES_MAX = 720  # about an hour


@dataclass(frozen=True, slots=True)
class LatestPublication:
    """A publication, and the time of this machine's monotonic clock when it was made."""

    published: Publication
    posted_s: float


class Board:
    """The shared state of the web server. ``clock_s``: the real, monotonic clock."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self.started_s = clock_s()
        self._latest: LatestPublication | None = None
        self._changed = threading.Condition()
        self._delegation: DelegationView | None = None
        self._ensembles: Mapping[str, Mapping[str, Any]] = {}
        self.nodes_kept: Mapping[str, int] = {}  # the nodes that are kept for each ensemble
        self.node_claims: Mapping[str, NodeClaim] = {}  # what each ensemble asks for and gets, and why
        self._events: deque[tuple[int, HistoryEvent]] = deque(maxlen=EVENTS_MAX)
        self._samples: deque[FleetSample] = deque(maxlen=SAMPLES_MAX)
        self._numbered = 0
        self.journal_failure: Callable[[], str] = lambda: ""  # why the history cannot be written; "" if it can
        self.spent = 0.0  # since the start of this process; an estimate

    # --- written ---

    def publish(self, published: Publication) -> None:
        """Take the latest publication. Called by the manager's thread."""
        with self._changed:
            self._latest = LatestPublication(published, self._clock_s())
            self._changed.notify_all()

    def publish_delegation(self, view: DelegationView) -> None:
        """Take the latest view of delegation. Called by the delegator's thread."""
        with self._changed:
            self._delegation = view
            self._changed.notify_all()

    def take_in(self, update: HistoryUpdate) -> None:
        """Take events and costs. Called by the history thread."""
        with self._changed:
            for event in update.events:
                if event.kind in HISTORY_ONLY_KINDS:
                    continue
                self._numbered += 1
                self._events.append((self._numbered, event))
            self.spent += sum(spent.cost for spent in update.costs.values())
            if (sample := update.sample) is not None:
                while self._samples and self._samples[-1].at > sample.at:
                    self._samples.pop()  # a simulated site begins again, or the clock was set back
                self._samples.append(sample)

    def show_ensemble(self, name: str, summary: Mapping[str, Any]) -> None:
        """Take the state of an ensemble that the service runs. Called by the ensemble's thread."""
        with self._changed:
            self._ensembles = {**self._ensembles, name: summary}

    # --- read ---

    @property
    def ensembles(self) -> Mapping[str, Mapping[str, Any]]:
        """The state of each ensemble that the service runs, as ``ensemble status --json`` shows it."""
        return self._ensembles

    @property
    def delegation(self) -> DelegationView | None:
        """The latest view of delegation; None if the site delegates no jobs."""
        return self._delegation

    @property
    def latest(self) -> LatestPublication | None:
        """The latest publication; None before the first one."""
        return self._latest

    def is_active_job(self, job: int) -> bool:
        """Whether the instance has this job, also if it cannot be read."""
        if self._latest is None:
            return False
        snapshot = self._latest.published.snapshot
        return job in snapshot.jobs or job in snapshot.queues.unreadable

    @property
    def silent_s(self) -> float:
        """How long ago the latest publication was made."""
        since_s = self._latest.posted_s if self._latest is not None else self.started_s
        return self._clock_s() - since_s

    def wait_for(self, holds: Callable[[Publication], bool], within_s: float) -> bool:
        """Wait until ``holds`` is true of the latest publication. Return whether it became true in time."""

        def is_true() -> bool:
            return self._latest is not None and holds(self._latest.published)

        with self._changed:
            return self._changed.wait_for(is_true, within_s)

    def events_after(self, number: int, limit: int = EVENTS_MAX) -> list[tuple[int, HistoryEvent]]:
        """Return the events numbered above ``number``, oldest first. If there are more, the latest ``limit``."""
        with self._changed:
            if number >= self._numbered:
                return []
            newer = [event for event in self._events if event[0] > number]
        return newer[-limit:]

    def samples(self) -> list[FleetSample]:
        """The samples of about the last hour, oldest first."""
        with self._changed:
            return list(self._samples)
