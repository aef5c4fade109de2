"""Gathers orders that one call can carry out. Which orders are given is decided elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from nodemanager.core.orders import CloudEffect, CreateNode, key_of_call


def gather_orders(
    orders: Sequence[CloudEffect], nodes_per_create: int, nodes_per_destroy: int
) -> Iterator[tuple[CloudEffect, ...]]:
    """Yield the orders of each call, with so many nodes at most.

    One call creates launches of one plan that differ only in their slots, or destroys any nodes.
    """
    alike: dict[Hashable, list[CloudEffect]] = {}
    for order in orders:
        alike.setdefault(key_of_call(order) if isinstance(order, CreateNode) else (), []).append(order)
    for group in alike.values():
        most = nodes_per_create if isinstance(group[0], CreateNode) else nodes_per_destroy
        for start in range(0, len(group), most):
            yield tuple(group[start : start + most])
