"""A safe EC2 driver. It uses libcloud's transport and signature, and replaces the rest of a call.

The stock driver sends everything by GET, which puts the user-data into every log of URLs. It signs with version 2
in the older regions, reads only the first page of a list, and knows only 23 regions. It treats a malformed reply as
an empty one. If ``LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS`` is set, it silently repeats a failed create.

A driver serves one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree.ElementTree import Element

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import NodeDriver
from libcloud.compute.drivers.ec2 import API_VERSION, EC2Connection, EC2NodeDriver, EC2Response
from libcloud.http import LibcloudConnection
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from nodemanager.cloud.ec2.credentials import KeySource, why_unusable
from nodemanager.cloud.ec2.errors import classify_ec2
from nodemanager.cloud.ec2.replies import error_text_in, malformed_reply, parse_xml, require_reply, text_in
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError

READ_TRIES_MAX = 4
READ_WAIT_MAX_S = 4.0
PAGES_MAX = 1_000  # of a list: a million instances, or a server that repeats the same page forever
PAGE_ITEMS_MAX = 1_000  # EC2's limit

# The domains of the special partitions, by the prefix of their regions.
_DOMAINS = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "eu-isoe-": "cloud.adc-e.uk",
    "us-isof-": "csp.hci.ic.gov",
}
_FORM_HEADERS = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}


class Action(StrEnum):
    """Every EC2 call that the manager makes. The policy in doc/clouds/ec2.md must allow them all."""

    DESCRIBE_INSTANCES = "DescribeInstances"
    DESCRIBE_INSTANCE_STATUS = "DescribeInstanceStatus"
    DESCRIBE_IMAGES = "DescribeImages"
    RUN_INSTANCES = "RunInstances"
    TERMINATE_INSTANCES = "TerminateInstances"
    DESCRIBE_VOLUMES = "DescribeVolumes"
    DELETE_VOLUME = "DeleteVolume"
    DESCRIBE_NETWORK_INTERFACES = "DescribeNetworkInterfaces"
    DELETE_NETWORK_INTERFACE = "DeleteNetworkInterface"
    DESCRIBE_ADDRESSES = "DescribeAddresses"
    RELEASE_ADDRESS = "ReleaseAddress"
    DESCRIBE_PLACEMENT_GROUPS = "DescribePlacementGroups"
    CREATE_PLACEMENT_GROUP = "CreatePlacementGroup"
    DELETE_PLACEMENT_GROUP = "DeletePlacementGroup"


@dataclass(frozen=True, slots=True)
class Ec2Endpoint:
    """The address of a region's EC2 service, and the region's name, which is part of each signature."""

    region: str
    host: str
    port: int = 443
    secure: bool = True


def endpoint_of(region: str, url: str = "") -> Ec2Endpoint:
    """Return the region's own endpoint, or the one in ``url``: ``http[s]://HOST[:PORT]``."""
    if not url:
        domain = next((name for start, name in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")
        return Ec2Endpoint(region, f"ec2.{region}.{domain}")
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    return Ec2Endpoint(region, parts.hostname or "", parts.port or (443 if secure else 80), secure)


class _Http(LibcloudConnection):
    """Sends a signed request only to the host it was signed for, and unchanged."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[no-untyped-call]
        session: Any = self.session
        session.max_redirects = 0
        session.auth = lambda request: request  # or requests would replace the signature by a password from .netrc


class _Response(EC2Response):
    """Parses a reply from its bytes. EC2 sends UTF-8 without saying so, and requests would assume Latin-1."""

    def __init__(self, response: Any, connection: EC2Connection) -> None:
        self._content: bytes = response.content
        response.encoding = "utf-8"
        super().__init__(response, connection)  # type: ignore[no-untyped-call]

    def parse_body(self) -> Element:
        return parse_xml(self._content)

    def parse_error(self) -> str:
        """Raise the error here, because libcloud raises ``ValueError`` if a Retry-After is not a number."""
        text = error_text_in(self._content) or f"HTTP {self.status}"
        raise BaseHTTPError(self.status, text, self.headers)  # type: ignore[no-untyped-call]


class _Connection(EC2Connection):
    conn_class = _Http
    responseCls = _Response


class Ec2Driver(EC2NodeDriver):
    """Calls EC2 for one account and region. Only reads are retried; ``sleep`` waits between the tries."""

    connectionCls = _Connection

    def __init__(
        self,
        endpoint: Ec2Endpoint,
        keys: KeySource,
        *,
        timeout_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # Do not call EC2NodeDriver.__init__: it rejects regions it does not know.
        self.region_name = endpoint.region
        self.api_name = "ec2"
        self.signature_version = "4"
        self.token = None
        self._keys = keys
        self._retrying = Retrying(
            # Do not retry a read that hung: by the end of a second try the caller has given up.
            stop=stop_after_attempt(READ_TRIES_MAX) | stop_after_delay(timeout_s / 2),
            wait=wait_random_exponential(multiplier=0.2, max=READ_WAIT_MAX_S),
            retry=retry_if_exception(_may_retry),
            sleep=sleep,
            reraise=True,
        )
        # Each call sets the keys first, because they may be temporary.
        NodeDriver.__init__(  # type: ignore[no-untyped-call]
            self, "", "", secure=endpoint.secure, host=endpoint.host, port=endpoint.port, timeout=timeout_s
        )
        self._signed_connection: Any = self.connection

    def call(self, action: StrEnum, parameters: Mapping[str, str]) -> Element:
        """Make one call without retries, and return the root element of the reply.

        Raises the exceptions that ``classify_ec2`` accepts, or ``CloudError`` if there are no keys.
        """
        self._sign_with_current_keys()
        form = {"Action": str(action), "Version": API_VERSION, **parameters}
        reply = self._signed_connection.request(
            self.path, method="POST", data=urlencode(form), headers=_FORM_HEADERS, retry_failed=False
        )
        return require_reply(reply.object, action)

    def read(self, action: StrEnum, parameters: Mapping[str, str]) -> Element:
        """Make a call that changes nothing, and retry it if that may help."""
        return self._retrying(self.call, action, parameters)

    def pages(self, action: StrEnum, parameters: Mapping[str, str]) -> Iterator[Element]:
        """Yield every page of a list. Raises if the list cannot be read to its end."""
        query = {"MaxResults": str(PAGE_ITEMS_MAX), **parameters}
        for _ in range(PAGES_MAX):
            page = self.read(action, query)
            yield page
            next_token = text_in(page, "nextToken")
            if not next_token:
                return
            if next_token == query.get("NextToken"):
                break
            query = {**query, "NextToken": next_token}
        raise malformed_reply(f"the pages of {action} do not end")

    def _sign_with_current_keys(self) -> None:
        keys = self._keys()
        if wrong := why_unusable(keys):
            raise CloudError(FailureKind.CREDENTIALS, wrong)
        self._signed_connection.token = keys.session_token
        self._signed_connection.signer.access_key = keys.access_key_id
        self._signed_connection.signer.access_secret = keys.secret_access_key


def _may_retry(error: BaseException) -> bool:
    """Return whether a read may be retried at once. If the provider asks for a pause, the caller must keep it."""
    if not isinstance(error, BaseHTTPError | LibcloudError | OSError):
        return False
    failure = classify_ec2(error, creating=False, now_at=0.0)
    return failure.kind in (FailureKind.TRANSIENT, FailureKind.THROTTLED) and not failure.retry_after_s
