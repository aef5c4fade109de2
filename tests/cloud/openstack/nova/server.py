"""A real Nova on loopback, in one process: API, conductor, scheduler, placement, a host without a hypervisor.

``server.py PORT PAGE`` is never imported. It runs in the Python of an environment with Nova, which
``bin/test --openstack`` makes. It prints ``READY PORT``. PAGE is the number of servers or flavors on a page. Nova's
own functional fixtures start Nova and replace the other services that Nova calls. This module adds the parts of
those services that a client sees: tokens and a catalog, images and networks by name. A tenant has the roles
``reader`` and ``member``. The header ``X-Control`` makes a call as administrator.

``POST /control`` sets faults: ``{"expire": true}`` expires all tokens, ``{"lose": n}`` lets the next n creates
succeed without an answer, ``{"throttle": n}`` refuses the next n calls, ``{"status": s, "times": n}`` fails them.
``GET /control`` returns every call since the previous one.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "true"
os.environ.setdefault("OS_TEST_TIMEOUT", "0")
os.environ.setdefault("OS_DEBUG", "0")

import nova
from nova import monkey_patch

monkey_patch.patch()

from nova.tests.functional import integrated_helpers  # noqa: E402

USER, PASSWORD, PROJECT = "demo", "not-a-secret", "demo"
APPLICATION_CREDENTIAL = ("application-credential", "not-a-secret-either")
Reply = Callable[..., Any]


class Cloud:
    """The middleware in front of Nova, and the faults that a test has set."""

    def __init__(
        self, nova_app: Any, project_id: str, images: list[dict[str, Any]], networks: list[dict[str, Any]]
    ) -> None:
        self.nova_app = nova_app
        self.project_id = project_id
        self.images = images
        self.networks = networks
        self.url = ""
        self.tokens: set[str] = set()
        self.issued = 0
        self.calls: list[list[str]] = []
        self.lose = self.throttle = self.times = self.status = 0

    def __call__(self, environ: dict[str, Any], start_response: Reply) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/control":
            return self._control(environ, start_response)
        administers = "HTTP_X_CONTROL" in environ
        if not administers:
            self.calls.append([method, path, environ.get("QUERY_STRING", "")])
        if path == "/v3/auth/tokens":
            return self._token(environ, start_response)
        if not administers and environ.get("HTTP_X_AUTH_TOKEN") not in self.tokens:
            message = {"error": {"code": 401, "title": "Unauthorized", "message": "The token is not valid."}}
            return answer(start_response, "401 Unauthorized", message)
        if not administers and self.throttle:
            self.throttle -= 1
            refused = {"overLimit": {"code": 429, "message": "This request was rate-limited.", "retryAfter": "3"}}
            return answer(start_response, "429 Too Many Requests", refused, [("Retry-After", "3")])
        if not administers and self.times:
            self.times -= 1
            return answer(start_response, f"{self.status} Failed", {"computeFault": {"message": "as told"}})
        if path.endswith(("/v2/images", "/v2.0/networks")):
            return self._named(environ, start_response)
        if path.endswith("/v2.0/security-groups"):
            return answer(start_response, "200 OK", {"security_groups": GROUPS})
        return self._nova(environ, start_response, administers=administers)

    def _nova(self, environ: dict[str, Any], start_response: Reply, *, administers: bool) -> Iterable[bytes]:
        environ["HTTP_X_AUTH_USER"] = "admin" if administers else USER
        environ["HTTP_X_AUTH_PROJECT_ID"] = self.project_id
        environ["HTTP_X_ROLES"] = "reader,member,admin" if administers else "reader,member"
        creating = environ["REQUEST_METHOD"] == "POST" and environ["PATH_INFO"].endswith("/servers")
        if not administers and creating and self.lose:
            self.lose -= 1
            list(self.nova_app(environ, lambda *_: None))
            environ["fnm.connection"].close_without_answer()
            raise ConnectionAbortedError("the reply is lost, as told")
        reply: Iterable[bytes] = self.nova_app(environ, start_response)
        return reply

    def _token(self, environ: dict[str, Any], start_response: Reply) -> Iterable[bytes]:
        auth = body_of(environ)["auth"]
        if not admitted(auth):
            refused = {"error": {"code": 401, "title": "Unauthorized", "message": "Wrong credentials."}}
            return answer(start_response, "401 Unauthorized", refused)
        self.issued += 1
        token = f"token-{self.issued}"
        self.tokens.add(token)
        catalog = [
            self._service("compute", "a name of its own", "/v2.1"),
            self._service("image", "glance", "/image"),
            self._service("network", "neutron", "/network/v2.0"),
        ]
        domain = {"id": "default", "name": "Default"}
        body = {
            "methods": ["password"],
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "project": {"id": self.project_id, "name": PROJECT, "domain": domain},
            "user": {"id": "1", "name": USER, "domain": domain},
            "roles": [{"id": "1", "name": "member"}],
            "catalog": catalog,
        }
        return answer(start_response, "201 Created", {"token": body}, [("X-Subject-Token", token)])

    def _service(self, kind: str, name: str, path: str) -> dict[str, Any]:
        regions = {"RegionOne": self.url + path, "RegionTwo": "http://127.0.0.1:9/elsewhere"}
        return {
            "type": kind,
            "name": name,
            "id": kind,
            "endpoints": [
                {"id": region, "interface": interface, "region": region, "region_id": region, "url": url}
                for region, url in regions.items()
                for interface in ("public", "internal")
            ],
        }

    def _named(self, environ: dict[str, Any], start_response: Reply) -> Iterable[bytes]:
        kind = environ["PATH_INFO"].rpartition("/")[2]
        asked = parse_qs(environ.get("QUERY_STRING", "")).get("name", [""])[0]
        known = self.images if kind == "images" else self.networks
        return answer(start_response, "200 OK", {kind: [item for item in known if asked in ("", item["name"])]})

    def _control(self, environ: dict[str, Any], start_response: Reply) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET":
            calls, self.calls = self.calls, []
            return answer(start_response, "200 OK", {"calls": calls, "project": self.project_id})
        turned = body_of(environ)
        if turned.pop("expire", False):
            self.tokens.clear()
        for knob, value in turned.items():
            setattr(self, knob, value)
        return answer(start_response, "200 OK", {})


def admitted(auth: dict[str, Any]) -> bool:
    identity = auth["identity"]
    if "application_credential" in identity:
        given = identity["application_credential"]
        return (given["id"], given["secret"]) == APPLICATION_CREDENTIAL and "scope" not in auth
    user = identity["password"]["user"]
    return (user["name"], user["password"], auth["scope"]["project"]["name"]) == (USER, PASSWORD, PROJECT)


def body_of(environ: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    return body


def answer(
    start_response: Reply, status: str, body: dict[str, Any], headers: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    data = json.dumps(body, default=str).encode()
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers])
    return [data]


class Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def get_environ(self) -> dict[str, Any]:
        return {**super().get_environ(), "fnm.connection": self}

    def close_without_answer(self) -> None:
        self.connection.close()


# As Neutron lists them, with the fields that are read.
GROUPS = [{"id": "1", "name": "default"}, {"id": "2", "name": "flux-lab"}, {"id": "3", "name": "web"}]


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore a connection that the client or the server closed."""


class Serve(integrated_helpers._IntegratedTestBase):  # type: ignore[misc]
    """Nova's fixtures need one of Nova's test cases. This one serves until its process ends."""

    compute_driver = "fake.MediumFakeDriver"

    def setUp(self) -> None:
        self.flags(compute_driver=self.compute_driver)
        self.flags(max_limit=int(sys.argv[2]), group="api")
        super().setUp()
        warnings.resetwarnings()
        warnings.simplefilter("ignore")

    def test_serve(self) -> None:
        images = [
            {"id": image["id"], "name": image["name"], "status": "active"} for image in self.glance.images.values()
        ]
        images.append({**images[0], "name": "ami-03cf127a"})
        networks = [dict(self.neutron.network_1, subnets=[])]
        cloud = Cloud(self.api_fixture.app(), self.api_fixture.project_id, images, networks)
        with make_server("127.0.0.1", int(sys.argv[1]), cloud, Server, Handler) as server:
            cloud.url = f"http://127.0.0.1:{server.server_port}"
            print("READY", server.server_port, flush=True)
            server.serve_forever()


def main() -> None:
    # The wheel installs Nova's api-paste.ini in the environment's etc, and Nova searches next to its packages.
    etc = Path(nova.__file__).parent.parent / "etc"
    if not etc.exists():
        etc.symlink_to(Path(sys.prefix) / "etc")
    result = unittest.TestResult()
    Serve("test_serve").run(result)
    for _, failure in result.errors + result.failures:
        sys.stderr.write(failure)
    sys.exit(1)


if __name__ == "__main__":
    main()
