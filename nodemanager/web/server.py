"""The HTTP interface: which path answers what. ``ENDPOINTS`` is the one list; ``openapi.json`` is made of it too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nodemanager.actors.manager import Published
from nodemanager.fleet.plan import plan as make_plan
from nodemanager.fleet.policy import Policy
from nodemanager.journal.entries import Entry
from nodemanager.journal.reader import JournalReader, JournalUnreadable
from nodemanager.web import explain, health, hpa, openapi, views
from nodemanager.web.access import Access, Allows, Refused, anybody
from nodemanager.web.board import Board
from nodemanager.web.control import Control
from nodemanager.web.metrics import Metrics
from nodemanager.web.openapi import Operation, Parameter
from nodemanager.web.views import Document

STATIC = Path(__file__).parent / "static"
BODY_MAX_BYTES = 1 << 20
STREAMS_MAX = 64
POLL_S = 0.2
KEEP_ALIVE_S = 15.0
YEAR_S = 366 * 86_400.0
BY_MAX = 64

HEADERS = {
    # The page brings all it needs, and nothing else is to get in.
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

POLICY: TypeAdapter[Policy] = TypeAdapter(Policy)


@dataclass(frozen=True, slots=True)
class Served:
    """What the endpoints answer from."""

    board: Board
    metrics: Metrics
    journal: JournalReader
    control: Control
    access: Access


Answer = Callable[[Served, Request, bytes], Response]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. ``answers`` runs in a thread of a pool."""

    method: str
    path: str
    summary: str
    answers: Answer
    allows: Allows = anybody
    parameters: Sequence[Parameter] = ()
    statuses: Sequence[int] = (200, 400, 404, 503)
    body: Mapping[str, Any] | None = None

    @property
    def operation(self) -> Operation:
        secured = self.allows is not anybody
        statuses = {*self.statuses, 400, *((401, 503) if secured else ())}
        return Operation(
            self.method, self.path, self.summary, self.parameters, sorted(statuses), secured, self.body
        )


# --- answers ----------------------------------------------------------------------------------------------


def _published(served: Served) -> Published:
    posted = served.board.posted
    if posted is None:
        raise Refused(503, "nothing is known yet: the service has just begun")
    return posted.published


def _json(document: object, status: int = 200) -> Response:
    return JSONResponse(document, status_code=status)


def _status(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    document = views.status(_published(served))
    return _json({**document, "spent": _spent(served, document["at"]), "silent_s": served.board.silent_s})


def _spent(served: Served, now_at: float) -> Document:
    """Today and this month in UTC, by the journal; where that cannot be read, since this process began."""
    day_at = now_at // 86_400 * 86_400
    try:
        return {"today": served.journal.spent(day_at), "since_start": served.board.spent}
    except JournalUnreadable:
        return {"today": None, "since_start": served.board.spent}


def _nodes(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    published = _published(served)
    return _json({"at": published.snapshot.wall_at, "nodes": views.nodes(published)})


def _fleet(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    return _json(views.fleet(_published(served)))


def _history(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    return _json(
        {
            "samples": [
                {
                    "at": it.at,
                    "nodes": it.nodes,
                    "jobs_waiting": it.jobs_waiting,
                    "jobs_running": it.jobs_running,
                    "price_per_hour": it.price_per_hour,
                    "spent": it.spent,
                }
                for it in served.board.samples()
            ]
        }
    )


def _jobs(served: Served, request: Request, body: bytes) -> Response:
    del body
    published = _published(served)
    limit = int(_number(request, "limit", views.JOBS_SHOWN, 0, 100_000))
    if served.access.may_see_jobs(request):
        return _json({**views.jobs(published, limit=limit), "shown": True})
    return _json({**views.jobs_summary(published), "jobs": [], "unreadable": [], "shown": False})


def _explain_job(served: Served, request: Request, body: bytes) -> Response:
    return _explained(served, request, body, "job", explain.job)


def _explain_node(served: Served, request: Request, body: bytes) -> Response:
    return _explained(served, request, body, "node", explain.node)


def _explain_type(served: Served, request: Request, body: bytes) -> Response:
    return _explained(served, request, body, "type", explain.node_type)


def _explained(
    served: Served, request: Request, body: bytes, kind: str, now: Callable[[Published, str], Document]
) -> Response:
    del body
    name = request.path_params["name"]
    if "at" in request.query_params:
        at = _number(request, "at", 0.0, 0.0, 1e11)
        return _json(explain.in_the_past(served.journal, kind, name, at))
    return _json(now(_published(served), name))


def _plan(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    return _json(views.plan(_published(served)))


def _plan_by(served: Served, request: Request, body: bytes) -> Response:
    """By another policy, on what is known now. Nothing is ordered."""
    del request
    published = _published(served)
    try:
        policy = POLICY.validate_json(body)
    except ValidationError as error:
        raise Refused(
            400, f"this is no policy: {error.error_count()} faults, the first: {_first(error)}"
        ) from error
    made = make_plan(published.snapshot, policy)
    return _json(views.plan(Published(published.snapshot, made, policy, acts=False)))


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _recent(served: Served, request: Request, body: bytes) -> Response:
    del body
    limit = int(_number(request, "limit", 200, 0, 2000))
    events = served.board.events_after(0, max(1, limit))
    return _json({"events": [entry_document(number, entry) for number, entry in events] if limit else []})


def entry_document(number: int, entry: Entry) -> Document:
    return {
        "number": number,
        "at": entry.at,
        "kind": entry.kind,
        "subject": entry.subject,
        "what": entry.what,
        "node_type": entry.node_type,
        "reason": views.as_document(entry.code, entry.figures) if entry.code else None,
        "figures": {name: views.plain(value) for name, value in entry.figures.items()},
    }


def _report(served: Served, request: Request, body: bytes) -> Response:
    del body
    now_at = _published(served).snapshot.wall_at
    since_s = _number(request, "since_s", 7 * 86_400.0, 1.0, YEAR_S)
    document = served.journal.report(now_at - since_s, now_at)
    for row in document["by_user"]:
        row["user"] = views.user_name(row["userid"])
    return _json(document)


def _healthz(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    well, document = health.healthy(served.board)
    return _json(document, 200 if well else 503)


def _readyz(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    well, document = health.ready(served.board)
    return _json(document, 200 if well else 503)


def _metrics(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    return Response(served.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _openapi(served: Served, request: Request, body: bytes) -> Response:
    del served, request, body
    return _json(openapi.document([it.operation for it in ENDPOINTS]))


def _page(file: str, media_type: str) -> Answer:
    def answer(served: Served, request: Request, body: bytes) -> Response:
        del served, request, body
        return FileResponse(STATIC / file, media_type=media_type)

    return answer


def _custom_metrics(served: Served, request: Request, body: bytes) -> Response:
    del served, request, body
    return _json(hpa.resources())


def _custom_metric(served: Served, request: Request, body: bytes) -> Response:
    del body
    name = request.path_params["metric"]
    if name not in hpa.METRICS:
        raise Refused(404, f"there is no metric {name}; there are {', '.join(hpa.METRICS)}")
    namespace = request.path_params.get("namespace", "default")
    described = request.path_params.get("name", "node-manager")
    return _json(hpa.value(_published(served), name, namespace, described))


# --- steering ---------------------------------------------------------------------------------------------


def _steers(act: Callable[[Control, str, str], Document]) -> Answer:
    def answer(served: Served, request: Request, body: bytes) -> Response:
        done = act(served.control, request.path_params.get("name", ""), _by(body))
        return _json(done, 200 if done["on_record"] else 202)

    return answer


def _by(body: bytes) -> str:
    """Who steers, by their own word: {"by": NAME}."""
    if not body:
        return "operator"
    try:
        given = json.loads(body)
    except ValueError as error:
        raise Refused(400, "the body is no JSON") from error
    by = given.get("by", "operator") if isinstance(given, dict) else None
    if not isinstance(by, str) or not by.isprintable() or not 0 < len(by) <= BY_MAX:
        raise Refused(400, f'the body is {{"by": NAME}}, the name of {BY_MAX} printable characters at most')
    return by


def _reload(served: Served, request: Request, body: bytes) -> Response:
    del request, body
    return _json(served.control.reload())


def _number(request: Request, name: str, default: float, least: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise Refused(400, f"{name} is a number from {least:g} to {most:g}")
    return number


# --- the list ---------------------------------------------------------------------------------------------

_AT = Parameter("at", "query", "seconds since the epoch: what the journal says was so then", {"type": "number"})
_LIMIT = Parameter("limit", "query", "at most so many", {"type": "integer"})
_NAME = Parameter("name", "path", "a slot or a launch", {"type": "string"})
_STEERING = (200, 202, 400, 404, 409)
_WHO = {"type": "object", "properties": {"by": {"type": "string"}}}
_METRIC = Parameter("metric", "path", "a metric's name", {"type": "string"})
_NAMESPACE = Parameter("namespace", "path", "taken as it is", {"type": "string"})
_RESOURCE = Parameter("resource", "path", "taken as it is", {"type": "string"})
_DESCRIBED = Parameter("name", "path", "taken as it is", {"type": "string"})

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/status", "The queue, the nodes, what they cost, what stands still", _status),
    Endpoint("GET", "/nodes", "Every node, with its reason", _nodes),
    Endpoint("GET", "/fleet", "Every node in a few characters", _fleet),
    Endpoint("GET", "/history", "The fleet over time, since the service began", _history),
    Endpoint("GET", "/jobs", "The active jobs, with their reasons; to the owner", _jobs, parameters=[_LIMIT]),
    Endpoint(
        "GET",
        "/explain/job/{name}",
        "Why a job waits",
        _explain_job,
        Access.must_see_jobs,
        [Parameter("name", "path", "a job's id, in any of Flux's forms", {"type": "string"}), _AT],
        (200, 400, 401, 404, 503),
    ),
    Endpoint("GET", "/explain/node/{name}", "Why a node is treated as it is", _explain_node, parameters=[_NAME, _AT]),
    Endpoint(
        "GET",
        "/explain/type/{name}",
        "Why a node type is bought, or not",
        _explain_type,
        parameters=[Parameter("name", "path", "a node type", {"type": "string"}), _AT],
    ),
    Endpoint("GET", "/plan", "What is ordered now, and why", _plan),
    Endpoint(
        "POST",
        "/plan",
        "What would be ordered by another policy; nothing is",
        _plan_by,
        Access.must_steer,
        statuses=(200, 400, 413),
        body={"type": "object"},
    ),
    Endpoint("GET", "/events/recent", "What happened lately, oldest first", _recent, parameters=[_LIMIT]),
    Endpoint(
        "GET",
        "/report",
        "Cost by type, user and queue; waits, boots, failures",
        _report,
        Access.must_see_jobs,
        [Parameter("since_s", "query", "how far back, in seconds", {"type": "number"})],
    ),
    Endpoint("GET", "/healthz", "503 where the last decision is late or a source stale", _healthz),
    Endpoint("GET", "/readyz", "503 until decisions are made", _readyz),
    Endpoint("GET", "/metrics", "For Prometheus", _metrics),
    Endpoint("POST", "/hold/{name}", "Never stop a node, and give it no work", _steers(Control.hold),
             Access.must_steer, [_NAME], _STEERING, _WHO),
    Endpoint("POST", "/release/{name}", "Take a hold or a retirement back", _steers(Control.release),
             Access.must_steer, [_NAME], _STEERING, _WHO),
    Endpoint("POST", "/retire/{name}", "Drain a node, stop it, destroy it", _steers(Control.retire),
             Access.must_steer, [_NAME], _STEERING, _WHO),
    Endpoint("POST", "/pause", "Decide nothing", _steers(lambda control, _, by: control.pause(by)),
             Access.must_steer, (), _STEERING, _WHO),
    Endpoint("POST", "/resume", "Decide again", _steers(lambda control, _, by: control.resume(by)),
             Access.must_steer, (), _STEERING, _WHO),
    Endpoint("POST", "/reload", "Read the site anew; a bad one is refused whole", _reload,
             Access.must_steer, (), (200, 400, 409)),
    Endpoint("GET", hpa.ROOT, "Custom metrics for Kubernetes: the list", _custom_metrics),
    Endpoint("GET", hpa.ROOT + "/namespaces/{namespace}/metrics/{metric}", "A custom metric", _custom_metric,
             parameters=[_NAMESPACE, _METRIC]),
    Endpoint("GET", hpa.ROOT + "/namespaces/{namespace}/{resource}/{name}/{metric}", "A custom metric",
             _custom_metric, parameters=[_NAMESPACE, _RESOURCE, _DESCRIBED, _METRIC]),
    Endpoint("GET", hpa.ROOT + "/{resource}/{name}/{metric}", "A custom metric", _custom_metric,
             parameters=[_RESOURCE, _DESCRIBED, _METRIC]),
)  # fmt: skip

PAGES: tuple[tuple[str, str, str], ...] = (
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/docs", "docs.html", "text/html; charset=utf-8"),
    ("/static/dashboard.js", "dashboard.js", "text/javascript; charset=utf-8"),
    ("/static/draw.js", "draw.js", "text/javascript; charset=utf-8"),
    ("/static/docs.js", "docs.js", "text/javascript; charset=utf-8"),
    ("/static/style.css", "style.css", "text/css; charset=utf-8"),
    ("/static/icon.svg", "icon.svg", "image/svg+xml"),
)


# --- the application --------------------------------------------------------------------------------------


def application(served: Served, hosts: Sequence[str], ended: Callable[[], bool]) -> Starlette:
    """The ASGI application. ``hosts``: the names by which it may be called; ``ended``: streams end when it is so."""
    streams = Streams(served.board, ended)
    routes = [
        *(_route(served, endpoint) for endpoint in ENDPOINTS),
        Route("/events", streams.answer, methods=["GET"]),
        Route("/openapi.json", _handler(served, anybody, _openapi), methods=["GET"]),
        *(Route(path, _handler(served, anybody, _page(file, kind)), methods=["GET"]) for path, file, kind in PAGES),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
        exception_handlers={HTTPException: _http_error},
    )


def _route(served: Served, endpoint: Endpoint) -> Route:
    return Route(
        endpoint.path,
        _handler(served, endpoint.allows, endpoint.answers),
        methods=[endpoint.method],
        name=f"{endpoint.method} {endpoint.path}",
    )


def _handler(served: Served, allows: Allows, answers: Answer) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        try:
            allows(served.access, request)
            body = await _body(request)
            response = await run_in_threadpool(answers, served, request, body)
        except Refused as refused:
            response = _json({"error": refused.why}, refused.status)
            if refused.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
        except explain.Unknown as unknown:
            response = _json({"error": str(unknown)}, 404)
        except JournalUnreadable as unreadable:
            response = _json({"error": f"the journal cannot be read: {unreadable}"}, 503)
        response.headers.update(HEADERS)
        return response

    return handle


async def _body(request: Request) -> bytes:
    if request.method != "POST":
        return b""
    parts: list[bytes] = []
    try:
        async for part in request.stream():
            parts.append(part)
            if sum(map(len, parts)) > BODY_MAX_BYTES:
                raise Refused(413, f"the body has more than {BODY_MAX_BYTES} bytes")
    except ClientDisconnect as error:
        raise Refused(400, "the body was cut short") from error
    return b"".join(parts)


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "failed"
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return JSONResponse({"error": detail}, status_code=status, headers={**headers, **HEADERS})


class Streams:
    """Server-sent events: every entry from now on, or from the one whose number the client saw last."""

    def __init__(self, board: Board, ended: Callable[[], bool]) -> None:
        self._board = board
        self._ended = ended
        self._open = 0

    async def answer(self, request: Request) -> Response:
        if self._open >= STREAMS_MAX:
            return JSONResponse(
                {"error": f"{STREAMS_MAX} clients follow already"}, status_code=503, headers=HEADERS
            )
        seen = request.headers.get("last-event-id", request.query_params.get("after", ""))
        latest = self._board.events_after(0, 1)
        after = int(seen) if seen.isascii() and seen.isdecimal() and len(seen) < 18 else -1
        if after < 0:
            after = latest[-1][0] if latest else 0
        return StreamingResponse(self._events(after), media_type="text/event-stream", headers=HEADERS)

    async def _events(self, after: int) -> AsyncIterator[str]:
        self._open += 1
        quiet_s = 0.0
        try:
            yield ": from here on\n\n"
            while not self._ended():
                for number, entry in self._board.events_after(after):
                    after = number
                    quiet_s = 0.0
                    data = json.dumps(entry_document(number, entry))
                    yield f"id: {number}\nevent: {entry.kind}\ndata: {data}\n\n"
                await asyncio.sleep(POLL_S)
                quiet_s += POLL_S
                if quiet_s >= KEEP_ALIVE_S:
                    quiet_s = 0.0
                    yield ": nothing new\n\n"
        finally:
            self._open -= 1
