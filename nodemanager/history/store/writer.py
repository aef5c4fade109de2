"""The only writer of the history file (SQLite), in a thread of its own.

The history is for people; the service does not need it to run. So a fault of the file (deleted, unreadable, disk
full) is logged once and never stops the service:

- A file that cannot be used is moved aside, and a new one begins.
- Rows that cannot be written are held, and written later. If too many are held, the oldest are dropped and counted.
- No exception ends the thread: damaged files make SQLite raise errors of every kind.
- While another process has the lock (``lock.py``), a manager that acts holds its rows until the lock is free. A
  manager that waits to act has nothing to write. A manager that only observes gives up for good.
"""

from __future__ import annotations

import fcntl
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

from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.store.pruning import delete_older, thin
from nodemanager.history.store.rows import Rows
from nodemanager.history.store.schema import (
    EARLIER_RUN_SUFFIX,
    SET_ASIDE_SUFFIX,
    SIZE_MAX_BYTES,
    check_schema,
    migrate,
)

FLUSH_S = 1.0
WAITING_MAX = 2000
HELD_MAX = 20_000  # rows: about ten megabytes, a day of a quiet site
TRY_AGAIN_S = 10.0
BUSY_S = 5.0  # how long the writer waits for a reader
PRUNE_EVERY_S = 3600.0
PRUNE_AGAIN_S = 300.0  # after a failure
WAL_KEPT_BYTES = 4 << 20  # what a large deletion leaves of the write-ahead log


class HistoryWriter:
    """Writes updates to the history file. ``take_in`` may be called from any thread and never blocks.

    ``succeeds``: whether to continue the file once another process that writes it has ended.
    ``size_max_bytes``: when the file is larger than this, its oldest rows are deleted.
    ``begins_anew``: whether to move the history of an earlier run aside. Simulated time begins again at each start,
    so an earlier run would count as today, or as the future.
    """

    def __init__(
        self,
        path: Path,
        *,
        succeeds: bool = True,
        size_max_bytes: int = SIZE_MAX_BYTES,
        begins_anew: bool = False,
    ) -> None:
        self.path = path
        self._begins_anew = begins_anew  # until it has been done
        self._size_max_bytes = size_max_bytes
        self.is_written_elsewhere = False  # whether another process writes the file now
        self._succeeds = succeeds
        self._given_up = False
        self._lock = WriteLock(path)
        self.lost = 0  # updates that were not written
        self.failure = ""  # why nothing can be written now; "" while writing works
        self._is_failure_expected = False
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
        if self._begins_anew:
            with suppress(OSError):  # the first write tries again, and reports why it cannot
                self._take_lock()
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why the history cannot be written now; "" if it can, or if the manager that acts writes it."""
        return "" if self._is_failure_expected else self.failure

    def take_in(self, update: HistoryUpdate) -> None:
        """Queue an update for writing. If the queue is full, the update is dropped and counted."""
        if not update.has_rows:
            return
        try:
            self._waiting.put_nowait(update.condensed)  # may wait a second for its commit
        except queue.Full:
            self.lost += 1

    def stop(self, within_s: float) -> None:
        """Write the queued rows and end, but wait no longer than ``within_s`` for either step."""
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
        if batch and not self._hold(batch):
            return
        if not self._held:
            return
        error = self._try_to_write()
        if error is not None and blames_file(error):
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
            self._given_up = self.is_written_elsewhere and not self._succeeds
            waits = self.is_written_elsewhere and bool(batch) and _another_manager_acts(batch[-1])
            other_records = self._given_up or waits
            self._log_failure_once(error, is_expected=waits and not self._given_up)
            # Rows that no file takes, or that break a new file too, would break every file.
            hopeless = blames_rows(error) or blames_file(error)
            self._drop_oldest(0 if other_records or hopeless else HELD_MAX)

    def _hold(self, batch: Sequence[HistoryUpdate]) -> bool:
        """Hold the rows of a batch until they are written; False if no rows can be made of it (a bug)."""
        try:
            self._held.append(Rows.from_updates(batch))
        except Exception as error:  # noqa: BLE001 - the history must not end the manager
            self.lost += len(batch)
            self._log_failure_once(error)
            return False
        return True

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
        except Exception as error:  # noqa: BLE001 - a damaged file raises errors of every kind
            self._disconnect()
            return error
        self._newest_at = self._held[-1].wall_at
        self._held.clear()
        return None

    def _log_failure_once(self, error: Exception, *, is_expected: bool = False) -> None:
        """Log each kind of failure once, not once a second.

        ``is_expected``: this manager waits to act, and the one that acts writes the file.
        """
        text = f"{type(error).__name__}: {error}"
        if (text, is_expected) != (self.failure, self._is_failure_expected):
            if is_expected:
                self._log.info(
                    "journal_left_to_another", path=str(self.path), why="the manager that acts writes it"
                )
            else:
                self._log.error("journal_not_written", path=str(self.path), why=text)
        self.failure, self._is_failure_expected = text, is_expected

    # --- the file ---

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != _file_id(self.path):
            self._log.warning(
                "journal_gone", path=str(self.path), what="it was deleted or replaced; a new file begins"
            )
            self._disconnect()
        if self._connection is None:
            self._take_lock()
            # It shows what users ran, so only the owner may read it.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level="DEFERRED")
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
                self._check(connection)
                migrate(connection)
                check_schema(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, _file_id(self.path)
        return self._connection

    def _take_lock(self) -> None:
        """Take the lock, and once it is held, move the file of an earlier run aside if there must be none."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.take()
        if not self._begins_anew:
            return
        for ending in ("-shm", "-wal", ""):
            earlier = self.path.with_name(f"{self.path.name}{EARLIER_RUN_SUFFIX}{ending}")
            earlier.unlink(missing_ok=True)  # of the run before that
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + ending).rename(earlier)
        self._begins_anew = False

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
            with suppress(Exception):
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
        """Delete old rows once an hour, and the oldest whenever the file is too large.

        A failure is logged and does not affect what was written. Deleting needs disk space before it frees any, so
        on a nearly full disk it may fail although writing worked.
        """
        now_s = time.monotonic()
        if self._prune_failure and now_s < self._prune_at_s:
            return
        try:
            connection = self._open()
            if now_s >= self._prune_at_s:
                delete_older(self._newest_at, connection)
                self._prune_at_s = now_s + PRUNE_EVERY_S
            begins_at = thin(connection, self._size_max_bytes)
        except Exception as error:  # noqa: BLE001 - a damaged file raises errors of every kind
            self._prune_at_s = now_s + PRUNE_AGAIN_S
            if blames_file(error):
                self._checked = None  # the file is checked again before the next write
            self._disconnect()
            text = f"{type(error).__name__}: {error}"
            if text != self._prune_failure:
                self._log.warning("journal_not_pruned", path=str(self.path), why=text)
            self._prune_failure = text
        else:
            self._prune_failure = ""
            if begins_at is not None:
                size_max = f"[Journal] size_max = {self._size_max_bytes} bytes"
                self._log.warning("journal_thinned", path=str(self.path), begins_at=begins_at, why=size_max)


def _another_manager_acts(update: HistoryUpdate) -> bool:
    return not update.newest.snapshot.sources.claimed


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# --- what an error while writing the history says: the file is unusable, or the rows are, or neither ------


# These come from the disk, from another process or from a limit. The file itself may be whole.
OUTSIDE_FAULTS = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_AUTH,
    }
)
EXTENDED_BITS = 8  # an extended error code has its primary code in the lowest byte


def blames_rows(error: Exception) -> bool:
    """Whether a row has a value that no file could hold: a type SQLite lacks, a huge number, a broken character."""
    return isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError | OverflowError | UnicodeEncodeError)


def blames_file(error: Exception) -> bool:
    """Whether the file itself is unusable.

    A damaged file makes SQLite raise errors of many kinds. In a damaged schema a table is missing
    (``OperationalError``), or a name is not text (``UnicodeDecodeError``).
    """
    if blames_rows(error) or isinstance(error, OSError | MemoryError):
        return False
    if not isinstance(error, sqlite3.Error):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by Python on what it read, such as a name that is not text
        return True
    return code & ((1 << EXTENDED_BITS) - 1) not in OUTSIDE_FAULTS


# --- the lock on the history file: one process writes at a time -------------------------------------------
#
# The lock ends with the process, its file stays.


LOCK_SUFFIX = ".lock"  # appended to the history file's name


class WrittenByAnother(OSError):
    """Another process writes this history file. The message says what to do about it."""


class WriteLock:
    """The write lock on one history file. Two writers would duplicate its events and falsify the costs."""

    def __init__(self, history_file: Path) -> None:
        self._history_file = history_file
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock, unless held already. Raises ``WrittenByAnother``, or ``OSError`` if locking fails."""
        if self._file is not None:
            return
        file = os.open(
            self._history_file.with_name(self._history_file.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT, 0o600
        )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise WrittenByAnother(
                "another service writes it; a second service that observes needs a [Site] state_dir of its own"
            ) from error
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
