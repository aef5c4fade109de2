"""Cost over time, in the site's currency: of a node by its billing rule, and of the part of it that a job uses.

The budget, the history and what-if all count by these functions. Every figure is an estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.core.nodes import Launch
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Billing, CloudName, NodeType, Tariff, TypeName
from nodemanager.planner.node_index import bought_as, node_index_of
from nodemanager.planner.policy import CloudRules, Policy
from nodemanager.planner.snapshot import Bought, Node, Snapshot, Stray

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


# --- what the fleet costs per hour: nodes, strays and prepaid nodes ---------------------------------------
#
# And how many more its types' own limits allow.


def ownerless_strays(snapshot: Snapshot) -> list[Stray]:
    """The strays that still have no owner. Those that got their lease back stay listed until the next list."""
    return [stray for name in snapshot.accounts for stray in strays_of(name, snapshot)]


def strays_of(cloud: CloudName, snapshot: Snapshot) -> list[Stray]:
    """The strays of one cloud that still have no owner."""
    strays = snapshot.account_of(cloud).strays
    return [stray for stray in strays.values() if not _has_owner(stray, snapshot)] if strays else []


def _has_owner(stray: Stray, snapshot: Snapshot) -> bool:
    owner = snapshot.nodes.get(stray.node.identity.launch) if stray.node.identity is not None else None
    return owner is not None and (owner.cloud is None or owner.cloud.provider_id == stray.node.provider_id)


def fleet_price_per_hour(snapshot: Snapshot, policy: Policy) -> Decimal:
    """The price per hour of all nodes that are, or may be, billed.

    A node whose type the site has dropped counts with its price at purchase, if its lease records it. A stray of
    such a type counts nothing: its tags have no price.
    """
    counts = node_index_of(snapshot).count_by_size
    known = {bought: _type_bought(bought, policy) for bought in counts}
    price = sum((it.price_per_hour * counts[bought] for bought, it in known.items() if it is not None), Decimal(0))
    if None in known.values():
        launches = (node.launch for node in snapshot.nodes.values() if node.may_be_billed)
        unnamed = (launch for launch in launches if known[bought_as(launch)] is None)
        price += sum((price_per_hour(launch, policy) for launch in unnamed), Decimal(0))
    for stray in ownerless_strays(snapshot):
        identity = stray.node.identity
        sizes = policy.by_size.get(identity.type_name) if identity is not None else None
        if identity is not None and sizes is not None:
            bought = (identity.type_name, stray.node.size, stray.node.market)
            price += (_type_bought(bought, policy) or sizes[-1]).price_per_hour
    for launch in prepaid_launches(snapshot):
        its_type = _type_bought(bought_as(launch), policy)
        price -= its_type.price_per_hour if its_type is not None else Decimal(0)
    return price


def nodes_left_of_type(node_type: NodeType, snapshot: Snapshot, policy: Policy) -> int | None:
    """How many further nodes a type's own limits allow, each as its dearest size; None if they do not limit it."""
    limits = node_type.limits
    counts = {it: count for it, count in node_index_of(snapshot).count_by_size.items() if it[0] == node_type.name}
    left: list[int] = []
    if limits.nodes_max is not None:
        left.append(limits.nodes_max - sum(counts.values()))
    dearest = max(it.price_per_hour for it in node_type.by_size())
    if limits.price_per_hour_max is not None and dearest > 0:
        known = ((_type_bought(bought, policy) or node_type, count) for bought, count in counts.items())
        price = sum((it.price_per_hour * count for it, count in known), Decimal(0))
        left.append(int((limits.price_per_hour_max - price) // dearest))
    return max(0, min(left)) if left else None


def nodes_max_of_type(node_type: NodeType) -> int | None:
    """How many nodes a type's own limits allow in an empty fleet; None if they do not limit it."""
    limits = node_type.limits
    most = [limits.nodes_max] if limits.nodes_max is not None else []
    dearest = max(it.price_per_hour for it in node_type.by_size())
    if limits.price_per_hour_max is not None and dearest > 0:
        most.append(int(limits.price_per_hour_max // dearest))
    return min(most) if most else None


def _type_bought(bought: Bought, policy: Policy) -> NodeType | None:
    """A type as the size it was bought as; None if the site no longer has the type or the size."""
    node_type = policy.types.get(bought[0])
    return policy.of_size.get(bought) if node_type is not None and node_type.sizes else node_type


# --- prepaid nodes: reserved instances, savings plans, own hardware ----------------------------------------------


def prepaid_launches(snapshot: Snapshot) -> list[Launch]:
    """The launches of nodes that were bought as prepaid ones and still exist. Costs nothing if there are none."""
    if not any(prepaid for _, _, _, prepaid in node_index_of(snapshot).count_by_make):
        return []
    return [node.launch for node in snapshot.nodes.values() if node.launch.prepaid and node.may_be_billed]


def prepaid_left(snapshot: Snapshot, policy: Policy) -> dict[TypeName, int]:
    """How many further nodes of each type cost nothing. Types without any are left out.

    A contract names one size, so a type of several sizes has none.
    """
    if not policy.has_prepaid:
        return {}
    there = Counter(launch.type_name for launch in prepaid_launches(snapshot))
    left = {it.name: it.prepaid - there[it.name] for it in policy.node_types if len(policy.by_size[it.name]) == 1}
    return {name: count for name, count in left.items() if count > 0}


# --- what the limits of one cloud leave: its own ``nodes_max``, ``price_per_hour_max`` and budget ---------


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
    prepaid: dict[TypeName, int] = field(default_factory=dict)  # how many further nodes of a type cost nothing

    def count_left(self, node_type: NodeType) -> int:
        """How many more nodes of a type the limits allow."""
        left = MANY if self.nodes_max is None else self.nodes_max - self.nodes
        price, free = node_type.price_per_hour, self.prepaid.get(node_type.name, 0)
        if self.price_per_hour_max is not None and price:
            left = min(left, free + max(0, int((self.price_per_hour_max - self.price_per_hour) // price)))
        if self.budget_left is not None and price:
            left = min(left, free + max(0, int(self.budget_left[0] // price)))
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
        if self.prepaid.get(node_type.name, 0) > 0:
            self.prepaid[node_type.name] -= 1
            return
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
    """What the limits of a cloud leave.

    ``sent_only``: leases without a create do not count, and no further node is prepaid: the leases tell which are.
    """
    rules = policy.clouds.get(cloud, CloudRules())
    here = [it for it in snapshot.nodes.values() if it.may_be_billed and policy.cloud_of(it.launch) == cloud]
    costing = [it for it in here if not (sent_only and _is_unsent(it))]
    price = sum((price_per_hour(it.launch, policy) for it in costing), Decimal(0))
    strays = strays_of(cloud, snapshot)
    for stray in strays:
        sizes = policy.by_size.get(stray.node.identity.type_name) if stray.node.identity is not None else None
        price += sizes[-1].price_per_hour if sizes else 0
    nodes = len(costing) + len(strays)
    prepaid = {} if sent_only else prepaid_left(snapshot, policy)
    return CloudRoom(rules.nodes_max, rules.price_per_hour_max, nodes, price, budget_left, prepaid=prepaid)


def _is_unsent(node: Node) -> bool:
    return node.create.sent_s is None and node.cloud is None
