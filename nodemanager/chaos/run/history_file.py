"""The production journal of a run, on a real file that is filled up, spoilt and deleted.

It is written at once and without its thread, so that a run stays a function of its seed. A history is kept only in
runs that its file is disturbed in: nothing else of a run depends on it, which is what these runs show.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from nodemanager.actors.manager import Publication
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import Follower
from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter

RUBBISH = bytes(range(256)) * 32
PAGES_MAX = 2**32 - 2


class HistoryFile:
    """The file, and what becomes of it."""

    def __init__(self) -> None:
        self.full = False
        self.corruptions = 0
        self.deletions = 0
        self._folder = TemporaryDirectory(prefix="flux-node-manager-chaos-")
        self.path = Path(self._folder.name) / HISTORY_FILE

    def corrupt(self, amount: float) -> None:
        """Something overwrites a part of it; by the amount, which."""
        self.corruptions += 1
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.seek(int(amount * self.path.stat().st_size))
                file.write(RUBBISH)

    def delete(self) -> None:
        self.deletions += 1
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._folder.cleanup()


class _SizeLimitedWriter(HistoryWriter):
    """Its file may grow no more while the disk is full."""

    def __init__(self, history: HistoryFile) -> None:
        super().__init__(history.path)
        self._history = history

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        connection.execute(f"PRAGMA max_page_count = {1 if self._history.full else PAGES_MAX}")
        return connection


class ProcessHistory:
    """What one process of the service writes. ``told``: the entries of the last time that there were any."""

    def __init__(self, history: HistoryFile) -> None:
        self._follower = Follower()
        self._journal = _SizeLimitedWriter(history)
        self._history, self._corruptions = history, history.corruptions
        self._last_entries: tuple[HistoryEvent, ...] = ()
        self._deletions = history.deletions

    def record(self, published: Publication) -> None:
        happened = self._follower.follow([published])
        if happened.has_rows:
            self._journal.write([happened])
            self._last_entries, self._deletions = happened.events or self._last_entries, self._history.deletions

    def why_incomplete(self) -> str:
        """Why what was told last cannot be read; "" where it can.

        One that is spoilt under the process that writes it may look well to that: the next one looks it through.
        """
        self._journal.write(())  # what is held, as its thread does after a while
        if self._journal.is_written_elsewhere:
            return ""  # a process that was stopped has it, and is not dead: what is told since is held
        if self._journal.failure or not self._last_entries or self._history.deletions != self._deletions:
            return self._journal.failure  # what was told before the file was deleted is lost
        latest = self._last_entries[-1]
        try:
            found = HistoryReader(self._journal.path).events(subject=latest.subject)
        except HistoryUnreadable as unreadable:
            return str(unreadable) if self._history.corruptions == self._corruptions else ""
        return (
            ""
            if any(it["what"] == latest.what for it in found)
            else f"{latest.what} of {latest.subject} is not in it"
        )

    def close(self) -> None:
        self._journal.close()
