"""Who writes a journal: one process at a time. The lock goes with that process, its file stays."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_SUFFIX = ".lock"  # follows the name of the journal's file


class WrittenByAnother(OSError):
    """Another process writes this journal; says what to do about it."""


class WriteLock:
    """Of one journal. Two that wrote it together would double its entries and mix up what nodes have cost."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: int | None = None

    def take(self) -> None:
        """Unless it is held already. Raises ``WrittenByAnother``, or ``OSError`` where no lock can be had."""
        if self._file is not None:
            return
        file = os.open(self._journal.with_name(self._journal.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise WrittenByAnother(
                "another service writes it; one that observes beside it needs a [Site] state_dir of its own"
            ) from error
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
