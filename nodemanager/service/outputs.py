"""The outputs of the service: board, metrics, history file, and the web server that shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from nodemanager.actors.manager import Publication
from nodemanager.config.site import Site
from nodemanager.config.text.settings import Viewers
from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.ports import Info
from nodemanager.delegation.view import DelegationEvent, DelegationView, PeerRun
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import HistoryThread, HistoryUpdate
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.service.notices import Notifier
from nodemanager.web.api import explain
from nodemanager.web.api.control import Control, SteeredService
from nodemanager.web.api.documents import status
from nodemanager.web.api.handlers import WebContext
from nodemanager.web.api.metrics import Metrics
from nodemanager.web.listen import UnixSocket, listen_addresses
from nodemanager.web.state.access import Access, Team
from nodemanager.web.state.board import Board
from nodemanager.web.state.samples import SAMPLES_FILE, SampleKeeper, read_samples
from nodemanager.web.state.token import NamedToken, TokenError, read_named_tokens, read_or_make_token
from nodemanager.web.thread import WebServer

STATUS_EVERY_S = 1.0
ENSEMBLE_PUBLIC = frozenset({"begun", "resumed", "ended"})


class Outputs:
    """The outputs of one service. The manager calls ``publish``, which passes a reference on and never blocks."""

    def __init__(self, site: Site) -> None:
        self.board = Board()
        self._site = site
        self._metrics = Metrics(self.board)
        self._writer = HistoryWriter(
            site.state_dir / HISTORY_FILE, succeeds=site.acts, size_max_bytes=site.journal.size_max_bytes
        )
        self._samples = SampleKeeper(self.board, site.state_dir / SAMPLES_FILE)
        self._notifier = Notifier(site.notify, site.path.parent, site.cluster)
        self._history_thread = HistoryThread(
            [
                self.board.take_in,
                self._metrics.take_in,
                self._writer.take_in,
                self._samples.take_in,
                self._notifier.take_in,
            ]
        )
        self.servers: list[WebServer] = []
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
            HistoryEvent(it.at, "delegation", it.subject, it.what, figures={"detail": it.detail})
            for it in self._untold_events
        )
        runs = tuple(self._untold_runs)
        self._untold_events, self._untold_runs = [], []
        self._writer.take_in(HistoryUpdate(posted.published, (), (), events, (), {}, peer_runs=runs))
        # Everybody may see the board's events, but not everybody may see jobs.
        of_peers = tuple(event for event in events if event.subject.startswith("peer "))
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
        self.board.resume(read_samples(self._site.state_dir / SAMPLES_FILE))
        self._writer.start()
        self._history_thread.start()
        self._notifier.start()
        places = listen_addresses(self._site.web.listen, self._site.state_dir)
        if not places:
            return
        token = self._token()
        self._team.tokens = self._named_tokens()
        reader = HistoryReader(self._writer.path, self._site.journal.size_max_bytes)
        control = Control(self.board, service)
        for place in places:
            access = Access(
                token=token,
                by_socket=isinstance(place, UnixSocket),
                jobs_for_everybody=self._site.web.jobs_shown_to is Viewers.EVERYBODY,
                team=self._team,
            )
            context = WebContext(self.board, self._metrics, reader, control, access, job_end)
            server = WebServer(place, context, self._site.web.hosts)
            self.servers.append(server)
            server.start()

    def _token(self) -> str | None:
        try:
            return read_or_make_token(self._site.web.token_file)
        except TokenError as error:
            self._log.error("no_token", why=str(error), what="nobody may steer until this is fixed")
            return None

    def _named_tokens(self) -> tuple[NamedToken, ...]:
        try:
            return _read_team(self._site)
        except TokenError as error:
            self._log.error(
                "no_named_tokens", why=str(error), what="they are valid after this is fixed and a reload"
            )
            return ()

    def reload(self, site: Site) -> None:
        """Use the site's notices, and the named tokens as their file has them now.

        Raises ``TokenError``, with nothing changed.
        """
        self._team.tokens = _read_team(site)
        self._notifier.use(site.notify)

    def stop(self, within_s: float) -> None:
        """Stop in an order in which the last decisions are still written. Each step takes at most ``within_s``."""
        for server in self.servers:
            server.stop(within_s)
        self._history_thread.stop(within_s)
        self._notifier.stop(within_s)
        self._samples.keep()
        self._writer.stop(within_s)


def _read_team(site: Site) -> tuple[NamedToken, ...]:
    return read_named_tokens(site.web.tokens_file) if site.web.tokens_file is not None else ()
