"""Reads what an Azure subscription offers in one region.

The lists: https://learn.microsoft.com/rest/api/compute and https://learn.microsoft.com/rest/api/virtualnetwork.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodemanager.cloud.azure.driver import COMPUTE_API, NETWORK_API, AzureDriver
from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, OfferedSize, Survey
from nodemanager.config.price_list import read_bundled_table
from nodemanager.core.ports import Clock

_SUBSCRIPTIONS_API = "2022-12-01"
_SKUS_API = "2021-07-01"
_GIB = 2**30
_SLOW = ("Basic", "Standard_A", "Standard_B")  # old, or with a processor that is not full-time


def survey_region(driver: AzureDriver, region: str, clock: Clock) -> Survey:
    """Read one region. Raises :class:`CloudError`."""
    with reading(clock):
        return Survey(
            region,
            tuple(sorted(str(it["name"]) for it in driver.offered("/locations", _SUBSCRIPTIONS_API))),
            (),
            tuple(_images(driver, region)),
            tuple(_networks(driver, region)),
            tuple(_sizes(driver, region)),
        )


def _images(driver: AzureDriver, region: str) -> Iterator[OfferedImage]:
    """The subscription's own images. Those in galleries are not among them."""
    for item in driver.offered("/providers/Microsoft.Compute/images", COMPUTE_API):
        if is_in_region(item, region):
            yield OfferedImage(str(item["id"]), str(item["name"]))


def _networks(driver: AzureDriver, region: str) -> Iterator[OfferedNetwork]:
    """Every subnet. Azure's own, such as the one of a gateway, take no machines."""
    for network in driver.offered("/providers/Microsoft.Network/virtualNetworks", NETWORK_API):
        if not is_in_region(network, region):
            continue
        for subnet in network.get("properties", {}).get("subnets", ()):
            name = str(subnet["name"])
            if not name.startswith(("Azure", "Gateway")):
                addresses = str(subnet.get("properties", {}).get("addressPrefix") or "")
                yield OfferedNetwork(str(subnet["id"]), f"{network['name']}/{name}", addresses=addresses)


def _sizes(driver: AzureDriver, region: str) -> Iterator[OfferedSize]:
    """The sizes that this subscription may use in the region."""
    skus = [
        item
        for item in list_sizes(driver, region)
        if not str(item["name"]).startswith(_SLOW)
        and not any(it.get("type") == "Location" for it in item.get("restrictions") or ())
    ]
    table = read_bundled_table("azure", {str(item["name"]): 0 for item in skus})
    for item in skus:
        has = {str(it["name"]): str(it["value"]) for it in item.get("capabilities") or ()}
        name = str(item["name"])
        threads = max(1, int(has.get("vCPUsPerCore") or 1))
        yield OfferedSize(
            name,
            int(has.get("vCPUs") or 0) // threads,
            int(has.get("GPUs") or 0),
            int(float(has.get("MemoryGB") or 0) * _GIB),
            table.price_of(region, name) or None,
            frozenset({has["CpuArchitectureType"]} if "CpuArchitectureType" in has else ()),
        )


def list_sizes(driver: AzureDriver, region: str) -> list[dict[str, Any]]:
    """Return every size of a region, with its capabilities and what keeps the subscription from using it."""
    found = driver.offered("/providers/Microsoft.Compute/skus", _SKUS_API, **_only(region))
    return [item for item in found if item.get("resourceType") == "virtualMachines"]


def _only(region: str) -> dict[str, str]:
    return {"$filter": f"location eq '{region}'"}


def is_in_region(item: dict[str, Any], region: str) -> bool:
    """Compare the location of a resource with a region."""
    # Azure writes locations as westeurope, and sometimes as West Europe.
    return str(item.get("location") or "").replace(" ", "").lower() == region.lower()
