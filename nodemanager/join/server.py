"""The join service: the desk behind TLS. A process of its own, with neither cloud keys nor a handle on Flux.

It takes JSON by POST, bounded in size, time and number; logs who was let in and who was not, and never what they
showed. The requests are decided one after the other in one thread, which owns the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, cast

import structlog
import uvicorn
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nodemanager.config.site import Site
from nodemanager.core.nodes import JoinPhase, LaunchId
from nodemanager.join import flux_node_join
from nodemanager.join.admission import Answer, Granted, JoinDesk, Refusal, Refused, Rules
from nodemanager.join.connection_limits import BACKLOG, Bounds, Gate, Inside, allowed_connections
from nodemanager.join.exchange import Folder, RosterFile, RosterUnreadableError
from nodemanager.join.key_material import (
    MaterialError,
    MaterialSource,
    Paths,
    fingerprint,
    installed_flux_version,
    tls_context,
)
from nodemanager.join.rate_limits import Buckets, network_of
from nodemanager.join.ticket_store import Ledger, LedgerError
from nodemanager.join.tickets import KeyUnusableError, read_key

REDEEM, FETCH, RENEW, REPORT = "/v1/redeem", "/v1/fetch", "/v1/renew", "/v1/report"
CLIENT = "/v1/flux-node-join"
PATHS = (REDEEM, FETCH, RENEW, REPORT, CLIENT)
BODY_MAX_BYTES = 16_384
BODY_WITHIN_S = 10.0
KEEP_ALIVE_S = 5
STOP_S = 5  # what requests under way get when the service is told to end
CONNECTIONS_PER_REQUEST = 2.0  # how much faster than its requests a source's connections may come
LINES_PER_S = 1 / 60  # of one source that is refused, of one launch that is let in, of one kind of fault
LINES_BURST = 10
REFUSALS_LOGGED_PER_S = 1.0  # of all sources together
REFUSALS_LOGGED_BURST = 200
FORGET_EVERY_S = 3600.0
KEPT_S = 14 * 86_400.0  # what is remembered of a launch that is no more

STATUS: Mapping[Refused, int] = {
    Refused.MALFORMED: 400,
    Refused.WRONG: 403,
    Refused.EXPIRED: 403,
    Refused.WRONG_SOURCE: 403,
    Refused.NOT_CURRENT: 404,
    Refused.TOO_SLOW: 408,
    Refused.USED: 409,
    Refused.IN_USE: 409,
    Refused.TOO_LARGE: 413,
    Refused.TOO_MANY: 429,
    Refused.UNAVAILABLE: 503,
}

# The others are for us to say.
SAID_BY_NODES = frozenset(JoinPhase) - {JoinPhase.REDEEMED, JoinPhase.REPLAYED}

_Launch = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
_Secret = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Nonce = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32,64}$")]
_Instance = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
_B = TypeVar("_B", bound="_Body")


class ServiceNotReady(Exception):
    """The service cannot be started, and why."""


# --- what may be asked ------------------------------------------------------------------------------------


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)
    launch: _Launch


class _Redeem(_Body):
    ticket: _Secret
    nonce: _Nonce
    instance: _Instance = ""


class _Fetch(_Body):
    key: _Secret
    instance: _Instance = ""


class _Renew(_Fetch):
    hosts_digest: Annotated[str, StringConstraints(max_length=64)] = ""


class _Report(_Fetch):
    phase: JoinPhase
    detail: Annotated[str, StringConstraints(max_length=8000)] = ""


@dataclass(frozen=True)
class Limits:
    requests_per_s: float = 20.0
    requests_burst: float = 200.0


class Counter:
    """The way from a request to the desk and back."""

    def __init__(self, desk: JoinDesk, limits: Limits, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._desk = desk
        self._buckets = Buckets(limits.requests_per_s, limits.requests_burst)
        self._monotonic_s = monotonic_s
        # Who knocks must not fill the disk; nor who was let in.
        self._lines = Buckets(LINES_PER_S, LINES_BURST)
        self._granted_lines = Buckets(LINES_PER_S, LINES_BURST)
        self._all_refusals = Buckets(REFUSALS_LOGGED_PER_S, REFUSALS_LOGGED_BURST)
        # SQLite waits for the disk: in a thread of its own, not in the loop's.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="desk")
        self._log: Any = structlog.get_logger()
        self._client = Path(flux_node_join.__file__).read_text(encoding="utf-8")

    def app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route(REDEEM, self._route(_Redeem, self._redeem), methods=["POST"]),
                Route(FETCH, self._route(_Fetch, self._fetch), methods=["POST"]),
                Route(RENEW, self._route(_Renew, self._renew), methods=["POST"]),
                Route(REPORT, self._route(_Report, self._report), methods=["POST"]),
                Route(CLIENT, self._serve_client, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _plain},
            middleware=[Middleware(_Paced, too_many=self._too_many)],
        )
        app.router.redirect_slashes = False
        return app

    def _too_many(self, path: str, source: str) -> Refusal | None:
        """Of whatever is asked, before it is looked at."""
        wait_s = self._buckets.wait_s(network_of(source), self._monotonic_s())
        if not wait_s:
            return None
        refusal = Refusal(Refused.TOO_MANY, retry_after_s=wait_s)
        # A path that is none of ours may be anything, a ticket too.
        self._tell(path if path in PATHS else "another path", source, refusal)
        return refusal

    def _redeem(self, body: _Redeem, source: str) -> Answer:
        return self._desk.redeem(LaunchId(body.launch), body.ticket, body.nonce, source, body.instance)

    def _fetch(self, body: _Fetch, source: str) -> Answer:
        return self._desk.fetch(LaunchId(body.launch), body.key, source, body.instance)

    def _renew(self, body: _Renew, source: str) -> Answer:
        return self._desk.renew(LaunchId(body.launch), body.key, body.hosts_digest, source, body.instance)

    def _report(self, body: _Report, source: str) -> Answer:
        if body.phase not in SAID_BY_NODES:
            return Refusal(Refused.MALFORMED)
        return self._desk.report(LaunchId(body.launch), body.key, body.phase, body.detail, source)

    async def forget_now_and_then(self) -> None:
        """Drop what is remembered of launches long gone, for ever."""
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._desk.forget_older_than, KEPT_S)
            except (LedgerError, RosterUnreadableError) as error:
                self._log.warning("unavailable", what="forgetting", why=str(error))

    # --- one request ---

    def _route(
        self, kind: type[_B], decide: Callable[[_B, str], Answer]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            source = _source(request)
            answer = await self._answer(request, source, kind, decide)
            self._tell(request.url.path, source, answer)
            return _response(answer)

        return handle

    async def _answer(
        self, request: Request, source: str, kind: type[_B], decide: Callable[[_B, str], Answer]
    ) -> Answer:
        try:
            raw = await asyncio.wait_for(_body(request), BODY_WITHIN_S)
        except TimeoutError:
            return Refusal(Refused.TOO_SLOW)
        except ClientDisconnect:
            return Refusal(Refused.MALFORMED)
        if raw is None:
            return Refusal(Refused.TOO_LARGE)
        try:
            body = kind.model_validate_json(raw)
        except ValidationError:  # what it says may hold what was sent
            return Refusal(Refused.MALFORMED)
        return await asyncio.get_running_loop().run_in_executor(self._thread, decide, body, source)

    async def _serve_client(self, request: Request) -> Response:
        del request
        return PlainTextResponse(self._client)

    def _tell(self, path: str, source: str, answer: Answer) -> None:
        if not self._is_worth_a_line(path, source, answer):
            return
        match answer:
            case Granted(launch=launch, alarm=alarm) if alarm:
                self._log.error("ticket_replayed", node=launch, source=source, why=alarm)
            case Granted(launch=launch, entry=entry):
                self._log.info("granted", what=path, node=launch, slot=entry.slot, source=source)
            case Refusal(code=Refused.USED, launch=launch):
                self._log.error("ticket_replayed", node=launch, source=source)
            case Refusal(code=Refused.UNAVAILABLE, why=why):
                self._log.error("unavailable", what=path, why=why)
            case Refusal(code=code, launch=launch, why=why):
                self._log.warning("refused", what=path, code=str(code), node=launch, source=source, why=why)

    def _is_worth_a_line(self, path: str, source: str, answer: Answer) -> bool:
        now_s = self._monotonic_s()
        if isinstance(answer, Granted):
            is_news = answer.alarm or path != RENEW
            return bool(is_news) and not self._granted_lines.wait_s(answer.launch, now_s)
        if self._lines.wait_s(network_of(source), now_s):
            return False
        # Who has shown that it knows a launch's secret is not drowned by those who have not.
        return answer.launch is not None or not self._all_refusals.wait_s("", now_s)


class _Paced:
    """Every request of a source counts, whatever path and method it is of."""

    def __init__(self, app: ASGIApp, too_many: Callable[[str, str], Refusal | None]) -> None:
        self._app = app
        self._too_many = too_many

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._too_many(scope["path"], _source(Request(scope))) if scope["type"] == "http" else None
        await (self._app if refusal is None else _response(refusal))(scope, receive, send)


def _source(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _body(request: Request) -> bytes | None:
    """The request's body; None if it is too large, of which no more than that is read."""
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > BODY_MAX_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _response(answer: Answer) -> Response:
    if isinstance(answer, Granted):
        return JSONResponse(dict(answer.body))
    headers = {"Retry-After": str(int(answer.retry_after_s) + 1)} if answer.retry_after_s else {}
    if answer.code in (Refused.TOO_LARGE, Refused.TOO_SLOW):
        headers["Connection"] = "close"  # what is still on its way is no request
    return JSONResponse({"error": str(answer.code)}, STATUS[answer.code], headers)


async def _plain(request: Request, error: Exception) -> Response:
    """No such path, or not by this method: in the words of the protocol, without those of the request."""
    del request
    status = error.status_code if isinstance(error, HTTPException) else 400
    return JSONResponse({"error": str(Refused.MALFORMED)}, status)


# --- the process ------------------------------------------------------------------------------------------


class _Impatient(H11Protocol):
    """A connection on which no request is under way is not kept open for long, whatever part of one it sends."""

    headers_s: float
    left: Callable[[], None]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._answers = 0
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.left()

    def on_response_complete(self) -> None:
        self._answers += 1
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self.loop.call_later(self.headers_s, self._leave_the_slow, self._answers)

    def _leave_the_slow(self, answers: int) -> None:
        is_under_way = self.cycle is not None and not self.cycle.response_complete
        if self._answers == answers and not is_under_way and not self.transport.is_closing():
            self.transport.close()


class JoinServer(uvicorn.Server):
    """An application behind TLS and a :class:`Gate`. It says when it listens, and not before.

    ``requests_per_s`` and ``burst`` are what one source may ask; its connections may come a little faster.
    """

    says: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self, app: Starlette, listen: str, context: ssl.SSLContext, limits: Limits, bounds: Bounds
    ) -> None:
        host, _, port = listen.rpartition(":")
        super().__init__(
            uvicorn.Config(
                app,
                host=host.strip("[]"),
                port=int(port),
                http=_Impatient,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the source is whoever connects, loopback too
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._listen = listen
        self._bounds = bounds
        self._context = context
        rate = CONNECTIONS_PER_REQUEST
        self._connections = Buckets(rate * limits.requests_per_s, rate * limits.requests_burst)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's own, which has TLS begin before anybody can count. Raises :class:`ServiceNotReady`."""
        del sockets
        loop = asyncio.get_running_loop()
        gate = Gate(self._context, self._bounds, self._is_too_fast, self._inside)
        host, port = self.config.host, self.config.port
        try:
            self.servers = [await loop.create_server(gate, host, port, backlog=BACKLOG)]
        except OSError as error:
            raise ServiceNotReady(f"[Join] listen = {self._listen}: {error.strerror or error}") from error
        self.started = True
        structlog.get_logger().info("join_service_started", **self.says)

    def _is_too_fast(self, source: str) -> bool:
        return self._connections.wait_s(source, time.monotonic()) > 0

    def _inside(self) -> Inside:
        protocol = _Impatient(self.config, self.server_state, self.lifespan.state)
        protocol.headers_s = self._bounds.headers_s
        return cast("Inside", protocol)


def paced_faults(log: Any, monotonic_s: Callable[[], float] = time.monotonic) -> Callable[..., None]:
    """For an event loop: what it would log of each connection and each try to accept one, now and then."""
    lines = Buckets(LINES_PER_S, LINES_BURST)

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        what = str(context.get("message") or "a fault")
        if not lines.wait_s(what, monotonic_s()):
            log.error("connection_fault", what=what, why=repr(context.get("exception")))

    return tell


def desk_of(site: Site) -> JoinDesk:
    """The desk of a site, from the files that ``init`` made. Raises :class:`ServiceNotReady`."""
    paths, folder = Paths(site.join.material_dir), Folder(site.join.material_dir)
    rules = Rules(
        head_host=site.flux.head_host,
        head_address=site.flux.head_address,
        check_source=site.join.check_source,
        renew_s=site.join.renew_s,
        orphan_grace_s=site.timing.orphan_grace_s,
        cluster=site.cluster,
    )
    try:
        material = MaterialSource(site.join.material_dir, site.join.flux_version or installed_flux_version())
        material.current()
        return JoinDesk(
            key=read_key(paths.site_key),
            rules=rules,
            roster=RosterFile(folder.roster, time.monotonic, time.time),
            material=material.current,
            ledger=Ledger(folder.ledger),
            wall_at=time.time,
        )
    except (MaterialError, KeyUnusableError, LedgerError) as error:
        raise ServiceNotReady(str(error)) from error


async def serve(site: Site) -> None:
    """Run until SIGTERM or SIGINT. Raises :class:`ServiceNotReady`."""
    log: Any = structlog.get_logger()
    paths = Paths(site.join.material_dir)
    desk = desk_of(site)
    try:
        pin, context = fingerprint(paths.tls_certificate), tls_context(paths)
    except MaterialError as error:
        raise ServiceNotReady(str(error)) from error
    limits = Limits(site.join.requests_per_s, site.join.requests_burst)
    counter = Counter(desk, limits)
    wanted = Bounds()
    bounds = replace(wanted, connections_max=allowed_connections(wanted.connections_max))
    if bounds != wanted:
        log.warning("few_connections", connections_max=bounds.connections_max, why="raise the limit of open files")
    server = JoinServer(counter.app(), site.join.listen, context, limits, bounds)
    # Of what is no request uvicorn would say a line each.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    asyncio.get_running_loop().set_exception_handler(paced_faults(log))
    # uvicorn ends at these, and then gives them back to whoever handled them before.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.says = {"listen": site.join.listen, "fingerprint": pin}
    forgetting = asyncio.create_task(counter.forget_now_and_then())
    try:
        await server.serve()
    finally:
        forgetting.cancel()
    log.info("stopped")
