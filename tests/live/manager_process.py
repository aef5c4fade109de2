"""The manager as a process of its own: how it is ended, and what it says in its log."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil

from tests.live.instance import WITHIN_S, eventually

LINES_SHOWN = 90


class ManagerProcess:
    def __init__(self, process: psutil.Popen, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def status(self) -> int | None:
        """The exit status, negative for the signal that ended it; None while it runs."""
        status: int | None = self.process.poll()
        return status

    def kill(self) -> None:
        """Sudden death."""
        if self.status is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(WITHIN_S)

    def freeze(self) -> None:
        """SIGSTOP: it does nothing, and holds whatever it held."""
        self.process.suspend()

    def thaw(self) -> None:
        self.process.resume()

    def terminate(self, within_s: float) -> int:
        """End it as systemd does, and give the exit status; fails when it takes longer."""
        self.process.send_signal(signal.SIGTERM)
        status: int = self.process.wait(within_s)
        return status

    def lines(self) -> list[dict[str, Any]]:
        """What it logged, in structured lines; what stands between them is for people."""
        text = self._log.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def said(self, event: str, **fields: str) -> list[dict[str, Any]]:
        """The lines of an event whose named fields contain these texts."""
        return [
            line
            for line in self.lines()
            if line["event"] == event and all(text in str(line.get(name, "")) for name, text in fields.items())
        ]

    def orders(self, verb: str = "decided") -> list[str]:
        """Every order that it gave, or would give: "BootNode cpu1"."""
        return [line["order"] for line in self.said(verb)]

    def until_said(self, event: str, **fields: str) -> None:
        eventually(f"{self._log.name} says {event} {fields or ''}", lambda: self.said(event, **fields))

    def tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return "\n".join([f"--- {self._log.name}, status {self.status}", *lines[-LINES_SHOWN:]])
