"""A safe connection to Google Compute Engine, and the few API calls that a fleet needs.

It does not use libcloud's own create, list and destroy: they query zones, sizes, images and every disk of the
project, and wait for minutes. The API: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from libcloud.common.base import Connection, ConnectionUserAndKey
from libcloud.common.google import GoogleBaseError
from libcloud.compute.drivers.gce import GCEConnection, GCENodeDriver, GCEResponse

from nodemanager.cloud.common.transport import PAGES_MAX, NoRetry, malformed_reply, object_in, objects_in
from nodemanager.cloud.gce.credentials import TokenSource
from nodemanager.core.untrusted import read_json

_UNAUTHORIZED = 401
_PAGE_ITEMS = 500
_EMPTY_ZONE = "NO_RESULTS_ON_PAGE"
_KEYS_PATH = "/oauth2/v3/certs"  # at the host of the API, but no part of it
_SUMMARY = "VM_MIN_COUNT_NOT_REACHED"  # that a bulk insert failed; the errors beside it say why


class ApiError(GoogleBaseError):
    """An error of the API. ``finished`` is true if a running operation ended with this error."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str], *, finished: bool) -> None:
        super().__init__(f"{code}: {message}" if code else message, status, code)  # type: ignore[no-untyped-call]
        self.headers = headers
        self.finished = finished


class _Response(GCEResponse):
    """Parses a reply as a JSON object. Raises :class:`ApiError` if it holds an error, whatever its HTTP status."""

    def parse_body(self) -> Any:
        try:
            body = read_json(self.body or "")
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
        # Do not call GCEConnection.__init__: it fetches a token at once, and starting a thread must not fail.
        ConnectionUserAndKey.__init__(self, user_id, key, secure=secure, **named)  # type: ignore[no-untyped-call]
        self.request_path = f"/compute/v1/projects/{project}"
        self.gce_params = None

    def morph_action_hook(self, action: str) -> str:
        if action == _KEYS_PATH:
            return action
        # Images and networks may belong to another project.
        return f"/compute/v1{action}" if action.startswith("/projects/") else f"{self.request_path}{action}"

    def pre_connect_hook(self, params: Any, headers: Any) -> Any:
        if self.action == _KEYS_PATH:
            return params, headers  # public, so our token does not go there
        return super().pre_connect_hook(params, headers)  # type: ignore[no-untyped-call]

    def request(self, *arguments: Any, **named: Any) -> Any:
        # Do not call GCEConnection.request: if a connection is reset, it repeats every request, even a create.
        try:
            return Connection.request(self, *arguments, **named)  # type: ignore[no-untyped-call]
        except ApiError as error:
            if error.http_code != _UNAUTHORIZED:
                raise
        # The token became invalid early, and the request had no effect. Repeat it once with a new token.
        tokens: Any = self.oauth2_credential
        tokens.forget()
        return Connection.request(self, *arguments, **named)  # type: ignore[no-untyped-call]


class GceDriver(GCENodeDriver):
    """Calls the API for one project. Serves one thread. Constructing it makes no call."""

    connectionCls: Any = _Connection

    def __init__(
        self,
        project: str,
        tokens: TokenSource,
        *,
        timeout_s: float = 60.0,
        endpoint: str = "",
    ) -> None:
        """``endpoint`` replaces Google's own endpoint in tests."""
        super().__init__("", "", project=project, auth_type="SA", timeout=timeout_s)  # type: ignore[no-untyped-call]
        connection: Any = self.connection
        connection.oauth2_credential = tokens
        if endpoint:
            parts = urlsplit(endpoint)
            connection.host, connection.port, connection.secure = parts.hostname, parts.port, False
            connection.connect()

    def _ex_connection_class_kwargs(self) -> dict[str, Any]:
        return {"project": self.project}

    def instances(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return every instance with at least one of the labels, from all zones and all pages."""
        terms = [f'labels.{label} = "{value}"' for label, value in labels.items()]
        query = {"filter": terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)}
        return list(self._pages("/aggregated/instances", "instances", query))

    def instance(self, zone: str, name: str) -> dict[str, Any]:
        """Read one instance."""
        return self._call(f"/zones/{zone}/instances/{name}")

    def insert(self, zone: str, instance: Mapping[str, Any]) -> dict[str, Any]:
        """Start creating an instance, and return the operation."""
        return self._require_operation(self._call(f"/zones/{zone}/instances", method="POST", data=dict(instance)))

    def bulk_insert(self, zone: str, request: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start creating several instances, and return the operation. The same id again starts nothing more.

        ``request``: a BulkInsertInstanceResource. ``request_id``: a UUID.
        """
        return self._require_operation(
            self._call(
                f"/zones/{zone}/instances/bulkInsert",
                method="POST",
                params={"requestId": request_id},
                data=dict(request),
            )
        )

    def identity_keys(self) -> tuple[dict[str, Any], str]:
        """Return the JSON Web Keys with which Google signs identity tokens, and the reply's Cache-Control."""
        connection: Any = self.connection
        answer = connection.request(_KEYS_PATH)
        headers: Mapping[str, str] = answer.headers
        cached = next((text for name, text in headers.items() if name.lower() == "cache-control"), "")
        return answer.object, cached

    def operation(self, zone: str, name: str) -> dict[str, Any]:
        """Return the state of an operation. Raises :class:`ApiError` if the operation failed."""
        return self._require_operation(self._call(f"/zones/{zone}/operations/{name}"))

    def delete(self, zone: str, name: str) -> None:
        """Start deleting an instance and its auto-delete disks."""
        self._require_operation(self._call(f"/zones/{zone}/instances/{name}", method="DELETE"))

    def policies(self) -> list[dict[str, Any]]:
        """Return every resource policy of the project. Placement groups are such policies."""
        return list(self._pages("/aggregated/resourcePolicies", "resourcePolicies", {}))

    def policy(self, region: str, name: str) -> dict[str, Any]:
        """Read one resource policy."""
        return self._call(f"/regions/{region}/resourcePolicies/{name}")

    def insert_policy(self, region: str, policy: Mapping[str, Any]) -> None:
        """Start creating a resource policy."""
        self._require_operation(self._call(f"/regions/{region}/resourcePolicies", method="POST", data=dict(policy)))

    def delete_policy(self, region: str, name: str) -> None:
        """Start deleting a resource policy."""
        self._require_operation(self._call(f"/regions/{region}/resourcePolicies/{name}", method="DELETE"))

    def resource(self, path: str) -> dict[str, Any]:
        """Read one resource, such as ``global/networks/NAME``; ``projects/PROJECT/...`` in another project."""
        return self._call(f"/{path}" if path else "")

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return every object of a list, from all pages. ``path``: below the project, such as ``/regions``."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {"maxResults": _PAGE_ITEMS}
        for _ in range(PAGES_MAX):
            reply = self._call(path, params=params)
            found += objects_in({"items": [], **reply}, "items", f"the list {path}")
            if not reply.get("nextPageToken"):
                return found
            params["pageToken"] = reply["nextPageToken"]
        raise malformed_reply(f"the list {path} does not end", params)

    def _call(self, path: str, **named: Any) -> dict[str, Any]:
        connection: Any = self.connection
        answer: dict[str, Any] = connection.request(path, **named).object
        return answer

    def _require_operation(self, reply: dict[str, Any]) -> dict[str, Any]:
        if not (isinstance(reply.get("name"), str) and isinstance(reply.get("status"), str)):
            raise malformed_reply("the reply is not an operation", reply)
        return reply

    def _pages(self, path: str, kind: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        params: dict[str, Any] = {**query, "maxResults": _PAGE_ITEMS}
        for _ in range(PAGES_MAX):
            reply = self._call(path, params=params)
            yield from _objects_in(reply, kind)
            next_token = reply.get("nextPageToken")
            if not next_token:
                return
            if next_token == params.get("pageToken"):
                break
            params["pageToken"] = next_token
        raise malformed_reply(f"the list of {kind} does not end", params)


def _objects_in(reply: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of one page. Raises if the page is incomplete because a zone could not be listed."""
    items = reply.get("items", {}) if reply.get("id") else None
    if not isinstance(items, dict) or reply.get("unreachables"):
        raise malformed_reply(f"the list of {kind} is incomplete", reply.get("unreachables") or sorted(reply))
    for zone, found in items.items():
        warning = object_in(found, zone).get("warning") or {}
        if object_in(warning, zone).get("code", _EMPTY_ZONE) != _EMPTY_ZONE:
            raise malformed_reply(f"{zone} was not listed", warning)
        objects = found.get(kind, [])
        if not isinstance(objects, list):
            raise malformed_reply(f"{zone}: no list of {kind}", found)
        yield from (object_in(each, zone) for each in objects)


def _first_error(error: Any) -> tuple[str, str]:
    """Return the code and the message of an error, in any of Google's forms.

    Of several errors, those of the first one that gives a cause.
    """
    if not isinstance(error, dict):
        return "", str(error)
    errors = error.get("errors")
    found = [it for it in errors if isinstance(it, dict)] if isinstance(errors, list) else []
    first = next((it for it in found if it.get("code") != _SUMMARY), found[0] if found else {})
    code = first.get("reason") or first.get("code") or error.get("status") or ""
    return str(code), str(first.get("message") or error.get("message") or "no message")
