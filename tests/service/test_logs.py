"""A bug is logged with its place, and without the secrets in the variables there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

SECRET = "a-client-secret"

# An actor whose call meets a bug, with a secret in each kind of place that a traceback could show.
CRASHES = f"""
from nodemanager.service import logs
from nodemanager.actors.base import Fate
from nodemanager.actors.cloud import CloudWatcher
from nodemanager.service.assembly.ports import SystemClock
from nodemanager.core.orders import ListCloud

class Login:
    key = {SECRET!r}
    def __repr__(self):
        return self.key

class Port:
    def list_nodes(self):
        token, login, asked = {SECRET!r}, Login(), {{"client_secret": {SECRET!r}}}
        raise RuntimeError("a bug")

logs.configure()
fate = Fate()
CloudWatcher.start(Port(), SystemClock(), None, fate).tell(ListCloud())
assert fate.ended.wait(60)
"""


def test_a_crash_is_told_without_the_values_of_variables() -> None:
    told = subprocess.run(
        [sys.executable, "-"], input=CRASHES, stderr=subprocess.PIPE, text=True, check=True, timeout=120
    ).stderr
    assert "a bug" in told
    assert "list_nodes" in told
    assert SECRET not in told


def test_so_it_is_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(CRASHES.encode())
        process.stdin.close()
        told = b"".join(iter(lambda: _read(ours), b"")).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "a bug" in told
    assert "list_nodes" in told
    assert SECRET not in told


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # so Linux says that the other side is closed
        return b""
