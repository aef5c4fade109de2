"""Gathers orders that one call can carry out. Which orders are given is decided elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from nodemanager.core.nodes import stamp_of
from nodemanager.core.orders import CloudEffect, CreateNode


def gather_orders(
    orders: Sequence[CloudEffect], nodes_per_create: int, nodes_per_destroy: int
) -> Iterator[tuple[CloudEffect, ...]]:
    """Yield the orders of each call, with so many nodes at most.

    One call creates launches of one plan that differ only in their slots, or destroys any nodes.
    """
    alike: dict[Hashable, list[CloudEffect]] = {}
    for order in orders:
        alike.setdefault(_kind_of(order), []).append(order)
    for group in alike.values():
        most = nodes_per_create if isinstance(group[0], CreateNode) else nodes_per_destroy
        for start in range(0, len(group), most):
            yield tuple(group[start : start + most])


def _kind_of(order: CloudEffect) -> Hashable:
    """What orders have in common that one call can carry out."""
    if not isinstance(order, CreateNode):
        return ()
    launch, node_type = order.launch, order.node_type
    stamp = stamp_of(launch.id, launch.slot)
    if not stamp:
        return launch.id  # it is created by itself
    made_of = (node_type.name, node_type.size, node_type.market, node_type.image, launch.made_from)
    return stamp, *made_of, launch.zone, launch.group
