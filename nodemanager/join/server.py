"""The join service: serves :class:`JoinAdmission` over TLS, in a process without cloud keys or a handle on Flux.

It accepts JSON by POST and limits the size, duration and rate of requests. It logs which nodes were admitted or
refused, and never logs a ticket or a key. One thread decides all requests in turn and owns the ticket store.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
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

from nodemanager.config.provider import GoogleToken, SignedDocument
from nodemanager.config.site import Site
from nodemanager.core.nodes import JoinPhase, LaunchId
from nodemanager.core.slots import CloudName
from nodemanager.join import flux_node_join
from nodemanager.join.admission import AdmissionRules, Answer, Granted, JoinAdmission, Refusal, RefusalCode
from nodemanager.join.connection_limits import (
    BACKLOG,
    WAITING_MAX,
    ConnectionBounds,
    ConnectionGate,
    ProvenConnection,
    SecuredProtocol,
    allowed_connections,
    use_small_tls_buffers,
)
from nodemanager.join.exchange import ExchangePaths, RosterFile, RosterUnreadableError
from nodemanager.join.identity.ec2 import InstanceIdentities
from nodemanager.join.identity.google import GoogleIdentities, GoogleNodes
from nodemanager.join.identity.google_keys import GoogleKeys
from nodemanager.join.identity.proof import InstanceReader, by_form
from nodemanager.join.key_material import (
    MaterialError,
    MaterialPaths,
    MaterialSource,
    fingerprint,
    installed_flux_version,
    tls_context,
)
from nodemanager.join.rate_limits import TokenBuckets, network_of
from nodemanager.join.ticket_store import TicketStore, TicketStoreError
from nodemanager.join.tickets import KeyUnusableError, read_site_key

REDEEM, REDEEM_BATCH, FETCH, RENEW, REPORT = (
    "/v1/redeem",
    "/v1/redeem-batch",
    "/v1/fetch",
    "/v1/renew",
    "/v1/report",
)
CLIENT = "/v1/flux-node-join"
PATHS = (REDEEM, REDEEM_BATCH, FETCH, RENEW, REPORT, CLIENT)
BODY_MAX_BYTES = 16_384
BODY_WITHIN_S = 10.0
CONNECTION = "connection"  # the name of a request's connection in its state
IDENTITY_MAX_CHARS = 12_288  # EC2's documents have about 2,000
KEEP_ALIVE_S = 5
STOP_S = 5  # how long running requests may take to finish when the service stops
CONNECTIONS_PER_REQUEST = 2.0  # how many connections a source may open for each request it may make
LINES_PER_S = 1 / 60  # log lines for each refused source, admitted launch, or kind of fault
LINES_BURST = 10
REFUSALS_LOGGED_PER_S = 1.0  # for all sources together
REFUSALS_LOGGED_BURST = 200
FORGET_EVERY_S = 3600.0
FORGET_AFTER_S = 14 * 86_400.0  # how long data of a past launch is kept

STATUS: Mapping[RefusalCode, int] = {
    RefusalCode.MALFORMED: 400,
    RefusalCode.WRONG: 403,
    RefusalCode.EXPIRED: 403,
    RefusalCode.UNPROVEN: 403,
    RefusalCode.WRONG_SOURCE: 403,
    RefusalCode.NOT_CURRENT: 404,
    RefusalCode.TOO_SLOW: 408,
    RefusalCode.USED: 409,
    RefusalCode.IN_USE: 409,
    RefusalCode.TOO_LARGE: 413,
    RefusalCode.TOO_MANY: 429,
    RefusalCode.UNAVAILABLE: 503,
}

# Only the service itself may report the other phases.
PHASES_FROM_NODES = frozenset(JoinPhase) - {JoinPhase.REDEEMED, JoinPhase.REPLAYED}

_Launch = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
_Secret = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Nonce = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32,64}$")]
_Instance = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{0,64}$")]
_B = TypeVar("_B", bound="_Body")


class ServiceNotReady(Exception):
    """The service cannot start. The text says why."""


# --- the bodies of requests -------------------------------------------------------------------------------


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class _LaunchBody(_Body):
    launch: _Launch


class _RedeemBatch(_Body):
    batch: _Launch
    ticket: _Secret
    nonce: _Nonce
    identity: Annotated[str, StringConstraints(max_length=IDENTITY_MAX_CHARS)]
    instance: _Instance = ""


class _Redeem(_LaunchBody):
    ticket: _Secret
    nonce: _Nonce
    instance: _Instance = ""


class _Fetch(_LaunchBody):
    key: _Secret
    instance: _Instance = ""


class _Renew(_Fetch):
    hosts_digest: Annotated[str, StringConstraints(max_length=64)] = ""


class _Report(_Fetch):
    phase: JoinPhase
    detail: Annotated[str, StringConstraints(max_length=8000)] = ""


@dataclass(frozen=True)
class RequestLimits:
    """The rate of requests that each source may make."""

    requests_per_s: float = 20.0
    requests_burst: float = 200.0


class JoinApi:
    """Translates HTTP requests into calls of :class:`JoinAdmission`, and its answers into HTTP responses."""

    def __init__(
        self,
        admission: JoinAdmission,
        limits: RequestLimits,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admission = admission
        self._buckets = TokenBuckets(limits.requests_per_s, limits.requests_burst)
        self._by_launch = TokenBuckets(limits.requests_per_s, limits.requests_burst)
        self._monotonic_s = monotonic_s
        # Neither refused nor admitted clients may fill the disk with log lines.
        self._refusal_lines = TokenBuckets(LINES_PER_S, LINES_BURST)
        self._granted_lines = TokenBuckets(LINES_PER_S, LINES_BURST)
        self._all_refusals = TokenBuckets(REFUSALS_LOGGED_PER_S, REFUSALS_LOGGED_BURST)
        self._decisions = DecisionThread(admission.decide_together)
        self._encode = AnswerEncoder()
        self._log: Any = structlog.get_logger()
        self._client_source = Path(flux_node_join.__file__).read_text(encoding="utf-8")

    def make_app(self) -> Starlette:
        """Build the ASGI application."""
        app = Starlette(
            routes=[
                Route(REDEEM, self._route(_Redeem, self._redeem), methods=["POST"]),
                Route(REDEEM_BATCH, self._route(_RedeemBatch, self._redeem_batch), methods=["POST"]),
                Route(FETCH, self._route(_Fetch, self._fetch), methods=["POST"]),
                Route(RENEW, self._route(_Renew, self._renew), methods=["POST"]),
                Route(REPORT, self._route(_Report, self._report), methods=["POST"]),
                Route(CLIENT, self._serve_client, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _http_error_response},
            middleware=[Middleware(_RateLimited, too_many=self._rate_refusal)],
        )
        app.router.redirect_slashes = False
        return app

    def _rate_refusal(self, path: str, source: str) -> Refusal | None:
        """Count a request of any path and method. Return a refusal if its source is too fast."""
        wait_s = self._buckets.take(network_of(source), self._monotonic_s())
        if not wait_s:
            return None
        refusal = Refusal(RefusalCode.TOO_MANY, retry_after_s=wait_s)
        # Do not log an unknown path: it could contain a ticket.
        self._log_answer(path if path in PATHS else "another path", source, refusal)
        return refusal

    def _redeem(self, body: _Redeem, source: str) -> Answer:
        return self._admission.redeem(LaunchId(body.launch), body.ticket, body.nonce, source, body.instance)

    def _redeem_batch(self, body: _RedeemBatch, source: str) -> Answer:
        return self._admission.redeem_batch(
            body.batch, body.ticket, body.nonce, body.identity, source, body.instance
        )

    def _fetch(self, body: _Fetch, source: str) -> Answer:
        return self._admission.fetch(LaunchId(body.launch), body.key, source, body.instance)

    def _renew(self, body: _Renew, source: str) -> Answer:
        return self._admission.renew(LaunchId(body.launch), body.key, body.hosts_digest, source, body.instance)

    def _report(self, body: _Report, source: str) -> Answer:
        if body.phase not in PHASES_FROM_NODES:
            return Refusal(RefusalCode.MALFORMED)
        return self._admission.report(LaunchId(body.launch), body.key, body.phase, body.detail, source)

    async def forget_periodically(self) -> None:
        """Delete the data of past launches every hour, until cancelled."""
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            try:
                await self._decisions.run(partial(self._admission.forget_older_than, FORGET_AFTER_S))
            except (TicketStoreError, RosterUnreadableError) as error:
                self._log.warning("unavailable", what="forgetting", why=str(error))

    # --- one request ---

    def _route(
        self, kind: type[_B], decide: Callable[[_B, str], Answer]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            source = _source(request)
            answer = await self._answer(request, source, kind, decide)
            if isinstance(answer, Granted):
                self._count_for_launch(request, source, answer.launch)
            self._log_answer(request.url.path, source, answer)
            if isinstance(answer, Granted):
                return Response(self._encode(answer.body), media_type="application/json")
            return _refusal_response(answer)

        return handle

    def _count_for_launch(self, request: Request, source: str, launch: LaunchId) -> None:
        """Count a granted request towards its launch: many nodes behind one address do not hinder each other."""
        if not self._by_launch.take(launch, self._monotonic_s()):
            self._buckets.give_back(network_of(source))
        connection: ProvenConnection | None = getattr(request.state, CONNECTION, None)
        if connection is not None:
            connection.count_for(launch)

    async def _answer(
        self, request: Request, source: str, kind: type[_B], decide: Callable[[_B, str], Answer]
    ) -> Answer:
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                raw = await _read_body(request)
        except TimeoutError:
            return Refusal(RefusalCode.TOO_SLOW)
        except ClientDisconnect:
            return Refusal(RefusalCode.MALFORMED)
        if raw is None:
            return Refusal(RefusalCode.TOO_LARGE)
        try:
            body = kind.model_validate_json(raw)
        except ValidationError:  # do not log it: its text may contain the request
            return Refusal(RefusalCode.MALFORMED)
        return await self._decisions.decide(partial(decide, body, source))

    async def _serve_client(self, request: Request) -> Response:
        del request
        return PlainTextResponse(self._client_source)

    def _log_answer(self, path: str, source: str, answer: Answer) -> None:
        if not self._is_worth_a_line(path, source, answer):
            return
        match answer:
            case Granted(launch=launch, alarm=alarm) if alarm:
                self._log.error("ticket_replayed", node=launch, source=source, why=alarm)
            case Granted(launch=launch, entry=entry):
                self._log.info("granted", what=path, node=launch, slot=entry.slot, source=source)
            case Refusal(code=RefusalCode.USED, launch=launch):
                self._log.error("ticket_replayed", node=launch, source=source)
            case Refusal(code=RefusalCode.UNAVAILABLE, why=why):
                self._log.error("unavailable", what=path, why=why)
            case Refusal(code=code, launch=launch, why=why):
                self._log.warning("refused", what=path, code=str(code), node=launch, source=source, why=why)

    def _is_worth_a_line(self, path: str, source: str, answer: Answer) -> bool:
        now_s = self._monotonic_s()
        if isinstance(answer, Granted):
            is_news = answer.alarm or path != RENEW
            return bool(is_news) and not self._granted_lines.take(answer.launch, now_s)
        if self._refusal_lines.take(network_of(source), now_s):
            return False
        # Always log clients that know a launch's secret, no matter how many others are refused.
        return answer.launch is not None or not self._all_refusals.take("", now_s)


class _RateLimited:
    """Middleware that limits the rate of each source's requests, whatever their path and method."""

    def __init__(self, app: ASGIApp, too_many: Callable[[str, str], Refusal | None]) -> None:
        self._app = app
        self._rate_refusal = too_many

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._rate_refusal(scope["path"], _source(Request(scope))) if scope["type"] == "http" else None
        await (self._app if refusal is None else _refusal_response(refusal))(scope, receive, send)


def _source(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _read_body(request: Request) -> bytes | None:
    """Return the request's body; None if it is larger than ``BODY_MAX_BYTES``, where reading stops."""
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > BODY_MAX_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


class AnswerEncoder:
    """Encodes the bodies of granted requests as JSON.

    With a thousand nodes most of a body are the hosts, which are the same for all nodes: they are encoded once.
    """

    def __init__(self) -> None:
        self._hosts: Any = None
        self._hosts_text = ""

    def __call__(self, body: Mapping[str, Any]) -> str:
        fields = (f"{json.dumps(name)}: {self._text_of(name, value)}" for name, value in body.items())
        return f"{{{', '.join(fields)}}}"

    def _text_of(self, name: str, value: Any) -> str:
        if name != "hosts":
            return json.dumps(value)
        if value is not self._hosts:
            self._hosts, self._hosts_text = value, json.dumps(value)
        return self._hosts_text


def _refusal_response(refusal: Refusal) -> Response:
    headers = {"Retry-After": str(int(refusal.retry_after_s) + 1)} if refusal.retry_after_s else {}
    if refusal.code in (RefusalCode.TOO_LARGE, RefusalCode.TOO_SLOW):
        headers["Connection"] = "close"  # the unread rest of the body must not be parsed as a request
    return JSONResponse({"error": str(refusal.code)}, STATUS[refusal.code], headers)


async def _http_error_response(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method with the protocol's error, without repeating anything from the request."""
    del request
    status = error.status_code if isinstance(error, HTTPException) else 400
    return JSONResponse({"error": str(RefusalCode.MALFORMED)}, status)


# --- the process ------------------------------------------------------------------------------------------


class _TimeoutProtocol(H11Protocol):
    """Closes a connection if the headers of its next request do not arrive in time."""

    headers_s: float
    on_lost: Callable[[], None]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._answers = 0
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_lost()

    def on_response_complete(self) -> None:
        self._answers += 1
        self._expect_request()
        super().on_response_complete()

    def _expect_request(self) -> None:
        self.loop.call_later(self.headers_s, self._close_if_slow, self._answers)

    def _close_if_slow(self, answers: int) -> None:
        is_under_way = self.cycle is not None and not self.cycle.response_complete
        if self._answers == answers and not is_under_way and not self.transport.is_closing():
            self.transport.close()


class JoinServer(uvicorn.Server):
    """Serves an application behind TLS and a :class:`ConnectionGate`.

    ``limits`` is the rate of each source's requests. A source may open connections ``CONNECTIONS_PER_REQUEST``
    times as fast. When it listens, it logs ``join_service_started`` with ``started_fields``.
    """

    started_fields: Mapping[str, str] = MappingProxyType({})
    gate: ConnectionGate

    def __init__(
        self, app: Starlette, listen: str, context: ssl.SSLContext, limits: RequestLimits, bounds: ConnectionBounds
    ) -> None:
        host, _, port = listen.rpartition(":")
        super().__init__(
            uvicorn.Config(
                app,
                host=host.strip("[]"),
                port=int(port),
                http=_TimeoutProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the source is always the connection's peer, even on loopback
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._listen = listen
        self._bounds = bounds
        self._context = context
        rate = CONNECTIONS_PER_REQUEST
        self._connections = TokenBuckets(rate * limits.requests_per_s, rate * limits.requests_burst)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. Raises :class:`ServiceNotReady`.

        It replaces uvicorn's own method, which starts TLS before connections can be counted.
        """
        del sockets
        loop = asyncio.get_running_loop()
        self.gate = ConnectionGate(
            self._context, self._bounds, self._is_too_fast, self._make_protocol, self._connections.give_back
        )
        host, port = self.config.host, self.config.port
        try:
            self.servers = [await loop.create_server(self.gate, host, port, backlog=BACKLOG)]
            for listening in self.servers[0].sockets:
                _wait_longer(listening.fileno())
        except OSError as error:
            raise ServiceNotReady(f"[Join] listen = {self._listen}: {error.strerror or error}") from error
        self.started = True
        structlog.get_logger().info("join_service_started", **self.started_fields)

    def _is_too_fast(self, source: str) -> bool:
        return self._connections.take(source, time.monotonic()) > 0

    def _make_protocol(self, connection: ProvenConnection) -> SecuredProtocol:
        state = {**self.lifespan.state, CONNECTION: connection}
        protocol = _TimeoutProtocol(self.config, self.server_state, state)
        protocol.headers_s = self._bounds.headers_s
        return cast("SecuredProtocol", protocol)


def _wait_longer(listening: int) -> None:
    """Let many connections wait in the kernel: a thousand nodes come at once.

    asyncio uses one figure for this and for how many connections it accepts before it reads from any.
    """
    with socket.socket(fileno=os.dup(listening)) as same:
        same.listen(WAITING_MAX)


def fault_logger(log: Any, monotonic_s: Callable[[], float] = time.monotonic) -> Callable[..., None]:
    """Return an exception handler for an event loop. It logs connection faults, a few lines for each kind."""
    lines = TokenBuckets(LINES_PER_S, LINES_BURST)

    def log_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        what = str(context.get("message") or "a fault")
        if not lines.take(what, monotonic_s()):
            log.error("connection_fault", what=what, why=repr(context.get("exception")))

    return log_fault


def make_admission(site: Site) -> JoinAdmission:
    """Build the admission of a site from the files that ``init`` made. Raises :class:`ServiceNotReady`."""
    paths, exchange = MaterialPaths(site.join.material_dir), ExchangePaths(site.join.material_dir)
    rules = AdmissionRules(
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
        return JoinAdmission(
            key=read_site_key(paths.site_key),
            rules=rules,
            roster=RosterFile(exchange.roster, time.monotonic, time.time),
            material=material.current,
            store=TicketStore(exchange.ledger),
            wall_at=time.time,
            instance_in=_identities(site),
        )
    except (MaterialError, KeyUnusableError, TicketStoreError) as error:
        raise ServiceNotReady(str(error)) from error


def _identities(site: Site) -> InstanceReader | None:
    """Return what reads the identities of instances; None if the site's nodes are created one by one.

    Raises :class:`ServiceNotReady`, ``MaterialError``.
    """
    proofs = {name: part.rules.node_proof(part.cloud) for name, part in site.by_cloud.items()}
    certificates = {name: it.certificate for name, it in proofs.items() if isinstance(it, SignedDocument)}
    try:
        documents = InstanceIdentities(certificates).instance_in if certificates else None
    except ValueError as error:
        raise ServiceNotReady(f"identity_certificate of a cloud: {error}") from error
    nodes = {
        name: GoogleNodes(it.project, it.service_account)
        for name, it in proofs.items()
        if isinstance(it, GoogleToken)
    }
    return by_form(documents, _google_identities(site, nodes) if nodes else None)


def _google_identities(site: Site, nodes: Mapping[CloudName, GoogleNodes]) -> InstanceReader:
    pin = fingerprint(MaterialPaths(site.join.material_dir).tls_certificate)
    return GoogleIdentities(nodes, GoogleKeys(site.join.material_dir, time.time), pin, time.time).instance_in


async def serve(site: Site) -> None:
    """Run until SIGTERM or SIGINT. Raises :class:`ServiceNotReady`."""
    log: Any = structlog.get_logger()
    paths = MaterialPaths(site.join.material_dir)
    admission = make_admission(site)
    try:
        pin, context = fingerprint(paths.tls_certificate), tls_context(paths)
    except MaterialError as error:
        raise ServiceNotReady(str(error)) from error
    limits = RequestLimits(site.join.requests_per_s, site.join.requests_burst)
    api = JoinApi(admission, limits)
    wanted = ConnectionBounds()
    bounds = replace(wanted, connections_max=allowed_connections(wanted.connections_max))
    if bounds != wanted:
        log.warning("few_connections", connections_max=bounds.connections_max, why="raise the limit of open files")
    server = JoinServer(api.make_app(), site.join.listen, context, limits, bounds)
    # uvicorn would log a line for every invalid request.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    asyncio.get_running_loop().set_exception_handler(fault_logger(log))
    use_small_tls_buffers()
    # uvicorn stops at these signals, and afterwards raises them again for the previous handlers: ignore them there.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.started_fields = {"listen": site.join.listen, "fingerprint": pin}
    gc.freeze()  # the modules stay: the collector need not walk through them again and again
    forgetting = asyncio.create_task(api.forget_periodically())
    try:
        await server.serve()
    finally:
        forgetting.cancel()
    log.info("stopped")


# --- the one thread that decides the join service's requests ----------------------------------------------
#
# It waits for the disk, so it is not the event loop's.


TOGETHER_MAX = 64  # decisions for which one commit is waited for

_Decision = Callable[[], Answer]
_T = TypeVar("_T")


class DecisionThread:
    """Decides requests in the order in which they come, for one event loop.

    While the thread waits for the disk, further requests come. ``decide_together`` then decides all of them and
    commits once, so a slow disk costs each request one or two commits, however many there are.

    If that raises, nothing is stored, and each is decided again by itself: a bug that one request meets fails no
    other.
    """

    def __init__(self, decide_together: Callable[[Sequence[_Decision]], list[Answer]]) -> None:
        self._decide_together = decide_together
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="admission")
        self._waiting: list[tuple[_Decision, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def decide(self, decision: _Decision) -> Answer:
        """Return the answer of a decision once what it stored is on disk."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((decision, answer))
        if self._task is None:
            self._task = loop.create_task(self._decide_waiting())
        return await answer

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do other work in the same thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _decide_waiting(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
                await self._decide_all(taken)
        finally:
            self._task = None

    async def _decide_all(self, taken: Sequence[tuple[_Decision, asyncio.Future[Answer]]]) -> None:
        decisions = [decision for decision, _ in taken]
        work = asyncio.ensure_future(self.run(lambda: self._decide_together(decisions)))
        await asyncio.wait([work])
        fault = work.exception()
        if fault is not None and len(taken) > 1:
            for one in taken:
                await self._decide_all([one])
            return
        for number, (_, answer) in enumerate(taken):
            if answer.done():  # the client is gone
                continue
            if fault is None:
                answer.set_result(work.result()[number])
            else:
                answer.set_exception(fault)
