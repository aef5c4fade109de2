"""Files that several processes share: one lock for each folder, and atomic replacement."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK_WAIT_S = 30.0
_LOCK_RETRY_S = 0.005


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold a lock file. Raises ``TimeoutError`` if another process holds it for too long."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for_lock(lock, path)
        yield
    finally:
        os.close(lock)


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: a reader gets the old or the new text, even after a power failure."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _wait_for_lock(lock: int, path: Path) -> None:
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"{path} is held by another process for more than {_LOCK_WAIT_S:g} s: find it with fuser"
                ) from None
            time.sleep(_LOCK_RETRY_S)
