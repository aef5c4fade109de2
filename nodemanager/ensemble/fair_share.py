"""Share nodes among ensembles by weights: weighted max-min fairness, in whole nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Claim:
    """What one ensemble asks for. It gets ``nodes_min`` of it first, and never more than ``nodes_max``.

    ``per_day``: what its nodes may cost on one day.
    """

    nodes: int
    weight: float = 1.0
    nodes_min: int = 0
    nodes_max: int | None = None
    per_day: Decimal | None = None

    @property
    def wanted(self) -> int:
        return self.nodes if self.nodes_max is None else min(self.nodes, self.nodes_max)


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """An ensemble's claim, for people. ``wanted`` is more than ``asked`` if its last wish was refused."""

    asked: int
    wanted: int
    kept: int
    terms: Claim
    cost_today: Decimal
    reason: Reason


def share_nodes(claims: Mapping[str, Claim], nodes: int) -> dict[str, int]:
    """Return how many of ``nodes`` each ensemble gets, by name.

    Each next node goes to the ensemble that has the fewest for its weight and wants more; of equals, to the first
    by name.
    """
    shares: dict[str, int] = {}
    left = nodes
    for name in sorted(claims):
        shares[name] = min(claims[name].wanted, claims[name].nodes_min, left)
        left -= shares[name]
    while left > 0:
        hungry = [name for name in sorted(claims) if shares[name] < claims[name].wanted]
        if not hungry:
            break
        shares[min(hungry, key=lambda name: (shares[name] + 1) / claims[name].weight)] += 1
        left -= 1
    return shares
