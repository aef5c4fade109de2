"""Call custom functions in a worker process, one after the other, each within a time limit.

A function that takes too long, or ends its process, fails; the next call gets a new process. Otherwise the
process is kept, with what the functions remember in global variables.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodemanager.core.untrusted import read_object
from nodemanager.ensemble.deeds import Call
from nodemanager.ensemble.file.model import Ensemble
from nodemanager.flux.parse.json_fields import object_at, text_at
from nodemanager.flux.reactor import Reactor

LIMIT_S = 60.0
_MODULE = "nodemanager.flux.ensembles.worker"
_READ_BYTES = 65536

Returned = Callable[[Mapping[str, Any] | None, str], None]


class WorkerFunctions:
    """:class:`nodemanager.ensemble.ports.CustomPort` by a process. ``uri``: where ``handle`` leads to."""

    def __init__(self, reactor: Reactor, ensemble: Ensemble, uri: str, *, limit_s: float = LIMIT_S) -> None:
        self._reactor = reactor
        self._ensemble = ensemble
        self._uri = uri
        self._limit_s = limit_s
        self._queue: deque[tuple[Call, Returned]] = deque()
        self._now: Returned | None = None  # who waits for the answer of the worker
        self._number = 0
        self._folder = tempfile.TemporaryDirectory(prefix="ensemble-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Any = None
        self._read = b""

    def call(self, call: Call, then: Returned) -> None:
        self._queue.append((call, then))
        self._call_next()

    def close(self) -> None:
        """End the worker, and everything that its functions have started."""
        self._end_process()
        self._folder.cleanup()

    def _call_next(self) -> None:
        if self._now is not None or not self._queue:
            return
        call, self._now = self._queue.popleft()
        self._number += 1
        number = self._number
        request = Path(self._folder.name) / "call.json"
        request.write_text(json.dumps(self._document(call)), encoding="utf-8")
        process = self._process or self._start_process()
        with suppress(BrokenPipeError):  # it has ended, which its closed output shows too
            os.write(process.stdin.fileno(), f"{request}\n".encode())  # type: ignore[union-attr]
        self._reactor.after(self._limit_s, lambda: self._give_up(number))

    def _document(self, call: Call) -> dict[str, Any]:
        rule = self._ensemble.rules[call.rule - 1]
        action: dict[str, Any] = {
            "name": str(rule.action.kind),
            "label": call.function,
            "value": rule.action.value,
            "repetitions": rule.action.repetitions,
            "backoff": rule.action.backoff or None,
        }
        shown = {"trigger": rule.trigger, "name": rule.name, "action": action}
        return {"function": call.function, "event": call.event, "metrics": call.metrics, "rule": shown}

    def _start_process(self) -> subprocess.Popen[bytes]:
        source = Path(self._folder.name) / "custom.py"
        source.write_text(self._ensemble.custom, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        if self._uri:
            environment["FLUX_URI"] = self._uri
        self._read = b""
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", _MODULE, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        self._watcher = self._reactor.on_readable(self._process.stdout.fileno(), self._on_output)
        return self._process

    def _on_output(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        part = os.read(self._process.stdout.fileno(), _READ_BYTES)
        self._read += part
        if not part:
            status = self._end_process()
            self._return(None, f"its process ended with status {status}")
        elif self._read.endswith(b"\n"):
            answer, self._read = self._read, b""
            self._return(*read_answer(answer))

    def _give_up(self, number: int) -> None:
        if number == self._number and self._now is not None:
            self._end_process()
            self._return(None, f"it took longer than {self._limit_s:g} s")

    def _return(self, action: Mapping[str, Any] | None, why: str) -> None:
        then, self._now = self._now, None
        if then is not None:
            then(action, why)
        self._call_next()

    def _end_process(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        self._watcher.stop()
        with suppress(ProcessLookupError):  # it is not reaped yet, so its group has this number
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return process.wait()


def read_answer(text: bytes) -> tuple[Mapping[str, Any] | None, str]:
    """Read the action that a function returned, or why there is none. The user's code may return anything."""
    try:
        answer = read_object(text)
        action = answer.get("action")
        return (None if action is None else object_at(action, "action")), text_at(answer.get("fault", ""), "fault")
    except ValueError as fault:
        return None, f"its answer cannot be read: {fault}"
