"""Ends a child process when its parent ends, however that happens."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread

EXIT_ORPHANED = 1


def end_with_parent(parent: Connection) -> None:
    """End this process once the other end of a pipe is closed. Nothing is ever written to the pipe."""
    Thread(target=_wait_for_parent, args=(parent,), name="parent", daemon=True).start()


def _wait_for_parent(parent: Connection) -> None:
    with suppress(EOFError, OSError):
        parent.recv_bytes()
    os._exit(EXIT_ORPHANED)
