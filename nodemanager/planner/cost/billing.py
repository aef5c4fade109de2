"""Compute a node's cost and the rest of its billing window. Every figure is an estimate."""

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
    """What a node costs: its type's price in the site, or the price at purchase if the site dropped the type.

    A prepaid node costs nothing. None if neither is known: leases of older versions do not record the price.
    """
    return PREPAID if launch.prepaid else policy.types.get(launch.type_name, launch.tariff)


def price_per_hour(launch: Launch, policy: Policy) -> Decimal:
    """A node's price, in the site's currency; 0 if it is unknown."""
    tariff = tariff_of(launch, policy)
    return tariff.price_per_hour if tariff is not None else Decimal(0)


def cost(tariff: NodeType | Tariff, lived_s: float) -> Decimal:
    """What a node has cost after ``lived_s`` seconds, in the site's currency."""
    billed_s = paid_s(tariff.billing, lived_s)
    return tariff.price_per_hour * Decimal(billed_s) / SECONDS_PER_HOUR
