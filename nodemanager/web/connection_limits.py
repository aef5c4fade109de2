"""Limits on idle connections and on their number, so that no client can keep the others out.

Each connection is also an open file of this process, and the manager in the same process needs some for itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 512
CONNECTIONS_PER_SOURCE_MAX = 256
REQUEST_WITHIN_S = 20.0  # for the headers, counted from the first byte or from the connect
KEEP_ALIVE_S = 30  # idle time between two requests


class BoundedConnection(H11Protocol):
    """A connection that is closed if its request is late, or at once if there are too many connections."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX or self._count_from_source() > CONNECTIONS_PER_SOURCE_MAX:
            transport.close()
        else:
            self._start_deadline()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if before is None or before.response_complete:
            self._start_deadline()
        super().data_received(data)
        if self.cycle is not before:
            self._cancel_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _count_from_source(self) -> int:
        """Count the connections from the same address, including this one; 0 on a Unix socket."""
        if self.client is None:
            return 0
        others = (it.client for it in self.connections if isinstance(it, BoundedConnection))
        return sum(client is not None and client[0] == self.client[0] for client in others)

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_WITHIN_S, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
