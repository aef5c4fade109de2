"""Reads what a project on Google Compute Engine offers in one region.

The lists: https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from libcloud.common.google import GoogleAuthError

from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, OfferedSize, Survey
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.config.price_list import read_bundled_table
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError

_MIB = 2**20
_X86, _ARM = "X86_64", "ARM64"
# A virtual CPU is a hardware thread, except in these series and on Arm, where it is a core.
_ARM_SERIES = frozenset({"c4a", "n4a", "t2a"})
_SERIES_WITHOUT_THREADS = frozenset({"h3", "h4d", "t2d"})


def survey_region(driver: GceDriver, project: str, region: str, clock: Clock) -> Survey:
    """Read one region. Raises :class:`CloudError`."""
    with reading_project(clock):
        zones = sorted(
            str(zone["name"])
            for zone in driver.items("/zones")
            if _last(zone.get("region")) == region and zone.get("status") == "UP"
        )
        return Survey(
            region,
            tuple(sorted(str(it["name"]) for it in driver.items("/regions"))),
            tuple(zones),
            tuple(sorted(_images(driver, project), key=lambda image: image.created, reverse=True)),
            tuple(_networks(driver, region)) if zones else (),
            tuple(_sizes(driver, region, zones)),
        )


@contextmanager
def reading_project(clock: Clock) -> Iterator[None]:
    """Raise the foreseen errors as :class:`CloudError`, also of a login that Google refuses, or without any key."""
    try:
        with reading(clock):
            yield
    except CloudError as error:
        if isinstance(error.__cause__, GoogleAuthError):
            raise CloudError(FailureKind.CREDENTIALS, error.detail) from error
        raise


def _images(driver: GceDriver, project: str) -> Iterator[OfferedImage]:
    """The project's own images."""
    for item in driver.items("/global/images"):
        if item.get("status") == "READY" and "deprecated" not in item:
            name = str(item["name"])
            yield OfferedImage(
                f"projects/{project}/global/images/{name}",
                name,
                str(item.get("creationTimestamp") or ""),
                str(item.get("architecture") or ""),
            )


def _networks(driver: GceDriver, region: str) -> Iterator[OfferedNetwork]:
    for item in driver.items(f"/regions/{region}/subnetworks"):
        name = str(item["name"])
        addresses = str(item.get("ipCidrRange") or "")
        yield OfferedNetwork(
            f"regions/{region}/subnetworks/{name}", _last(item.get("network")), addresses=addresses
        )


def _sizes(driver: GceDriver, region: str, zones: list[str]) -> Iterator[OfferedSize]:
    """The machine types that every zone has, because a node may start in any. None of them shares its cores."""
    by_zone = [{str(it["name"]): it for it in driver.items(f"/zones/{zone}/machineTypes")} for zone in zones]
    everywhere = {
        name: item
        for name, item in (by_zone[0].items() if by_zone else ())
        if all(name in other for other in by_zone) and not item.get("isSharedCpu") and "deprecated" not in item
    }
    table = read_bundled_table("gce", {name: _memory_bytes(item) for name, item in everywhere.items()})
    for name, item in everywhere.items():
        series = name.partition("-")[0]
        architecture = str(item.get("architecture") or (_ARM if series in _ARM_SERIES else _X86))
        has_threads = architecture != _ARM and series not in _SERIES_WITHOUT_THREADS
        cpus = int(item.get("guestCpus") or 0)
        yield OfferedSize(
            name,
            cpus // 2 if has_threads and cpus > 1 else cpus,
            sum(int(it.get("guestAcceleratorCount") or 0) for it in item.get("accelerators") or ()),
            _memory_bytes(item),
            # The list prices only processors and memory.
            None if item.get("accelerators") else table.price_of(region, name) or None,
            frozenset({architecture}),
        )


def _memory_bytes(item: dict[str, Any]) -> int:
    return int(item.get("memoryMb") or 0) * _MIB


def _last(url: object) -> str:
    return str(url or "").rpartition("/")[2]
