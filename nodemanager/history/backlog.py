"""What waits for the chronicle: the newest publication whole, of those before it what happened.

Each publication holds all that was known at its moment, under load a megabyte or two that no other has. Where all
that waited was kept whole, it was a quarter of the service's memory.
"""

from __future__ import annotations

import threading
from collections import deque

from nodemanager.actors.manager import Publication
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.snapshot import Snapshot

BACKLOG_MAX = 500

_EMPTY_SNAPSHOT = Snapshot()


def condense(published: Publication) -> Publication:
    """What still counts of a publication when a newer one is there.

    Its facts, what was decided, when, by which policy, and the nodes. Of the jobs, and of the reasons of all that
    was left as it was, the newest tells.
    """
    known, made = published.snapshot, published.plan
    return Publication(
        snapshot=replace(
            _EMPTY_SNAPSHOT, now_s=known.now_s, wall_at=known.wall_at, nodes=known.nodes, strays=known.strays
        ),
        plan=replace(made, jobs={}, nodes={}, basis=None),
        policy=published.policy,
        acts=published.acts,
        facts=published.facts,
        phases_s=published.phases_s,
    )


class Backlog:
    """Put in by the manager's thread, which never waits; taken by the chronicle's."""

    def __init__(self) -> None:
        self.dropped = 0
        self._publications: deque[Publication] = deque()
        self._news = threading.Condition()
        self._ended = False

    def __len__(self) -> int:
        return len(self._publications)

    def add(self, published: Publication) -> None:
        """The newest is always taken in; where too many wait, the one before it is left out."""
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
        """Nothing more is added."""
        with self._news:
            self._ended = True
            self._news.notify()

    def take(self) -> list[Publication]:
        """All that waits, the newest last, as soon as anything does; nothing at the end."""
        with self._news:
            self._news.wait_for(lambda: self._publications or self._ended)
            taken = list(self._publications)
            self._publications.clear()
            return taken
