"""The only writer of the history file (SQLite), in a thread of its own.

The history is for people; the service does not need it to run. So a fault of the file (deleted, unreadable, disk
full) is logged once and never stops the service:

- A file that cannot be used is moved aside, and a new one begins.
- Rows that cannot be written are held, and written later. If too many are held, the oldest are dropped and counted.
- While another process has the lock (``lock.py``), a manager that acts holds its rows until the lock is free. A
  manager that waits to act has nothing to write. A manager that only observes gives up for good.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from nodemanager.history.cost_ledger import HOUR_S
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.store.lock import WriteLock, WrittenByAnother
from nodemanager.history.store.rows import Rows
from nodemanager.history.store.schema import (
    ENTRIES_KEPT_S,
    JOBS_KEPT_S,
    SET_ASIDE_SUFFIX,
    SPEND_KEPT_S,
    SchemaTooNew,
    migrate,
)

FLUSH_S = 1.0
WAITING_MAX = 2000
HELD_MAX = 20_000  # rows: about ten megabytes, a day of a quiet site
TRY_AGAIN_S = 10.0
BUSY_S = 5.0  # how long the writer waits for a reader
PRUNE_EVERY_S = 3600.0
PRUNE_AGAIN_S = 300.0  # after a failure


class HistoryWriter:
    """Writes updates to the history file. ``take_in`` may be called from any thread and never blocks.

    ``succeeds``: whether to continue the file once another process that writes it has ended.
    """

    def __init__(self, path: Path, *, succeeds: bool = True) -> None:
        self.path = path
        self.is_written_elsewhere = False  # whether another process writes the file now
        self._succeeds = succeeds
        self._given_up = False
        self._lock = WriteLock(path)
        self.lost = 0  # updates that were not written
        self.failure = ""  # why nothing can be written now; "" while writing works
        self._waiting: queue.Queue[HistoryUpdate | None] = queue.Queue(WAITING_MAX)
        self._held: deque[Rows] = deque()  # rows not written yet, the oldest first
        self._newest_at = 0.0  # the wall-clock time of the last row written
        self._thread = threading.Thread(target=self._run, name="history-writer", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._checked: tuple[int, int] | None = None  # the last file that passed the check
        self._prune_at_s = 0.0
        self._prune_failure = ""  # why old rows could not be deleted the last time; "" if they were
        self._log: Any = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def take_in(self, update: HistoryUpdate) -> None:
        """Queue an update for writing. If the queue is full, the update is dropped and counted."""
        if not update.has_rows:
            return
        try:
            self._waiting.put_nowait(update.condensed)  # may wait a second for its commit
        except queue.Full:
            self.lost += 1

    def stop(self, within_s: float) -> None:
        """Write what is queued and end, but wait no longer than ``within_s`` for either step."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
            self._thread.join(within_s)

    # --- the thread ---

    def _run(self) -> None:
        ends = False
        while not ends:
            batch, ends = self._next_batch()
            self.write(batch)
        if self._held:
            self._log.error(
                "journal_lost", path=str(self.path), publications=sum(it.publications for it in self._held)
            )
        self.close()

    def _next_batch(self) -> tuple[list[HistoryUpdate], bool]:
        """Return the updates within ``FLUSH_S`` of the first, for one commit, and whether the thread must end.

        The batch is empty if it is time to try the held rows again.
        """
        try:
            first = self._waiting.get(timeout=TRY_AGAIN_S if self._held else None)
        except queue.Empty:
            return [], False
        if first is None:
            return [], True
        batch = [first]
        until_s = time.monotonic() + FLUSH_S
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                following = self._waiting.get(timeout=left_s)
            except queue.Empty:
                break
            if following is None:
                return batch, True
            batch.append(following)
        return batch, False

    def write(self, batch: Sequence[HistoryUpdate]) -> None:
        """Write the held rows and then these updates. For the writer's thread, or for callers without one."""
        if self._given_up:
            self.lost += len(batch)
            return
        if batch:
            self._held.append(Rows.from_updates(batch))
        if not self._held:
            return
        error = self._try_to_write()
        if error is not None and _is_broken(error):
            self._log_failure_once(error)
            self._move_aside(error)
            error = self._try_to_write()  # to a new file
        self.is_written_elsewhere = isinstance(error, WrittenByAnother)
        if error is None:
            if self.failure:
                self._log.info("journal_written_again", path=str(self.path), lost=self.lost)
                self.failure = ""
            self._prune()
        else:
            self._log_failure_once(error)
            self._given_up = self.is_written_elsewhere and not self._succeeds
            other_records = self.is_written_elsewhere and (
                self._given_up or (bool(batch) and _another_manager_acts(batch[-1]))
            )
            # Rows that break a new file too would break every file.
            self._drop_oldest(0 if other_records or _is_broken(error) else HELD_MAX)

    def _drop_oldest(self, most: int) -> None:
        """Drop the oldest held rows until at most ``most`` are left."""
        count = sum(rows.count for rows in self._held)
        while self._held and count > most:
            oldest = self._held.popleft()
            count -= oldest.count
            self.lost += oldest.publications

    def _try_to_write(self) -> Exception | None:
        """Write the held rows. Return the error, or None if they were written and are no longer held."""
        try:
            connection = self._open()
            with connection:
                for rows in self._held:
                    rows.insert(connection)
        except (sqlite3.Error, OSError, SchemaTooNew) as error:
            self._disconnect()
            return error
        self._newest_at = self._held[-1].wall_at
        self._held.clear()
        return None

    def _log_failure_once(self, error: Exception) -> None:
        """Log each kind of failure once, not once a second."""
        text = f"{type(error).__name__}: {error}"
        if text != self.failure:
            self._log.error("journal_not_written", path=str(self.path), why=text)
        self.failure = text

    # --- the file ---

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != _file_id(self.path):
            self._log.warning(
                "journal_gone", path=str(self.path), what="it was deleted or replaced; a new file begins"
            )
            self._disconnect()
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.take()
            # It shows what users ran, so only the owner may read it.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level="DEFERRED")
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                self._check(connection)
                migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, _file_id(self.path)
        return self._connection

    def _check(self, connection: sqlite3.Connection) -> None:
        """Raise ``DatabaseError`` if the file is damaged anywhere, even where the next write would not notice.

        Each file is checked once: a check takes a second for a few hundred megabytes.
        """
        found = _file_id(self.path)
        if found != self._checked:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise sqlite3.DatabaseError(result)
            self._checked = found

    def close(self) -> None:
        """Close the file and release the lock, so that another process may write it."""
        self._disconnect()
        self._lock.release()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = self._file = None

    def _move_aside(self, error: Exception) -> None:
        aside = self.path.with_name(f"{self.path.name}{SET_ASIDE_SUFFIX}{int(time.time())}")
        try:
            for ending in ("-wal", "-shm"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
            self.path.rename(aside)
        except OSError as refused:
            self._log_failure_once(refused)
        else:
            self._log.error("journal_moved_aside", path=str(self.path), to=str(aside), why=str(error))

    # --- old rows ---

    def _prune(self) -> None:
        """Delete old rows, once an hour. A failure is logged and does not affect what was written.

        Deleting needs disk space before it frees any, so on a nearly full disk it may fail although writing worked.
        """
        now_s = time.monotonic()
        if now_s < self._prune_at_s:
            return
        try:
            _delete_older(self._newest_at, self._open())
        except (sqlite3.Error, OSError, SchemaTooNew) as error:
            self._prune_at_s = now_s + PRUNE_AGAIN_S
            if _is_broken(error):
                self._checked = None  # the file is checked again before the next write
            self._disconnect()
            text = f"{type(error).__name__}: {error}"
            if text != self._prune_failure:
                self._log.warning("journal_not_pruned", path=str(self.path), why=text)
            self._prune_failure = text
        else:
            self._prune_at_s = now_s + PRUNE_EVERY_S
            self._prune_failure = ""


def _delete_older(wall_at: float, connection: sqlite3.Connection) -> None:
    with connection:
        for table, column, kept_s in (
            ("entries", "at", ENTRIES_KEPT_S),
            ("waits", "at", ENTRIES_KEPT_S),
            ("lives", "requested_at", SPEND_KEPT_S),
            ("jobs", "submitted_at", JOBS_KEPT_S),
        ):
            connection.execute(f"DELETE FROM {table} WHERE {column} < ?", (wall_at - kept_s,))  # noqa: S608
        for table in ("spend", "advised"):
            oldest = (wall_at - SPEND_KEPT_S) // HOUR_S
            connection.execute(f"DELETE FROM {table} WHERE hour < ?", (oldest,))  # noqa: S608


def _another_manager_acts(update: HistoryUpdate) -> bool:
    stands_still = update.newest.plan.stands_still
    return stands_still is not None and stands_still.code == "not_the_actor"


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_broken(error: Exception) -> bool:
    """Whether the file itself is unusable, as opposed to a fault of the disk or a lock."""
    if isinstance(error, SchemaTooNew):
        return True
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
