"""Tells operators what they should know at once: it runs the site's command with a notice on its standard input.

The command may hang or fail: it runs in a thread of its own, for a bounded time, and is tried again a few times.
Notices of one kind are collected while that kind is being told, and for a minute after, so that a thousand
impossible jobs are one notice and not a thousand.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import structlog

from nodemanager.actors.manager import Publication
from nodemanager.config.text.settings import NoticeKind, NotifySettings
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import format_money, to_sentence
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryUpdate
from nodemanager.planner.cost.budget import left_by_period

KIND_EVERY_S = 60.0
COMMAND_TIMEOUT_S = 30.0
RETRY_AFTER_S = (1.0, 10.0)
SUBJECTS_MAX = 20
BUDGET_LEFT = Decimal("0.1")  # of a budget, and less
ERROR_SHOWN = 300  # characters at the end of what a failed command printed

KIND_OF_CODE: Mapping[tuple[str, str], NoticeKind] = {
    ("because", Code.BREAKER_OPEN): NoticeKind.BREAKER,
    ("because", Code.NO_TYPE_FITS): NoticeKind.NEVER_RUNS,
    ("because", Code.NO_NODE_TYPE): NoticeKind.NEVER_RUNS,
    ("because", Code.BEYOND_LIMITS): NoticeKind.NEVER_RUNS,
    ("because", Code.BEYOND_CLOUD): NoticeKind.NEVER_RUNS,
    ("because", Code.BEYOND_BUDGET): NoticeKind.NEVER_RUNS,
    ("standstill", Code.SAFE_MODE): NoticeKind.SAFE_MODE,
    ("decided", Code.ORPHAN): NoticeKind.LEAK,
}


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice. ``subjects``: the first nodes, jobs or types that it is about; ``count``: how many they are."""

    kind: NoticeKind
    at: float
    text: str
    subjects: tuple[str, ...] = ()
    count: int = 1

    def with_later(self, later: Notice) -> Notice:
        """This notice and a later one of its kind as one."""
        subjects = tuple(dict.fromkeys((*self.subjects, *later.subjects)))[:SUBJECTS_MAX]
        return replace(self, subjects=subjects, count=self.count + later.count)


class NoticeTracker:
    """Finds the history's updates that are worth a notice."""

    def __init__(self) -> None:
        self._low: frozenset[tuple[str, str]] = frozenset()  # the owners and periods that have been told

    def update(self, update: HistoryUpdate) -> Iterator[Notice]:
        """Yield a notice for each event that is worth one, and for each budget that is nearly spent."""
        for event in update.events:
            if (kind := _kind_of(event)) is not None:
                yield Notice(kind, event.at, _text(event), (event.subject,) if event.subject else ())
        yield from self._budgets(update.newest)

    def _budgets(self, published: Publication) -> Iterator[Notice]:
        if not published.policy.budgets:
            return
        budgets = published.policy.budgets
        left = left_by_period(published.snapshot, published.policy)
        low = frozenset(key for key, amount in left.items() if amount <= BUDGET_LEFT * budgets[key])
        for owner, period in sorted(low - self._low):
            text = f"{format_money(left[owner, period])} is left of {budgets[owner, period]} for the {period}"
            whose = f"{period} of {owner}" if owner else period
            text += f" of the {owner}" if owner else ""
            yield Notice(NoticeKind.BUDGET, published.snapshot.wall_at, text, (whose,))
        self._low = low


def _kind_of(event: HistoryEvent) -> NoticeKind | None:
    if event.kind == "alarm":
        return NoticeKind.LEAK
    if event.kind == "standstill" and event.what != "begins":
        return None
    return KIND_OF_CODE.get((event.kind, event.code))


def _text(event: HistoryEvent) -> str:
    if event.kind == "alarm":
        return f"{event.subject} has our cluster's name and another cluster's UUID; it is never touched"
    return to_sentence(event.code, event.figures)


# --- telling ----------------------------------------------------------------------------------------------


class Notifier:
    """Runs the command for each notice. ``take_in`` never blocks."""

    def __init__(
        self, settings: NotifySettings, folder: Path, cluster: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``folder``: where the command runs, the site file's."""
        self._settings = settings
        self._folder = folder
        self._cluster = cluster
        self._clock_s = clock_s
        self._tracker = NoticeTracker()
        self._pending: dict[NoticeKind, Notice] = {}
        self._told_s: dict[NoticeKind, float] = {}
        self._news = threading.Condition()
        self._stops = threading.Event()
        self._running: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._tell_all, name="notices", daemon=True)
        self._log: Any = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def use(self, settings: NotifySettings) -> None:
        """Use a reloaded site's settings from now on."""
        self._settings = settings

    def take_in(self, update: HistoryUpdate) -> None:
        """Queue the notices of an update."""
        wanted = self._settings.events if self._settings.command else frozenset()
        notices = [notice for notice in self._tracker.update(update) if notice.kind in wanted]
        if not notices:
            return
        with self._news:
            for notice in notices:
                earlier = self._pending.get(notice.kind)
                self._pending[notice.kind] = earlier.with_later(notice) if earlier is not None else notice
            self._news.notify()

    def stop(self, within_s: float) -> None:
        """Tell no more; a command that runs is ended."""
        self._stops.set()
        with self._news:
            self._news.notify()
        if (running := self._running) is not None:
            _end(running)
        self._thread.join(within_s)

    def _tell_all(self) -> None:
        while (notice := self._next()) is not None:
            self._tell(notice)
            self._told_s[notice.kind] = self._clock_s()

    def _next(self) -> Notice | None:
        """Wait for the next notice whose kind was not told within the last minute; None at the end."""
        with self._news:
            while not self._stops.is_set():
                due_s = {kind: self._told_s.get(kind, float("-inf")) + KIND_EVERY_S for kind in self._pending}
                first = min(due_s, key=lambda kind: due_s[kind], default=None)
                wait_s = due_s[first] - self._clock_s() if first is not None else None
                if first is not None and wait_s is not None and wait_s <= 0:
                    return self._pending.pop(first)
                self._news.wait(wait_s)
        return None

    def _tell(self, notice: Notice) -> None:
        """Run the command until it succeeds, at most a few times."""
        document = {
            "event": notice.kind,
            "at": notice.at,
            "cluster": self._cluster,
            "text": notice.text,
            "subjects": notice.subjects,
            "count": notice.count,
        }
        for pause_s in (*RETRY_AFTER_S, None):
            failure = self._run(json.dumps(document).encode() + b"\n")
            if failure is None or self._stops.is_set():
                return
            self._log.warning("notice_failed", kind=str(notice.kind), why=failure, again_s=pause_s)
            if pause_s is not None and self._stops.wait(pause_s):
                return

    def _run(self, document: bytes) -> str | None:
        """Run the command once. Returns why it failed, or None."""
        try:
            # The command is the site's own; a session of its own lets us end all that it started.
            with subprocess.Popen(  # noqa: S603
                shlex.split(self._settings.command),
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as running:
                self._running = running
                try:
                    printed, _ = running.communicate(document, COMMAND_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    _end(running)
                    return f"it ran longer than {COMMAND_TIMEOUT_S:g} s and was killed"
        except OSError as error:
            return str(error)
        finally:
            self._running = None
        if running.returncode == 0:
            return None
        said = printed.decode(errors="replace").strip()[-ERROR_SHOWN:]
        return f"exit status {running.returncode}" + (f": {said}" if said else "")


def _end(running: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
