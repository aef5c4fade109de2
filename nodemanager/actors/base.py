"""What every actor of ours does about a bug: say so and end the process.

Expected failure is a value that an actor tells the brain. Whatever else is raised leaves half-known state behind,
and starting again *is* recovering: so the first unexpected exception sets one event, and the process leaves.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pykka
import structlog

STORY_MAX = 20


@dataclass
class Fate:
    """Why and when the process is to end. Set from any thread, waited for by the main one."""

    ended: threading.Event = field(default_factory=threading.Event)
    crashed: BaseException | None = None

    def crash(self, error: BaseException) -> None:
        if self.crashed is None:
            self.crashed = error
        self.ended.set()


class CrashOnlyActor(pykka.ThreadingActor):
    """A Pykka actor whose unexpected failure is the process's. Its thread never keeps the process from leaving."""

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
