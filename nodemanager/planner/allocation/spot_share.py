"""Keep the spot nodes of a purchase within their share of the fleet."""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.core.slots import Market
from nodemanager.planner.allocation.work import NodeGroup, Source
from nodemanager.planner.packing.dominated import nodes_used
from nodemanager.planner.packing.types import Packed
from nodemanager.planner.supply.offers import Offer


def spot_nodes_allowed(
    packed: Packed,
    sources: Sequence[Source],
    offers: Sequence[Offer],
    fleet: tuple[int, int],
    share_max: float,
    *,
    last: bool,
) -> dict[int, int]:
    """How many nodes of each spot offer may be bought; empty if the packing keeps to ``share_max``.

    ``sources``: the lots of the packing. ``fleet``: all nodes, and the spot nodes among them. The share depends on
    how many nodes are bought in all. The ``last`` answer is certain to keep to it: it counts on no other purchase.
    """
    if share_max >= 1.0:
        return {}
    used: dict[int, int] = {}
    bought = 0
    for lot, nodes in nodes_used(packed.loads).items():
        source = sources[lot]
        if not isinstance(source, NodeGroup) and not offers[source].is_ordered:
            bought += nodes
            if offers[source].node_type.market is Market.SPOT:
                used[source] = nodes
    count, spot = fleet
    allowed = max(0, int(share_max * (count + bought) + 1e-9) - spot)
    if sum(used.values()) <= allowed:
        return {}
    if last:
        allowed = max(0, int((share_max * count - spot) / (1.0 - share_max) + 1e-9))
    most = {
        number: 0
        for number, offer in enumerate(offers)
        if not offer.is_ordered and offer.node_type.market is Market.SPOT
    }
    for source, nodes in sorted(used.items()):  # the cheapest first
        most[source] = min(nodes, allowed)
        allowed -= most[source]
    return most
