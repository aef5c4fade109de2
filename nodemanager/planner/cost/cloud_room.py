"""What the limits of one cloud leave: its own ``nodes_max``, ``price_per_hour_max`` and budget."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.planner.cost.billing import price_per_hour
from nodemanager.planner.cost.fleet import strays_of
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import CloudRules, Policy
from nodemanager.planner.state.snapshot import Snapshot

MANY = 1_000_000  # nodes, where no limit counts


@dataclass(slots=True)
class CloudRoom:
    """A cloud's limits, its nodes, and what they cost per hour. ``take`` counts nodes as they are bought."""

    nodes_max: int | None
    price_per_hour_max: Decimal | None
    nodes: int
    price_per_hour: Decimal
    # What nodes bought now may cost per hour by the cloud's budget, and why no more.
    budget_left: tuple[Decimal, Reason] | None = None
    taken: int = 0  # of the nodes

    def count_left(self, node_type: NodeType) -> int:
        """How many more nodes of a type the limits allow."""
        left = MANY if self.nodes_max is None else self.nodes_max - self.nodes
        if self.price_per_hour_max is not None and node_type.price_per_hour:
            left = min(left, int((self.price_per_hour_max - self.price_per_hour) // node_type.price_per_hour))
        if self.budget_left is not None and node_type.price_per_hour:
            left = min(left, int(self.budget_left[0] // node_type.price_per_hour))
        return left

    def why_none(self, node_type: NodeType) -> Reason | None:
        """Why the limits allow no further node of the type; None if they allow one."""
        if self.count_left(node_type) > 0:
            return None
        price = node_type.price_per_hour
        if self.nodes_max is not None and self.nodes >= self.nodes_max:
            more = f", and {self.taken} more reach it" if self.taken else ""
            why = f"{self.nodes - self.taken} of its nodes_max of {self.nodes_max} exist{more}"
        elif self.budget_left is not None and self.budget_left[0] < price:
            return self.budget_left[1]
        else:
            more = f" after {self.taken} more" if self.taken else ""
            why = f"a node of type {node_type.name} costs {price}, above the rest of its price_per_hour_max{more}"
        return because(Code.CLOUD_FULL, cloud=node_type.cloud, why=why)

    def take(self, node_type: NodeType) -> None:
        """Count one more node."""
        self.nodes += 1
        self.taken += 1
        self.price_per_hour += node_type.price_per_hour
        if self.budget_left is not None:
            left, why = self.budget_left
            self.budget_left = left - node_type.price_per_hour, why


def room_of(
    cloud: CloudName,
    snapshot: Snapshot,
    policy: Policy,
    *,
    sent_only: bool = False,
    budget_left: tuple[Decimal, Reason] | None = None,
) -> CloudRoom:
    """What the limits of a cloud leave. ``sent_only``: leases without a create do not count."""
    rules = policy.clouds.get(cloud, CloudRules())
    here = [it for it in snapshot.nodes.values() if it.may_be_billed and policy.cloud_of(it.launch) == cloud]
    costing = [it for it in here if not (sent_only and _is_unsent(it))]
    price = sum((price_per_hour(it.launch, policy) for it in costing), Decimal(0))
    strays = strays_of(cloud, snapshot)
    for stray in strays:
        sizes = policy.by_size.get(stray.node.identity.type_name) if stray.node.identity is not None else None
        price += sizes[-1].price_per_hour if sizes else 0
    nodes = len(costing) + len(strays)
    return CloudRoom(rules.nodes_max, rules.price_per_hour_max, nodes, price, budget_left)


def _is_unsent(node: Node) -> bool:
    return node.create.sent_s is None and node.cloud is None
