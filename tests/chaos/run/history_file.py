"""The service's history in a run: the production code writes a real file, which faults fill, corrupt and delete.

Events are written at once and without a thread, so a run stays a function of its seed. Only runs with faults of the
history file keep a history. They show that nothing else depends on it.
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
    """The history file and its faults."""

    def __init__(self) -> None:
        self.full = False
        self.corruptions = 0
        self.deletions = 0
        self._folder = TemporaryDirectory(prefix="flux-node-manager-chaos-")
        self.path = Path(self._folder.name) / HISTORY_FILE

    def corrupt(self, amount: float) -> None:
        """Overwrite a part of the file. ``amount``, from 0 to 1, is the position."""
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
    """A writer whose file cannot grow while the disk is full."""

    def __init__(self, history: HistoryFile) -> None:
        super().__init__(history.path)
        self._history = history

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        connection.execute(f"PRAGMA max_page_count = {1 if self._history.full else PAGES_MAX}")
        return connection


class ProcessHistory:
    """The history that one manager process writes."""

    def __init__(self, history: HistoryFile) -> None:
        self._follower = Follower()
        self._writer = _SizeLimitedWriter(history)
        self._history, self._corruptions = history, history.corruptions
        self._last_events: tuple[HistoryEvent, ...] = ()
        self._deletions = history.deletions

    def record(self, published: Publication) -> None:
        update = self._follower.follow([published])
        if update.has_rows:
            self._writer.write([update])
            self._last_events, self._deletions = update.events or self._last_events, self._history.deletions

    def why_incomplete(self) -> str:
        """Explain why the last event cannot be read back; "" if it can.

        A process may not notice that its file was corrupted while it was writing. Only the next process checks it.
        """
        self._writer.write(())  # write the rows held back, as the thread does after a while
        if self._writer.is_written_elsewhere:
            return ""  # another process is stopped but alive and has the lock: newer events are held back
        if self._writer.failure or not self._last_events or self._history.deletions != self._deletions:
            return self._writer.failure  # events before a deletion of the file are lost
        latest = self._last_events[-1]
        try:
            found = HistoryReader(self._writer.path).events(subject=latest.subject)
        except HistoryUnreadable as unreadable:
            return str(unreadable) if self._history.corruptions == self._corruptions else ""
        return (
            ""
            if any(it["what"] == latest.what for it in found)
            else f"{latest.what} of {latest.subject} is not in it"
        )

    def close(self) -> None:
        self._writer.close()
