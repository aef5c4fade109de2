"""Reads what a project of an OpenStack cloud offers in one region."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, OfferedSize, Survey
from nodemanager.cloud.openstack.driver import NovaDriver
from nodemanager.core.ports import Clock

_MIB = 2**20
# https://docs.openstack.org/nova/latest/configuration/extra-specs.html
_DEVICES = "pci_passthrough:alias"
_VIRTUAL_GPUS = re.compile(r"resources[^:]*:VGPU")


def survey_project(driver: NovaDriver, region: str, clock: Clock) -> Survey:
    """Read one region. Raises :class:`CloudError`. OpenStack knows no prices."""
    with reading(clock):
        return Survey(
            region,
            (),
            tuple(driver.zones()),
            tuple(sorted(_images(driver), key=lambda image: image.created, reverse=True)),
            tuple(OfferedNetwork(it["id"], it.get("name") or "") for it in driver.networks()),
            tuple(_sizes(driver)),
            tuple(sorted({str(it.get("name")) for it in driver.security_groups()})),
        )


def _images(driver: NovaDriver) -> Iterator[OfferedImage]:
    for item in driver.images():
        yield OfferedImage(item["id"], item.get("name") or "", item.get("created_at") or "")


def _sizes(driver: NovaDriver) -> Iterator[OfferedSize]:
    """Every flavor. Its extra specs tell virtual GPUs, and devices under names that each site chooses itself."""
    for item in driver.flavors():
        specs = driver.extra_specs(str(item.get("id")))
        devices = specs.get(_DEVICES, "")
        yield OfferedSize(
            str(item.get("name")),
            int(item.get("vcpus") or 0),
            sum(
                int(number) for key, number in specs.items() if _VIRTUAL_GPUS.fullmatch(key) and number.isdecimal()
            ),
            int(item.get("ram") or 0) * _MIB,
            None,
            note=f"{_DEVICES} = {devices}" if devices else "",
        )
