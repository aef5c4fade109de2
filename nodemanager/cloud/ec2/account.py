"""Asks an AWS account what a region offers, and whether it would give a site its nodes.

A survey needs permissions of a person's keys that the service does not need.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from libcloud.common.aws import SignedAWSConnection
from libcloud.common.base import JsonResponse
from libcloud.common.exceptions import BaseHTTPError

from nodemanager.cloud.common.findings import REMEDY_OF_QUOTA, Finding, Verdict, most_cores, refused, try_sizes
from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import (
    CALL_TIMEOUT_S,
    NODE_PORTS,
    Account,
    OfferedImage,
    OfferedNetwork,
    OfferedSize,
    Questions,
    Survey,
    choose_region,
    describe_price_list,
)
from nodemanager.cloud.common.transport import PAGES_MAX, NoRetry, malformed_reply, object_in, objects_in
from nodemanager.cloud.ec2.credentials import KeySource, key_source, why_unusable
from nodemanager.cloud.ec2.driver import Ec2Driver, Ec2Endpoint, endpoint_of
from nodemanager.cloud.ec2.errors import EC2_CODES
from nodemanager.cloud.ec2.policy import least_privileges, partition_of
from nodemanager.cloud.ec2.port import Ec2Cloud, ports_of
from nodemanager.cloud.ec2.replies import set_in, text_in
from nodemanager.config.price_list import PriceTable, read_bundled_table
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudState, FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import Market
from nodemanager.core.untrusted import read_json

_MIB = 2**20
_TYPES_PER_PAGE = "100"  # EC2's limit


class Ec2Account(Account):
    """Keys come from the environment, or from the role of this instance. The manager looks there too."""

    keys_remedy = (
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN for temporary keys. Or run this on "
        "an instance that has a role"
    )
    missing_image = OfferedImage("ami-00000000", "", architecture="x86_64")

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        variables = ("AWS_REGION", "AWS_DEFAULT_REGION")
        self._region = choose_region(chosen.region, environment, variables, "us-east-1", questions)
        self.price_source = describe_price_list("ec2")

    def survey(self, clock: Clock) -> Survey:
        return survey_region(self._driver(clock), self._region, read_bundled_table("ec2"), clock)

    def find_image(self, image_id: str, clock: Clock) -> OfferedImage | None:
        return find_image(self._driver(clock), image_id, clock)

    def _driver(self, clock: Clock) -> Ec2Driver:
        keys = key_source({}, self._environment, clock)
        return Ec2Driver(endpoint_of(self._region, self._endpoint), keys, timeout_s=CALL_TIMEOUT_S)

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        keys = {"region": self._region}
        if self._endpoint:
            keys["endpoint"] = self._endpoint
        keys["image"] = image.id
        if network.subnets:
            keys["subnets"] = ", ".join(f"{zone}:{subnet}" for zone, subnet in network.subnets)
        if network.security_group:
            keys["security_groups"] = network.security_group
        return keys

    def write_beside(self, site_file: Path, cluster: str) -> Iterator[str]:
        policy = site_file.with_suffix(".policy.json")
        with policy.open("x", encoding="utf-8") as file:
            json.dump(least_privileges(cluster, partition_of(self._region)), file, indent=2)
            file.write("\n")
        yield (
            f"Written: {policy}, the manager's least privileges. Give them to the role of the machine of rank 0:\n"
            f"  aws iam create-policy --policy-name flux-node-manager-{cluster} --policy-document file://{policy}"
        )

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        aws = f"aws ec2 --region {self._region}"
        group = "$group"
        yield (
            f"group=$({aws} create-security-group --group-name flux-{cluster} --vpc-id {network.id or 'VPC'} "
            f'--description "Flux {cluster}" --query GroupId --output text)'
        )
        for port in NODE_PORTS:
            yield (
                f"{aws} authorize-security-group-ingress --group-id {group} --protocol tcp --port {port} "
                f"--source-group {group}"
            )


class SurveyAction(StrEnum):
    """The calls of a survey. All of them only read."""

    DESCRIBE_REGIONS = "DescribeRegions"
    DESCRIBE_AVAILABILITY_ZONES = "DescribeAvailabilityZones"
    DESCRIBE_IMAGES = "DescribeImages"
    DESCRIBE_INSTANCE_TYPES = "DescribeInstanceTypes"
    DESCRIBE_SECURITY_GROUPS = "DescribeSecurityGroups"
    DESCRIBE_SUBNETS = "DescribeSubnets"


def survey_region(driver: Ec2Driver, region: str, prices: PriceTable, clock: Clock) -> Survey:
    """Read one region. Raises :class:`CloudError`."""
    available = {"Filter.1.Name": "state", "Filter.1.Value.1": "available"}
    with reading(clock, EC2_CODES):
        regions = driver.read(SurveyAction.DESCRIBE_REGIONS, {})
        zones = driver.read(SurveyAction.DESCRIBE_AVAILABILITY_ZONES, available)
        sizes, unusual = _sizes(driver, region, prices)
        return Survey(
            region,
            tuple(sorted(text_in(item, "regionName") for item in set_in(regions, "regionInfo"))),
            tuple(sorted(text_in(item, "zoneName") for item in set_in(zones, "availabilityZoneInfo"))),
            # The account's own. Anybody can publish an image, so those of others are not offered.
            tuple(sorted(_images(driver, {"Owner.1": "self"}), key=lambda image: image.created, reverse=True)),
            tuple(_networks(driver)),
            sizes,
            unusual_sizes=unusual,
        )


def find_image(driver: Ec2Driver, image_id: str, clock: Clock) -> OfferedImage | None:
    """Read an image of any owner; None if it is not available in the region. Raises :class:`CloudError`."""
    with reading(clock, EC2_CODES):
        return next(_images(driver, {"ImageId.1": image_id}), None)


def _images(driver: Ec2Driver, which: Mapping[str, str]) -> Iterator[OfferedImage]:
    reply = driver.read(SurveyAction.DESCRIBE_IMAGES, which)
    for item in set_in(reply, "imagesSet"):
        if text_in(item, "imageState") == "available":
            image, name = text_in(item, "imageId"), text_in(item, "name")
            yield OfferedImage(image, name, text_in(item, "creationDate"), text_in(item, "architecture"))


def _networks(driver: Ec2Driver) -> list[OfferedNetwork]:
    """Each VPC with one subnet for each zone, the default VPC first. A zone's default subnet goes before others."""
    subnets = [
        item
        for page in driver.pages(SurveyAction.DESCRIBE_SUBNETS, {})
        for item in set_in(page, "subnetSet")
        if text_in(item, "state") in {"", "available"}
    ]
    subnets.sort(
        key=lambda item: (not _is_default(item), text_in(item, "availabilityZone"), text_in(item, "subnetId"))
    )
    groups = {
        text_in(item, "vpcId"): text_in(item, "groupId")
        for page in driver.pages(SurveyAction.DESCRIBE_SECURITY_GROUPS, {})
        for item in set_in(page, "securityGroupInfo")
        if text_in(item, "groupName") == "default"
    }
    by_network: dict[str, dict[str, str]] = {}
    for item in subnets:
        by_zone = by_network.setdefault(text_in(item, "vpcId"), {})
        by_zone.setdefault(text_in(item, "availabilityZone"), text_in(item, "subnetId"))
    return [
        OfferedNetwork(vpc, subnets=tuple(sorted(by_zone.items())), security_group=groups.get(vpc, ""))
        for vpc, by_zone in by_network.items()
    ]


def _is_default(subnet: Element) -> bool:
    return text_in(subnet, "defaultForAz") == "true"


def _sizes(
    driver: Ec2Driver, region: str, prices: PriceTable
) -> tuple[tuple[OfferedSize, ...], tuple[OfferedSize, ...]]:
    """The sizes to choose from, and those to be used only if somebody names them.

    The first are the virtual machines of the current generation that compute at full speed while a job runs.
    """
    sizes = [
        replace(_size(item, region, prices), note=_why_unusual(item))
        for page in driver.pages(SurveyAction.DESCRIBE_INSTANCE_TYPES, {"MaxResults": _TYPES_PER_PAGE})
        for item in set_in(page, "instanceTypeSet")
    ]
    return tuple(it for it in sizes if not it.note), tuple(it for it in sizes if it.note)


def _why_unusual(item: Element) -> str:
    if text_in(item, "bareMetal") == "true":
        return "bare metal, which takes long to boot"
    if text_in(item, "burstablePerformanceSupported") == "true":
        return "burstable: slow once its CPU credits are used up"
    return "of a previous generation" if text_in(item, "currentGeneration") == "false" else ""


def _size(item: Element, region: str, prices: PriceTable) -> OfferedSize:
    name = text_in(item, "instanceType")
    # Flux counts physical cores, and defaultVCpus counts hardware threads.
    cores = int(text_in(item, "vCpuInfo/defaultCores") or text_in(item, "vCpuInfo/defaultVCpus") or 0)
    architectures = item.findall("./{*}processorInfo/{*}supportedArchitectures/{*}item")
    gpus = item.findall("./{*}gpuInfo/{*}gpus/{*}item")
    return OfferedSize(
        name,
        cores,
        sum(int(text_in(gpu, "count") or 0) for gpu in gpus),
        int(text_in(item, "memoryInfo/sizeInMiB") or 0) * _MIB,
        prices.price_of(region, name) or None,  # the list has zeros for sizes that cost money
        frozenset(it.text or "" for it in architectures),
    )


# --- tries what the service will do -----------------------------------------------------------------------


def check_nodes(site: Site, settings: PortSettings) -> Iterator[Finding]:
    """Try a create of each size and a termination by dry runs, then compare the quotas."""
    port = ports_of(site, settings)()
    try:
        port.check_reads()
    except CloudError as error:
        yield refused("permissions", error)
    else:
        yield Finding("permissions", Verdict.OK, "to list nodes, their health, volumes, interfaces and addresses")
    knows_dry_runs = False
    for node_type in site.node_types:
        sizes = ", ".join(dict.fromkeys(size.size for size in node_type.by_size()))
        text = f"EC2 would create {sizes} from {node_type.image} (a dry run)"
        yield (tried := try_sizes(node_type, port.dry_run, text, settings.clock))
        knows_dry_runs = knows_dry_runs or tried.verdict is Verdict.OK
    if knows_dry_runs:
        yield _check_terminate(port)
    yield from _check_quotas(site, settings.clock)


def _check_terminate(port: Ec2Cloud) -> Finding:
    """Ask whether an instance of the cluster might be terminated. Without one, the policy cannot be tried."""
    try:
        alive = [it for it in port.list_nodes() if it.state in (CloudState.PENDING, CloudState.RUNNING)]
        if not alive:
            text = "not tried, because the cluster has no instance. flux-node-manager cloud-test tries it"
            return Finding("termination", Verdict.OK, text)
        port.dry_terminate(alive[0].provider_id)
    except CloudError as error:
        return refused("termination", error)
    return Finding("termination", Verdict.OK, f"EC2 would terminate {alive[0].provider_id} (a dry run)")


def _check_quotas(site: Site, clock: Clock) -> Iterator[Finding]:
    """Compare each quota with the virtual CPUs that ``nodes_max`` nodes of its sizes have."""
    try:
        quotas = quotas_of(site, clock)
    except CloudError as error:
        text = f"{most_cores(site)} cores may run at once by nodes_max; the quotas cannot be read: {error.detail}"
        remedy = "Allow servicequotas:ListServiceQuotas, or compare that with Service Quotas yourself"
        yield Finding("quotas", Verdict.OK, text, remedy)
        return
    cpus = {name: it.cores for name, it in site.rules.known_sizes().items()}
    short = False
    for quota in quotas:
        needed = sum(sorted(_cpus_per_slot(site, quota, cpus), reverse=True)[: site.limits.nodes_max])
        if needed > quota.cpus:
            short = True
            text = f"{needed} virtual CPUs may be needed, and {quota.cpus:g} may run: {quota.name}"
            yield Finding("quotas", Verdict.WARNING, text, REMEDY_OF_QUOTA)
    if not short:
        text = "they allow all nodes of nodes_max, if the account runs no other instances"
        yield Finding("quotas", Verdict.OK, text)


def _cpus_per_slot(site: Site, quota: CpuQuota, cpus: Mapping[str, int]) -> Iterator[int]:
    """The virtual CPUs that a node in each slot can have of those that the quota counts."""
    for node_type in site.node_types:
        counted = [
            cpus.get(it.size, 2 * it.cores) for it in node_type.by_size() if quota.counts(it.size, it.market)
        ]
        yield from [max(counted)] * len(node_type.slots) if counted else ()


# --- reads from Service Quotas how many virtual CPUs may run at once in a region --------------------------
#
# Each quota is for a group of instance families, on demand or spot, and counts every instance of the account:
# https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_ListServiceQuotas.html.


_TARGET = "ServiceQuotasV20190624.ListServiceQuotas"
_JSON = "application/x-amz-json-1.1"
_NAMES = {
    Market.ON_DEMAND: re.compile(r"Running On-Demand (?P<families>.+) instances"),
    Market.SPOT: re.compile(r"All (?P<families>.+) Spot Instance Requests"),
}
_FAMILY = re.compile(r"\b(?P<letters>[A-Z]+[a-z]*)(?P<generation>[0-9]*)\b")
_SIZE_OF_FAMILY = re.compile(r"(?P<letters>[a-z]+)-?(?P<generation>[0-9]*)")


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """``families``: such as "c" or "p5", or "u" for the sizes with high memory. ``cpus``: the most at once."""

    name: str
    market: Market
    families: frozenset[str]
    cpus: float

    def counts(self, size: str, market: Market) -> bool:
        """Whether instances of a size count."""
        found = _SIZE_OF_FAMILY.match(size)
        if found is None or market is not self.market:
            return False
        letters = found["letters"]
        names = {letters, letters + found["generation"]}
        if not names & self.families and letters not in _OWN_GROUPS:
            names.add(letters[0])  # im4gn is of family I
        return bool(names & self.families)


# Families of more than one letter that do not belong to the group of their first letter.
_OWN_GROUPS = frozenset({"dl", "hpc", "inf", "mac", "trn", "vt"})


class _QuotaResponse(JsonResponse):
    def parse_error(self) -> str:
        try:
            body = read_json(self.body or "")
        except ValueError:
            body = {}
        code = str(body.get("__type") or f"HTTP {self.status}").rpartition("#")[2]
        message = body.get("message") or body.get("Message") or ""
        raise BaseHTTPError(self.status, f"{code}: {message}", self.headers)  # type: ignore[no-untyped-call]


class _QuotaConnection(SignedAWSConnection):
    responseCls: Any = _QuotaResponse  # noqa: N815 - libcloud's name for the hook
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
    connection: Any = _QuotaConnection(  # type: ignore[no-untyped-call]
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
    with reading(clock, EC2_CODES):
        return tuple(quota for item in _quota_items(connection) if (quota := _parse_quota(item)) is not None)


def _quota_items(connection: Any) -> Iterator[dict[str, Any]]:
    asked: dict[str, object] = {"ServiceCode": "ec2", "MaxResults": 100}
    headers = {"Content-Type": _JSON, "X-Amz-Target": _TARGET}
    for _ in range(PAGES_MAX):
        reply = connection.request("/", method="POST", data=json.dumps(asked), headers=dict(headers)).object
        yield from objects_in(object_in(reply, "the quotas"), "Quotas", "the list of quotas")
        if not reply.get("NextToken"):
            return
        asked["NextToken"] = reply["NextToken"]
    raise malformed_reply("the list of quotas does not end", asked)


def _parse_quota(item: dict[str, Any]) -> CpuQuota | None:
    """The quota of an item; None if it is about something else."""
    name = str(item.get("QuotaName") or "")
    for market, pattern in _NAMES.items():
        found = pattern.fullmatch(name)
        if found is not None and isinstance(item.get("Value"), int | float):
            named = found["families"].replace("High Memory", "U").removeprefix("Standard ")
            families = {it["letters"].lower() + it["generation"] for it in _FAMILY.finditer(named)}
            return CpuQuota(name, market, frozenset(families), item["Value"])
    return None


def quotas_of(site: Site, clock: Clock) -> tuple[CpuQuota, ...]:
    """Read the region's quotas on virtual CPUs. Raises :class:`CloudError`."""
    endpoint = endpoint_of(site.cloud.region, site.cloud.endpoint)
    keys = key_source(site.credentials, os.environ, clock)
    return read_cpu_quotas(endpoint, keys, clock, site.cloud.call_timeout_s)
