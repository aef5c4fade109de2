"""``provider = ec2``: instances of an account on Amazon EC2, or another server with its query API."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from nodemanager.cloud.common.findings import Finding
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import Account, Questions
from nodemanager.config.provider import NodeProof, SignedDocument, SizeHardware, zones_of
from nodemanager.config.site import Site
from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import TypeName

CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")

_IMAGE = re.compile(r"ami-[0-9a-f]+", re.ASCII)
_SIZE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+", re.ASCII)
_SIZE_PATTERN = re.compile(r"[a-z0-9?*\[\]-]+(\.[a-z0-9?*\[\]-]+)?", re.ASCII)
_NODE = "Node "
_CERTIFICATE = re.compile(
    r"^# (\S+)\n(-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n)", re.DOTALL | re.MULTILINE
)
_MIB = 2**20


class Ec2(CloudProvider):
    """Instances of an account on Amazon EC2."""

    name = "ec2"
    title = "EC2"
    poweroff_effect = "a node that powers itself off costs no more: it is created to terminate on shutdown"
    has_account = True
    has_groups = True
    destroys_many = True
    notice = "ec2"
    billing = (
        "# EC2 bills Linux by the second, with a minimum of one minute.",
        "billing = per-second",
        "billing_minimum = 1m",
    )
    init_options = ()

    def faults(
        self, document: Document, cloud: CloudSettings, nodes: Mapping[TypeName, NodeSettings]
    ) -> Iterator[Fault]:
        """Find what EC2 would refuse later, at a create."""
        if not cloud.region:
            yield document.fault("Cloud", "region", 'must be given: a region such as "eu-central-1"')
        yield from _network_faults(document, "Cloud", cloud.network)
        yield from _zone_faults(document, "Cloud", cloud, cloud.subnets, cloud.region if not cloud.endpoint else "")
        for name, node in nodes.items():
            yield from _node_faults(document, name, node, cloud)
        yield from _credential_faults(document)
        try:
            identity_certificate(cloud)
        except OSError as error:
            yield document.fault("Cloud", "identity_certificate", f"cannot be read: {error.strerror}")

    def node_proof(self, cloud: CloudSettings) -> NodeProof | None:
        certificate = identity_certificate(cloud)
        return SignedDocument(certificate) if certificate else None

    def listed_prices(self, size: str, memory_bytes: int, listed: Mapping[str, Any]) -> Mapping[str, object]:
        del memory_bytes
        prices: Mapping[str, object] = listed["ec2_linux"].get(size, {})
        return prices

    def known_sizes(self) -> Mapping[str, SizeHardware]:
        return ec2_hardware()

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        # libcloud imports it to compute fingerprints of key pairs. We never make key pairs.
        with _import_blocked("cryptography"):
            from nodemanager.cloud.ec2.port import ports_of  # noqa: PLC0415

        return ports_of(site, settings)

    def warnings(self, site: Site, environment: Mapping[str, str]) -> Iterator[str]:
        from nodemanager.cloud.ec2.credentials import credential_warnings  # noqa: PLC0415

        return credential_warnings(site.credentials, environment)

    def check(self, site: Site, settings: PortSettings) -> Iterator[Finding]:
        from nodemanager.cloud.ec2.account import check_nodes  # noqa: PLC0415

        return check_nodes(site, settings)

    def clock_url(self, site: Site) -> str:
        from nodemanager.cloud.ec2.driver import endpoint_of  # noqa: PLC0415

        endpoint = endpoint_of(site.cloud.region, site.cloud.endpoint)
        return f"{'https' if endpoint.secure else 'http'}://{endpoint.host}:{endpoint.port}/"

    def account(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> Account:
        from nodemanager.cloud.ec2.account import Ec2Account  # noqa: PLC0415

        return Ec2Account(chosen, questions, environment)


PROVIDER = Ec2()


@contextmanager
def _import_blocked(module: str) -> Iterator[None]:
    """Make a module look uninstalled while other modules import it optionally. Saves 7 MB of memory."""
    if module in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[module] = None  # makes Python raise ModuleNotFoundError on import
    try:
        yield
    finally:
        del modules[module]


def ec2_hardware() -> Mapping[str, SizeHardware]:
    """What EC2's instance types have, by libcloud's table. ``cores`` are virtual CPUs."""
    # Loading it takes 0.1 s, and few sites need it.
    module = import_module("libcloud.compute.constants.ec2_instance_types")
    types = cast("Mapping[str, Mapping[str, Any]]", module.INSTANCE_TYPES)
    return {
        name: SizeHardware(int(it["extra"]["vcpu"]), int(it["extra"].get("gpu", 0)), int(it["ram"]) * _MIB)
        for name, it in types.items()
        if it["extra"].get("vcpu", "").isdecimal() and it["extra"].get("gpu", "0").isdecimal()
    }


def identity_certificate(cloud: CloudSettings) -> str:
    """Return the certificate, as PEM, that proves the identity of the nodes; "" if none is known.

    Raises ``OSError`` if the site names a file that cannot be read.
    """
    if cloud.identity_certificate is not None:
        return cloud.identity_certificate.read_text(encoding="ascii", errors="replace")
    return "" if cloud.endpoint else certificates().get(cloud.region, "")


@cache
def certificates() -> dict[str, str]:
    """Return the certificate of each region as PEM."""
    text = Path(__file__).with_name("identity.pem").read_text(encoding="ascii")
    return dict(_CERTIFICATE.findall(text))


def _node_faults(document: Document, name: TypeName, node: NodeSettings, cloud: CloudSettings) -> Iterator[Fault]:
    section = _NODE + name
    image, size = node.image or cloud.image, node.size or name
    if not image:
        yield document.fault(section, "image", 'must be given here or under [Cloud]: an image such as "ami-0abc"')
    elif not _IMAGE.fullmatch(image):
        yield document.fault(section if node.image else "Cloud", "image", 'an image such as "ami-0abc" is needed')
    for wrong in (it for it in node.sizes if not _SIZE_PATTERN.fullmatch(it)):
        yield document.fault(section, "sizes", f'"{wrong}" is no instance type such as "c7i.large", nor "c7i.*"')
    if not node.sizes and not _SIZE.fullmatch(size):
        yield document.fault(section, "size", 'an instance type such as "c7i.large" is needed')
    if node.price_per_hour == 0:
        # The cheapest type is bought first, so a forgotten price would make it the only choice.
        yield document.fault(section, "price_per_hour", "a price above 0 is needed: no node on EC2 is free")
    yield from _network_faults(document, section, node.network)
    if node.zones or node.subnets:
        region = cloud.region if not cloud.endpoint else ""
        yield from _zone_faults(document, section, node, node.subnets or cloud.subnets, region)


def _zone_faults(
    document: Document,
    section: str,
    settings: CloudSettings | NodeSettings,
    subnets: tuple[tuple[str, str], ...],
    region: str,
) -> Iterator[Fault]:
    """Find zones outside the region, and zones without a subnet if others have one."""
    key = "zones" if settings.zones else "subnets"
    for zone in zones_of(settings):
        if not zone.startswith(region):
            yield document.fault(section, key, f'zone "{zone}" is not in region {region}: correct one of the two')
        if subnets and zone not in dict(subnets):
            yield document.fault(section, key, f'zone "{zone}" has no subnet: give one as {zone}:SUBNET in subnets')


def _network_faults(document: Document, section: str, network: str) -> Iterator[Fault]:
    if network:
        yield document.fault(section, "network", "EC2 uses subnets instead: write subnets = ZONE:SUBNET, ...")


def _credential_faults(document: Document) -> Iterator[Fault]:
    section = credentials.SECTION
    entries = document.section(section).entries
    given = {key.removesuffix("_file"): key for key in entries}
    for name, key in given.items():
        if name not in CREDENTIALS:
            nearest = nearest_name(name, CREDENTIALS)
            known = "" if nearest else f"; the keys are {', '.join(CREDENTIALS)}"
            yield document.fault(section, key, "no such key" + known, nearest)
    needed = CREDENTIALS[:2]
    if given.keys() & set(CREDENTIALS):
        for name in needed:
            if name not in given:
                yield document.fault(section, name, f"{' and '.join(needed)} must be given together")
