"""Calls of the Kubernetes API: read, list, patch and watch. Failures become :class:`CloudError`.

Nothing is retried here, except a call whose token was refused: Kubernetes may have rotated it since it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import requests

from nodemanager.cloud.common.retry_after import parse_retry_after
from nodemanager.cloud.minicluster.access import Access, AccessError
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError

MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
WATCH_S = 300.0  # after which the server ends a watch
PAGE_MAX = 500  # objects
_DETAIL_MAX_CHARS = 500
_CONNECT_S = 10.0
_WATCH_SILENT_S = 90.0  # longer than between two bookmarks, which come about once a minute


class Conflict(Exception):
    """The object has changed since it was read (409)."""


class WatchExpired(Exception):
    """The server no longer has the changes since this resource version (410): list again."""


class Client:
    """One connection to an API server. An object belongs to one thread."""

    def __init__(self, access: Access, clock: Clock, *, timeout_s: float) -> None:
        self._access = access
        self._clock = clock
        self._timeout_s = timeout_s
        self._session = requests.Session()
        # Else a .netrc would replace the Authorization header, and a proxy of the site would be asked.
        self._session.trust_env = False
        self._session.verify = access.verify
        self._session.cert = access.client_certificate
        self._session.proxies = {"https": access.proxy, "http": access.proxy} if access.proxy else {}

    def get(self, path: str) -> dict[str, Any]:
        """Read an object. Raises :class:`CloudError`."""
        return self._read(self._call("GET", path), path)

    def list(self, path: str, **query: str) -> list[dict[str, Any]]:
        """List all objects, page by page. Raises :class:`CloudError`."""
        items: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            found = self._read(self._call("GET", path, {**query, "limit": str(PAGE_MAX), **more}), path)
            page = found.get("items")
            if not isinstance(page, list):
                raise CloudError(FailureKind.TRANSIENT, f"{path}: the answer is no list")
            items += page
            next_page = (found.get("metadata") or {}).get("continue")
            if not next_page:
                return items
            more = {"continue": str(next_page)}

    def patch(self, path: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change an object by a merge patch. Raises :class:`CloudError`, and :class:`Conflict`.

        Without a clear answer the error is ``AMBIGUOUS``: the change may have been made.
        """
        return self._read(self._call("PATCH", path, change=change), path)

    def version(self, path: str, **query: str) -> str:
        """Return the resource version from which a watch of a list begins. Raises :class:`CloudError`."""
        found = self._read(self._call("GET", path, {**query, "limit": "1"}), path)
        return str((found.get("metadata") or {}).get("resourceVersion", ""))

    def watch(self, path: str, version: str, **query: str) -> Iterator[tuple[str, str]]:
        """Follow a list from a resource version: yield the type and the version of each event.

        It ends when the server ends it. Raises :class:`CloudError`, and :class:`WatchExpired`.
        """
        asked = {
            **query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": f"{WATCH_S:.0f}",
        }
        response = self._call("GET", path, asked, accept=METADATA_ONLY, stream=True)
        with response, self._as_cloud_errors(changing=False):
            for line in response.iter_lines():
                if line:
                    yield _read_event(line)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        change: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        stream: bool = False,
    ) -> requests.Response:
        response = self._send(method, path, query, change, accept, stream)
        if response.status_code == requests.codes.unauthorized:
            response.close()
            self._access.forget()
            response = self._send(method, path, query, change, accept, stream)
        if response.ok and not response.is_redirect:
            return response
        with response:
            self._raise(response, method, path)
        raise AssertionError

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        change: Mapping[str, Any] | None,
        accept: str,
        stream: bool,
    ) -> requests.Response:
        headers = {"Accept": accept, "User-Agent": "flux-node-manager"}
        if change is not None:
            headers["Content-Type"] = MERGE_PATCH
        try:
            token = self._access.token()
        except AccessError as error:
            raise CloudError(FailureKind.CREDENTIALS, str(error)) from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        with self._as_cloud_errors(changing=change is not None):
            return self._session.request(
                method,
                self._access.server + path,
                params=query,
                data=json.dumps(change) if change is not None else None,
                headers=headers,
                timeout=(_CONNECT_S, _WATCH_SILENT_S if stream else self._timeout_s),
                allow_redirects=False,
                stream=stream,
            )

    def _raise(self, response: requests.Response, method: str, path: str) -> None:
        """Raise the error for a response that is no success."""
        status = response.status_code
        detail = f"{method} {path.rpartition('/')[2]}: {_message(response)}"[:_DETAIL_MAX_CHARS]
        wait_s = parse_retry_after(response.headers.get("Retry-After", ""), self._clock.wall_at())
        unsure = FailureKind.AMBIGUOUS if method == "PATCH" else FailureKind.TRANSIENT
        match status:
            case requests.codes.conflict:
                raise Conflict(detail)
            case requests.codes.gone:
                raise WatchExpired(detail)
            case requests.codes.unauthorized:
                raise CloudError(FailureKind.CREDENTIALS, f"{detail}: the API server accepts no such token")
            case requests.codes.forbidden:
                raise CloudError(FailureKind.CREDENTIALS, f"{detail}: add it to the manager's role")
            case requests.codes.too_many_requests:
                raise CloudError(FailureKind.THROTTLED, detail, wait_s or 1.0)
            case requests.codes.service_unavailable if wait_s:
                raise CloudError(FailureKind.THROTTLED, detail, wait_s)
            case int() if 400 <= status < 500:
                raise CloudError(FailureKind.CONFIG, detail)
            case _:
                raise CloudError(unsure, detail, wait_s)

    def _read(self, response: requests.Response, path: str) -> dict[str, Any]:
        with self._as_cloud_errors(changing=response.request.method == "PATCH"):
            try:
                found = response.json()
            except ValueError as error:
                raise CloudError(FailureKind.TRANSIENT, f"{path}: the answer is not JSON") from error
        if not isinstance(found, dict):
            raise CloudError(FailureKind.TRANSIENT, f"{path}: the answer is no object")
        return found

    @contextmanager
    def _as_cloud_errors(self, *, changing: bool) -> Iterator[None]:
        try:
            yield
        except requests.exceptions.SSLError as error:
            detail = f"the API server's certificate is not accepted: {error}"[:_DETAIL_MAX_CHARS]
            raise CloudError(FailureKind.CREDENTIALS, detail) from error
        except requests.exceptions.ConnectTimeout as error:
            raise CloudError(FailureKind.TRANSIENT, f"the API server does not answer: {error}") from error
        except requests.exceptions.RequestException as error:
            kind = FailureKind.AMBIGUOUS if changing else FailureKind.TRANSIENT
            raise CloudError(kind, f"{type(error).__name__}: {error}"[:_DETAIL_MAX_CHARS]) from error


def _read_event(line: bytes) -> tuple[str, str]:
    try:
        event = json.loads(line)
        kind, found = str(event["type"]), event["object"]
        if kind == "ERROR":
            if found.get("code") == requests.codes.gone:
                raise WatchExpired(str(found.get("message", "")))
            raise CloudError(FailureKind.TRANSIENT, f"the watch ended: {found.get('message', '')}")
        return kind, str(found["metadata"].get("resourceVersion", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CloudError(FailureKind.TRANSIENT, f"an event of the watch cannot be read: {error}") from error


def _message(response: requests.Response) -> str:
    """The API server's own words, from its Status object."""
    try:
        found = response.json()
    except ValueError:
        return f"HTTP {response.status_code}"
    return str(found.get("message") or f"HTTP {response.status_code}") if isinstance(found, dict) else "no Status"
