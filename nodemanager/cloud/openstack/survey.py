"""Reads what a project of an OpenStack cloud offers in one region."""

from __future__ import annotations

from collections.abc import Iterator

from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, OfferedSize, Survey
from nodemanager.cloud.openstack.driver import NovaDriver
from nodemanager.core.ports import Clock

_MIB = 2**20


def survey_project(driver: NovaDriver, region: str, clock: Clock) -> Survey:
    """Read one region. Raises :class:`CloudError`.

    OpenStack knows no prices. The GPUs of a flavor are in extra specs that every site names in its own way, so none
    are read.
    """
    with reading(clock):
        return Survey(
            region,
            (),
            tuple(driver.zones()),
            tuple(sorted(_images(driver), key=lambda image: image.created, reverse=True)),
            tuple(
                OfferedNetwork(it["id"], it.get("name") or "", security_group="default") for it in driver.networks()
            ),
            tuple(_sizes(driver)),
        )


def _images(driver: NovaDriver) -> Iterator[OfferedImage]:
    for item in driver.images():
        yield OfferedImage(item["id"], item.get("name") or "", item.get("created_at") or "")


def _sizes(driver: NovaDriver) -> Iterator[OfferedSize]:
    for item in driver.flavors():
        memory_bytes = int(item.get("ram") or 0) * _MIB
        yield OfferedSize(str(item.get("name")), int(item.get("vcpus") or 0), 0, memory_bytes, None)
