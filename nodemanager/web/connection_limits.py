"""Limits on connections: their number, their idle time and their life, so that no client can keep the others out.

Each connection is also an open file of this process, and the manager in the same process needs some for itself.

Whoever has the token is never kept out. A connection that has shown the token is neither ended nor counted for its
source. If there are too many connections, a new one replaces one without the token: an idle one first, then
the oldest. So a request with the token, which arrives at once, is read before its connection could be replaced.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from nodemanager.join.rate_limits import network_of, parse_address

CONNECTIONS_MAX = 512
CONNECTIONS_PER_SOURCE_MAX = 256
BACKLOG = 64  # connections accepted at once; fewer than a source may have, so that each is read in between
REQUEST_WITHIN_S = 20.0  # for the headers, counted from the first byte or from the connect
KEEP_ALIVE_S = 30  # idle time between two requests
LIFETIME_S = 600.0  # of a connection without the token; event streams reconnect by themselves


def source_of(host: str) -> str:
    """Whom a connection counts for: its address, its /64 network with IPv6, or the whole of this machine."""
    address = parse_address(host)
    return "loopback" if address is not None and address.is_loopback else network_of(host)


class BoundedConnection(H11Protocol):
    """A connection that ends if its request is late, if it is old, or if a newer one needs its place.

    ``shows_token``: whether the value of an ``Authorization`` header is the token. Connections by Unix socket are
    the owner's: they count as if they had shown it.
    """

    _deadline: asyncio.TimerHandle | None = None
    _lifetime: asyncio.TimerHandle | None = None
    _is_trusted = False
    _source = ""
    _began_s = 0.0

    def __init__(self, *arguments: Any, shows_token: Callable[[str], bool], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._shows_token = shows_token

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._is_trusted = transport.get_extra_info("socket").family == socket.AF_UNIX
        self._source = source_of(self.client[0] if self.client is not None else "")
        self._began_s = self.loop.time()
        if (replaced := self._find_replaced()) is not None:
            replaced.transport.abort()
        if replaced is not self:
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
            self._is_trusted = self._is_trusted or self._shows_token(given.decode("latin-1"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        if self._lifetime is not None:
            self._lifetime.cancel()
        super().connection_lost(exc)

    # --- too many ---

    def _find_replaced(self) -> BoundedConnection | None:
        """The connection that must end because of this one, maybe this one itself; None if there is room."""
        present = [
            it for it in self.connections if isinstance(it, BoundedConnection) and not it.transport.is_closing()
        ]
        rivals = [it for it in present if not it._is_trusted and it is not self]  # noqa: SLF001 - its own class
        counts = Counter(it._source for it in rivals)  # noqa: SLF001
        if not self._is_trusted and counts[self._source] >= CONNECTIONS_PER_SOURCE_MAX:
            source = self._source
        elif len(present) > CONNECTIONS_MAX:
            if not rivals:
                return self
            ((source, _),) = counts.most_common(1)
        else:
            return None
        return min((it for it in rivals if it._source == source), key=BoundedConnection._rank)  # noqa: SLF001

    def _rank(self) -> tuple[bool, float]:
        is_at_work = self.cycle is not None and not self.cycle.response_complete
        return is_at_work, self._began_s

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
