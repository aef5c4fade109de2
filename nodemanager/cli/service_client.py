"""The verbs' way to the running service: HTTP by its socket, or by TCP where the site says so."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from nodemanager.config.site import Site
from nodemanager.web.listen import ListenAddress, TcpAddress, parse_listen
from nodemanager.web.token import TokenError, read_token

TIMEOUT_S = 30.0
SILENCE_MAX_S = 60.0  # of a stream, in which the service says every 15 s that there is nothing new
LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a service that listens everywhere is asked


class ServiceUnreachable(Exception):
    """The service cannot be reached; says where it was looked for, and what to do."""


class NotAllowed(Exception):
    """The service wants the token, and it cannot be had or is another one."""


class RequestDeclined(Exception):
    """The service said no, and why."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one service. Every method raises ``ServiceAway``, ``NotAllowed`` or ``NotDone``."""

    address: ListenAddress
    token_file: Path

    def get(self, path: str, **query: object) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        asked = f"{path}?{urlencode(given)}" if given else path
        return self._request_json("GET", asked, b"", must_have_token=False)

    def post(self, path: str, body: bytes | dict[str, object]) -> Any:
        return self._request_json("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def follow(self, after: int | None = None) -> Generator[dict[str, Any], None, None]:
        """Each event as it happens, until the service ends."""
        connection = self._connection(SILENCE_MAX_S)
        try:
            response = self._request(
                connection, "GET", f"/events?after={after}" if after is not None else "/events"
            )
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(f"{self.address}: the service went away: {error}") from error
        finally:
            connection.close()

    def _request_json(self, method: str, path: str, body: bytes, *, must_have_token: bool = True) -> Any:
        connection = self._connection(TIMEOUT_S)
        try:
            answer = self._request(connection, method, path, body, must_have_token=must_have_token).read()
            return json.loads(answer)
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(f"{self.address}: the service does not answer: {error}") from error
        except ValueError as error:
            raise ServiceUnreachable(f"{self.address}: what answers there is not this service") from error
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if isinstance(self.address, TcpAddress):
            host = LOOPBACK_OF_WILDCARD.get(self.address.host, self.address.host)
            return http.client.HTTPConnection(host, self.address.port, timeout=timeout_s)
        return _UnixConnection(self.address.path, timeout_s)

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        must_have_token: bool = False,
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            headers["Authorization"] = f"Bearer {read_token(self.token_file)}"
        except TokenError as error:
            if must_have_token:
                raise NotAllowed(str(error)) from error
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(
                f"{self.address}: no service answers ({error}): does it run, by this site?"
            ) from error
        if response.status >= http.client.BAD_REQUEST and not path.startswith(("/healthz", "/readyz")):
            raise _refusal(response)
        return response


def _refusal(response: http.client.HTTPResponse) -> Exception:
    text = response.read().decode(errors="replace")
    try:
        why = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        why = text.strip() or response.reason
    return NotAllowed(why) if response.status == http.client.UNAUTHORIZED else RequestDeclined(why)


def make_client(site: Site) -> Client:
    """Raises ``ServiceAway`` where the site has no service to ask."""
    place = parse_listen(site.web.listen)
    if place is None:
        raise ServiceUnreachable(f"{site.path}: [Web] listen = off: there is nothing to ask")
    return Client(place, site.web.token_file)


def quote_segment(text: str) -> str:
    """A name as one part of a path."""
    return quote(text, safe="")
