"""What members connect to: it bounds connections, ends TLS, and passes the bytes on to gRPC's own Unix socket.

gRPC's server accepts every connection and gives it no time limit, so 1,300 silent clients would take every file of
the process. That process may be the manager. The front lets in no more than :class:`ConnectionBounds` allows, with
the same gate as the join service. gRPC listens in a folder that only this user can open.

A connection costs one file until it has sent something after its handshake, and three from then on. It must send a
request with the token within some seconds: ``heard`` says that it did. From then on it never gives way to another
one. Without a token any connection may give way.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import structlog

from nodemanager.join.connection_limits import (
    BACKLOG,
    ConnectionBounds,
    ConnectionGate,
    ProvenConnection,
    SecuredProtocol,
    allowed_connections,
    use_small_tls_buffers,
)
from nodemanager.join.rate_limits import TokenBuckets
from nodemanager.web.grpc.material import ServiceMaterial
from nodemanager.web.listen import CannotListen, TcpAddress

BOUNDS = ConnectionBounds(connections_max=512, per_source_max=128, lifetime_s=None)
FILES_EACH = 3  # the client's, and both ends of the Unix socket
FILES_SPARE = 640  # what the manager needs besides: the dashboard's 512 connections, and its own
CONNECTS_PER_S = 40.0  # of one source
CONNECTS_BURST = 400.0
_WILDCARDS = ("::", "0.0.0.0")  # noqa: S104 - compared only


class Front:
    """Listens for members in a thread of its own. Tell gRPC to listen at ``inner``, and then call ``start``.

    Making one raises ``CannotListen``.
    """

    def __init__(
        self, address: TcpAddress, material: ServiceMaterial | None, bounds: ConnectionBounds = BOUNDS
    ) -> None:
        self._address = address
        self._context = None if material is None else _tls_context(material)
        self._wanted = bounds
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="fnm-grpc-"))  # mode 0700
        except OSError as error:
            raise CannotListen(f"a folder for temporary files is needed: {error}") from error
        self.inner = f"unix:{self._folder / 'inner'}"
        self._relays: dict[str, _Relay] = {}  # by what gRPC calls its peer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready: Future[int] = Future()
        self._stopped = asyncio.Event()

    def start(self) -> int:
        """Listen, and return the port. Raises ``CannotListen``."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="grpc-front", daemon=True)
        self._thread.start()
        return self._ready.result()

    def stop(self, within_s: float) -> None:
        """Cut all connections."""
        self._soon(self._stopped.set)
        if self._thread is not None:
            self._thread.join(within_s)
        shutil.rmtree(self._folder, ignore_errors=True)

    def heard(self, peer: str, proven: str | None) -> None:
        """Note that a request came by the connection that gRPC calls ``peer``. Any thread may call.

        ``proven``: for whom its token counts; None if the service has no token, so the request proves nothing.
        """
        self._soon(self._heard, peer, proven)

    def _soon(self, call: Callable[..., None], *arguments: str | None) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(call, *arguments)

    def _heard(self, peer: str, proven: str | None) -> None:
        if peer in self._relays:
            self._relays[peer].heard(proven)

    # --- its thread ---

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(self._serve())
        except (OSError, UnicodeError) as error:
            self._fail(CannotListen(str(getattr(error, "strerror", None) or error)))
        except BaseException as bug:  # ``start`` waits in another thread
            self._fail(bug)
            raise
        finally:
            loop.close()

    def _fail(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        use_small_tls_buffers()
        wanted = self._wanted.connections_max
        allowed = allowed_connections(wanted, FILES_EACH, FILES_SPARE)
        if allowed < wanted:
            log: Any = structlog.get_logger()
            log.warning("few_connections", connections_max=allowed, why="raise the limit of open files")
        bounds = replace(self._wanted, connections_max=allowed)
        rates = TokenBuckets(CONNECTS_PER_S, CONNECTS_BURST)
        gate = ConnectionGate(
            self._context,
            bounds,
            lambda source: rates.take(source, time.monotonic()) > 0,
            lambda connection: _Relay(connection, self.inner.removeprefix("unix:"), self._relays, bounds.headers_s),
            rates.give_back,
        )
        server = await self._listen(gate)
        self._ready.set_result(server.sockets[0].getsockname()[1])
        await self._stopped.wait()
        server.close()
        gate.abort_all()
        await asyncio.sleep(0)  # the transports close their files in the next round

    async def _listen(self, gate: ConnectionGate) -> asyncio.Server:
        host, port = self._address.host, self._address.port
        loop = asyncio.get_running_loop()
        if host in _WILDCARDS and socket.has_dualstack_ipv6():
            both = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
            return await loop.create_server(gate, sock=both, backlog=BACKLOG)
        return await loop.create_server(gate, host, port, backlog=BACKLOG)


class _Relay(SecuredProtocol):
    """A client's side of a connection. Its first bytes open the other side, and both pass on what they get."""

    def __init__(
        self, connection: ProvenConnection, inner: str, relays: dict[str, _Relay], prove_within_s: float
    ) -> None:
        self._connection = connection
        self._inner = inner
        self._relays = relays
        self._prove_within_s = prove_within_s
        self._peer = ""
        self._early = b""
        self._onwards: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._deadline = asyncio.get_running_loop().call_later(self._prove_within_s, self.transport.abort)

    def heard(self, proven: str | None) -> None:
        self._deadline.cancel()
        if proven is not None:
            self._connection.count_for(proven)

    def data_received(self, data: bytes) -> None:
        if self._onwards is not None:
            self._onwards.write(data)
            return
        self._early += data
        if self._opening is None:
            self.transport.pause_reading()
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        """Connect to gRPC from an address of our own, by which gRPC names this connection (unix(7), autobind)."""
        loop = asyncio.get_running_loop()
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            own.bind("")
            await loop.sock_connect(own, self._inner)
            onwards, _ = await loop.create_unix_connection(lambda: _Inner(self.transport), sock=own)
        except OSError:
            own.close()
            self.transport.abort()
            return
        if self.transport.is_closing():
            onwards.abort()
            return
        self._peer = f"unix-abstract:{own.getsockname()[1:].decode()}"
        self._relays[self._peer] = self
        self._onwards = onwards
        onwards.write(self._early)
        self._early = b""
        self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self._onwards is not None:
            self._onwards.pause_reading()

    def resume_writing(self) -> None:
        if self._onwards is not None:
            self._onwards.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._deadline.cancel()
        self._relays.pop(self._peer, None)
        if self._onwards is not None:
            self._onwards.close()
        self.on_lost()


class _Inner(asyncio.Protocol):
    """gRPC's side of a connection."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        self._client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._client.close()


def _tls_context(material: ServiceMaterial) -> ssl.SSLContext:
    """Return the context of the service. Raises ``CannotListen`` if the certificate or its key cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])
    try:
        # OpenSSL reads files only: these exist in memory only.
        with (
            os.fdopen(os.memfd_create("certificate"), "wb") as certificate,
            os.fdopen(os.memfd_create("key"), "wb") as key,
        ):
            for file, data in ((certificate, material.certificate), (key, material.key)):
                file.write(data)
                file.flush()
            context.load_cert_chain(f"/proc/self/fd/{certificate.fileno()}", f"/proc/self/fd/{key.fileno()}")
    except ssl.SSLError as error:
        raise CannotListen(
            f"tls.key is not the key of tls.crt, or one of them is damaged: {error.reason}"
        ) from error
    return context
