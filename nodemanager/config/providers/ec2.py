"""What ``provider = ec2`` needs of a site, and what does not go together there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import TypeName

CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")

_IMAGE = re.compile(r"ami-[0-9a-f]+", re.ASCII)
_SIZE = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+", re.ASCII)
_NODE = "Node "


def zones_of(settings: CloudSettings | NodeSettings) -> tuple[str, ...]:
    """The zones that a section names, in their order: of itself, or by its subnets."""
    return settings.zones or tuple(zone for zone, _ in settings.subnets)


def subnets_of(node: NodeSettings, cloud: CloudSettings) -> dict[str, str]:
    """The subnet in each zone of a node type; empty where the site names none."""
    subnets = dict(node.subnets or cloud.subnets)
    zones = zones_of(node) or zones_of(cloud)
    return {zone: subnets[zone] for zone in zones if zone in subnets}


def faults(document: Document, cloud: CloudSettings, nodes: Mapping[TypeName, NodeSettings]) -> Iterator[Fault]:
    """All that EC2 would refuse later, at a create, as far as it can be known before."""
    if not cloud.region:
        yield document.fault("Cloud", "region", 'must be given: a region such as "eu-central-1"')
    yield from _no_network(document, "Cloud", cloud.network)
    yield from _zones(document, "Cloud", cloud, cloud.subnets, cloud.region if not cloud.endpoint else "")
    for name, node in nodes.items():
        yield from _node(document, name, node, cloud)
    yield from _credentials(document)


def _node(document: Document, name: TypeName, node: NodeSettings, cloud: CloudSettings) -> Iterator[Fault]:
    section = _NODE + name
    image, size = node.image or cloud.image, node.size or name
    if not image:
        yield document.fault(section, "image", 'must be given here or under [Cloud]: an image such as "ami-0abc"')
    elif not _IMAGE.fullmatch(image):
        yield document.fault(section if node.image else "Cloud", "image", 'an image such as "ami-0abc" is needed')
    if not _SIZE.fullmatch(size):
        yield document.fault(section, "size", 'an instance type such as "c7i.large" is needed')
    if not node.price_per_hour:
        # The cheapest type is bought first, so one whose price is forgotten would be bought always.
        yield document.fault(section, "price_per_hour", "a price above 0 is needed: EC2 gives no node away")
    yield from _no_network(document, section, node.network)
    if node.zones or node.subnets:
        region = cloud.region if not cloud.endpoint else ""
        yield from _zones(document, section, node, node.subnets or cloud.subnets, region)


def _zones(
    document: Document,
    section: str,
    settings: CloudSettings | NodeSettings,
    subnets: tuple[tuple[str, str], ...],
    region: str,
) -> Iterator[Fault]:
    """A zone that lies elsewhere, or that has no subnet where others have one."""
    key = "zones" if settings.zones else "subnets"
    for zone in zones_of(settings):
        if not zone.startswith(region):
            yield document.fault(section, key, f'zone "{zone}" is none of region {region}')
        if subnets and zone not in dict(subnets):
            yield document.fault(section, key, f'zone "{zone}" has no subnet; give one as {zone}:SUBNET in subnets')


def _no_network(document: Document, section: str, network: str) -> Iterator[Fault]:
    if network:
        yield document.fault(section, "network", "EC2 puts a node into a subnet: give subnets = ZONE:SUBNET, ...")


def _credentials(document: Document) -> Iterator[Fault]:
    section = credentials.SECTION
    entries = document.section(section).entries
    given = {key.removesuffix("_file"): key for key in entries}
    for name, key in given.items():
        if name not in CREDENTIALS:
            nearest = nearest_name(name, CREDENTIALS)
            known = "" if nearest else f"; EC2 takes {', '.join(CREDENTIALS)}"
            yield document.fault(section, key, "no such key" + known, nearest)
    needed = CREDENTIALS[:2]
    if given.keys() & set(CREDENTIALS):
        for name in needed:
            if name not in given:
                yield document.fault(section, name, f"{' and '.join(needed)} must be given together")
