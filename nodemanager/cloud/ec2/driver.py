"""libcloud's EC2 driver, made safe: its transport and signature are kept, the rest of a call is ours.

The stock driver sends everything by GET (user-data in every log of URLs), signs by version 2 in the older
regions, reads only the first page, knows 23 regions, takes a foreign reply for an empty one, and repeats a create
without a word where ``LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS`` is set. A driver belongs to one thread.
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

from nodemanager.cloud.common.libcloud_port import classify
from nodemanager.cloud.ec2.credentials import KeySource, why_unusable
from nodemanager.cloud.ec2.replies import error_text_in, malformed_reply, parse_xml, require_reply, text_in
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError

READ_TRIES_MAX = 4
READ_WAIT_MAX_S = 4.0
PAGES_MAX = 1_000  # of a list: a million instances, or a server that gives the same page for ever
PAGE_ITEMS_MAX = 1_000  # what EC2 gives at the most

# Partitions whose domain is another one, by how their regions begin.
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
    """Every call that is made. The policy in doc/clouds/ec2.md allows these."""

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


@dataclass(frozen=True, slots=True)
class Ec2Endpoint:
    """Where a region's EC2 answers, and the name of the region, which calls are signed for."""

    region: str
    host: str
    port: int = 443
    secure: bool = True


def endpoint_of(region: str, url: str = "") -> Ec2Endpoint:
    """The region's own endpoint, or the one that ``url`` names: ``http[s]://HOST[:PORT]``."""
    if not url:
        domain = next((name for start, name in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")
        return Ec2Endpoint(region, f"ec2.{region}.{domain}")
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    return Ec2Endpoint(region, parts.hostname or "", parts.port or (443 if secure else 80), secure)


class _Http(LibcloudConnection):
    """A signed request goes where it was signed for, and as it was signed."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[no-untyped-call]
        session: Any = self.session
        session.max_redirects = 0
        session.auth = lambda request: request  # else a .netrc puts a password in the signature's place


class _Response(EC2Response):
    """A reply as bytes, since what says nothing of its encoding is UTF-8, and not Latin-1 as requests has it."""

    def __init__(self, response: Any, connection: EC2Connection) -> None:
        self._content: bytes = response.content
        response.encoding = "utf-8"
        super().__init__(response, connection)  # type: ignore[no-untyped-call]

    def parse_body(self) -> Element:
        return parse_xml(self._content)

    def parse_error(self) -> str:
        """Raise it here: libcloud takes a Retry-After for a number, and fails by a ValueError where it is none."""
        said = error_text_in(self._content) or f"HTTP {self.status}"
        raise BaseHTTPError(self.status, said, self.headers)  # type: ignore[no-untyped-call]


class _Connection(EC2Connection):
    conn_class = _Http
    responseCls = _Response


class Ec2Driver(EC2NodeDriver):
    """One account and region. ``sleep`` waits between two tries of a read; nothing else is tried again."""

    connectionCls = _Connection

    def __init__(
        self,
        endpoint: Ec2Endpoint,
        keys: KeySource,
        *,
        timeout_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # Not EC2NodeDriver's own: it refuses the regions that it does not know.
        self.region_name = endpoint.region
        self.api_name = "ec2"
        self.signature_version = "4"
        self.token = None
        self._keys = keys
        self._retrying = Retrying(
            # One that hung is not hung on for again: whoever asked has given it up by then.
            stop=stop_after_attempt(READ_TRIES_MAX) | stop_after_delay(timeout_s / 2),
            wait=wait_random_exponential(multiplier=0.2, max=READ_WAIT_MAX_S),
            retry=retry_if_exception(_may_retry),
            sleep=sleep,
            reraise=True,
        )
        # The keys are put in before each call: they may be temporary.
        NodeDriver.__init__(  # type: ignore[no-untyped-call]
            self, "", "", secure=endpoint.secure, host=endpoint.host, port=endpoint.port, timeout=timeout_s
        )
        self._signed_connection: Any = self.connection

    def call(self, action: Action, parameters: Mapping[str, str]) -> Element:
        """Make one call, once; give the root of its reply.

        Raises what ``libcloud_port.classify`` reads, or ``CloudError`` where there are no keys to sign it with.
        """
        self._sign_with_current_keys()
        form = {"Action": str(action), "Version": API_VERSION, **parameters}
        reply = self._signed_connection.request(
            self.path, method="POST", data=urlencode(form), headers=_FORM_HEADERS, retry_failed=False
        )
        return require_reply(reply.object, action)

    def read(self, action: Action, parameters: Mapping[str, str]) -> Element:
        """Make a call that changes nothing, again where that may help."""
        return self._retrying(self.call, action, parameters)

    def pages(self, action: Action, parameters: Mapping[str, str]) -> Iterator[Element]:
        """Every page of a list, or an error: never a part of it."""
        asked = {"MaxResults": str(PAGE_ITEMS_MAX), **parameters}
        for _ in range(PAGES_MAX):
            page = self.read(action, asked)
            yield page
            following = text_in(page, "nextToken")
            if not following:
                return
            if following == asked.get("NextToken"):
                break
            asked = {**asked, "NextToken": following}
        raise malformed_reply(f"the pages of {action} have no end")

    def _sign_with_current_keys(self) -> None:
        keys = self._keys()
        if wrong := why_unusable(keys):
            raise CloudError(FailureKind.CREDENTIALS, wrong)
        self._signed_connection.token = keys.session_token
        self._signed_connection.signer.access_key = keys.access_key_id
        self._signed_connection.signer.access_secret = keys.secret_access_key


def _may_retry(error: BaseException) -> bool:
    """Whether a read may be tried again at once. A wait that the provider names is for the caller to keep."""
    if not isinstance(error, BaseHTTPError | LibcloudError | OSError):
        return False
    failure = classify(error, creating=False, now_at=0.0)
    return failure.kind in (FailureKind.TRANSIENT, FailureKind.THROTTLED) and not failure.retry_after_s
