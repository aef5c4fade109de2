"""What every libcloud connection of ours does otherwise than libcloud: no retries of its own, errors as they came.

libcloud repeats requests when the environment says so, creates too (one create made two nodes); and it turns a
Retry-After that it cannot read, or an error without a body, into an exception that looks like a bug.
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
    """Stands where libcloud has its retry, whatever LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS says."""

    def __init__(self, **_: object) -> None:
        pass

    def __call__(self, request: Callable[..., T]) -> Callable[..., T]:
        return request


class MisconfiguredError(LibcloudError):
    """What the site names is not there, or is not one thing. Nothing was changed."""


def malformed_reply(what: str, body: object) -> MalformedResponseError:
    """The error for a reply that is not what the provider's API says."""
    return MalformedResponseError(what, str(body)[:_BODY_SHOWN_MAX])


def raise_http_error(status: int, message: str, headers: Mapping[str, str]) -> NoReturn:
    """Raise an HTTP error with its headers untouched."""
    raise BaseHTTPError(status, message, headers)  # type: ignore[no-untyped-call]


def object_in(reply: Any, what: str) -> dict[str, Any]:
    """The JSON object that a reply must be."""
    if not isinstance(reply, dict):
        raise malformed_reply(f"{what}: no JSON object", reply)
    return reply


def objects_in(reply: Any, key: str, what: str) -> list[dict[str, Any]]:
    """The list of JSON objects that a reply must hold under ``key``: missing is not empty."""
    found = object_in(reply, what).get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise malformed_reply(f'{what}: no list "{key}"', reply)
    return found
