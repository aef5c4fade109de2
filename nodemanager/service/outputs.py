"""The outputs of the service: board, metrics, history file, and the web server that shows them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import structlog

from nodemanager.actors.manager import Publication
from nodemanager.config.site import Site
from nodemanager.config.text.settings import NoticeKind, NotifySettings, Viewers
from nodemanager.core.facts import SteeringSeen
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.ports import Info
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import format_money, to_sentence, use_currency
from nodemanager.delegation.view import DelegationEvent, DelegationView, PeerRun
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryThread, HistoryUpdate
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.planner.budget import left_by_period
from nodemanager.web.api import explain
from nodemanager.web.api.control import Control, SteeredService
from nodemanager.web.api.documents import status
from nodemanager.web.api.handlers import WebContext
from nodemanager.web.api.metrics import Metrics
from nodemanager.web.listen import UnixSocket, listen_addresses
from nodemanager.web.state.access import Access, Team
from nodemanager.web.state.board import Board
from nodemanager.web.state.token import NamedToken, TokenError, read_named_tokens, read_or_make_token
from nodemanager.web.thread import WebServer

STATUS_EVERY_S = 1.0
ENSEMBLE_PUBLIC = frozenset({"begun", "resumed", "ended"})


class Outputs:
    """The outputs of one service. The manager calls ``publish``, which passes a reference on and never blocks."""

    def __init__(self, site: Site) -> None:
        self.board = Board()
        self._site = site
        use_currency(site.currency)
        self._metrics = Metrics(self.board)
        self._writer = HistoryWriter(
            site.state_dir / HISTORY_FILE,
            succeeds=site.acts,
            size_max_bytes=site.journal.size_max_bytes,
            begins_anew=site.flux.simulated,
        )
        earlier = HistoryReader(self._writer.path, site.journal.size_max_bytes)
        self._notifier = Notifier(site.notify, site.path.parent, site.cluster)
        self._history_thread = HistoryThread(
            [
                self.board.take_in,
                self._metrics.take_in,
                self._writer.take_in,
                self._notifier.take_in,
            ],
            earlier.charged_until_at if not site.flux.simulated else lambda: 0.0,
        )
        self.servers: list[WebServer] = []
        self._steering: SteeringWatch | None = None  # None if the site wants no web server, and so no steering
        self.board.journal_failure = lambda: self._writer.trouble
        self._team = Team()
        # Of delegation, from before the first publication.
        self._untold_events: list[DelegationEvent] = []
        self._untold_runs: list[PeerRun] = []
        self._status = ""
        self._status_made_s = float("-inf")
        self._log: Any = structlog.get_logger()

    def publish(self, published: Publication) -> None:
        self.board.publish(published)
        self._history_thread.publish(published)

    def publish_delegation(self, view: DelegationView) -> None:
        """Show the view of delegation, and add its events and the jobs that ended to the history."""
        self.board.publish_delegation(view)
        self._untold_events += view.events
        self._untold_runs += view.runs
        posted = self.board.latest
        if posted is None or not (self._untold_events or self._untold_runs):
            return
        events = tuple(
            HistoryEvent(
                it.at,
                "delegation",
                it.subject,
                it.what,
                figures={"detail": it.detail},
                of_job=not it.subject.startswith("peer "),
            )
            for it in self._untold_events
        )
        runs = tuple(self._untold_runs)
        self._untold_events, self._untold_runs = [], []
        self._writer.take_in(HistoryUpdate(posted.published, (), (), events, (), {}, peer_runs=runs))
        # Everybody may see the board's events, but not everybody may see jobs.
        of_peers = tuple(event for event in events if not event.of_job)
        self.board.take_in(HistoryUpdate(posted.published, (), (), of_peers, (), {}))

    def record_ensemble(self, events: Sequence[HistoryEvent]) -> bool:
        """Add events of ensembles to the history; False before the first publication.

        Everybody may see the board's events, but not everybody may see jobs: it gets no details.
        """
        if (posted := self.board.latest) is None:
            return False
        self._writer.take_in(HistoryUpdate(posted.published, (), (), tuple(events), (), {}))
        public = tuple(replace(event, figures={}) for event in events if event.what in ENSEMBLE_PUBLIC)
        if public:
            self.board.take_in(HistoryUpdate(posted.published, (), (), public, (), {}))
        return True

    @property
    def info(self) -> Info:
        """The answers for users who ask through Flux."""
        return Info(self._status_text, self._explain_to)

    def _status_text(self) -> str:
        """Return the status as JSON. Any user may ask, as often as they like, so it is made once a second."""
        now_s = time.monotonic()
        if now_s - self._status_made_s >= STATUS_EVERY_S:
            posted = self.board.latest
            self._status = json.dumps(status(posted.published) if posted is not None else {"acts": False})
            self._status_made_s = now_s
        return self._status

    def _explain_to(self, job_id: str, userid: int | None) -> str:
        posted = self.board.latest
        if posted is None:
            raise LookupError("nothing is known yet: the service has just started")
        try:
            return json.dumps(explain.job_to_user(posted.published, job_id, userid))
        except explain.UnknownSubject as error:
            raise LookupError(str(error)) from error

    def start(self, service: SteeredService, job_end: Callable[[JobId], JobEnd | None] | None = None) -> None:
        """Start the threads, and the web servers unless ``[Web] listen = off``."""
        self._writer.start()
        self._history_thread.start()
        self._notifier.start()
        places = listen_addresses(self._site.web.listen, self._site.state_dir)
        if not places:
            return
        self._team.tokens = self._named_tokens()
        served: list[tuple[WebServer, Access]] = []
        reader = HistoryReader(self._writer.path, self._site.journal.size_max_bytes)
        control = Control(self.board, service)
        for place in places:
            access = Access(
                token=None,
                by_socket=isinstance(place, UnixSocket),
                jobs_for_everybody=self._site.web.jobs_shown_to is Viewers.EVERYBODY,
                team=self._team,
            )
            context = WebContext(self.board, self._metrics, reader, control, access, job_end)
            server = WebServer(place, context, self._site.web.hosts)
            self.servers.append(server)
            served.append((server, access))
        self._steering = SteeringWatch(self._site.web.token_file, self._team, served, service.tell)
        self._steering.look()  # before the first decision
        for server in self.servers:
            server.start()
        self._steering.start()

    def _named_tokens(self) -> tuple[NamedToken, ...]:
        try:
            return _read_team(self._site)
        except TokenError as error:
            self._log.error(
                "no_named_tokens", why=str(error), what="they are valid after this is fixed and a reload"
            )
            return ()

    def reload(self, site: Site) -> None:
        """Use the site's notices and currency, and the named tokens as their file has them now.

        Raises ``TokenError``, with nothing changed.
        """
        self._team.tokens = _read_team(site)
        self._notifier.use(site.notify)
        use_currency(site.currency)

    def stop(self, within_s: float) -> None:
        """Stop in an order in which the last decisions are still written. Each step takes at most ``within_s``."""
        if self._steering is not None:
            self._steering.stop(within_s)
        for server in self.servers:
            server.stop(within_s)
        self._history_thread.stop(within_s)
        self._notifier.stop(within_s)
        self._writer.stop(within_s)


def _read_team(site: Site) -> tuple[NamedToken, ...]:
    return read_named_tokens(site.web.tokens_file) if site.web.tokens_file is not None else ()


# --- notices ----------------------------------------------------------------------------------------------
#
# Tells operators what they should know at once: it runs the site's command with a notice on its standard input.
#
# The command may hang or fail: it runs in a thread of its own, for a bounded time, and is tried again a few
# times. Notices of one kind are collected while that kind is being told, and for a minute after, so that a
# thousand impossible jobs are one notice and not a thousand.


KIND_EVERY_S = 60.0
COMMAND_TIMEOUT_S = 30.0
RETRY_AFTER_S = (1.0, 10.0)
SUBJECTS_MAX = 20
BUDGET_LEFT = Decimal("0.1")  # of a budget, and less
ERROR_SHOWN = 300  # characters at the end of what a failed command printed

KIND_OF_CODE: Mapping[tuple[str, str], NoticeKind] = {
    ("because", Code.BREAKER_OPEN): NoticeKind.BREAKER,
    ("because", Code.NO_TYPE_FITS): NoticeKind.NEVER_RUNS,
    ("because", Code.ONLY_FOR_GPU_JOBS): NoticeKind.NEVER_RUNS,
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
            of_budget = format_money(budgets[owner, period])
            text = f"{format_money(left[owner, period])} is left of {of_budget} for the {period}"
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


# --- whether operators can steer the service: it has a token, and listens somewhere -----------------------
#
# A thread looks again and again, because both may be lost while the service runs, and may come back: a folder can
# become read-only, and a full disk can get room. A token that can be written later is made then, without a
# restart.


LOOK_EVERY_S = 2.0


class SteeringWatch:
    """Keeps the servers' token current, and tells the manager when nobody can steer it, and when they can again."""

    def __init__(
        self,
        token_file: Path,
        team: Team,
        served: Sequence[tuple[WebServer, Access]],
        tell: Callable[[SteeringSeen], None],
    ) -> None:
        self._token_file = token_file
        self._team = team
        self._served = served
        self._tell = tell
        self._lost = ""
        self._token_fault = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steering-watch", daemon=True)
        self._log: Any = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> None:
        self._ended.set()
        self._thread.join(within_s)

    def look(self) -> None:
        """Read the token, or make one; tell the manager if something has changed."""
        lost = self._refresh_token() or self._why_not_listening()
        if lost != self._lost:
            self._lost = lost
            self._tell(SteeringSeen(lost))
            if not lost:
                self._log.info("steerable_again")

    def _refresh_token(self) -> str:
        """Use the token as its file has it now. Return why nobody can show one; "" if somebody can."""
        try:
            token: str | None = read_or_make_token(self._token_file)
        except TokenError as error:
            token, fault = None, str(error)
        else:
            fault = ""
        for _, access in self._served:
            access.token = token
        if fault and fault != self._token_fault:
            self._log.error("no_token", why=fault, what="no node is bought until somebody can steer")
        self._token_fault = fault
        return "" if self._team.may_steer else fault

    def _why_not_listening(self) -> str:
        """Why no server listens; "" if one does, or has not tried yet."""
        servers = [server for server, _ in self._served]
        if any(it.is_listening.is_set() for it in servers) or not all(it.failure for it in servers):
            return ""
        return servers[0].failure

    def _run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self.look()
