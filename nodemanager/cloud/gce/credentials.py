"""Whose project it is: the tokens that calls to Google are made with, by a key or by the machine that this runs on.

A service account's key signs a request for a token (RFC 7523); on an instance of Google Compute Engine its metadata
service gives one. Either is kept in memory only, and renewed before it ends.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NoReturn, Protocol
from urllib.parse import urlencode

from libcloud.common.base import JsonResponse
from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.google import GoogleAuthError, GoogleServiceAcctAuthConnection
from libcloud.common.types import LibcloudError

from nodemanager.cloud.common.transport import NoRetry, malformed_reply, raise_http_error
from nodemanager.core.ports import Clock

METADATA_SERVICE = "http://metadata.google.internal"  # link-local, the same on every instance
SCOPE = "https://www.googleapis.com/auth/compute"
_METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_METADATA_TIMEOUT_S = 10.0
_RENEW_BEFORE_S = 225.0  # the metadata service has a new one from then on, at the latest
_RETRY_S = 20.0
_RETRYABLE_4XX = (408, 429)  # of the 4xx those that say nothing of the key

TokenGrant = tuple[str, float]  # a token, and for how many seconds it is good


class TokenSource(Protocol):
    """What a driver needs. ``access_token`` raises what ``PatientPort`` reads."""

    @property
    def access_token(self) -> str: ...

    def forget(self) -> None:
        """The token was refused: the next call gets a new one."""
        ...


class CachedTokens:
    """A token that is asked for when the first is needed. Belongs to one thread."""

    def __init__(self, ask: Callable[[], TokenGrant], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._token = ""
        self._renew_s = 0.0
        self._ends_s = 0.0

    @property
    def access_token(self) -> str:
        now_s = self._clock.monotonic_s()
        if not self._token or now_s >= self._renew_s:
            try:
                self._token, good_s = self._ask()
                self._ends_s = now_s + good_s
                self._renew_s = max(self._ends_s - _RENEW_BEFORE_S, now_s + _RETRY_S)
            except (BaseHTTPError, LibcloudError, OSError):
                if not self._token or now_s >= self._ends_s:
                    raise
                self._renew_s = now_s + _RETRY_S  # the one that we have is good for a while yet
        return self._token

    def forget(self) -> None:
        self._token = ""


def key_token_fetcher(service_account: str, key: str, **connection: Any) -> Callable[[], TokenGrant]:
    """Tokens of a service account (its mail address), by its key, PEM or JSON. ``connection``: as libcloud's."""

    def ask() -> TokenGrant:
        try:
            login = _Login(service_account, key, [SCOPE], **connection)  # type: ignore[no-untyped-call]
            signed: Any = login.get_new_token
            return _parse_grant(signed())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Without what it says: that may be of the key.
            what = "the key of the service account is no RSA key, in PEM or in Google's JSON"
            raise GoogleAuthError(what) from error  # type: ignore[no-untyped-call]

    return ask


def instance_token_fetcher(service: str = METADATA_SERVICE) -> Callable[[], TokenGrant]:
    """Tokens of the service account of the instance that this runs on."""
    # Without the proxies of the environment: the service answers nobody but its own instance.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask() -> TokenGrant:
        request = urllib.request.Request(  # noqa: S310 - a service of this instance, by the site's environment
            service + _METADATA_PATH, headers={"Metadata-Flavor": "Google"}
        )
        try:
            with opener.open(request, timeout=_METADATA_TIMEOUT_S) as reply:
                content = reply.read()
        except urllib.error.HTTPError as refused:
            refused.close()  # it holds the connection
            _raise_refusal(refused.code, f"{service} gives no token of a service account: HTTP {refused.code}", {})
        except (OSError, http.client.HTTPException) as error:
            what = f"no key is given, and {service} has no token of a service account: {error}"
            raise GoogleAuthError(what) from error  # type: ignore[no-untyped-call]
        try:
            return _parse_grant(json.loads(content))
        except ValueError as error:
            raise _unusable_reply() from error

    return ask


class _Reply(JsonResponse):
    def success(self) -> bool:
        return 200 <= self.status < 300

    def parse_error(self) -> str:
        try:
            body = json.loads(self.body or "")
        except ValueError:
            body = None
        said = (body.get("error"), body.get("error_description")) if isinstance(body, dict) else ()
        words = ": ".join(word for word in said if isinstance(word, str)) or f"HTTP {self.status}"
        _raise_refusal(self.status, f"Google refuses the key of the service account: {words}", self.headers)


class _Login(GoogleServiceAcctAuthConnection):
    """libcloud's, as far as the signature; what is answered is read by us."""

    responseCls: Any = _Reply  # noqa: N815 - libcloud names its hooks so
    retryCls: Any = NoRetry  # noqa: N815

    def _token_request(self, request_body: dict[str, Any]) -> Any:
        this: Any = self
        return this.request("/o/oauth2/token", method="POST", data=urlencode(request_body)).object


def _raise_refusal(status: int, what: str, headers: Any) -> NoReturn:
    if 400 <= status < 500 and status not in _RETRYABLE_4XX:
        raise GoogleAuthError(what)  # type: ignore[no-untyped-call]
    raise_http_error(status, what, headers)


def _parse_grant(reply: Any) -> TokenGrant:
    """The token in a reply. One that cannot be sent, or has no end, would be kept for ever."""
    try:
        token, good_s = reply["access_token"], float(reply["expires_in"])
        fit = token.isascii() and token.isprintable() and 0 < good_s < float("inf")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable_reply() from error
    if not (token and fit):
        raise _unusable_reply()
    return token, good_s


def _unusable_reply() -> LibcloudError:
    return malformed_reply(
        "the reply to the login has no token that can be used", ""
    )  # what it has may be half a secret
