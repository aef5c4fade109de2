"""Fetches the access tokens for calls to Google.

There are two sources. The key of a service account signs a request for a token (RFC 7523). On a Compute Engine
instance, the metadata service supplies a token. A token is kept only in memory and renewed before it expires.
"""

from __future__ import annotations

import http.client
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
from nodemanager.core.untrusted import read_json

METADATA_SERVICE = "http://metadata.google.internal"  # link-local; the same on every instance
SCOPE = "https://www.googleapis.com/auth/compute"
_METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_METADATA_TIMEOUT_S = 10.0
_RENEW_BEFORE_S = 225.0  # by then the metadata service offers a new token
_RETRY_S = 20.0
_RETRYABLE_4XX = (408, 429)  # statuses that do not blame the key

TokenGrant = tuple[str, float]  # a token, and its lifetime in seconds


class TokenSource(Protocol):
    """Supplies tokens to a driver. ``access_token`` raises only exceptions that ``LibcloudPort`` converts."""

    @property
    def access_token(self) -> str:
        """A valid token."""
        ...

    def forget(self) -> None:
        """Discard a token that Google refused, so that the next call fetches a new one."""
        ...


class CachedTokens:
    """Keeps a token until shortly before it expires. It fetches the first token on first use. Serves one thread."""

    def __init__(self, fetch: Callable[[], TokenGrant], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._token = ""
        self._renew_s = 0.0
        self._expires_s = 0.0

    @property
    def access_token(self) -> str:
        """Return a valid token, and fetch or renew it if necessary."""
        now_s = self._clock.monotonic_s()
        if not self._token or now_s >= self._renew_s:
            try:
                self._token, lifetime_s = self._fetch()
                self._expires_s = now_s + lifetime_s
                self._renew_s = max(self._expires_s - _RENEW_BEFORE_S, now_s + _RETRY_S)
            except (BaseHTTPError, LibcloudError, OSError):
                if not self._token or now_s >= self._expires_s:
                    raise
                self._renew_s = now_s + _RETRY_S  # the current token is still valid
        return self._token

    def forget(self) -> None:
        """Discard the token."""
        self._token = ""


def key_token_fetcher(service_account: str, key: str, **connection: Any) -> Callable[[], TokenGrant]:
    """Return a function that fetches tokens with the key of a service account.

    ``service_account`` is the account's mail address. ``key`` is PEM or Google's JSON. ``connection`` holds keyword
    arguments for libcloud's connection.
    """

    def fetch() -> TokenGrant:
        try:
            login = _Login(service_account, key, [SCOPE], **connection)  # type: ignore[no-untyped-call]
            signed: Any = login.get_new_token
            return _parse_grant(signed())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Do not show the exception's text: it may contain part of the key.
            what = "the key of the service account is not an RSA key in PEM or in Google's JSON"
            raise GoogleAuthError(what) from error  # type: ignore[no-untyped-call]

    return fetch


def instance_token_fetcher(service: str = METADATA_SERVICE) -> Callable[[], TokenGrant]:
    """Return a function that fetches tokens for the service account of this Compute Engine instance."""
    # Bypass the proxies of the environment: the service answers only its own instance.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def fetch() -> TokenGrant:
        request = urllib.request.Request(  # noqa: S310 - a service of this instance, by the site's environment
            service + _METADATA_PATH, headers={"Metadata-Flavor": "Google"}
        )
        try:
            with opener.open(request, timeout=_METADATA_TIMEOUT_S) as reply:
                content = reply.read()
        except urllib.error.HTTPError as refused:
            refused.close()  # the exception keeps the connection open
            _raise_refusal(refused.code, f"{service} returns no token: HTTP {refused.code}", {})
        except (OSError, http.client.HTTPException) as error:
            what = f"no key is configured, and {service} returns no token: {error}"
            raise GoogleAuthError(what) from error  # type: ignore[no-untyped-call]
        try:
            return _parse_grant(read_json(content))
        except ValueError as error:
            raise _unusable_reply() from error

    return fetch


class _Reply(JsonResponse):
    def success(self) -> bool:
        return 200 <= self.status < 300

    def parse_error(self) -> str:
        try:
            body = read_json(self.body or "")
        except ValueError:
            body = None
        texts = (body.get("error"), body.get("error_description")) if isinstance(body, dict) else ()
        reason = ": ".join(text for text in texts if isinstance(text, str)) or f"HTTP {self.status}"
        _raise_refusal(self.status, f"Google refuses the key of the service account: {reason}", self.headers)


class _Login(GoogleServiceAcctAuthConnection):
    """libcloud's login. It signs the request; this module parses the reply."""

    responseCls: Any = _Reply  # noqa: N815 - libcloud's name for the hook
    retryCls: Any = NoRetry  # noqa: N815

    def _token_request(self, request_body: dict[str, Any]) -> Any:
        this: Any = self
        return this.request("/o/oauth2/token", method="POST", data=urlencode(request_body)).object


def _raise_refusal(status: int, what: str, headers: Any) -> NoReturn:
    if 400 <= status < 500 and status not in _RETRYABLE_4XX:
        raise GoogleAuthError(what)  # type: ignore[no-untyped-call]
    raise_http_error(status, what, headers)


def _parse_grant(reply: Any) -> TokenGrant:
    """Return the token in a reply. Reject a token that no header can hold, or whose lifetime is not finite."""
    try:
        token, lifetime_s = reply["access_token"], float(reply["expires_in"])
        is_usable = token.isascii() and token.isprintable() and 0 < lifetime_s < float("inf")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable_reply() from error
    if not (token and is_usable):
        raise _unusable_reply()
    return token, lifetime_s


def _unusable_reply() -> LibcloudError:
    # Do not show the reply: it may contain part of a secret.
    return malformed_reply("the reply to the login has no usable token", "")
