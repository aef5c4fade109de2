"""What the fleet costs per hour: nodes, strays and prepaid nodes. And how many more its types' own limits allow."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from nodemanager.core.nodes import Launch
from nodemanager.core.slots import CloudName, NodeType, TypeName
from nodemanager.planner.cost.billing import price_per_hour as launch_price
from nodemanager.planner.state.node_index import bought_as, node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Bought, Snapshot, Stray


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


def price_per_hour(snapshot: Snapshot, policy: Policy) -> Decimal:
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
        price += sum((launch_price(launch, policy) for launch in unnamed), Decimal(0))
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
