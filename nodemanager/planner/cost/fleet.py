"""What the fleet costs per hour, and how fast it may grow."""

from __future__ import annotations

from decimal import Decimal

from nodemanager.core.slots import CloudName, NodeType
from nodemanager.planner.cost.billing import price_per_hour as launch_price
from nodemanager.planner.cost.prepaid import prepaid_launches
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


def create_credit(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> float:
    """The tokens in a cloud's bucket for creates: each create takes one."""
    account, calls = snapshot.account_of(cloud), policy.calls_of(cloud)
    if account.create_credit_s is None:
        return float(calls.creates_burst)
    gained = (snapshot.now_s - account.create_credit_s) * calls.creates_per_s
    return min(float(calls.creates_burst), account.create_credit + gained)
