"""The client of the running service: HTTP over its Unix socket, or over TCP if the site says so."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from nodemanager.config.site import Site
from nodemanager.web.listen import ListenAddress, TcpAddress, UnixSocket, listen_addresses
from nodemanager.web.state.token import NoTokenFile, TokenError, read_token

TIMEOUT_S = 30.0
STATUS_WITHIN_S = 5.0  # it is ready at any time
SILENCE_MAX_S = 60.0  # of a stream, on which the service sends a comment every 15 s
TOKEN_FILE_VARIABLE = "FLUX_NODE_MANAGER_TOKEN_FILE"  # noqa: S105 - the path of an operator's own token
LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a service that listens on all addresses


class ServiceUnreachable(Exception):
    """The service cannot be reached. The message names the address and what to do."""


class NotAllowed(Exception):
    """The service requires the token, and the client's is missing or wrong."""


class NotTheOwner(NotAllowed):
    """This user may not open the service's socket."""


class RequestDeclined(Exception):
    """The service refused the request. The message says why."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def listener_pid(self) -> int:
        """The process that listens on the socket; 0 if there is no connection."""
        try:
            pid, _, _ = struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except (OSError, AttributeError):
            return 0
        return int(pid)


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one service. Methods raise ``ServiceUnreachable``, ``NotAllowed`` or ``RequestDeclined``."""

    address: ListenAddress
    token_file: Path

    def status(self) -> Any:
        """Return the status document, or find out soon that the service hangs."""
        return self._request_json("GET", "/status", b"", must_have_token=False, within_s=STATUS_WITHIN_S)

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON document at a path. Parameters that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        path_and_query = f"{path}?{urlencode(given)}" if given else path
        return self._request_json("GET", path_and_query, b"", must_have_token=False)

    def post(self, path: str, body: bytes | dict[str, object]) -> Any:
        """Post a body, with the token, and return the JSON answer."""
        return self._request_json("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def follow(self, after: int | None = None) -> Generator[dict[str, Any], None, None]:
        """Yield each event as it happens, after the event numbered ``after``, until the service ends."""
        connection = self._connection(SILENCE_MAX_S)
        try:
            response = self._request(
                connection, "GET", f"/events?after={after}" if after is not None else "/events"
            )
            for line in response:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(
                f"{self.address}: the service ended or the connection broke: {error}"
            ) from error
        finally:
            connection.close()

    def _request_json(
        self, method: str, path: str, body: bytes, *, must_have_token: bool = True, within_s: float = TIMEOUT_S
    ) -> Any:
        connection = self._connection(within_s)
        try:
            answer = self._request(connection, method, path, body, must_have_token=must_have_token).read()
            return json.loads(answer)
        except TimeoutError as error:
            raise ServiceUnreachable(self._describe_hang(connection)) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(f"{self.address}: the service does not answer: {error}") from error
        except ValueError as error:
            raise ServiceUnreachable(f"{self.address}: something else than the service answers there") from error
        finally:
            connection.close()

    def _why_no_token(self, error: TokenError) -> str:
        """Say why there is no token to show. If the service runs, it knows why it could not make one."""
        if not isinstance(error, NoTokenFile):
            return str(error)
        try:
            ready = self._request_json("GET", "/readyz", b"", must_have_token=False, within_s=STATUS_WITHIN_S)
        except (ServiceUnreachable, NotAllowed, RequestDeclined):
            return str(error)
        why = ready.get("why") if isinstance(ready, dict) else ""
        return f"{self.token_file}: no token found, though the service runs: {why or 'it uses another token_file'}"

    def _describe_hang(self, connection: http.client.HTTPConnection) -> str:
        """Say that the service runs and does not answer, with its process if it is on this machine's socket."""
        process = ""
        if isinstance(connection, _UnixConnection) and (pid := connection.listener_pid()):
            process = f" (process {pid})"
        return (
            f"{self.address}: the service{process} has not answered within {connection.timeout:g} s: it hangs, or"
            " it is stopped. Restart it"
        )

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
                raise NotAllowed(self._why_no_token(error)) from error
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
        except TimeoutError as error:
            raise ServiceUnreachable(self._describe_hang(connection)) from error
        except PermissionError as error:
            raise NotTheOwner(f"{self.address}: {error.strerror}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnreachable(
                f"{self.address}: no service answers ({error}): is it running with this site?"
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
    not_allowed = response.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
    return NotAllowed(why) if not_allowed else RequestDeclined(why)


def make_client(site: Site) -> Client:
    """Make the client of a site's service. Raises ``ServiceUnreachable`` if the service does not listen.

    It shows the owner's token, or the one in the file that ``FLUX_NODE_MANAGER_TOKEN_FILE`` names.
    """
    places = listen_addresses(site.web.listen, site.state_dir)
    if not places:
        raise ServiceUnreachable(f"{site.path}: [Web] listen = off: the service cannot be asked")
    # Other users can block a TCP address, but not the owner's socket.
    usable = (it for it in places if isinstance(it, UnixSocket) and os.access(it.path, os.W_OK))
    own = os.environ.get(TOKEN_FILE_VARIABLE)
    return Client(next(usable, places[-1]), Path(own) if own else site.web.token_file)


def quote_segment(text: str) -> str:
    """Quote a name for use as one segment of a path."""
    return quote(text, safe="")
