"""How long a connection may say nothing, and how many there may be: nobody is to keep the others out.

Too many would do more than that: each is an open file, and the manager, whose process this is, needs some too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 512
CONNECTIONS_PER_SOURCE_MAX = 256
REQUEST_WITHIN_S = 20.0  # from its first byte, or from the connection's beginning, to the end of its headers
KEEP_ALIVE_S = 30  # between two requests


class BoundedConnection(H11Protocol):
    """One that is closed where it keeps no request coming, or where there are too many."""

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
        """How many connections its source has, this one too; 0 on a socket in the file system."""
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
