"""The publications waiting for the history thread: the newest complete, the earlier ones condensed.

Each publication holds a whole snapshot. Under load that is a megabyte or two that no other publication shares, and
a complete backlog took a quarter of the service's memory.
"""

from __future__ import annotations

import threading
from collections import deque

from nodemanager.actors.manager import Publication
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.snapshot import Account, Snapshot

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
