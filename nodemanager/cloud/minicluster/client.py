"""Calls of the Kubernetes API: read, list, patch and watch. Failures become :class:`CloudError`.

Nothing is retried here, except a call whose token was refused: Kubernetes may have rotated it since it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import requests

from nodemanager.cloud.common.retry_after import parse_retry_after
from nodemanager.cloud.minicluster.access import Access, AccessError
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.untrusted import SIZE_MAX, UnreadableText, read_json, read_object

MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
WATCH_S = 300.0  # after which the server ends a watch
PAGE_MAX = 500  # objects
PAGES_MAX = 1_000  # of one list; a server that always names a next page would never end it
LIST_TRIES = 3  # of a list whose ``continue`` token expires on the way
_DETAIL_MAX_CHARS = 500
_PART_BYTES = 1 << 16
_LINE_PART_BYTES = 512  # of a watch: a larger part would keep an event waiting
_CONNECT_S = 10.0
_WATCH_SILENT_S = 90.0  # longer than between two bookmarks, which come about once a minute


Objects = list[dict[str, Any]]


class Conflict(Exception):
    """The object has changed since it was read: a PATCH was answered with 409."""


class WatchExpired(CloudError):
    """The server no longer has the objects at this resource version (410): list again."""

    def __init__(self, detail: str) -> None:
        super().__init__(FailureKind.TRANSIENT, detail)


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

    def list(self, path: str, **query: str) -> Objects:
        """List all objects, page by page. Raises :class:`CloudError`.

        If the server forgets the list's resource version between two pages, the list begins again.
        """
        for _ in range(LIST_TRIES - 1):
            with suppress(WatchExpired):
                return self._list_once(path, query)
        return self._list_once(path, query)

    def _list_once(self, path: str, query: Mapping[str, str]) -> Objects:
        items: Objects = []
        more: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            found = self._read(self._call("GET", path, {**query, "limit": str(PAGE_MAX), **more}), path)
            page = found.get("items")
            if not isinstance(page, list):
                raise CloudError(FailureKind.TRANSIENT, f"{path}: the answer is no list")
            items += page
            next_page = (found.get("metadata") or {}).get("continue")
            if not next_page:
                return items
            more = {"continue": str(next_page)}
        raise CloudError(FailureKind.TRANSIENT, f"{path}: the list does not end after {PAGES_MAX} pages")

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

        It ends when the server ends it. Raises :class:`CloudError`, as :class:`WatchExpired` if the version is too
        old.
        """
        asked = {
            **query,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": f"{WATCH_S:.0f}",
        }
        response = self._call("GET", path, asked, accept=METADATA_ONLY, silent_s=_WATCH_SILENT_S)
        with response, self._as_cloud_errors(changing=False):
            for line in _lines(response):
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
        silent_s: float | None = None,
    ) -> requests.Response:
        """Return a response whose body is not read yet."""
        response = self._send(method, path, query, change, accept, silent_s)
        if response.status_code == requests.codes.unauthorized:
            response.close()
            self._access.forget()
            response = self._send(method, path, query, change, accept, silent_s)
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
        silent_s: float | None,
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
                timeout=(_CONNECT_S, silent_s or self._timeout_s),
                allow_redirects=False,
                stream=True,
            )

    def _raise(self, response: requests.Response, method: str, path: str) -> None:
        """Raise the error for a response that is no success."""
        status = response.status_code
        detail = f"{method} {path.rpartition('/')[2]}: {_message(response)}"[:_DETAIL_MAX_CHARS]
        wait_s = parse_retry_after(response.headers.get("Retry-After", ""), self._clock.wall_at())
        unsure = FailureKind.AMBIGUOUS if method == "PATCH" else FailureKind.TRANSIENT
        match status:
            case requests.codes.conflict if method == "PATCH":
                raise Conflict(detail)
            case requests.codes.gone:
                raise WatchExpired(detail)
            case requests.codes.unauthorized:
                raise CloudError(FailureKind.CREDENTIALS, f"{detail}: the API server accepts no such token")
            case requests.codes.forbidden:
                raise CloudError(FailureKind.CREDENTIALS, f"{detail}: add it to the manager's role")
            case requests.codes.conflict | requests.codes.request_timeout:
                raise CloudError(unsure, detail, wait_s)
            case requests.codes.too_many_requests:
                raise CloudError(FailureKind.THROTTLED, detail, wait_s or 1.0)
            case requests.codes.service_unavailable if wait_s:
                raise CloudError(FailureKind.THROTTLED, detail, wait_s)
            case int() if 400 <= status < 500:
                raise CloudError(FailureKind.CONFIG, detail)
            case _:
                raise CloudError(unsure, detail, wait_s)

    def _read(self, response: requests.Response, path: str) -> dict[str, Any]:
        changing = response.request.method == "PATCH"
        with response, self._as_cloud_errors(changing=changing):
            try:
                return dict(read_object(_body(response)))
            except UnreadableText as error:
                kind = FailureKind.AMBIGUOUS if changing else FailureKind.TRANSIENT
                raise CloudError(kind, f"{path}: the answer cannot be read: {error}"[:_DETAIL_MAX_CHARS]) from error

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


def _body(response: requests.Response) -> bytes:
    """Read a body of up to ``SIZE_MAX`` bytes, and no more of a longer one. Raises ``UnreadableText``."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_content(_PART_BYTES):
        size += len(part)
        if size > SIZE_MAX:
            raise UnreadableText(f"it has more than {SIZE_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _lines(response: requests.Response) -> Iterator[bytes]:
    """Read the lines that are not empty, as they arrive. Raises :class:`CloudError` if one is too long."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_content(_LINE_PART_BYTES):
        *ends, rest = part.split(b"\n")
        for end in ends:
            if line := b"".join([*parts, end]):
                yield line
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > SIZE_MAX:
            raise CloudError(FailureKind.TRANSIENT, f"an event of the watch has more than {SIZE_MAX} bytes")
    if line := b"".join(parts):
        yield line


def _read_event(line: bytes) -> tuple[str, str]:
    try:
        event = read_json(line)
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
        found = read_json(_body(response))
    except (ValueError, requests.exceptions.RequestException):
        return f"HTTP {response.status_code}"
    return str(found.get("message") or f"HTTP {response.status_code}") if isinstance(found, dict) else "no Status"
