"""Where a node stands in its billing window, and what it costs. Every figure is an estimate."""

from __future__ import annotations

import math
from decimal import Decimal

from nodemanager.core.nodes import Launch
from nodemanager.core.slots import Billing, NodeType, Tariff
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node

SECONDS_PER_HOUR = 3600


def paid_s(billing: Billing, age_s: float) -> float:
    """How much of its life a node has been billed for at an age: whole windows, the minimum at the least."""
    if billing.window_s <= 0:
        return 0.0
    # A window is paid from the moment it begins: at its very end nothing more is owed yet.
    windows = max(1, math.ceil(max(age_s, billing.minimum_s) / billing.window_s))
    return windows * billing.window_s


def window_left_s(billing: Billing, age_s: float) -> float:
    """Time that is paid for and not yet used; 0 where staying costs nothing in advance."""
    return max(0.0, paid_s(billing, age_s) - age_s)


def age_s(node: Node, now_s: float) -> float:
    """Since when the provider bills for it: from its creation, by the provider's word where there is one."""
    from_s = node.billed_from_s if node.billed_from_s is not None else node.requested_s
    return max(0.0, now_s - from_s)


def tariff_of(launch: Launch, policy: Policy) -> NodeType | Tariff | None:
    """What a node costs: as the site says of its type, or as it was bought where the site names that no more.

    None where nobody knows: its lease is of before that was kept.
    """
    return policy.types.get(launch.type_name, launch.tariff)


def price_per_hour(launch: Launch, policy: Policy) -> Decimal:
    """0 where nobody knows."""
    tariff = tariff_of(launch, policy)
    return tariff.price_per_hour if tariff is not None else Decimal(0)


def cost(tariff: NodeType | Tariff, lived_s: float) -> Decimal:
    """What a node has cost after so long, in the site's currency."""
    billed_s = paid_s(tariff.billing, lived_s)
    return tariff.price_per_hour * Decimal(billed_s) / SECONDS_PER_HOUR
