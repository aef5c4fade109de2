"""Limits the join service's connections: their number, their number per source, and their duration.

Opening a connection costs a client nothing, but it costs the service an open file. So connections are counted when
they are accepted, before TLS begins. A connection beyond a limit is cut without an answer. The client then treats
the service as unreachable and tries again.

TLS begins with a client's first byte, because its state and buffers take a hundred times the memory of a plain
connection. A client that says nothing gets none of them.

If many nodes come at once, few handshakes are under way at a time, and the other connections wait. A client gives
up after some seconds. If all handshakes began at once, the last ones would be done too late, and the work on them
lost. A connection whose client gives up while it waits costs nothing.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from asyncio import sslproto
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from nodemanager.join.rate_limits import network_of

BACKLOG = 128  # connections that may be accepted at once, before any of them is counted
WAITING_MAX = 4096  # connections that wait in the kernel until they are accepted; it allows fewer if so configured
HANDSHAKES_MAX = 32  # at a time
TURN_S = 0.25  # after which a handshake that is not done no longer counts: a client may stall on purpose
HELLO_MAX_BYTES = 16 * 1024  # that a client may send before its handshake begins
FILES_SPARE = BACKLOG + 64  # the backlog, and the service's own open files
TLS_BUFFER_BYTES = 32 * 1024  # of each connection, twice the largest record; asyncio's own is eight times as large
CLOSE_WITHIN_S = 3.0  # how long a client has to confirm the end of TLS


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits on connections.

    ``handshake_s`` is the time from the connection's acceptance to the end of its handshake, with the wait for its
    turn. ``headers_s`` is the time for a request's headers to arrive, counted from the end of the handshake or from
    the previous answer.
    """

    connections_max: int = 2000
    per_source_max: int = 128
    per_launch_max: int = 8  # of those that have proven to be of a launch, which count towards no source
    handshake_s: float = 10.0
    headers_s: float = 10.0
    lifetime_s: float = 60.0  # of any connection, busy or not


def allowed_connections(wanted: int) -> int:
    """Return how many connections the limit of open files allows, after raising that limit as far as possible."""
    files = wanted + FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < files:
        new_soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - FILES_SPARE))


class SecuredProtocol(asyncio.Protocol):
    """The protocol of a connection after its TLS handshake. It calls ``on_lost`` when the connection is lost."""

    on_lost: Callable[[], None]


class ProvenConnection(Protocol):
    """A connection that a request may prove to be of a launch."""

    def count_for(self, launch: str) -> None:
        """Count the connection towards the launch, and no longer towards its source, which others may share.

        If the launch has as many as it may, the connection stays with its source.
        """
        ...


class ConnectionGate:
    """Creates the protocol of each new connection. Pass it to ``asyncio``'s ``create_server`` without TLS.

    ``is_too_fast`` tells whether a source opens connections too fast, and counts one more; ``give_back`` takes that
    back. ``make_secured`` creates the protocol for a connection whose handshake is done. A gate serves one event
    loop.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        bounds: ConnectionBounds,
        is_too_fast: Callable[[str], bool],
        make_secured: Callable[[ProvenConnection], SecuredProtocol],
        give_back: Callable[[str], None],
    ) -> None:
        self.context = context
        self.bounds = bounds
        self.make_secured = make_secured
        self.tasks: set[asyncio.Task[None]] = set()
        self._is_too_fast = is_too_fast
        self._give_back = give_back
        self._open_by_source: Counter[str] = Counter()
        self.handshakes = 0  # under way
        self._waiting: deque[Callable[[], bool]] = deque()

    def __call__(self) -> asyncio.Protocol:
        return _PendingConnection(self)

    def admit(self, source: str) -> bool:
        """Count a connection of this source and return True, or return False if a limit is reached."""
        is_full = self._open_by_source.total() >= self.bounds.connections_max
        if is_full or self._open_by_source[source] >= self.bounds.per_source_max or self._is_too_fast(source):
            return False
        self._open_by_source[source] += 1
        return True

    def wait_for_turn(self, begin: Callable[[], bool]) -> None:
        """Call ``begin`` when a handshake may begin: at once, or after those that wait already.

        ``begin`` returns false if the client is gone. Else ``end_turn`` must be called when the handshake is done.
        """
        self._waiting.append(begin)
        self._begin_waiting()

    def end_turn(self) -> None:
        """Note that a handshake is done, or takes so long that it is no longer waited for."""
        self.handshakes -= 1
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and self.handshakes < HANDSHAKES_MAX:
            if self._waiting.popleft()():
                self.handshakes += 1

    def count_for(self, launch: str, source: str) -> str:
        """Count a connection of this source for a launch. Return by what it is counted from now on."""
        key = f"launch {launch}"
        if source == key or self._open_by_source[key] >= self.bounds.per_launch_max:
            return source
        self.release(source)
        self._open_by_source[key] += 1
        self._give_back(source)
        return key

    def release(self, source: str) -> None:
        """Stop counting a connection of this source."""
        self._open_by_source[source] -= 1
        if not self._open_by_source[source]:
            del self._open_by_source[source]


class _PendingConnection(asyncio.Protocol):
    """A connection until its handshake is done. It keeps early data for the protocol that follows."""

    _plain: asyncio.Transport
    _handshake_end: asyncio.TimerHandle

    def __init__(self, gate: ConnectionGate) -> None:
        self._gate = gate
        self._speaks = False
        self._source: str | None = None
        self._hello = b""  # what it said before its handshake begins
        self._early = b""
        self._turn: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        peer = plain.get_extra_info("peername")
        source = network_of(peer[0] if peer else "")
        if not self._gate.admit(source):
            plain.abort()
            return
        self._source = source
        self._plain = plain
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(self._gate.bounds.lifetime_s, plain.abort)
        # It runs until the handshake is done: one byte must not buy a client more time, nor must a long queue.
        self._handshake_end = loop.call_later(self._gate.bounds.handshake_s, plain.abort)

    def _begin_tls(self) -> bool:
        # Its client gave up. TLS on a transport that is closing would wait for ever: it is never told of the end.
        if self._source is None or self._plain.is_closing():
            return False
        self._speaks = True
        self._plain.pause_reading()  # until TLS starts to read
        loop = asyncio.get_running_loop()
        self._turn = loop.call_later(TURN_S, self._end_turn)
        task = loop.create_task(self._secure(self._plain, self._hello))
        self._gate.tasks.add(task)
        task.add_done_callback(self._gate.tasks.discard)
        task.add_done_callback(lambda _: self._end_turn())
        return True

    def _end_turn(self) -> None:
        """End the turn once. Later calls do nothing."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            self._gate.end_turn()

    async def _secure(self, plain: asyncio.Transport, hello: bytes) -> None:
        if plain.is_closing():  # a timer ended it since its turn began
            return
        loop = asyncio.get_running_loop()
        # ``start_tls`` makes the TLS protocol at once and connects it in the loop's next round. In the same round,
        # after the connecting and before the first read, the TLS protocol gets what was read before there was one.
        loop.call_soon(loop.call_soon, _feed, plain, hello)
        try:
            secured = await loop.start_tls(
                plain,
                self,
                self._gate.context,
                server_side=True,
                ssl_handshake_timeout=self._gate.bounds.handshake_s,
                ssl_shutdown_timeout=CLOSE_WITHIN_S,
            )
        except OSError:  # includes ssl.SSLError
            self._release()
            return
        if secured is None or self._source is None:  # the connection was lost during the handshake
            self._release()
            return
        self._handshake_end.cancel()
        protocol = self._gate.make_secured(self)
        protocol.on_lost = self._release
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(self._early)

    def count_for(self, launch: str) -> None:
        if self._source is not None and not self._source.startswith("launch "):
            self._source = self._gate.count_for(launch, self._source)

    def data_received(self, data: bytes) -> None:
        if self._speaks:
            self._early += data
            return
        is_first = not self._hello
        self._hello += data
        if len(self._hello) > HELLO_MAX_BYTES:
            self._plain.abort()
        elif is_first:
            self._gate.wait_for_turn(self._begin_tls)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release()

    def _release(self) -> None:
        """Release the connection once. Later calls do nothing."""
        if self._source is not None:
            self._end.cancel()
            self._handshake_end.cancel()
            source, self._source = self._source, None
            self._gate.release(source)


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Give a transport's protocol data as if it had just been read."""
    protocol = transport.get_protocol()
    while data and isinstance(protocol, asyncio.BufferedProtocol) and not transport.is_closing():
        part = memoryview(protocol.get_buffer(len(data)))[: len(data)]
        part[:] = data[: len(part)]
        protocol.buffer_updated(len(part))
        data = data[len(part) :]


def use_small_tls_buffers() -> None:
    """Bound the memory of each TLS connection of this process."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
