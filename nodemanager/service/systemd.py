"""Notifications to systemd, and the check whether the log goes to systemd's journal.

Sources: sd_notify(3), systemd.exec(5) on ``JOURNAL_STREAM``. Without systemd nothing is sent. A missing socket of
systemd is ignored: the service runs without it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

BEATS_PER_WATCHDOG = 3  # so two may be lost


class Notifier:
    """Sends systemd ``READY=1`` with the first decision, and ``WATCHDOG=1`` only with further decisions."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._beat_s = _watchdog_s(environment) / BEATS_PER_WATCHDOG
        self._now_s = now_s
        self._ready = False
        self._status = ""
        self._beat_at_s = now_s()

    def notify_decision(self, status: str) -> None:
        """Tell systemd that a decision was completed. ``status``: a line for ``systemctl status``."""
        states: list[str] = []
        if not self._ready:
            states.append("READY=1")
        if self._beat_s and (not self._ready or self._now_s() - self._beat_at_s >= self._beat_s):
            states.append("WATCHDOG=1")
            self._beat_at_s = self._now_s()
        if status != self._status:
            states.append(f"STATUS={status}")
        self._ready, self._status = True, status
        self._send(*states)

    def notify_stopping(self) -> None:
        """Tell systemd that the service ends."""
        self._send("STOPPING=1")

    def _send(self, *states: str) -> None:
        if not (self._address and states):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(states).encode(), socket.MSG_DONTWAIT, address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """How long systemd waits for a sign of life; 0 if it has no watchdog on this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() else 0.0


def writes_to_systemd_journal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream goes to systemd's journal, which records the time of each line itself."""
    try:
        written = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{written.st_dev}:{written.st_ino}"
