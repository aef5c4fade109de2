"""libcloud's connection to Google Compute Engine, made safe, and the few calls of the API that a fleet needs.

libcloud's own create, list and destroy are not used: they ask for zones, sizes, images and every disk of the
project, and wait for minutes. The API: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from libcloud.common.base import Connection, ConnectionUserAndKey
from libcloud.common.google import GoogleBaseError
from libcloud.compute.drivers.gce import GCEConnection, GCENodeDriver, GCEResponse

from nodemanager.cloud.common.transport import PAGES_MAX, NoRetry, malformed_reply, object_in
from nodemanager.cloud.gce.credentials import TokenSource

_UNAUTHORIZED = 401
_PAGE_ITEMS = 500
_EMPTY_ZONE = "NO_RESULTS_ON_PAGE"


class ApiError(GoogleBaseError):
    """What the API refused, with its code and headers. ``finished``: an operation that had begun ended in this."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str], *, finished: bool) -> None:
        super().__init__(f"{code}: {message}" if code else message, status, code)  # type: ignore[no-untyped-call]
        self.headers = headers
        self.finished = finished


class _Response(GCEResponse):
    """Every reply is a JSON object; one that holds an error is raised, whatever its status."""

    def parse_body(self) -> Any:
        try:
            body = json.loads(self.body or "")
        except ValueError:
            body = None
        if isinstance(body, dict) and "error" in body:
            code, message = _first_error(body["error"])
            finished = body.get("kind") == "compute#operation" and body.get("status") == "DONE"
            raise ApiError(self.status, code, message, self.headers, finished=finished)
        if not 200 <= self.status < 300:
            raise ApiError(
                self.status, "", f"HTTP {self.status} {self.error or ''}".strip(), self.headers, finished=False
            )
        return object_in(body, "a reply")


class _Connection(GCEConnection):
    responseCls = _Response
    retryCls: Any = NoRetry

    def __init__(self, user_id: str, key: str, secure: bool, project: str = "", **named: Any) -> None:
        named = {name: value for name, value in named.items() if name in ("timeout", "proxy_url")}
        # Not by way of Google's: it asks for a token at once, and begins in a thread that must not fail.
        ConnectionUserAndKey.__init__(self, user_id, key, secure=secure, **named)  # type: ignore[no-untyped-call]
        self.request_path = f"/compute/v1/projects/{project}"
        self.gce_params = None

    def request(self, *arguments: Any, **named: Any) -> Any:
        # Not by way of Google's: it repeats whatever met a reset connection, creates too.
        try:
            return Connection.request(self, *arguments, **named)  # type: ignore[no-untyped-call]
        except ApiError as error:
            if error.http_code != _UNAUTHORIZED:
                raise
        # The token ended before its time, and nothing was done: once more, with a new one.
        tokens: Any = self.oauth2_credential
        tokens.forget()
        return Connection.request(self, *arguments, **named)  # type: ignore[no-untyped-call]


class GceDriver(GCENodeDriver):
    """One project. Belongs to one thread. Makes no call before it is asked to."""

    connectionCls: Any = _Connection

    def __init__(
        self,
        project: str,
        tokens: TokenSource,
        *,
        timeout_s: float = 60.0,
        endpoint: str = "",
    ) -> None:
        """``endpoint`` stands in a test for Google's own."""
        super().__init__("", "", project=project, auth_type="SA", timeout=timeout_s)  # type: ignore[no-untyped-call]
        connection: Any = self.connection
        connection.oauth2_credential = tokens
        if endpoint:
            parts = urlsplit(endpoint)
            connection.host, connection.port, connection.secure = parts.hostname, parts.port, False
            connection.connect()

    def _ex_connection_class_kwargs(self) -> dict[str, Any]:
        return {"project": self.project}

    def instances(self, label: str, value: str) -> list[dict[str, Any]]:
        """Every instance in any zone that carries the label, from however many pages."""
        return list(self._pages("/aggregated/instances", {"filter": f'labels.{label} = "{value}"'}))

    def instance(self, zone: str, name: str) -> dict[str, Any]:
        return self._call(f"/zones/{zone}/instances/{name}")

    def insert(self, zone: str, instance: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to make an instance; give the operation."""
        return self._require_operation(self._call(f"/zones/{zone}/instances", method="POST", data=dict(instance)))

    def operation(self, zone: str, name: str) -> dict[str, Any]:
        """How far an operation is. Raises :class:`ApiError` once it has failed."""
        return self._require_operation(self._call(f"/zones/{zone}/operations/{name}"))

    def delete(self, zone: str, name: str) -> None:
        """Begin to delete an instance, and what of its disks is to go with it."""
        self._require_operation(self._call(f"/zones/{zone}/instances/{name}", method="DELETE"))

    def _call(self, path: str, **named: Any) -> dict[str, Any]:
        connection: Any = self.connection
        answer: dict[str, Any] = connection.request(path, **named).object
        return answer

    def _require_operation(self, reply: dict[str, Any]) -> dict[str, Any]:
        if not (isinstance(reply.get("name"), str) and isinstance(reply.get("status"), str)):
            raise malformed_reply("an operation was expected", reply)
        return reply

    def _pages(self, path: str, asked: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        params: dict[str, Any] = {**asked, "maxResults": _PAGE_ITEMS}
        for _ in range(PAGES_MAX):
            reply = self._call(path, params=params)
            yield from _instances_in(reply)
            following = reply.get("nextPageToken")
            if not following:
                return
            if following == params.get("pageToken"):
                break
            params["pageToken"] = following
        raise malformed_reply("the list of instances does not end", params)


def _instances_in(reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The instances of one page. A zone that could not be asked makes the list a part of one."""
    items = reply.get("items", {}) if reply.get("id") else None
    if not isinstance(items, dict) or reply.get("unreachables"):
        raise malformed_reply("the list of instances is not whole", reply.get("unreachables") or sorted(reply))
    for zone, found in items.items():
        warning = object_in(found, zone).get("warning") or {}
        if object_in(warning, zone).get("code", _EMPTY_ZONE) != _EMPTY_ZONE:
            raise malformed_reply(f"{zone} was not listed", warning)
        instances = found.get("instances", [])
        if not isinstance(instances, list):
            raise malformed_reply(f"{zone}: no list of instances", found)
        yield from (object_in(instance, zone) for instance in instances)


def _first_error(error: Any) -> tuple[str, str]:
    """The code and the words of an error, in whichever of Google's forms it came."""
    if not isinstance(error, dict):
        return "", str(error)
    errors = error.get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    code = first.get("reason") or first.get("code") or error.get("status") or ""
    return str(code), str(first.get("message") or error.get("message") or "no words")
