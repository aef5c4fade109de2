"""The door of the join service: how many connections it has, of whom and for how long, from before TLS on.

A connection costs whoever opens it nothing, and us a file: so they are counted as they are accepted. What is beyond
the bounds is cut without an answer. A client takes that for a service that cannot be reached, and tries again.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from nodemanager.join.rate_limits import network_of

BACKLOG = 128  # connections accepted at one go, before any of them is counted
FILES_SPARE = BACKLOG + 64  # those, and what the service itself has open
CLOSE_WITHIN_S = 3.0  # what the other side gets to agree to the end of TLS


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """``headers_s``: within what a request's headers come, after TLS and after each answer."""

    connections_max: int = 2000
    per_source_max: int = 128
    handshake_s: float = 10.0
    headers_s: float = 10.0
    lifetime_s: float = 60.0  # of a connection, whatever it does


def allowed_connections(wanted: int) -> int:
    """As many as the process may have files for, of which it asks for as many as it needs."""
    files = wanted + FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < files:
        most = files if hard == resource.RLIM_INFINITY else min(files, hard)
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - FILES_SPARE))


class SecuredProtocol(asyncio.Protocol):
    """What a connection becomes once it is secured. It calls ``left`` when it is lost."""

    on_lost: Callable[[], None]


class ConnectionGate:
    """Makes the protocol of each connection, for ``asyncio``'s ``create_server`` without TLS.

    ``is_too_fast`` is asked of each by its source; ``inside`` makes what it becomes. One event loop's.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        bounds: ConnectionBounds,
        is_too_fast: Callable[[str], bool],
        inside: Callable[[], SecuredProtocol],
    ) -> None:
        self.context = context
        self.bounds = bounds
        self.make_secured = inside
        self.tasks: set[asyncio.Task[None]] = set()
        self._is_too_fast = is_too_fast
        self._open_by_source: Counter[str] = Counter()

    def __call__(self) -> asyncio.Protocol:
        return _PendingConnection(self)

    def admit(self, source: str) -> bool:
        is_full = self._open_by_source.total() >= self.bounds.connections_max
        if is_full or self._open_by_source[source] >= self.bounds.per_source_max or self._is_too_fast(source):
            return False
        self._open_by_source[source] += 1
        return True

    def release(self, source: str) -> None:
        self._open_by_source[source] -= 1
        if not self._open_by_source[source]:
            del self._open_by_source[source]


class _PendingConnection(asyncio.Protocol):
    """One connection, until it is secured. What it sends at once with its handshake is kept for what comes next."""

    def __init__(self, gate: ConnectionGate) -> None:
        self._gate = gate
        self._source: str | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        peer = plain.get_extra_info("peername")
        source = network_of(peer[0] if peer else "")
        if not self._gate.admit(source):
            plain.abort()
            return
        self._source = source
        plain.pause_reading()  # until TLS reads
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(self._gate.bounds.lifetime_s, plain.abort)
        task = loop.create_task(self._secure(plain))
        self._gate.tasks.add(task)
        task.add_done_callback(self._gate.tasks.discard)

    async def _secure(self, plain: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                self._gate.context,
                server_side=True,
                ssl_handshake_timeout=self._gate.bounds.handshake_s,
                ssl_shutdown_timeout=CLOSE_WITHIN_S,
            )
        except OSError:  # ssl.SSLError is one
            self._release()
            return
        if secured is None or self._source is None:  # it has gone meanwhile
            return
        inside = self._gate.make_secured()
        inside.on_lost = self._release
        secured.set_protocol(inside)
        inside.connection_made(secured)
        if self._early:
            inside.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release()

    def _release(self) -> None:
        """Once, whoever says it first."""
        if self._source is not None:
            self._end.cancel()
            source, self._source = self._source, None
            self._gate.release(source)
