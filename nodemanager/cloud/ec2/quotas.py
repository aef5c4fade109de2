"""Reads from Service Quotas how many virtual CPUs may run at once in a region.

Each quota is for a group of instance families, on demand or spot, and counts every instance of the account:
https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_ListServiceQuotas.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from libcloud.common.aws import SignedAWSConnection
from libcloud.common.base import JsonResponse
from libcloud.common.exceptions import BaseHTTPError

from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.transport import PAGES_MAX, NoRetry, malformed_reply, object_in, objects_in
from nodemanager.cloud.ec2.credentials import KeySource, why_unusable
from nodemanager.cloud.ec2.driver import Ec2Endpoint
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import Market
from nodemanager.core.untrusted import read_json

_TARGET = "ServiceQuotasV20190624.ListServiceQuotas"
_JSON = "application/x-amz-json-1.1"
_NAMES = {
    Market.ON_DEMAND: re.compile(r"Running On-Demand (?P<families>.+) instances"),
    Market.SPOT: re.compile(r"All (?P<families>.+) Spot Instance Requests"),
}
_FAMILY = re.compile(r"\b(?P<letters>[A-Z]+[a-z]*)(?P<generation>[0-9]*)\b")
_SIZE = re.compile(r"(?P<letters>[a-z]+)-?(?P<generation>[0-9]*)")


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """``families``: such as "c" or "p5", or "u" for the sizes with high memory. ``cpus``: the most at once."""

    name: str
    market: Market
    families: frozenset[str]
    cpus: float

    def counts(self, size: str, market: Market) -> bool:
        """Whether instances of a size count."""
        found = _SIZE.match(size)
        if found is None or market is not self.market:
            return False
        letters = found["letters"]
        names = {letters, letters + found["generation"]}
        if not names & self.families and letters not in _OWN_GROUPS:
            names.add(letters[0])  # im4gn is of family I
        return bool(names & self.families)


# Families of more than one letter that do not belong to the group of their first letter.
_OWN_GROUPS = frozenset({"dl", "hpc", "inf", "mac", "trn", "vt"})


class _Response(JsonResponse):
    def parse_error(self) -> str:
        try:
            body = read_json(self.body or "")
        except ValueError:
            body = {}
        code = str(body.get("__type") or f"HTTP {self.status}").rpartition("#")[2]
        message = body.get("message") or body.get("Message") or ""
        raise BaseHTTPError(self.status, f"{code}: {message}", self.headers)  # type: ignore[no-untyped-call]


class _Connection(SignedAWSConnection):
    responseCls: Any = _Response  # noqa: N815 - libcloud's name for the hook
    retryCls: Any = NoRetry  # noqa: N815
    service_name = "servicequotas"
    version = "2019-06-24"


@dataclass(frozen=True, slots=True)
class _Region:
    """What a connection asks of its driver."""

    region_name: str
    name: str = "AWS"


def read_cpu_quotas(endpoint: Ec2Endpoint, keys: KeySource, clock: Clock, timeout_s: float) -> tuple[CpuQuota, ...]:
    """Return the quotas on virtual CPUs of one region. Raises :class:`CloudError`."""
    current = keys()
    if wrong := why_unusable(current):
        raise CloudError(FailureKind.CREDENTIALS, wrong)
    connection: Any = _Connection(  # type: ignore[no-untyped-call]
        current.access_key_id,
        current.secret_access_key,
        secure=endpoint.secure,
        host=re.sub(r"^ec2\.", "servicequotas.", endpoint.host),
        port=endpoint.port,
        timeout=timeout_s,
        token=current.session_token,
        signature_version="4",
    )
    connection.driver = _Region(endpoint.region)
    with reading(clock):
        return tuple(quota for item in _items(connection) if (quota := _parse(item)) is not None)


def _items(connection: Any) -> Iterator[dict[str, Any]]:
    asked: dict[str, object] = {"ServiceCode": "ec2", "MaxResults": 100}
    headers = {"Content-Type": _JSON, "X-Amz-Target": _TARGET}
    for _ in range(PAGES_MAX):
        reply = connection.request("/", method="POST", data=json.dumps(asked), headers=dict(headers)).object
        yield from objects_in(object_in(reply, "the quotas"), "Quotas", "the list of quotas")
        if not reply.get("NextToken"):
            return
        asked["NextToken"] = reply["NextToken"]
    raise malformed_reply("the list of quotas does not end", asked)


def _parse(item: dict[str, Any]) -> CpuQuota | None:
    """The quota of an item; None if it is about something else."""
    name = str(item.get("QuotaName") or "")
    for market, pattern in _NAMES.items():
        found = pattern.fullmatch(name)
        if found is not None and isinstance(item.get("Value"), int | float):
            named = found["families"].replace("High Memory", "U").removeprefix("Standard ")
            families = {it["letters"].lower() + it["generation"] for it in _FAMILY.finditer(named)}
            return CpuQuota(name, market, frozenset(families), item["Value"])
    return None
