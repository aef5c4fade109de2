"""Finds the keys that sign calls to AWS.

It looks in this order: ``[Cloud Credentials]``, the environment variables that AWS's own tools read, the role of
the EC2 instance that the manager runs on (IMDSv2). It does not read profiles, SSO, web identity or container
credentials.
"""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime

from pydantic import SecretStr

from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.untrusted import read_json

METADATA_SERVICE = "http://169.254.169.254"  # link-local; the same on every instance
_METADATA_TIMEOUT_S = 2.0
_METADATA_TOKEN_TTL_S = 60
_RENEW_BEFORE_S = 300.0  # the service offers new keys at least this long before the old ones expire
_RETRY_S = 20.0
_ROLE_PATH = "/latest/meta-data/iam/security-credentials/"

# Variables that AWS's own tools read and this module does not, with the feature that each one selects.
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
    """The keys that sign a call. ``session_token`` is "" unless the keys are temporary."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


KeySource = Callable[[], Keys]


def why_unusable(keys: Keys) -> str:
    """Return why these cannot be keys of AWS, "" if they can. The text names the fields and shows no value."""
    values = {it.name: getattr(keys, it.name) for it in fields(keys)}
    # The values are sent in HTTP headers.
    invalid = [name for name, value in values.items() if not (value.isascii() and value.isprintable())]
    if not invalid:
        return ""
    return (
        f"{', '.join(invalid)}: contains characters that no key of AWS has, such as a typographic dash or the CR "
        "of a file from Windows. Enter it again"
    )


def configured_keys(credentials: Mapping[str, SecretStr], environment: Mapping[str, str]) -> Keys | None:
    """Return the keys in the site file, or else those in the environment, or None."""
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
    """Return a function that supplies the keys for each call. Several threads may call it."""
    keys = configured_keys(credentials, environment)
    if keys is None:
        return InstanceRoleKeys(environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", METADATA_SERVICE), clock)
    return lambda: keys


class InstanceRoleKeys:
    """Supplies the keys of this EC2 instance's role, and renews them before they expire. Thread-safe."""

    def __init__(self, service: str, clock: Clock) -> None:
        self._service = service.rstrip("/")
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Keys | None = None
        self._renew_at = 0.0
        self._expires_at = 0.0
        # Bypass the proxies of the environment: the service answers only its own instance.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __call__(self) -> Keys:
        """Return the current keys. Raises :class:`CloudError` (``CREDENTIALS``) if this machine has no role."""
        with self._lock:
            now_at = self._clock.wall_at()
            if self._keys is None or now_at >= self._renew_at:
                try:
                    self._keys, self._expires_at = self._fetch_keys()
                    self._renew_at = self._expires_at - _RENEW_BEFORE_S
                except CloudError:
                    if self._keys is None or now_at >= self._expires_at:
                        raise
                    self._renew_at = now_at + _RETRY_S  # the current keys are still valid
            return self._keys

    def _fetch_keys(self) -> tuple[Keys, float]:
        try:
            token = self._request(
                "PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", str(_METADATA_TOKEN_TTL_S)
            )
            role = self._request("GET", _ROLE_PATH, "X-aws-ec2-metadata-token", token).split("\n")[0].strip()
            document = read_json(self._request("GET", _ROLE_PATH + role, "X-aws-ec2-metadata-token", token))
            keys = Keys(*(str(document[name]) for name in ("AccessKeyId", "SecretAccessKey", "Token")))
            return keys, datetime.fromisoformat(document["Expiration"]).timestamp()
        except (OSError, http.client.HTTPException) as error:
            why = f"no keys are configured, and {self._service} has no keys of an instance role: {error}"
            raise CloudError(FailureKind.CREDENTIALS, why) from error
        except (KeyError, TypeError, ValueError) as error:
            # Do not show the answer: it may contain part of a secret.
            why = f"{self._service} did not answer like the instance metadata service"
            raise CloudError(FailureKind.CREDENTIALS, why) from error

    def _request(self, method: str, path: str, header: str, value: str) -> str:
        request = urllib.request.Request(  # noqa: S310 - a service of this instance, by the site's environment
            self._service + path, method=method, headers={header: value}
        )
        try:
            with self._opener.open(request, timeout=_METADATA_TIMEOUT_S) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as refused:
            refused.close()  # the exception keeps the connection open
            raise


def credential_warnings(credentials: Mapping[str, SecretStr], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about where the keys will be found, one text each."""
    keys = configured_keys(credentials, environment)
    if keys is not None:
        if wrong := why_unusable(keys):
            yield f"[Cloud Credentials] {wrong}."
        return
    named = [f"{name} ({what})" for name, what in UNSUPPORTED_VARIABLES.items() if environment.get(name)]
    if named:
        yield (
            f"[Cloud Credentials] is empty, and {', '.join(named)} in the environment is not supported. The "
            "manager will ask the instance metadata service for keys. Unless it runs on an EC2 instance that has a "
            "role, set access_key_id and secret_access_key."
        )
    else:
        given = [name for name in _KEY_VARIABLES if environment.get(name)]
        missing = " and ".join(name for name in _KEY_VARIABLES if name not in given)
        unset = f"{given[0]} is set without {missing}" if given else f"{missing} are not set"
        yield (
            f"[Cloud Credentials] is empty, and {unset}: the manager will ask the instance metadata service for "
            "keys. That works on an EC2 instance that has a role; profiles, SSO, web identity and container "
            "credentials are not supported."
        )
