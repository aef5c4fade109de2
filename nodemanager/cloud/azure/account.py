"""Asks an Azure subscription what it offers, and whether it would give a site its nodes.

The lists: https://learn.microsoft.com/rest/api/compute (images, galleries, resource SKUs, usages) and
https://learn.microsoft.com/rest/api/virtualnetwork.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodemanager.cloud.azure.driver import COMPUTE_API, NETWORK_API, AzureDriver
from nodemanager.cloud.azure.port import AzurePlacement, azure_driver, placements_of
from nodemanager.cloud.common.findings import Finding, compare_quotas, look_up_all, unreadable
from nodemanager.cloud.common.libcloud_port import reading
from nodemanager.cloud.common.survey import (
    CALL_TIMEOUT_S,
    NODE_PORTS,
    Account,
    OfferedImage,
    OfferedNetwork,
    OfferedSize,
    Questions,
    Survey,
    Unanswered,
    choose_region,
    describe_price_list,
)
from nodemanager.config.price_list import read_bundled_table
from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, TypeName

_VARIABLES = {
    name: f"AZURE_{name.upper()}" for name in ("tenant_id", "subscription_id", "client_id", "client_secret")
}
_SSH_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")
_SUBSCRIPTIONS_API = "2022-12-01"
_SKUS_API = "2021-07-01"
_GIB = 2**30
_SLOW = ("Basic", "Standard_A", "Standard_B")  # old, or with a processor that is not full-time
_NEEDED = "the role Reader on the subscription"
_GALLERY_API = "2021-10-01"
_CORES, _MACHINES = "cores", "virtualMachines"  # the quotas of a region that count every machine


class AzureAccount(Account):
    """Keys come from the environment, by the names that Azure's own libraries read."""

    keys_remedy = "Correct the AZURE_ variables, and give the application the role Reader on the subscription"
    network_intro = "Azure allows that within a virtual network. If rules of your own forbid it, rules for rank 0:"

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        if missing := [name for name in _VARIABLES.values() if not environment.get(name)]:
            raise Unanswered(f"{', '.join(missing)} must be set: the application that acts in the subscription")
        self._region = choose_region(chosen.region, environment, ("AZURE_LOCATION",), "westeurope", questions)
        group = chosen.resource_group or environment.get("AZURE_RESOURCE_GROUP")
        self._group = questions.choose("resource group", "--resource-group", group, [])
        self._ssh_key = _read_ssh_key(chosen.ssh_key)
        self.price_source = describe_price_list("azure")
        compute = f"/subscriptions/{environment[_VARIABLES['subscription_id']]}/resourceGroups/{self._group}"
        self.missing_image = OfferedImage(f"{compute}/providers/Microsoft.Compute/images/flux-node", "")

    def survey(self, clock: Clock) -> Survey:
        driver = AzureDriver(
            **{key: self._environment[name] for key, name in _VARIABLES.items()},
            resource_group=self._group,
            timeout_s=CALL_TIMEOUT_S,
            endpoint=self._endpoint,
        )
        return survey_region(driver, self._region, clock)

    def credentials(self) -> dict[str, str]:
        given = {key: self._environment[name] for key, name in _VARIABLES.items()}
        return given | {"client_secret": f"${{{_VARIABLES['client_secret']}}}"}

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        return {
            "region": self._region,
            "resource_group": self._group,
            "image": image.id,
            "network": network.id or "NETWORK/SUBNET",
            "ssh_public_key": self._ssh_key,
        }

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        group = f"--resource-group {self._group}"
        ports = " ".join(str(port) for port in NODE_PORTS)
        yield f"az network nsg create {group} --name flux-{cluster} --location {self._region}"
        yield (
            f"az network nsg rule create {group} --nsg-name flux-{cluster} --name flux --priority 100 "
            f"--protocol Tcp --destination-port-ranges {ports} "
            f"--source-address-prefixes {network.addresses or 'ADDRESSES'}"
        )
        yield f"az network nic update {group} --name INTERFACE_OF_RANK_0 --network-security-group flux-{cluster}"


def _read_ssh_key(given: str | None) -> str:
    """The public key of a file: the one given, or the first usual one of this user."""
    files = [Path(given)] if given else [Path.home() / ".ssh" / name for name in _SSH_KEYS]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            if given:
                raise Unanswered(f"--ssh-key {file}: {error}") from error
            continue
        if text.startswith(("ssh-", "ecdsa-")) and "\n" not in text:
            return text
        if given:
            raise Unanswered(f"--ssh-key {file}: this is not one public key of ssh")
    raise Unanswered("give --ssh-key FILE, a public key: Azure creates no Linux machine without a way to log in")


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


# --- looks up what a create would name, and the quotas ----------------------------------------------------


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
