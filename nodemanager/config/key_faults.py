"""Checks of keys that several providers share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nodemanager.config.provider import Nodes
from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import Market, NodePlacement

NODE = "Node "

ProviderSection = CloudSettings | NodeSettings


def missing_cloud_keys(document: Document, cloud: CloudSettings, needed: Mapping[str, str]) -> Iterator[Fault]:
    """Find required keys of ``[Cloud]`` that are missing; ``needed`` describes each."""
    for key, what in needed.items():
        if not getattr(cloud, key):
            yield document.fault("Cloud", key, f"must be given: {what}")


def missing_node_keys(
    document: Document, cloud: CloudSettings, nodes: Nodes, needed: Mapping[str, str]
) -> Iterator[Fault]:
    """Find required keys that a ``[Node NAME]`` lacks, and ``[Cloud]`` too; ``needed`` describes each."""
    for name, node in nodes.items():
        for key, what in needed.items():
            if not (getattr(node, key) or getattr(cloud, key)):
                yield document.fault(NODE + name, key, f"must be given here or under [Cloud]: {what}")


def unsupported_keys(
    document: Document, cloud: CloudSettings, nodes: Nodes, keys: Sequence[str], provider: str
) -> Iterator[Fault]:
    """Find keys meant for other providers: whoever wrote one expects an effect that it does not have."""
    for section, settings in provider_sections(cloud, nodes):
        for key in keys:
            if key in settings.model_fields_set:
                yield document.fault(section, key, f"{provider} does not use this key: remove it")


def provider_sections(cloud: CloudSettings, nodes: Nodes) -> Iterator[tuple[str, ProviderSection]]:
    """Yield every section that may hold keys for the provider, with its name."""
    yield "Cloud", cloud
    for name, node in nodes.items():
        yield NODE + name, node


def zero_prices(document: Document, nodes: Nodes) -> Iterator[Fault]:
    """Find prices of 0. The cheapest type is bought first, so a forgotten price would make it the only choice."""
    for name, node in nodes.items():
        if node.price_per_hour == 0:
            yield document.fault(NODE + name, "price_per_hour", "a price above 0 is needed: no node is free")


def unsupported_spot(document: Document, nodes: Nodes, provider: str) -> Iterator[Fault]:
    """Find node types that ask for spot nodes."""
    for name, node in nodes.items():
        if node.market is not Market.ON_DEMAND:
            problem = f"spot nodes are not supported on {provider}: remove the key, or write on-demand"
            yield document.fault(NODE + name, "market", problem)


def unsupported_placement(document: Document, nodes: Nodes, provider: str) -> Iterator[Fault]:
    """Find node types that ask for placement groups."""
    for name, node in nodes.items():
        if node.placement is not NodePlacement.ANYWHERE:
            problem = f"{provider} has no placement groups: remove the key, or write {NodePlacement.ANYWHERE}"
            yield document.fault(NODE + name, "placement", problem)


def credential_faults(
    document: Document, ways: Sequence[Sequence[str]], *, optional: Sequence[str] = ()
) -> Iterator[Fault]:
    """Check ``[Cloud Credentials]``: it needs all keys of one of the ``ways``, and no unknown key."""
    section = credentials.SECTION
    given = {key.removesuffix("_file"): key for key in document.section(section).entries}
    known = list(dict.fromkeys([key for way in ways for key in way] + list(optional)))
    for name, key in given.items():
        if name not in known:
            nearest = nearest_name(name, known)
            yield document.fault(
                section, key, "no such key" + ("" if nearest else f"; the keys are {', '.join(known)}"), nearest
            )
    if any(set(way) <= given.keys() for way in ways):
        return
    begun = max(ways, key=lambda way: len(given.keys() & set(way)))
    for name in begun:
        if name not in given:
            other = "".join(f", or {' and '.join(way)} instead" for way in ways if way is not begun and way)
            yield document.fault(section, name, f"must be given{other}")
