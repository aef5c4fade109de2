"""The lock on the history file: one process writes at a time. The lock ends with the process, its file stays."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

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
