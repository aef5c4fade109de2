"""Replacements for parts of libcloud's transport: no hidden retries, and errors passed on unchanged.

If an environment variable is set, libcloud repeats every failed request, even a create: one create then made two
nodes. And libcloud turns an unreadable Retry-After, or an error without a body, into an exception that looks like
a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError, MalformedResponseError

PAGES_MAX = 1_000

_BODY_SHOWN_MAX = 200

T = TypeVar("T")


class NoRetry:
    """Replaces libcloud's retry class and never retries, even if LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS is set."""

    def __init__(self, **_: object) -> None:
        pass

    def __call__(self, request: Callable[..., T]) -> Callable[..., T]:
        return request


class MisconfiguredError(LibcloudError):
    """The site names something that does not exist, or a name that several things share. Nothing was changed."""


def malformed_reply(what: str, body: object) -> MalformedResponseError:
    """Build the error for a reply that does not follow the provider's API. ``what`` describes the fault."""
    return MalformedResponseError(what, str(body)[:_BODY_SHOWN_MAX])


def raise_http_error(status: int, message: str, headers: Mapping[str, str]) -> NoReturn:
    """Raise an HTTP error with its headers unchanged."""
    raise BaseHTTPError(status, message, headers)  # type: ignore[no-untyped-call]


def object_in(reply: Any, what: str) -> dict[str, Any]:
    """Return ``reply`` if it is a JSON object. Raises ``MalformedResponseError``. ``what`` names the reply."""
    if not isinstance(reply, dict):
        raise malformed_reply(f"{what}: not a JSON object", reply)
    return reply


def objects_in(reply: Any, key: str, what: str) -> list[dict[str, Any]]:
    """Return the list of JSON objects under ``key``. Raises if the key is missing: that is no empty list."""
    found = object_in(reply, what).get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise malformed_reply(f'{what}: no list "{key}"', reply)
    return found
