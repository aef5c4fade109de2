"""The server's one thread: it listens where the site says, and serves until told to stop.

Where another service of the site listens (a second manager, that waits for the first), it tries again. A server
that cannot listen is said in the log, and is no reason to stop a manager that nodes depend on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import structlog
import uvicorn

from nodemanager.web.api.handlers import WebContext
from nodemanager.web.app import make_application
from nodemanager.web.connection_limits import KEEP_ALIVE_S, BoundedConnection
from nodemanager.web.listen import BoundSocket, CannotListen, ListenAddress, TcpAddress, listen

RETRY_S = 5.0
GRACEFUL_STOP_S = 1
# How often the server looks whether it is to end. Uvicorn's own does so ten times a second: most of what it takes
# of the processor where nobody asks.
STOP_CHECK_S = 0.5
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")


class _QuietServer(uvicorn.Server):
    """Looks seldomer whether it is to end."""

    async def main_loop(self) -> None:
        # The number of a tick is to have uvicorn note the date, which answers carry, at every tenth.
        while not await self.on_tick(0):  # noqa: ASYNC110 - what says the end is a flag, as uvicorn has it
            await asyncio.sleep(STOP_CHECK_S)


class WebServer:
    def __init__(self, place: ListenAddress, served: WebContext, hosts: Sequence[str] = ()) -> None:
        self._place = place
        self._ended = threading.Event()
        self.is_listening = threading.Event()
        own = (place.host, f"[{place.host}]") if isinstance(place, TcpAddress) else ()
        self._application = make_application(served, [*LOCAL_HOSTS, *own, *hosts], self._ended.is_set)
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)
        self._server: _QuietServer | None = None
        self._log: Any = structlog.get_logger()

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float) -> None:
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
        """Once it can; None where it is told to stop before."""
        said = ""
        while not self._ended.is_set():
            try:
                return listen(self._place)
            except CannotListen as error:
                if str(error) != said:
                    self._log.warning("web_waits", why=str(error), again_s=RETRY_S)
                said = str(error)
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
            http=BoundedConnection,
            proxy_headers=False,
            ws="none",
        )
        self._server = _QuietServer(config)
        if self._ended.is_set():
            self._server.should_exit = True
        self._log.info("web_listens", at=str(self._place))
        self.is_listening.set()
        await self._server.serve([listening.socket])
