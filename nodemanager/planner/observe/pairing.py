"""Match the cloud nodes that a provider lists with the launches we know.

Only the launch id decides, which a node carries in its tags from its creation. Names and addresses are reused, and
clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodemanager.core.nodes import CloudNode, CloudState, LaunchId
from nodemanager.planner.state.node import Node


@dataclass(frozen=True, slots=True)
class Pairing:
    """A provider's list, sorted by owner."""

    paired: Mapping[LaunchId, CloudNode]
    strays: tuple[CloudNode, ...]  # ours and alive, but without a launch, or a second machine of one
    intruders: tuple[CloudNode, ...]  # of a cluster of our name with another UUID
    strangers: int


def pair(nodes: Mapping[LaunchId, Node], listed: Iterable[CloudNode], cluster: str, cluster_uuid: str) -> Pairing:
    """Sort a provider's list by owner. The order of the list does not matter."""
    ours: dict[LaunchId, CloudNode] = {}
    twins_of: dict[LaunchId, list[CloudNode]] = {}  # cloud nodes that share a launch
    intruders = []
    strangers = 0
    for cloud in listed:
        identity = cloud.identity
        if identity is not None and identity.cluster_uuid == cluster_uuid:
            first = ours.setdefault(identity.launch, cloud)
            if first is not cloud:
                twins_of.setdefault(identity.launch, [first]).append(cloud)
        elif identity is not None and identity.cluster == cluster:
            intruders.append(cloud)
        else:
            strangers += 1
    paired = {}
    strays: list[CloudNode] = []
    for launch, cloud in ours.items():
        node = nodes.get(launch)
        if node is not None and launch not in twins_of:
            paired[launch] = cloud
            continue
        rest = twins = twins_of.get(launch, [cloud])
        if node is not None:
            known = node.cloud
            paired[launch], *rest = sorted(_without_repeats(twins), key=lambda twin: _preference(twin, known))
        strays += [twin for twin in _without_repeats(rest) if twin.state is not CloudState.TERMINATED]
    return Pairing(
        paired,
        tuple(sorted(strays, key=lambda node: node.provider_id)),
        tuple(sorted(intruders, key=lambda node: node.provider_id)),
        strangers,
    )


def _without_repeats(twins: Iterable[CloudNode]) -> Iterable[CloudNode]:
    """Drop entries that a list shows twice."""
    return {twin.provider_id: twin for twin in twins}.values()


def _preference(twin: CloudNode, known: CloudNode | None) -> tuple[bool, bool, float, str]:
    """The sort key of cloud nodes that share a launch: prefer the known one, then a living one, then the older."""
    return (
        known is None or twin.provider_id != known.provider_id,
        twin.state is CloudState.TERMINATED,
        twin.created_at if twin.created_at is not None else float("inf"),
        twin.provider_id,
    )
