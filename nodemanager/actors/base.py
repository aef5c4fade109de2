"""The base class of all actors: an unexpected exception is logged and ends the process.

An expected failure is a fact that the actor sends to the manager. Any other exception may leave inconsistent state
behind, and a restart is the recovery. So the first one sets an event, and the process exits.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pykka
import structlog


@dataclass
class Fate:
    """Whether the process must end, and why. Any thread may set it; the main thread waits for it."""

    ended: threading.Event = field(default_factory=threading.Event)
    crashed: BaseException | None = None

    def crash(self, error: BaseException) -> None:
        """End the process because of an error. Only the first error is kept."""
        if self.crashed is None:
            self.crashed = error
        self.ended.set()


class CrashOnlyActor(pykka.ThreadingActor):
    """A Pykka actor whose unexpected failure ends the process. Its daemon thread never delays the exit."""

    use_daemon_thread = True

    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self._fate = fate

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        log: Any = structlog.get_logger()
        log.critical(
            "actor_failed", actor=type(self).__name__, exc_info=(exception_type, exception_value, traceback)
        )
        self._fate.crash(exception_value or RuntimeError(f"{type(self).__name__} failed"))
