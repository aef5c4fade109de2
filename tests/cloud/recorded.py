"""A service on loopback that sends recorded or written replies, and records the calls it receives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import libcloud

from tests.paths import DATA

SERVICE = "http://openstack.test"  # replaces the service's address in recordings


LIBCLOUDS = Path(libcloud.__file__).parent / "test" / "compute" / "fixtures"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False  # the call takes effect, but gets no answer


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: Any  # parsed JSON, or else the text


LOST = Reply(0, lost=True)


def said(body: Any, status: int = 200, **headers: str) -> Reply:
    """Build a JSON reply. ``Retry_After="3"`` adds a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(body), {"Content-Type": "application/json", **named})


def recorded(name: str, **changes: Any) -> Reply:
    """Return the recorded reply of that name in ``tests/data``, with ``changes`` merged into its object."""
    kept = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    body = kept["body"]
    return Reply(kept["status"], json.dumps(body | changes) if body is not None else "", kept["headers"])


def of_libcloud(name: str) -> Any:
    """Return a provider's reply that is recorded in libcloud's own tests."""
    return json.loads((LIBCLOUDS / f"{name}.json").read_text(encoding="utf-8"))


class Service:
    """Sends the replies of each path in order, then repeats the last one. An unknown path gets 404."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[Call] = []
        self.on_call: Callable[[], None] = lambda: None
        self._replies: dict[tuple[str, str], list[Reply]] = {}

    def says(self, method: str, path: str, *replies: Reply) -> None:
        self._replies[method, path] = list(replies)

    def asked(self, method: str, path: str) -> list[Call]:
        return [call for call in self.calls if (call.method, call.path) == (method, path)]

    def answer(self, call: Call) -> Reply:
        self.calls.append(call)
        self.on_call()
        replies = self._replies.get((call.method, call.path))
        if not replies:
            return said({"itemNotFound": {"code": 404, "message": f"no {call.path}"}}, 404)
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return replace(reply, body=reply.body.replace(SERVICE, self.url))


S = TypeVar("S", bound=Service)


@contextmanager
def a_service(kind: type[S]) -> Iterator[S]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        service = kind(f"http://127.0.0.1:{server.server_port}")
        setattr(server, "service", service)  # noqa: B010 - the handler sees only its server
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # for any method
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        is_json = "json" in self.headers.get("Content-Type", "")
        body = json.loads(content) if content and is_json else content.decode()
        service: Service = getattr(self.server, "service")  # noqa: B009
        reply = service.answer(Call(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
        if reply.lost:
            self.connection.close()
            return
        data = reply.body.encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
