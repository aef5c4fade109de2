"""The web server's thread: it listens on the site's address and serves until stopped.

If it cannot listen, for example because another manager of the site does, it logs that and tries again. A manager
that nodes depend on never stops because of its web server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import structlog
import uvicorn

from nodemanager.web.api.handlers import WebContext
from nodemanager.web.app import make_application
from nodemanager.web.connection_limits import BACKLOG, KEEP_ALIVE_S, BoundedConnection
from nodemanager.web.listen import BoundSocket, CannotListen, ListenAddress, TcpAddress, listen

RETRY_S = 5.0
GRACEFUL_STOP_S = 1
# How often the server checks whether to stop. Uvicorn's ten times a second take most of an idle server's CPU time.
STOP_CHECK_S = 0.5
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")


class _QuietServer(uvicorn.Server):
    """A server that checks less often whether to stop."""

    async def main_loop(self) -> None:
        # Uvicorn updates the Date header at every tenth tick; tick 0 does so each time.
        while not await self.on_tick(0):  # noqa: ASYNC110 - uvicorn's stop is a flag
            await asyncio.sleep(STOP_CHECK_S)


class WebServer:
    """Serves the application in a thread of its own. ``is_listening`` is set once clients can connect."""

    def __init__(self, place: ListenAddress, served: WebContext, hosts: Sequence[str] = ()) -> None:
        self._place = place
        self._ended = threading.Event()
        self.is_listening = threading.Event()
        own = (place.host, f"[{place.host}]") if isinstance(place, TcpAddress) else ()
        self._application = make_application(served, [*LOCAL_HOSTS, *own, *hosts], self._ended.is_set)
        self._shows_token = served.access.is_token
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._server: _QuietServer | None = None
        self._log: Any = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> None:
        """Stop serving; wait no longer than ``within_s``."""
        self._ended.set()
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(within_s)

    def _run(self) -> None:
        listening = self._listen()
        if listening is None:
            return
        try:
            asyncio.run(self._serve(listening))
        finally:
            listening.close()

    def _listen(self) -> BoundSocket | None:
        """Try until listening works. None if the server is stopped before."""
        logged = ""
        while not self._ended.is_set():
            try:
                return listen(self._place)
            except CannotListen as error:
                if str(error) != logged:
                    self._log.warning("web_waits", why=str(error), again_s=RETRY_S)
                logged = str(error)
            self._ended.wait(RETRY_S)
        return None

    async def _serve(self, listening: BoundSocket) -> None:
        config = uvicorn.Config(
            self._application,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GRACEFUL_STOP_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            http=cast("type[asyncio.Protocol]", partial(BoundedConnection, shows_token=self._shows_token)),
            backlog=BACKLOG,
            proxy_headers=False,
            ws="none",
        )
        self._server = _QuietServer(config)
        if self._ended.is_set():
            self._server.should_exit = True
        self._log.info("web_listens", at=str(self._place))
        self.is_listening.set()
        await self._server.serve([listening.socket])
