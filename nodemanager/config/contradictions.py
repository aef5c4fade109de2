"""Find keys of a site that contradict each other, or that a provider needs or does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nodemanager.config.clouds import CloudSection
from nodemanager.config.providers import azure, common, ec2, gce, minicluster, openstack, static
from nodemanager.config.sections import NODE
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import (
    CloudSettings,
    FluxSettings,
    JoinMethod,
    LimitsSettings,
    NodeSettings,
    Provider,
    TimingSettings,
)
from nodemanager.core.slots import TypeName

_NAMES_ONLY = (Provider.FLUX, Provider.STATIC)  # of nodes, and no addresses
_HAS_GROUPS = (Provider.EC2, Provider.OPENSTACK, Provider.GCE, Provider.AZURE, Provider.SIMULATED)  # of nodes
_FAULTS = {
    Provider.EC2: ec2.faults,
    Provider.OPENSTACK: openstack.faults,
    Provider.GCE: gce.faults,
    Provider.AZURE: azure.faults,
    Provider.MINICLUSTER: minicluster.faults,
    Provider.STATIC: static.faults,
}


def contradictions(
    document: Document,
    *,
    flux: FluxSettings | None,
    cloud: CloudSettings | None,
    limits: LimitsSettings | None,
    timing: TimingSettings | None,
    nodes: Mapping[TypeName, NodeSettings],
) -> Iterator[Fault]:
    """Find keys that contradict each other. A section with faults of its own (None) is not checked."""
    if flux:
        yield from _outside_contradictions(document, flux, cloud)
        yield from _join_contradictions(document, flux, nodes)
    if limits and limits.nodes_min > limits.nodes_max:
        yield document.fault("Limits", "nodes_min", f"must not be above nodes_max = {limits.nodes_max}")
    if timing:
        yield from _timing_contradictions(document, timing)
    yield from _slots_named_twice(document, flux, nodes)
    yield from static.hosts_named_twice(document, flux.head_host if flux else "", nodes)


def _join_contradictions(
    document: Document, flux: FluxSettings, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find what the chosen way to join cannot do."""
    if flux.join is JoinMethod.FLUB and len(nodes) > 1:
        yield document.fault(
            "Flux", "join", "with flub a node gets any free rank, so all slots must belong to one [Node NAME]"
        )


def unknown_sources(document: Document, clouds: Sequence[CloudSettings]) -> Iterator[Fault]:
    """Find a check of addresses that the provider does not tell."""
    for cloud in clouds:
        if cloud.provider in _NAMES_ONLY:
            problem = f"provider = {cloud.provider} gives only the names of its nodes: write no"
            yield document.fault("Join", "check_source", problem)


def _timing_contradictions(document: Document, timing: TimingSettings) -> Iterator[Fault]:
    if timing.settle_s > timing.settle_max_s:
        yield document.fault("Timing", "settle", "must not be longer than settle_max")
    if timing.stale_after_s <= max(timing.probe_s, timing.relist_s):
        yield document.fault("Timing", "stale_after", "must be longer than probe and relist, or all data is stale")


def _slots_named_twice(
    document: Document, flux: FluxSettings | None, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find slots of two node types, and slots with the leader's name."""
    taken = {flux.head_host: "the name of the leader (head_host)"} if flux else {}
    for name, node in nodes.items():
        for slot in node.slots:
            if slot in taken:
                problem = f'slot "{slot}" is already {taken[slot]}: give it another name'
                yield document.fault(NODE + name, "slots", problem)
            taken.setdefault(slot, f"a slot of [Node {name}]")


def _outside_contradictions(document: Document, flux: FluxSettings, cloud: CloudSettings | None) -> Iterator[Fault]:
    if flux.simulated and flux.join is not JoinMethod.DIRECTORY:
        yield document.fault("Flux", "join", "no node joins a simulated Flux: write join = directory")
    if cloud and cloud.provider is Provider.MINICLUSTER and "join" in flux.model_fields_set:
        yield document.fault("Flux", "join", "the operator configures the pods of a MiniCluster: remove the key")
    if not flux.simulated and not flux.head_address and not (cloud and cloud.provider is Provider.MINICLUSTER):
        yield document.fault("Flux", "head_address", "must be given: the address at which nodes reach rank 0")


def simulated_clouds(
    document: Document, flux: FluxSettings, clouds: Mapping[CloudSection, CloudSettings]
) -> Iterator[Fault]:
    """Find simulated clouds for a real Flux."""
    for section, cloud in clouds.items():
        if cloud.provider is Provider.SIMULATED and not flux.simulated:
            problem = "a simulated cloud has no nodes for a real Flux: choose another provider"
            yield document.fault(section.section, "provider", problem)


def provider_faults(
    document: Document, cloud: CloudSettings, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Check what only this provider needs."""
    if cloud.provider is not Provider.STATIC:
        yield from common.unsupported_keys(document, cloud, nodes, static.KEYS, f"provider = {cloud.provider}")
    if cloud.provider not in _HAS_GROUPS:
        yield from common.unsupported_placement(document, nodes, f"provider = {cloud.provider}")
    if (faults_of := _FAULTS.get(cloud.provider)) is not None:
        yield from faults_of(document, cloud, nodes)
