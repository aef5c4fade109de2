"""The change of a MiniCluster that creates and destroys make together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodemanager.cloud.minicluster.objects import (
    ANNOTATION,
    CLUSTER_KEY,
    Launched,
    MiniCluster,
    Owner,
    Scope,
    identity_of,
    index_of,
    provider_id,
    slot_name,
)
from nodemanager.core.nodes import CloudNode, FailureKind, ProviderId
from nodemanager.core.orders import CloudEffect, CreateNode
from nodemanager.core.ports import CloudError

Answer = CloudNode | CloudError | None


@dataclass(frozen=True, slots=True)
class Allowance:
    """The largest size that a MiniCluster may have now, and the limit that it would break with one more."""

    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Resize:
    """What several orders come to: the PATCH, None if nothing has to change, and the orders that are refused.

    ``refused`` is by the position of the order.
    """

    patch: Mapping[str, Any] | None
    refused: Mapping[int, CloudError]
    size: int


def resize(
    found: MiniCluster,
    orders: Sequence[CloudEffect],
    scope: Scope,
    slots: Mapping[int, Launched],
    allowed: Allowance | None = None,
) -> Resize:
    """Combine orders into one change of the size.

    ``slots``: by the position of each create, what its annotation shall record. ``allowed``: what a service that
    shares pods has said. Only the highest index can leave, and only the one above it can come, so an order that
    would need another one is refused.
    """
    refused: dict[int, CloudError] = {}
    wanted: dict[int, int] = {}  # by index, the position of its create
    leaving: dict[int, int] = {}
    for position, order in enumerate(orders):
        if isinstance(order, CreateNode):
            _sort_create(position, order, found, scope, allowed, wanted, refused)
        elif (index := _index_of_node(order.provider_id, found, scope)) is not None and index < found.size:
            leaving[index] = position
    size = found.size
    while size - 1 in leaving and size > found.size_min:
        size -= 1
    refused |= _why_stay({index: at for index, at in leaving.items() if index < size}, found, size)
    if size == found.size:
        for index in sorted(wanted):
            if index == size:
                size += 1
            elif index > size:
                below = slot_name(found.name, size)
                refused[wanted[index]] = CloudError(
                    FailureKind.TRANSIENT, f"index {index} needs {below}, which was not ordered with it"
                )
    else:
        text = "the size is being reduced: nothing is added with the same call"
        refused |= {at: CloudError(FailureKind.TRANSIENT, text) for at in wanted.values()}
    annotations = {
        f"{ANNOTATION}/index-{index}": f"{slots[at].launch} {slots[at].type_name} {slots[at].created_at:.3f}"
        for index, at in wanted.items()
        if at not in refused
    }
    if size == found.size and not annotations:
        return Resize(None, refused, size)
    metadata: dict[str, Any] = {"resourceVersion": found.resource_version}
    metadata["annotations"] = {CLUSTER_KEY: f"{scope.cluster} {scope.cluster_uuid}", **annotations}
    return Resize({"metadata": metadata, "spec": {"size": size}}, refused, size)


def _sort_create(
    position: int,
    order: CreateNode,
    found: MiniCluster,
    scope: Scope,
    allowed: Allowance | None,
    wanted: dict[int, int],
    refused: dict[int, CloudError],
) -> None:
    """Sort one create: it is to be done, or refused, or was done by an earlier call."""
    launch = order.launch
    index = index_of(launch.slot, found.name)
    known = found.launched.get(index) if index is not None else None
    if known is not None and known.launch == launch.id:
        return
    if index is None:
        detail = f"slot {launch.slot}: the slots of MiniCluster {found.name} are {found.name}-1 and so on"
        refused[position] = CloudError(FailureKind.CONFIG, detail)
    elif found.cluster_uuid not in ("", scope.cluster_uuid):
        detail = f"MiniCluster {found.name} belongs to cluster {found.cluster} ({found.cluster_uuid})"
        refused[position] = CloudError(FailureKind.CONFIG, detail)
    elif found.size_max is not None and index >= found.size_max:
        detail = f"spec.maxSize is {found.size_max}, so index {index} is too high"
        refused[position] = CloudError(FailureKind.QUOTA, detail)
    elif allowed is not None and index >= max(allowed.size, found.size):
        refused[position] = CloudError(FailureKind.CAPACITY, allowed.why)
    elif index < found.size and (known is not None or scope.owner is Owner.SHARED):
        refused[position] = CloudError(FailureKind.TRANSIENT, f"index {index} exists already, and is not ours")
    else:
        wanted[index] = position


def _why_stay(staying: Mapping[int, int], found: MiniCluster, size: int) -> dict[int, CloudError]:
    """The refusals of indexes that cannot leave, by the position of the order."""
    refused = {}
    for index, at in staying.items():
        if index < found.size_min:
            detail = f"index {index} stays: spec.minSize is {found.size_min}"
        else:
            detail = f"index {index} stays: index {size - 1} above it does not leave"
        refused[at] = CloudError(FailureKind.TRANSIENT, detail)
    return refused


def _index_of_node(id_: ProviderId, found: MiniCluster, scope: Scope) -> int | None:
    """The index of a node of ours that still has this id; None if it has left, or is not ours."""
    index = index_of(id_.partition("/")[0], found.name)
    identity = identity_of(index, found, scope) if index is not None else None
    if index is None or identity is None or identity.cluster_uuid != scope.cluster_uuid:
        return None
    return index if provider_id(found.name, index, identity.launch) == id_ else None
