"""Processes that end with the one that began them, however that one ends."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread

EXIT_ORPHANED = 1


def end_with_parent(parent: Connection) -> None:
    """End this process when nobody holds the other end of a pipe any more, in which nothing is ever said."""
    Thread(target=_wait_for_parent, args=(parent,), name="parent", daemon=True).start()


def _wait_for_parent(parent: Connection) -> None:
    with suppress(EOFError, OSError):
        parent.recv_bytes()
    os._exit(EXIT_ORPHANED)
