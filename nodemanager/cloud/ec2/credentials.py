"""Whose account it is: the keys that a call to AWS is signed with.

In this order: ``[Cloud Credentials]``, the environment variables that all of AWS's tools read, the role of the
instance that this runs on (IMDSv2). Profiles, SSO, web identity and container credentials are not read.
"""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime

from pydantic import SecretStr

from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError

METADATA_SERVICE = "http://169.254.169.254"  # link-local, the same on every instance
_METADATA_TIMEOUT_S = 2.0
_METADATA_TOKEN_TTL_S = 60
_RENEW_BEFORE_S = 300.0  # the service has new keys at least so long before the old ones expire
_RETRY_S = 20.0
_ROLE_PATH = "/latest/meta-data/iam/security-credentials/"

# What other tools would be led by, and what it is called where we say that we are not.
UNSUPPORTED_VARIABLES: Mapping[str, str] = {
    "AWS_PROFILE": "profiles",
    "AWS_DEFAULT_PROFILE": "profiles",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "web identity",
    "AWS_ROLE_ARN": "assumed roles",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "container credentials",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "container credentials",
}


_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@dataclass(frozen=True, slots=True)
class Keys:
    """What signs a call. ``session_token`` is "" for keys that are not temporary."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


KeySource = Callable[[], Keys]


def why_unusable(keys: Keys) -> str:
    """What is wrong with keys that cannot be any, without a value; "" with those that may be some."""
    values = {it.name: getattr(keys, it.name) for it in fields(keys)}
    # They go into headers.
    odd = [name for name, value in values.items() if not (value.isascii() and value.isprintable())]
    if not odd:
        return ""
    return (
        f"{', '.join(odd)}: there are characters in it that no key of AWS has, such as a dash that is none or the "
        "CR of a file from Windows. Write it anew"
    )


def configured_keys(credentials: Mapping[str, SecretStr], environment: Mapping[str, str]) -> Keys | None:
    """The keys that the site gives, else those of the environment; None where neither has any."""
    given = {name: secret.get_secret_value() for name, secret in credentials.items()}
    if "access_key_id" in given:
        return Keys(given["access_key_id"], given["secret_access_key"], given.get("session_token", ""))
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return Keys(
            environment["AWS_ACCESS_KEY_ID"],
            environment["AWS_SECRET_ACCESS_KEY"],
            environment.get("AWS_SESSION_TOKEN", ""),
        )
    return None


def key_source(credentials: Mapping[str, SecretStr], environment: Mapping[str, str], clock: Clock) -> KeySource:
    """Where the keys of each call come from. May be called from several threads."""
    keys = configured_keys(credentials, environment)
    if keys is None:
        return InstanceRoleKeys(environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", METADATA_SERVICE), clock)
    return lambda: keys


class InstanceRoleKeys:
    """The keys of the role of the instance that this runs on, renewed before they expire."""

    def __init__(self, service: str, clock: Clock) -> None:
        self._service = service.rstrip("/")
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Keys | None = None
        self._renew_at = 0.0
        self._expires_at = 0.0
        # Without the proxies of the environment: the service answers nobody but its own instance.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __call__(self) -> Keys:
        """Raises :class:`CloudError`: ``CREDENTIALS`` where there is no role, and no instance to have one."""
        with self._lock:
            now_at = self._clock.wall_at()
            if self._keys is None or now_at >= self._renew_at:
                try:
                    self._keys, self._expires_at = self._fetch_keys()
                    self._renew_at = self._expires_at - _RENEW_BEFORE_S
                except CloudError:
                    if self._keys is None or now_at >= self._expires_at:
                        raise
                    self._renew_at = now_at + _RETRY_S  # those that we have are good for a while yet
            return self._keys

    def _fetch_keys(self) -> tuple[Keys, float]:
        try:
            token = self._request(
                "PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", str(_METADATA_TOKEN_TTL_S)
            )
            role = self._request("GET", _ROLE_PATH, "X-aws-ec2-metadata-token", token).split("\n")[0].strip()
            told = json.loads(self._request("GET", _ROLE_PATH + role, "X-aws-ec2-metadata-token", token))
            keys = Keys(*(str(told[name]) for name in ("AccessKeyId", "SecretAccessKey", "Token")))
            return keys, datetime.fromisoformat(told["Expiration"]).timestamp()
        except (OSError, http.client.HTTPException) as error:
            why = f"no keys are given, and {self._service} has none of an instance role: {error}"
            raise CloudError(FailureKind.CREDENTIALS, why) from error
        except (KeyError, TypeError, ValueError) as error:
            # Without what it said: that may be half a secret.
            why = f"{self._service} did not answer as the instance metadata service does"
            raise CloudError(FailureKind.CREDENTIALS, why) from error

    def _request(self, method: str, path: str, header: str, value: str) -> str:
        request = urllib.request.Request(  # noqa: S310 - a service of this instance, by the site's environment
            self._service + path, method=method, headers={header: value}
        )
        try:
            with self._opener.open(request, timeout=_METADATA_TIMEOUT_S) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as refused:
            refused.close()  # it holds the connection
            raise


def credential_warnings(credentials: Mapping[str, SecretStr], environment: Mapping[str, str]) -> Iterator[str]:
    """What an operator should know of where the keys will come from."""
    keys = configured_keys(credentials, environment)
    if keys is not None:
        if wrong := why_unusable(keys):
            yield wrong + "."
        return
    named = [f"{name} ({what})" for name, what in UNSUPPORTED_VARIABLES.items() if environment.get(name)]
    if named:
        yield (
            f"[Cloud Credentials] is empty, and {', '.join(named)} of the environment is not supported. The keys "
            "will be asked of the instance metadata service: give access_key_id and secret_access_key instead, "
            "unless this runs on an instance with a role."
        )
    else:
        given = [name for name in _KEY_VARIABLES if environment.get(name)]
        missing = " and ".join(name for name in _KEY_VARIABLES if name not in given)
        beside = f"is {missing} beside {given[0]}" if given else f"are {missing}"
        yield (
            f"[Cloud Credentials] is empty, and so {beside}: the keys will be asked of the instance metadata "
            "service. That works on an EC2 instance that has a role; profiles, SSO, web identity and container "
            "credentials are not supported."
        )
