"""Looks up what a create on Google Compute Engine would name, and the quotas. Creates nothing.

The calls: ``get`` of images, machineTypes, networks, subnetworks, regions and projects in
https://cloud.google.com/compute/docs/reference/rest/v1. Quotas: https://cloud.google.com/compute/quotas.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nodemanager.cloud.common.findings import Finding, Verdict, compare_quotas, look_up_all, refused, unreadable
from nodemanager.cloud.common.transport import objects_in
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.from_site import gce_driver, placements_of
from nodemanager.cloud.gce.instances import GcePlacement
from nodemanager.cloud.gce.survey import reading_project
from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import Market, NodeType, TypeName

_NEEDED = "the role roles/compute.viewer"
_UNUSABLE_IMAGES = frozenset({"OBSOLETE", "DELETED"})
_ALL_REGIONS = "CPUS_ALL_REGIONS"
_SPOT_CPUS = "PREEMPTIBLE_CPUS"
_COMMON_SERIES = frozenset({"e2", "f1", "g1", "n1"})  # they use CPUS if the region has no quota of their own


def check_nodes(site: Site, clock: Clock) -> Iterator[Finding]:
    """Check the image, the network and the machine types in each zone of each node type, then the quotas.

    If one call creates several nodes, also check whether Google's keys can be read, without which they cannot join.
    """
    driver = gce_driver(site, clock)
    project = _Project(driver, clock)
    placements = placements_of(site)
    for node_type in site.node_types:
        placement = placements[node_type.name]
        lookups = (
            _image_problems(project, node_type.image),
            _network_problems(project, placement),
            _machine_problems(project, node_type, placement),
            _architecture_problems(project, node_type, placement),
        )
        sizes = ", ".join(_sizes_of(node_type))
        text = f"{', '.join(placement.zones)} has {sizes}; image {node_type.image} and the network exist"
        yield look_up_all(f"nodes of {node_type.name}", lookups, text, _NEEDED)
    try:
        yield from _check_quotas(site, project, placements)
    except CloudError as error:
        yield unreadable("quotas", error, _NEEDED)
    if site.batches:
        yield _check_keys(driver, clock)


def _check_keys(driver: GceDriver, clock: Clock) -> Finding:
    subject = "identity keys"
    try:
        with reading_project(clock):
            keys, _ = driver.identity_keys()
            count = len(objects_in(keys, "keys", "Google's keys"))
    except CloudError as error:
        return refused(subject, error)
    return Finding(subject, Verdict.OK, f"Google publishes {count}, by which nodes of one call prove who they are")


@dataclass(frozen=True, slots=True)
class _Quota:
    """How much may be used at once, and is used now."""

    limit: float
    usage: float


class _Project:
    """The resources of a project, each read once."""

    def __init__(self, driver: GceDriver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._read: dict[str, dict[str, Any] | None] = {}

    def find(self, path: str) -> dict[str, Any] | None:
        """Return a resource; None if it does not exist. Raises :class:`CloudError`."""
        if path not in self._read:
            try:
                with reading_project(self._clock):
                    self._read[path] = self._driver.resource(path)
            except CloudError as error:
                if error.kind is not FailureKind.GONE:
                    raise
                self._read[path] = None
        return self._read[path]

    def machine(self, zone: str, size: str) -> dict[str, Any] | None:
        """Return a machine type; None if the zone does not have it."""
        return self.find(f"zones/{zone}/machineTypes/{size}")

    def cpus(self, zone: str, size: str) -> int:
        """Return the virtual CPUs of a machine type; 0 if the zone does not have it."""
        return int((self.machine(zone, size) or {}).get("guestCpus") or 0)

    def quotas(self, path: str) -> dict[str, _Quota]:
        """Return the quotas of a region by their metric, or those of the project (``path`` "")."""
        found = (self.find(path) or {}).get("quotas") or ()
        return {str(it["metric"]): _Quota(float(it["limit"]), float(it["usage"])) for it in found}


def _sizes_of(node_type: NodeType) -> list[str]:
    return list(dict.fromkeys(it.size for it in node_type.by_size()))


def _machine_problems(project: _Project, node_type: NodeType, placement: GcePlacement) -> Iterator[str]:
    for zone, size in itertools.product(placement.zones, _sizes_of(node_type)):
        if project.machine(zone, size) is None:
            yield f"zone {zone} has no machine type {size}"


def _architecture_problems(project: _Project, node_type: NodeType, placement: GcePlacement) -> Iterator[str]:
    ours = (project.find(node_type.image) or {}).get("architecture")
    for size in _sizes_of(node_type):
        machines = (project.machine(zone, size) or {} for zone in placement.zones)
        theirs = next((it["architecture"] for it in machines if it.get("architecture")), ours)
        if ours and theirs != ours:
            yield f"{size} is {theirs}, and image {node_type.image} is {ours}"


def _image_problems(project: _Project, name: str) -> Iterator[str]:
    image = project.find(name)
    if image is None:
        yield f"there is no image {name}"
        return
    state = (image.get("deprecated") or {}).get("state")
    if state in _UNUSABLE_IMAGES:
        yield f"image {name} is {state.lower()}"
    elif image.get("status", "READY") != "READY":
        yield f"image {name} is {image['status'].lower()}"


def _network_problems(project: _Project, placement: GcePlacement) -> Iterator[str]:
    network = project.find(placement.network)
    if network is None:
        yield f"there is no network {placement.network}"
    elif "/subnetworks/" not in placement.network:
        if network.get("autoCreateSubnetworks") is False:
            yield f"{placement.network} needs a subnetwork: give regions/REGION/subnetworks/NAME"
    else:
        region = str(network.get("region") or "").rpartition("/")[2]
        if elsewhere := [zone for zone in placement.zones if _region_of(zone) != region]:
            yield f"{placement.network} is in {region}, and the nodes in {', '.join(elsewhere)}"


def _check_quotas(site: Site, project: _Project, placements: Mapping[TypeName, GcePlacement]) -> Iterator[Finding]:
    cpus: dict[str, dict[TypeName, int]] = {}
    free: dict[str, float] = {}
    for node_type in site.node_types:
        for zone, size in itertools.product(placements[node_type.name].zones, node_type.by_size()):
            for name, quota in _quotas_that_count(project, _region_of(zone), size):
                free[name] = quota.limit - quota.usage
                by_type = cpus.setdefault(name, {})
                by_type[node_type.name] = max(project.cpus(zone, size.size), by_type.get(node_type.name, 0))
    yield from compare_quotas(site, cpus, free)


def _quotas_that_count(project: _Project, region: str, size: NodeType) -> Iterator[tuple[str, _Quota]]:
    here = project.quotas(f"regions/{region}")
    if metric := _metric_of(size, here):
        yield f"{metric} in {region}", here[metric]
    if everywhere := project.quotas("").get(_ALL_REGIONS):
        yield _ALL_REGIONS, everywhere


def _metric_of(size: NodeType, quotas: Mapping[str, _Quota]) -> str:
    """Return the metric that counts the virtual CPUs of a size; "" if the region does not list it."""
    series = size.size.partition("-")[0]
    names = [f"{series.upper()}_CPUS", *(["CPUS"] if series in _COMMON_SERIES else [])]
    if size.market is Market.SPOT and (spot := quotas.get(_SPOT_CPUS)) and spot.limit > 0:
        return _SPOT_CPUS  # a project without this quota uses the other one for spot too
    return next((name for name in names if name in quotas), "")


def _region_of(zone: str) -> str:
    return zone.rpartition("-")[0]
