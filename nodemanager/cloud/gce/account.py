"""Asks a project on Google Compute Engine what it offers, and whether it would give a site its nodes.

The lists: https://cloud.google.com/compute/docs/reference/rest/v1. Quotas: https://cloud.google.com/compute/quotas.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libcloud.common.google import GoogleAuthError

from nodemanager.cloud.common.findings import Finding, Verdict, compare_quotas, look_up_all, refused, unreadable
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
from nodemanager.cloud.common.transport import objects_in
from nodemanager.cloud.gce.credentials import CachedTokens
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.instances import GcePlacement
from nodemanager.cloud.gce.port import gce_driver, placements_of, token_fetcher
from nodemanager.config.price_list import read_bundled_table
from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import Market, NodeType, TypeName

_KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_MIB = 2**20
_X86, _ARM = "X86_64", "ARM64"
# A virtual CPU is a hardware thread, except in these series and on Arm, where it is a core.
_ARM_SERIES = frozenset({"c4a", "n4a", "t2a"})
_SERIES_WITHOUT_THREADS = frozenset({"h3", "h4d", "t2d"})
_NEEDED = "the role roles/compute.viewer"
_UNUSABLE_IMAGES = frozenset({"OBSOLETE", "DELETED"})
_ALL_REGIONS = "CPUS_ALL_REGIONS"
_SPOT_CPUS = "PREEMPTIBLE_CPUS"
_COMMON_SERIES = frozenset({"e2", "f1", "g1", "n1"})  # they use CPUS if the region has no quota of their own


class GceAccount(Account):
    """The key is the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, or the role of this instance."""

    keys_remedy = (
        "Set GOOGLE_APPLICATION_CREDENTIALS to the JSON key of a service account. Or run this on an instance that "
        "has a service account"
    )
    network_intro = "A firewall rule:"

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        self._key_file = environment.get(_KEY_VARIABLE, "")
        self._key = _read_key(self._key_file) if self._key_file else {}
        project = chosen.project or environment.get("GOOGLE_CLOUD_PROJECT") or self._key.get("project_id")
        if not project and not questions.can_ask:
            raise Unanswered("give --project, or set GOOGLE_CLOUD_PROJECT")
        self._project = questions.choose("project", "--project", project, [])
        variables = ("CLOUDSDK_COMPUTE_REGION",)
        self._region = choose_region(chosen.region, environment, variables, "europe-west3", questions)
        self.price_source = describe_price_list("gce")
        self.missing_image = OfferedImage(f"projects/{self._project}/global/images/flux-node", "")
        self._zones: tuple[str, ...] = ()

    def survey(self, clock: Clock) -> Survey:
        secrets = {}
        if self._key:
            key = Path(self._key_file).read_text(encoding="utf-8")
            secrets = {"service_account": self._key["client_email"], "key": key}
        tokens = CachedTokens(token_fetcher(secrets, self._environment, CALL_TIMEOUT_S), clock)
        driver = GceDriver(self._project, tokens, timeout_s=CALL_TIMEOUT_S, endpoint=self._endpoint)
        survey = survey_region(driver, self._project, self._region, clock)
        self._zones = survey.zones
        return survey

    def credentials(self) -> dict[str, str]:
        if not self._key:
            return {}
        file = str(Path(self._key_file).absolute())
        return {"service_account": self._key["client_email"], "key_file": file}

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        zones = ", ".join(self._zones)
        return {"project": self._project, "image": image.id, "network": network.id, "zones": zones}

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        ports = ",".join(f"tcp:{port}" for port in NODE_PORTS)
        yield (
            f"gcloud compute firewall-rules create flux-{cluster} --project {self._project} "
            f"--network {network.name or 'NETWORK'} --direction INGRESS --allow {ports} "
            f"--source-ranges {network.addresses or 'ADDRESSES'}"
        )


def _read_key(file: str) -> dict[str, Any]:
    try:
        key = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unanswered(f"{_KEY_VARIABLE} names {file}, which cannot be read: {error}") from error
    if not isinstance(key, dict) or not {"client_email", "private_key"} <= key.keys():
        raise Unanswered(f"{_KEY_VARIABLE} names {file}, which is not the JSON key of a service account")
    return key


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


# --- looks up what a create would name, and the quotas ----------------------------------------------------


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
