"""Who belongs to whom: the instances that a provider lists, and the launches we know of.

A pair is made by the launch id that the node carries in its tags since its creation, and by nothing else: names
and addresses are used again, and clocks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodemanager.core.nodes import CloudNode, CloudState, LaunchId
from nodemanager.planner.state.snapshot import Node


@dataclass(frozen=True, slots=True)
class Pairing:
    """One list, sorted out."""

    paired: Mapping[LaunchId, CloudNode]
    strays: tuple[CloudNode, ...]  # ours and alive, but no launch owns them, or another one serves it already
    intruders: tuple[CloudNode, ...]  # of a cluster of our name with another UUID
    strangers: int


def pair(nodes: Mapping[LaunchId, Node], listed: Iterable[CloudNode], cluster: str, cluster_uuid: str) -> Pairing:
    """Sort a provider's list out. The order of the list does not matter."""
    ours: dict[LaunchId, CloudNode] = {}
    twins_of: dict[LaunchId, list[CloudNode]] = {}  # all that have one launch, where there are several
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
            paired[launch], *rest = sorted(_once(twins), key=lambda twin: _preference(twin, known))
        strays += [twin for twin in _once(rest) if twin.state is not CloudState.TERMINATED]
    return Pairing(
        paired,
        tuple(sorted(strays, key=lambda node: node.provider_id)),
        tuple(sorted(intruders, key=lambda node: node.provider_id)),
        strangers,
    )


def _once(twins: Iterable[CloudNode]) -> Iterable[CloudNode]:
    """Drop what a list shows twice."""
    return {twin.provider_id: twin for twin in twins}.values()


def _preference(twin: CloudNode, known: CloudNode | None) -> tuple[bool, bool, float, str]:
    """Of two instances with one launch the one we know stays, then a living one, then the older."""
    return (
        known is None or twin.provider_id != known.provider_id,
        twin.state is CloudState.TERMINATED,
        twin.created_at if twin.created_at is not None else float("inf"),
        twin.provider_id,
    )
