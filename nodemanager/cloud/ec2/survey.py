"""Reads what one region of an AWS account offers. A person's keys need these permissions; the service does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from xml.etree.ElementTree import Element

from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, OfferedSize, Survey
from nodemanager.cloud.ec2.driver import Ec2Driver
from nodemanager.cloud.ec2.replies import set_in, text_in
from nodemanager.config.price_list import PriceTable
from nodemanager.core.ports import Clock

_MIB = 2**20
_TYPES_PER_PAGE = "100"  # EC2's limit


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
    with reading(clock):
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
    with reading(clock):
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
