"""Cost over time, in the site's currency: of a node by its billing rule, and of the part of it that a job uses.

The budget, the history and what-if all count by these functions. Every figure is an estimate.
"""

from __future__ import annotations

import math
from decimal import Decimal

from nodemanager.core.nodes import Launch
from nodemanager.core.slots import Billing, NodeType, Tariff
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy

SECONDS_PER_HOUR = 3600
PREPAID = Tariff(Decimal(0), Billing(0.0))


def paid_s(billing: Billing, age_s: float) -> float:
    """For how many seconds a node of this age has been billed: whole windows, and at least the minimum."""
    if billing.window_s <= 0:
        return 0.0
    # A window is billed when it begins. At the exact end of a window the next one is not billed yet.
    windows = max(1, math.ceil(max(age_s, billing.minimum_s) / billing.window_s))
    return windows * billing.window_s


def window_left_s(billing: Billing, age_s: float) -> float:
    """Seconds that are paid for and not yet used; 0 if nothing is paid in advance."""
    return max(0.0, paid_s(billing, age_s) - age_s)


def age_s(node: Node, now_s: float) -> float:
    """For how many seconds the provider has billed for it. The provider's creation time counts, if it is known."""
    from_s = node.listing.billed_from_s if node.listing.billed_from_s is not None else node.create.requested_s
    return max(0.0, now_s - from_s)


def tariff_of(launch: Launch, policy: Policy) -> NodeType | Tariff | None:
    """What a node costs: its price in the site, or the price at purchase if the site dropped its type or size.

    A prepaid node costs nothing. The dearest size counts if neither is known. None without a type: leases of older
    versions record no price.
    """
    if launch.prepaid:
        return PREPAID
    known = policy.type_as_bought(launch) or launch.tariff
    if known is not None or launch.type_name not in policy.types:
        return known
    return policy.by_size[launch.type_name][-1]


def node_share(cores: int, gpus: int, of_cores: int, of_gpus: int) -> tuple[int, int]:
    """A job's share of a node, as a part and the whole: that of its cores or of its GPUs, whichever is larger.

    A node whose GPUs all work cannot be sold to another GPU job, so its cores are not all that a job pays for.
    """
    if of_gpus and gpus * of_cores > cores * of_gpus:
        return gpus, of_gpus
    return (cores, of_cores) if of_cores else (0, 1)


def price_per_hour(launch: Launch, policy: Policy) -> Decimal:
    """A node's price, in the site's currency; 0 if it is unknown."""
    tariff = tariff_of(launch, policy)
    return tariff.price_per_hour if tariff is not None else Decimal(0)


def cost(tariff: NodeType | Tariff, lived_s: float) -> Decimal:
    """What a node has cost after ``lived_s`` seconds, in the site's currency."""
    return cost_of_time(tariff.price_per_hour, paid_s(tariff.billing, lived_s))


def cost_between(tariff: NodeType | Tariff, from_s: float, to_s: float) -> Decimal:
    """What falls due for a node between two ages. Before age 0 nothing is due; the first window is due after it."""
    return _due(tariff, to_s) - _due(tariff, from_s)


def _due(tariff: NodeType | Tariff, age_s: float) -> Decimal:
    return cost(tariff, age_s) if age_s > 0 else Decimal(0)


def cost_of_time(price_per_hour: Decimal, seconds: float) -> Decimal:
    """What so much time costs at a price per hour, without billing windows."""
    return price_per_hour * Decimal(seconds) / SECONDS_PER_HOUR
