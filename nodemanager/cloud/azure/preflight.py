"""Looks up what a create on Azure would name, and the quotas. Creates nothing.

The calls: images, galleries, virtual machine images, resource SKUs and usages in
https://learn.microsoft.com/rest/api/compute, and https://learn.microsoft.com/rest/api/virtualnetwork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodemanager.cloud.azure.driver import COMPUTE_API, NETWORK_API, AzureDriver
from nodemanager.cloud.azure.from_site import azure_driver, placements_of
from nodemanager.cloud.azure.port import AzurePlacement
from nodemanager.cloud.azure.survey import is_in_region, list_sizes
from nodemanager.cloud.common.findings import Finding, compare_quotas, look_up_all, unreadable
from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, TypeName

_NEEDED = "the role Reader on the subscription"
_GALLERY_API = "2021-10-01"
_CORES, _MACHINES = "cores", "virtualMachines"  # the quotas of a region that count every machine


def check_nodes(site: Site, clock: Clock) -> Iterator[Finding]:
    """Check the image, the sizes and the subnet of each node type, then the quotas."""
    driver = azure_driver(site)
    try:
        with reading(clock):
            sizes = {str(it["name"]): it for it in list_sizes(driver, site.cloud.region)}
    except CloudError as error:
        yield unreadable("nodes", error, _NEEDED)
        return
    placements = placements_of(site)
    account = _Account(driver, site.cloud.region, clock)
    for node_type in site.node_types:
        placement = placements[node_type.name]
        lookups = (
            _size_problems(node_type, placement, sizes, site.cloud.region),
            account.image_problems(node_type.image),
            account.subnet_problems(placement.network),
        )
        names = ", ".join(dict.fromkeys(it.size for it in node_type.by_size()))
        text = f"{site.cloud.region} has {names}; image {node_type.image} and subnet {placement.network} exist"
        yield look_up_all(f"nodes of {node_type.name}", lookups, text, _NEEDED)
    try:
        yield from _check_quotas(site, sizes, account.usages())
    except CloudError as error:
        yield unreadable("quotas", error, _NEEDED)


class _Account:
    """Looks up images, subnets and quotas in one region."""

    def __init__(self, driver: AzureDriver, region: str, clock: Clock) -> None:
        self._driver = driver
        self._region = region
        self._clock = clock

    def image_problems(self, image: str) -> Iterator[str]:
        """Look for an image of the account, of a gallery or of the marketplace."""
        if not image.startswith("/"):
            yield from self._marketplace_problems(image)
            return
        found = self._find(image, _GALLERY_API if "/galleries/" in image else COMPUTE_API)
        if found is None:
            yield f"there is no image {image}"
        elif "/galleries/" not in image and not is_in_region(found, self._region):
            yield f"image {image} is in {found.get('location')}, and the nodes in {self._region}"

    def _marketplace_problems(self, image: str) -> Iterator[str]:
        publisher, offer, sku, version = image.split(":")
        versions = self._driver.marketplace_path(self._region, publisher, offer, sku)
        found = self._find(versions if version == "latest" else f"{versions}/{version}", COMPUTE_API)
        if not found:
            yield f"the marketplace has no image {image} in {self._region}"

    def subnet_problems(self, network: str) -> Iterator[str]:
        """Look for a subnet, and compare the location of its network."""
        subnet = self._driver.subnet_id(network)
        if self._find(subnet, NETWORK_API) is None:
            yield f"there is no subnet {network}"
            return
        whole = self._find(subnet.partition("/subnets/")[0], NETWORK_API)
        if whole is not None and not is_in_region(whole, self._region):
            yield f"subnet {network} is in {whole.get('location')}, and the nodes in {self._region}"

    def usages(self) -> dict[str, float]:
        """Return the free part of each quota of the region. Raises :class:`CloudError`."""
        with reading(self._clock):
            found = self._driver.offered(
                f"/providers/Microsoft.Compute/locations/{self._region}/usages", COMPUTE_API
            )
            return {
                str(it["name"]["value"]): float(it["limit"]) - float(it["currentValue"])
                for it in found
                if (it.get("name") or {}).get("value")
            }

    def _find(self, path: str, api: str) -> Any:
        """Return a resource or a list; None if it does not exist. Raises :class:`CloudError`."""
        try:
            with reading(self._clock):
                return self._driver.resource(path, api)
        except CloudError as error:
            if error.kind is not FailureKind.GONE:
                raise
            return None


def _size_problems(
    node_type: NodeType, placement: AzurePlacement, sizes: Mapping[str, Mapping[str, Any]], region: str
) -> Iterator[str]:
    for name in dict.fromkeys(it.size for it in node_type.by_size()):
        sku = sizes.get(name)
        if sku is None:
            yield f"{region} has no size {name}"
            continue
        restrictions: Sequence[Mapping[str, Any]] = sku.get("restrictions") or ()
        closed = {zone for it in restrictions for zone in (it.get("restrictionInfo") or {}).get("zones") or ()}
        if whole := next((it for it in restrictions if it.get("type") == "Location"), None):
            yield f"the subscription may not use {name} in {region} ({whole.get('reasonCode')})"
        elif placement.zone and placement.zone not in _zones_of(sku) - closed:
            yield f"zone {placement.zone} of {region} has no size {name} for the subscription"


def _zones_of(sku: Mapping[str, Any]) -> set[str]:
    return {str(zone) for place in sku.get("locationInfo") or () for zone in place.get("zones") or ()}


def _check_quotas(
    site: Site, sizes: Mapping[str, Mapping[str, Any]], free: Mapping[str, float]
) -> Iterator[Finding]:
    needs: dict[str, dict[TypeName, int]] = {}
    for node_type in site.node_types:
        for size in node_type.by_size():
            sku = sizes.get(size.size)
            if sku is None:
                continue
            cpus = next((int(it["value"]) for it in sku.get("capabilities") or () if it["name"] == "vCPUs"), 0)
            for quota, needed in ((_CORES, cpus), (str(sku.get("family")), cpus), (_MACHINES, 1)):
                by_type = needs.setdefault(quota, {})
                by_type[node_type.name] = max(needed, by_type.get(node_type.name, 0))
    by_name = {name.lower(): room for name, room in free.items()}  # the two calls differ in case
    counted = {quota: by_type for quota, by_type in needs.items() if quota.lower() in by_name}
    yield from compare_quotas(site, counted, {quota: by_name[quota.lower()] for quota in counted})
