"""The ASGI application: the endpoints behind their access checks, the pages, and the event stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nodemanager.history.store.reader import HistoryUnreadable
from nodemanager.web.api import explain, openapi
from nodemanager.web.api.endpoints import ENDPOINTS, Endpoint
from nodemanager.web.api.handlers import Handler, WebContext, json_response
from nodemanager.web.api.hidden_jobs import HiddenBodies
from nodemanager.web.api.sse import EventStreams
from nodemanager.web.state.access import AccessCheck, RequestRefused, allow_anybody

STATIC = Path(__file__).parent / "static"
BODY_MAX_BYTES = 1 << 20

SECURITY_HEADERS = {
    # The pages need nothing from elsewhere, so the browser must load nothing else.
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

PAGES: tuple[tuple[str, str, str], ...] = (
    ("/", "index.html", "text/html; charset=utf-8"),
    ("/docs", "docs.html", "text/html; charset=utf-8"),
    ("/static/dashboard.js", "dashboard.js", "text/javascript; charset=utf-8"),
    ("/static/page.js", "page.js", "text/javascript; charset=utf-8"),
    ("/static/steer.js", "steer.js", "text/javascript; charset=utf-8"),
    ("/static/subject.js", "subject.js", "text/javascript; charset=utf-8"),
    ("/static/panels.js", "panels.js", "text/javascript; charset=utf-8"),
    ("/static/whatif.js", "whatif.js", "text/javascript; charset=utf-8"),
    ("/static/draw.js", "draw.js", "text/javascript; charset=utf-8"),
    ("/static/docs.js", "docs.js", "text/javascript; charset=utf-8"),
    ("/static/style.css", "style.css", "text/css; charset=utf-8"),
    ("/static/icon.svg", "icon.svg", "image/svg+xml"),
)


# --- the application --------------------------------------------------------------------------------------


def make_application(context: WebContext, hosts: Sequence[str], ended: Callable[[], bool]) -> Starlette:
    """Make the ASGI application.

    ``hosts``: the ``Host`` names it answers to. ``ended``: whether the server stops, which ends open streams.
    """
    streams = EventStreams(context.board, context.access, ended)
    hidden = HiddenBodies(context.board)
    routes = [
        *(_route(context, endpoint, hidden) for endpoint in ENDPOINTS),
        Route("/events", streams.respond, methods=["GET"]),
        Route("/openapi.json", _http_handler(context, allow_anybody, _openapi, hidden), methods=["GET"]),
        *(
            Route(path, _http_handler(context, allow_anybody, _page_handler(file, kind), hidden), methods=["GET"])
            for path, file, kind in PAGES
        ),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )


def _route(context: WebContext, endpoint: Endpoint, hidden: HiddenBodies) -> Route:
    return Route(
        endpoint.path,
        _http_handler(context, endpoint.access_check, endpoint.handler, hidden),
        methods=[endpoint.method],
        name=f"{endpoint.method} {endpoint.path}",
    )


def _http_handler(
    context: WebContext, check_access: AccessCheck, handler: Handler, hidden: HiddenBodies
) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        try:
            check_access(context.access, request)
            body = await _read_body(request)
            response = await run_in_threadpool(handler, context, request, body)
            if response.media_type == "application/json" and not context.access.may_see_jobs(request):
                response = await run_in_threadpool(_without_jobs, hidden, request, response)
        except RequestRefused as refused:
            response = json_response({"error": refused.why}, refused.status)
            if refused.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
        except explain.UnknownSubject as unknown:
            response = json_response({"error": str(unknown)}, 404)
        except HistoryUnreadable as unreadable:
            response = json_response({"error": f"the history cannot be read: {unreadable}"}, 503)
        return response

    return handle


def _without_jobs(hidden: HiddenBodies, request: Request, response: Response) -> Response:
    body = hidden.of(f"{request.url.path}?{request.url.query}", bytes(response.body))
    return Response(body, response.status_code, media_type=response.media_type)


async def _read_body(request: Request) -> bytes:
    if request.method != "POST":
        return b""
    parts: list[bytes] = []
    try:
        async for part in request.stream():
            parts.append(part)
            if sum(map(len, parts)) > BODY_MAX_BYTES:
                raise RequestRefused(413, f"the body is larger than {BODY_MAX_BYTES} bytes")
    except ClientDisconnect as error:
        raise RequestRefused(400, "the body was cut short") from error
    return b"".join(parts)


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "failed"
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return JSONResponse({"error": detail}, status_code=status, headers=headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer after a bug, which is in the log. This runs outside all middleware, so it adds the headers itself."""
    del request, error
    return JSONResponse(
        {"error": "this failed because of a bug; see the service's log"}, 500, headers=SECURITY_HEADERS
    )


def _openapi(context: WebContext, request: Request, body: bytes) -> Response:
    del context, request, body
    return json_response(openapi.document([it.operation for it in ENDPOINTS]))


def _page_handler(file: str, media_type: str) -> Handler:
    def answer(context: WebContext, request: Request, body: bytes) -> Response:
        del context, request, body
        return FileResponse(STATIC / file, media_type=media_type)

    return answer


class SecurityHeaders:
    """Adds ``SECURITY_HEADERS`` to every answer, including those of the middleware behind it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with)
