"""The web server's thread: it listens on the site's address and serves until stopped.

If it cannot listen, for example because another manager of the site does, it logs that and tries again. A manager
that nodes depend on never stops because of its web server.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nodemanager.join.connection_limits import OpenConnections
from nodemanager.join.rate_limits import network_of, parse_address
from nodemanager.web.api.handlers import WebContext
from nodemanager.web.app import make_application
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
        self.failure = ""  # why it cannot listen; "" before the first try, and while it listens
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
                bound = listen(self._place)
            except CannotListen as error:
                self.failure = str(error)
                if str(error) != logged:
                    self._log.warning("web_waits", why=str(error), again_s=RETRY_S)
                logged = str(error)
            else:
                self.failure = ""
                return bound
            self._ended.wait(RETRY_S)
        return None

    async def _serve(self, listening: BoundSocket) -> None:
        present = OpenConnections[BoundedConnection](BoundedConnection.is_at_work)
        connection = partial(BoundedConnection, present=present, shows_token=self._shows_token)
        config = uvicorn.Config(
            self._application,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GRACEFUL_STOP_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            http=cast("type[asyncio.Protocol]", connection),
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


# --- connection limits ------------------------------------------------------------------------------------
#
# Limits on connections: their number, their idle time and their life, so that no client can keep the others out.
#
# Each connection is also an open file of this process, and the manager in the same process needs some for itself.
#
# Whoever has the token is never kept out. A connection that has shown the token is neither ended nor counted for
# its source. If there are too many connections, a new one replaces one without the token: an idle one first, then
# the oldest. So a request with the token, which arrives at once, is read before its connection could be replaced.


CONNECTIONS_MAX = 512
CONNECTIONS_PER_SOURCE_MAX = 256
BACKLOG = 64  # connections accepted at once; fewer than a source may have, so that each is read in between
REQUEST_WITHIN_S = 20.0  # for the headers, counted from the first byte or from the connect
KEEP_ALIVE_S = 30  # idle time between two requests
LIFETIME_S = 600.0  # of a connection without the token; event streams reconnect by themselves


def source_of(host: str) -> str:
    """Whom a connection counts for: its address, its /48 network with IPv6, or the whole of this machine."""
    address = parse_address(host)
    return "loopback" if address is not None and address.is_loopback else network_of(host)


class BoundedConnection(H11Protocol):
    """A connection that ends if its request is late, if it is old, or if a newer one needs its place.

    ``present``: the open connections of the server. ``shows_token``: whether the value of an ``Authorization``
    header is the token. Connections by Unix socket are the owner's: they count as if they had shown it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _lifetime: asyncio.TimerHandle | None = None
    _is_trusted = False

    def __init__(
        self,
        *arguments: Any,
        present: OpenConnections[BoundedConnection],
        shows_token: Callable[[str], bool],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._present = present
        self._shows_token = shows_token

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._is_trusted = transport.get_extra_info("socket").family == socket.AF_UNIX
        source = source_of(self.client[0] if self.client is not None else "")
        replaced = self._find_replaced(source)
        if replaced is not None:
            self._present.remove(replaced)
            replaced.transport.abort()
        if replaced is not self:
            self._present.add(self, source)
            if self._is_trusted:
                self._present.prove(self)
            self._start_deadline()
            self._lifetime = self.loop.call_later(LIFETIME_S, self._end_of_life)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if before is None or before.response_complete:
            self._start_deadline()
        super().data_received(data)
        if self.cycle is not before:
            self._cancel_deadline()
            given = next((value for name, value in self.cycle.scope["headers"] if name == b"authorization"), b"")
            if not self._is_trusted and self._shows_token(given.decode("latin-1")):
                self._is_trusted = True
                self._present.prove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._present.remove(self)
        self._cancel_deadline()
        if self._lifetime is not None:
            self._lifetime.cancel()
        super().connection_lost(exc)

    # --- too many ---

    def _find_replaced(self, source: str) -> BoundedConnection | None:
        """The connection that must end because of this one, maybe this one itself; None if there is room."""
        is_full, weakest = self._present.in_the_way(
            source, CONNECTIONS_PER_SOURCE_MAX, CONNECTIONS_MAX, proven=self._is_trusted
        )
        return (weakest or self) if is_full else None

    def is_at_work(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    # --- too long ---

    def _end_of_life(self) -> None:
        if not self._is_trusted:
            self.transport.abort()

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_WITHIN_S, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
