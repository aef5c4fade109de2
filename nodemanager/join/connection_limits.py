"""Limits a service's connections: their number, their number per source, and their duration.

The join service and the gRPC service use it. Opening a connection costs a client nothing, but it costs the service
an open file. So connections are counted when they are accepted, before TLS begins. At a limit the oldest connection
that has proven nothing gives way (``OpenConnections``), so silent connections cannot keep others out. A connection
whose handshake is under way is not cut for another one, because the work on it would be lost. If no other one can
give way, the new connection is cut. A client that is cut treats the service as unreachable and tries again.

TLS begins with a client's first byte, because its state and buffers take a hundred times the memory of a plain
connection. A client that says nothing gets none of them.

If many nodes come at once, few handshakes are under way at a time, and the other connections wait. A client gives
up after some seconds. If all handshakes began at once, the last ones would be done too late, and the work on them
lost. A connection whose client gives up while it waits costs nothing. The sources take turns: one whose clients
stall on purpose delays its own handshakes, not those of the others.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from nodemanager.join.open_files import raise_file_limit
from nodemanager.join.rate_limits import network_of

BACKLOG = 128  # connections that may be accepted at once, before any of them is counted
WAITING_MAX = 4096  # connections that wait in the kernel until they are accepted; it allows fewer if so configured
HANDSHAKES_MAX = 32  # at a time
TURN_S = 0.25  # after which a handshake that is not done no longer counts: a client may stall on purpose
HELLO_MAX_BYTES = 16 * 1024  # that a client may send before its handshake begins
FILES_SPARE = BACKLOG + 64  # the backlog, and the service's own open files
TLS_BUFFER_BYTES = 32 * 1024  # of each connection, twice the largest record; asyncio's own is eight times as large
CLOSE_WITHIN_S = 3.0  # how long a client has to confirm the end of TLS

C = TypeVar("C")


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
    lifetime_s: float | None = 60.0  # of any connection, busy or not; None is without limit


def allowed_connections(wanted: int, files_each: int = 1, spare: int = FILES_SPARE) -> int:
    """Return how many connections the limit of open files allows, after raising that limit as far as possible.

    ``spare``: how many files the process needs for everything else.
    """
    files = raise_file_limit(wanted * files_each + spare)
    return wanted if files is None else max(1, min(wanted, (files - spare) // files_each))


class OpenConnections(Generic[C]):
    """The open connections of one service, and which of them gives way to a new one if there are too many.

    The join service, the gRPC service and the dashboard share this rule: a connection that has proven to be of a
    launch or has shown the token never gives way. Of the others, the source with the most loses its oldest.
    ``is_busy``: whether a connection should give way after all others.
    """

    def __init__(self, is_busy: Callable[[C], bool]) -> None:
        self._is_busy = is_busy
        self._proven: set[C] = set()
        self._unproven: dict[str, dict[C, None]] = {}  # of each source, the oldest first
        self._source_of: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._proven) + len(self._source_of)

    def __iter__(self) -> Iterator[C]:
        return iter([*self._proven, *self._source_of])

    def add(self, connection: C, source: str) -> None:
        """Add a connection that has proven nothing yet."""
        self._source_of[connection] = source
        self._unproven.setdefault(source, {})[connection] = None

    def prove(self, connection: C) -> None:
        """Count a connection towards no source from now on. It no longer gives way."""
        self.remove(connection)
        self._proven.add(connection)

    def remove(self, connection: C) -> None:
        """Forget a connection, if it is still known."""
        self._proven.discard(connection)
        source = self._source_of.pop(connection, None)
        if source is not None:
            del self._unproven[source][connection]
            if not self._unproven[source]:
                del self._unproven[source]

    def in_the_way(
        self, source: str, per_source_max: int, connections_max: int, *, proven: bool = False
    ) -> tuple[bool, C | None]:
        """Return whether a limit keeps a new connection out, and the one that gives way first, if there is any.

        ``proven``: the new one counts towards no source.
        """
        own = self._unproven.get(source, {})
        if not proven and len(own) >= per_source_max:
            return True, self._weakest(own)
        if len(self) < connections_max:
            return False, None
        most: dict[C, None] = max(self._unproven.values(), key=len, default={})
        return True, self._weakest(most)

    def _weakest(self, rivals: Iterable[C]) -> C | None:
        return min(rivals, key=self._is_busy, default=None)


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

    ``context`` None is without TLS: then there is no handshake.
    ``is_too_fast`` tells whether a source opens connections too fast, and counts one more; ``give_back`` takes that
    back. ``make_secured`` creates the protocol for a connection whose handshake is done. A gate serves one event
    loop.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None,
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
        self._open = OpenConnections[_PendingConnection](_PendingConnection.is_at_work)
        self._by_launch: Counter[str] = Counter()
        self.handshakes = 0  # under way
        self._waiting: OrderedDict[str, deque[Callable[[], bool]]] = OrderedDict()  # by source, the next one first

    def __call__(self) -> asyncio.Protocol:
        return _PendingConnection(self)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: _PendingConnection, source: str) -> bool:
        """Count a connection of this source and return True, or return False if a limit is reached."""
        if self._is_too_fast(source):
            return False
        bounds = self.bounds
        is_full, weakest = self._open.in_the_way(source, bounds.per_source_max, bounds.connections_max)
        if is_full:
            if weakest is None or weakest.is_at_work():
                return False
            self._open.remove(weakest)
            weakest.abort()
        self._open.add(connection, source)
        return True

    def abort_all(self) -> None:
        """Cut all connections."""
        for connection in self._open:
            connection.abort()

    def wait_for_turn(self, source: str, begin: Callable[[], bool]) -> None:
        """Call ``begin`` when a handshake may begin: at once, or after those that wait already. Sources take turns.

        ``begin`` returns false if the client is gone. Else ``end_turn`` must be called when the handshake is done.
        """
        self._waiting.setdefault(source, deque()).append(begin)
        self._begin_waiting()

    def end_turn(self) -> None:
        """Note that a handshake is done, or takes so long that it is no longer waited for."""
        self.handshakes -= 1
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and self.handshakes < HANDSHAKES_MAX:
            source, waiting = next(iter(self._waiting.items()))
            if waiting.popleft()():
                self.handshakes += 1
                self._waiting.move_to_end(source)
            if not waiting:
                del self._waiting[source]

    def count_for(self, launch: str, connection: _PendingConnection, source: str) -> bool:
        """Count a connection for a launch and no longer for its source. Return False if the launch has too many."""
        if self._by_launch[launch] >= self.bounds.per_launch_max:
            return False
        self._by_launch[launch] += 1
        self._open.prove(connection)
        self._give_back(source)
        return True

    def release(self, connection: _PendingConnection, launch: str | None) -> None:
        """Stop counting a connection, which was counted for ``launch`` if that is given."""
        self._open.remove(connection)
        if launch is not None:
            self._by_launch[launch] -= 1
            if not self._by_launch[launch]:
                del self._by_launch[launch]


class _PendingConnection(asyncio.Protocol):
    """A connection until its handshake is done. It keeps early data for the protocol that follows."""

    _plain: asyncio.Transport
    _handshake_end: asyncio.TimerHandle

    def __init__(self, gate: ConnectionGate) -> None:
        self._gate = gate
        self._speaks = False
        self._source: str | None = None  # None if it is not counted
        self._launch: str | None = None
        self._at_work_until_s = 0.0
        self._end: asyncio.TimerHandle | None = None
        self._hello = b""  # what it said before its handshake begins
        self._early = b""
        self._turn: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        peer = plain.get_extra_info("peername")
        source = network_of(peer[0] if peer else "")
        self._plain = plain
        if not self._gate.admit(self, source):
            plain.abort()
            return
        self._source = source
        loop = asyncio.get_running_loop()
        bounds = self._gate.bounds
        if bounds.lifetime_s is not None:
            self._end = loop.call_later(bounds.lifetime_s, plain.abort)
        # It runs until the handshake is done: one byte must not buy a client more time, nor must a long queue.
        self._handshake_end = loop.call_later(bounds.handshake_s, plain.abort)
        if self._gate.context is None:
            self._pass_on(plain)

    def is_at_work(self) -> bool:
        """Whether its handshake is under way, or was done a moment ago: then it is not cut for another one.

        That is a matter of moments: a client cannot hold its place so.
        """
        return asyncio.get_running_loop().time() < self._at_work_until_s

    def abort(self) -> None:
        """Cut the connection."""
        self._plain.abort()

    def _begin_tls(self) -> bool:
        # Its client gave up. TLS on a transport that is closing would wait for ever: it is never told of the end.
        context = self._gate.context
        if self._source is None or context is None or self._plain.is_closing():
            return False
        self._speaks = True
        self._plain.pause_reading()  # until TLS starts to read
        loop = asyncio.get_running_loop()
        self._turn = loop.call_later(TURN_S, self._end_turn)
        self._at_work_until_s = loop.time() + TURN_S
        task = loop.create_task(self._secure(self._plain, self._hello, context))
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

    async def _secure(self, plain: asyncio.Transport, hello: bytes, context: ssl.SSLContext) -> None:
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
                context,
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
        self._at_work_until_s = loop.time() + TURN_S  # its request is under way
        self._pass_on(secured)

    def _pass_on(self, secured: asyncio.Transport) -> None:
        """Give the connection to the protocol that serves it."""
        self._handshake_end.cancel()
        protocol = self._gate.make_secured(self)
        protocol.on_lost = self._release
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(self._early)

    def count_for(self, launch: str) -> None:
        if self._source is None or self._launch is not None:
            return
        if self._gate.count_for(launch, self, self._source):
            self._launch = launch

    def data_received(self, data: bytes) -> None:
        if self._speaks:
            self._early += data
            return
        is_first = not self._hello
        self._hello += data
        if len(self._hello) > HELLO_MAX_BYTES:
            self._plain.abort()
        elif is_first:
            self._gate.wait_for_turn(self._source or "", self._begin_tls)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release()

    def _release(self) -> None:
        """Release the connection once. Later calls do nothing."""
        if self._source is not None:
            if self._end is not None:
                self._end.cancel()
            self._handshake_end.cancel()
            self._source = None
            self._gate.release(self, self._launch)


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
