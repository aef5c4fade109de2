"""Pass a copy's output on to our job, once and up to a limit.

The copy's eventlogs are read from their beginning after every lost connection, so the relay counts the events that
our job already has, and skips as many. Formats: RFC 24 (output), RFC 18 (eventlog).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nodemanager.core.untrusted import Unreadable

OUTPUT = "output"
EXEC = "exec.eventlog"
_SHELL = "shell."


def counts_for_relay(key: str, events: Sequence[Mapping[str, Any]]) -> int:
    """Count the events of a proxy that were passed on. Our own instance writes others into ``exec.eventlog``."""
    return sum(1 for event in events if key == OUTPUT or _is_passed_on(event))


def _is_passed_on(event: Mapping[str, Any]) -> bool:
    return str(event.get("name", "")).startswith(_SHELL)


class OutputRelay:
    """The state of one relay. ``passed`` counts the events of each key that our job has already."""

    def __init__(self, passed: Mapping[str, int], limit_bytes: int, where: str) -> None:
        self._skip = dict(passed)
        self._seen = dict.fromkeys((OUTPUT, EXEC), 0)
        self._left_bytes = limit_bytes
        self._where = where
        self.cut = False

    def restart(self) -> None:
        """The copy's eventlogs are read from their beginning again."""
        for key, seen in self._seen.items():
            self._skip[key] = max(self._skip.get(key, 0), seen)
            self._seen[key] = 0

    def take(self, key: str, events: Sequence[Mapping[str, Any]]) -> str:
        """Return the lines to append for these events of the copy; "" if there are none."""
        lines = []
        for event in events:
            if key == EXEC and not _is_passed_on(event):
                continue
            self._seen[key] += 1
            if self._seen[key] > self._skip.get(key, 0) and not (self.cut and key == OUTPUT):
                lines.append(self._line(key, event))
            elif key == OUTPUT:
                self._left_bytes -= len(_text(event))
        return "".join(lines)

    def _line(self, key: str, event: Mapping[str, Any]) -> str:
        text = _text(event)
        if key != OUTPUT:
            return text
        self._left_bytes -= len(text)
        if self._left_bytes >= 0:
            return text
        self.cut = True
        note = f"\n[output cut here: output_max is reached; the rest is shown by: {self._where}]\n"
        return _note_line(event, note)


def _text(event: Mapping[str, Any]) -> str:
    for value in event.values():
        if isinstance(value, Unreadable):
            return _note_line(event, f"[an event of the output is left out: it {value.why}]\n")
    return json.dumps(event, separators=(",", ":")) + "\n"


def _note_line(event: Mapping[str, Any], note: str) -> str:
    data = {"stream": "stderr", "rank": "0", "data": note}
    cut = {"timestamp": event.get("timestamp", 0.0), "name": "data", "context": data}
    return json.dumps(cut, separators=(",", ":")) + "\n"
