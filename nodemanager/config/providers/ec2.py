"""Check the keys of a site with ``provider = ec2``, and read its zones and subnets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodemanager.config.providers.ec2_identity import certificates
from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import TypeName

CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")

_IMAGE = re.compile(r"ami-[0-9a-f]+", re.ASCII)
_SIZE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+", re.ASCII)
_SIZE_PATTERN = re.compile(r"[a-z0-9?*\[\]-]+(\.[a-z0-9?*\[\]-]+)?", re.ASCII)
_NODE = "Node "


def zones_of(settings: CloudSettings | NodeSettings) -> tuple[str, ...]:
    """List the zones of a section in order, from ``zones`` or from ``subnets``."""
    return settings.zones or tuple(zone for zone, _ in settings.subnets)


def subnets_of(node: NodeSettings, cloud: CloudSettings) -> dict[str, str]:
    """Map each zone of a node type to its subnet; empty if the site gives no subnets."""
    subnets = dict(node.subnets or cloud.subnets)
    zones = zones_of(node) or zones_of(cloud)
    return {zone: subnets[zone] for zone in zones if zone in subnets}


def identity_certificate(cloud: CloudSettings) -> str:
    """Return the certificate, as PEM, that proves the identity of the nodes; "" if none is known.

    Raises ``OSError`` if the site names a file that cannot be read.
    """
    if cloud.identity_certificate is not None:
        return cloud.identity_certificate.read_text(encoding="ascii", errors="replace")
    return "" if cloud.endpoint else certificates().get(cloud.region, "")


def faults(document: Document, cloud: CloudSettings, nodes: Mapping[TypeName, NodeSettings]) -> Iterator[Fault]:
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
