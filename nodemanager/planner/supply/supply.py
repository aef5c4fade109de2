"""The supply: free room on existing nodes, the nodes that are booting, and those that may be bought."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from math import inf

from nodemanager.core.jobs import ANYWHERE, Constraint
from nodemanager.core.nodes import FluxRank, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.planner.backoff.allowance import (
    NO_BUDGETS,
    Allowance,
    BudgetsLeft,
    unavailable_sizes,
    unavailable_types,
)
from nodemanager.planner.backoff.zones import open_zones
from nodemanager.planner.cost.billing import PREPAID
from nodemanager.planner.cost.budget import BudgetLimits, closed_sizes
from nodemanager.planner.cost.fleet import nodes_left_of_type, ownerless_strays, prepaid_left
from nodemanager.planner.scheduler.seating import Availability
from nodemanager.planner.state.constraints import Matches
from nodemanager.planner.state.frozen import lazy_property, replace
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.rank_index import FeasibilityCache, RankIndex, rank_index_of
from nodemanager.planner.state.snapshot import Bought, Snapshot
from nodemanager.planner.supply.offers import Offer, SlotAndRank, kinds_of

NAMED_MAX = 10  # nodes in a reason
_BEING_REMOVED = (NodeState.STOPPING, NodeState.GONE)


@dataclass
class Supply:
    """What may be bought: the free slots, and the rest of the limits.

    A slot whose lease is just being ended is used if its type has no other free slot: it is worth waiting for,
    rather than buying a dearer type.
    """

    snapshot: Snapshot
    policy: Policy
    rank_index: RankIndex
    blocked: Mapping[TypeName, Reason]
    blocked_sizes: Mapping[TypeName, Mapping[tuple[str, Market], Reason]]
    nodes_left: int
    price_left: Decimal
    fleet: tuple[int, int] = (0, 0)  # all nodes that cost or may cost, and the spot nodes among them
    budget_left: Reason | None = None  # set if the budget, not the price limit, decides ``price_left``
    budget_left_in_clouds: BudgetsLeft = field(default_factory=lambda: NO_BUDGETS)

    @lazy_property
    def feasibility(self) -> FeasibilityCache:
        """The cache of shapes that could never be served, if it belongs to this policy; else a new one."""
        kept = self.rank_index.feasibility
        return kept if kept is not None and kept.policy is self.policy else FeasibilityCache(self.policy)

    @property
    def matches(self) -> Matches:
        return self.rank_index.matches

    @lazy_property
    def own_ranks(self) -> Sequence[FluxRank]:
        """The nodes of the instance that are no slots of the site, without those that Flux excludes."""
        slots = self.policy.index_of_slot
        return [rank for rank in self.snapshot.ranks.values() if rank.host not in slots and not rank.excluded]

    @lazy_property
    def slots_mask(self) -> Mapping[TypeName, int]:
        """By type, the ranks of its slots, as in ``matches``."""
        rank_of_slot = self.snapshot.slots.rank_of_slot
        return {
            it.name: self.matches.mask(rank_of_slot[slot] for slot in it.slots if slot in rank_of_slot)
            for it in self.policy.node_types
        }

    @lazy_property
    def free_masks(self) -> Mapping[TypeName, int]:
        """By type, the ranks of its slots that are free now or in a moment."""
        return {
            it.name: self.matches.mask(rank for _, rank in chain(self.slots_free_now(it), self.slots_free_soon(it)))
            for it in self.policy.node_types
        }

    @lazy_property
    def on_sale(self) -> Mapping[TypeName, tuple[NodeType, ...]]:
        """Each type as the sizes that may be bought now, the cheapest first. Blocked types are left out."""
        sizes = self.policy.by_size.items()
        return {
            name: tuple(it for it in those if (it.size, it.market) not in self.blocked_sizes.get(name, ()))
            for name, those in sizes
            if name not in self.blocked
        }

    @lazy_property
    def open_zones(self) -> Mapping[TypeName, tuple[str, ...]]:
        """The zones in which each type may be created now as some size, in the order of the site."""
        return {
            it.name: tuple(
                dict.fromkeys(
                    zone for size in self.on_sale.get(it.name, (it,)) for zone in open_zones(size, self.snapshot)
                )
            )
            for it in self.policy.node_types
        }

    def spot_left(self, node_type: NodeType) -> int | None:
        """How many nodes ``spot_share_max`` allows of a type that is on sale as spot nodes only; None if any."""
        share, (count, spot) = self.policy.rules.spot_share_max, self.fleet
        if share >= 1.0 or any(it.market is not Market.SPOT for it in self.on_sale.get(node_type.name, ())):
            return None
        return max(0, int((share * count - spot) / (1.0 - share) + 1e-9))

    def cheapest(self, node_type: NodeType) -> NodeType:
        """The type as the cheapest size that may be bought now, or that there is."""
        return next(iter(self.on_sale.get(node_type.name, ())), node_type)

    @lazy_property
    def leased_indexes(self) -> Mapping[TypeName, Mapping[int, bool]]:
        """By type, the indexes of vacant slots that are leased all the same, and whether the lease is ending."""
        return _leased_indexes(self.snapshot, self.policy, self.rank_index)

    @lazy_property
    def ending_indexes(self) -> Mapping[TypeName, Sequence[int]]:
        """By type, the indexes of slots that are free in a moment."""
        leased = self.leased_indexes.items()
        return {name: sorted(index for index, ends in indexes.items() if ends) for name, indexes in leased}

    def offers(self, constraints: Sequence[Constraint]) -> list[Offer]:
        """The nodes on sale: for each type its free slots, then those that are free in a moment."""
        prepaid = prepaid_left(self.snapshot, self.policy)
        return [
            offer
            for node_type in self.policy.node_types
            if node_type.name not in self.blocked
            for offer in self._offers_of(node_type, constraints, prepaid.get(node_type.name, 0))
        ]

    @lazy_property
    def type_room(self) -> Mapping[TypeName, int]:
        """How many further nodes the own limits of types allow, for types that have such limits."""
        left = {it.name: nodes_left_of_type(it, self.snapshot, self.policy) for it in self.policy.limited_types}
        return {name: count for name, count in left.items() if count is not None}

    def is_held_back(self, type_name: TypeName) -> bool:
        """Whether the type's own limits allow fewer nodes than it has free slots."""
        return self.type_room.get(type_name, inf) < sum(self._free_slots(type_name))

    def count_free(self, type_name: TypeName) -> int:
        """How many slots of the type are free now or in a moment, and may get a node."""
        return sum(self._slots_to_use(type_name))

    def _free_slots(self, type_name: TypeName) -> tuple[int, int]:
        """How many slots of the type are free now, and in a moment."""
        vacant = len(self.rank_index.vacant.get(type_name, ()))
        return vacant - len(self.leased_indexes.get(type_name, ())), len(self.ending_indexes.get(type_name, ()))

    def _slots_to_use(self, type_name: TypeName) -> tuple[int, int]:
        """The same, but only as many as the type's own limits allow."""
        now, soon = self._free_slots(type_name)
        room = self.type_room.get(type_name)
        return (now, soon) if room is None else (min(now, room), min(soon, max(0, room - now)))

    def count_free_for(self, node_type: NodeType, constraint: Constraint) -> int:
        """How many slots of the type are free now or in a moment and meet the constraint."""
        met = self._slots_that_meet(node_type, constraint)
        if met is None:
            return self.count_free(node_type.name)
        return (met & self.free_masks[node_type.name]).bit_count() if met else 0

    def count_slots_for(self, node_type: NodeType, constraint: Constraint) -> int:
        """How many slots of the type could ever meet the constraint."""
        met = self._slots_that_meet(node_type, constraint)
        return self.rank_index.slots.get(node_type.name, 0) if met is None else met.bit_count()

    def _slots_that_meet(self, node_type: NodeType, constraint: Constraint) -> int | None:
        """The slots of the type that meet a constraint, as in ``matches``; None if all of them do."""
        if constraint is ANYWHERE:
            return None
        slots = self.slots_mask[node_type.name]
        met = self.matches.of(constraint) & slots
        return None if met == slots else met

    def slots_free_now(self, node_type: NodeType) -> Iterator[SlotAndRank]:
        """The slots of the type that are free now, in the order of the site."""
        leased = self.leased_indexes.get(node_type.name, ())
        vacant = self.rank_index.vacant.get(node_type.name, ())
        free = self._places(node_type, (index for index in vacant if index not in leased))
        of_slot = node_index_of(self.snapshot).launch_of_slot
        found = (place for place in free if place[0] not in of_slot)
        return islice(found, self.type_room.get(node_type.name))

    def slots_free_soon(self, node_type: NodeType) -> Iterator[SlotAndRank]:
        """The slots of the type that are free in a moment, in the order of the site."""
        found = self._places(node_type, self.ending_indexes.get(node_type.name, ()))
        return islice(found, self._slots_to_use(node_type.name)[1])

    def _places(self, node_type: NodeType, indexes: Iterable[int]) -> Iterator[SlotAndRank]:
        rank_of_slot = self.snapshot.slots.rank_of_slot
        return ((slot, rank_of_slot[slot]) for index in indexes for slot in (node_type.slots[index],))

    def _offers_of(
        self, node_type: NodeType, constraints: Sequence[Constraint], prepaid_count: int
    ) -> Iterator[Offer]:
        """The offers of a type, of which so many of the first nodes are prepaid."""
        left = prepaid_count
        for offer in self._priced_offers_of(node_type, constraints):
            free = min(left, offer.count)
            left -= free
            if free:
                prepaid = replace(node_type, price_per_hour=PREPAID.price_per_hour, billing=PREPAID.billing)
                yield replace(offer, node_type=prepaid, count=free, places=partial(_some, offer.places, 0, free))
            if free and offer.count > free:
                rest = partial(_some, offer.places, free, None)
                yield replace(offer, count=offer.count - free, places=rest, example=next(rest()))
            elif offer.count > free:
                yield offer

    def _priced_offers_of(self, node_type: NodeType, constraints: Sequence[Constraint]) -> Iterator[Offer]:
        now, soon = self._slots_to_use(node_type.name)
        for standing, count, places in (
            (Availability.NEW, now, partial(self.slots_free_now, node_type)),
            (Availability.COMING, soon, partial(self.slots_free_soon, node_type)),
        ):
            if not count:
                continue
            groups: dict[tuple[int, ...], list[SlotAndRank]] = {}
            kinds = kinds_of((rank for _, rank in places()), constraints, self.matches) if constraints else {}
            if not kinds:
                yield from self._offers_by_size(node_type, standing, count, next(places()), places)
                continue
            for place in places():
                groups.setdefault(kinds.get(place[1], ()), []).append(place)
            for group in groups.values():
                yield from self._offers_by_size(node_type, standing, len(group), group[0], group.__iter__)

    def _offers_by_size(
        self,
        node_type: NodeType,
        standing: Availability,
        count: int,
        example: SlotAndRank,
        places: Callable[[], Iterator[SlotAndRank]],
    ) -> Iterator[Offer]:
        """The same slots as each size that may be bought now, with as many nodes as quotas allow."""
        sizes = self.on_sale[node_type.name]
        if len(sizes) == 1:
            if self.policy.has_limits(node_type.cloud) or node_type.cloud in self.budget_left_in_clouds:
                left = self.allowance().count_left(sizes[0])
                count = count if left is None else max(1, min(count, left))
            zones = open_zones(sizes[0], self.snapshot)
            yield Offer(sizes[0], standing, count, example, places, zones, self.matches)
            return
        pool = (node_type.name, standing, example)
        covered: dict[tuple[Market, str], int] = {}  # how many nodes cheaper sizes can be
        for size, left in zip(sizes, self._counts_left(sizes, count), strict=True):
            zones = open_zones(size, self.snapshot)
            if any(covered.get((size.market, zone), 0) < count for zone in zones):
                covered |= {(size.market, zone): covered.get((size.market, zone), 0) + left for zone in zones}
                yield Offer(size, standing, left, example, places, zones, self.matches, pool=pool, slots=count)

    def why_no_more(self, node_type: NodeType, constraint: Constraint) -> Reason | None:
        """The quota or limit of its cloud because of which not all free slots get a node; None if there is none."""
        known, size = self._known_most, (node_type.name, node_type.size, node_type.market)
        if size not in known:
            known[size] = self._most_of(node_type)
        most, why = known[size]
        return why if most is not None and most < self.count_free_for(node_type, constraint) else None

    @lazy_property
    def _known_most(self) -> dict[tuple[TypeName, str, Market], tuple[int | None, Reason | None]]:
        """What ``_most_of`` has found, because many jobs ask for the same types."""
        return {}

    def _most_of(self, node_type: NodeType) -> tuple[int | None, Reason | None]:
        """How many more nodes of a type quotas and limits allow (None: any number), and why no more."""
        allowance = self.allowance()
        most = allowance.count_left(node_type)
        if most is None or most >= self.count_free(node_type.name):
            return None, None
        for _ in range(most):
            allowance.take(node_type)
        return most, allowance.why_none(node_type)

    def allowance(self) -> Allowance:
        """How many more nodes the quotas, breakers and limits of clouds allow, before any is bought."""
        return Allowance(self.snapshot, self.policy, budget_left=self.budget_left_in_clouds)

    def _counts_left(self, sizes: Sequence[NodeType], count: int) -> list[int]:
        """How many nodes quotas allow of each size. If they allow too few in all, the dearest gets the rest.

        A quota that sizes share counts in full for each of them, and the dearest may get more than its own.
        The orders are limited later, the cheapest size first, as with a type of a single size.
        """
        allowance = self.allowance()
        left = [count if most is None else min(most, count) for most in map(allowance.count_left, sizes)]
        return left if sum(left) >= count else [*left[:-1], count]


def _some(places: Callable[[], Iterator[SlotAndRank]], first: int, last: int | None) -> Iterator[SlotAndRank]:
    """Some of the places of an offer, by their numbers."""
    return islice(places(), first, last)


def _market_of(bought: Bought, policy: Policy) -> Market | None:
    """The market on which a node was bought; that of its type if its lease does not record it."""
    node_type = policy.types.get(bought[0])
    return bought[2] or (node_type.market if node_type is not None else None)


def current_supply(
    snapshot: Snapshot, policy: Policy, price: Decimal, limits: BudgetLimits | None = None
) -> Supply:
    """What may be bought now. ``price``: what the fleet costs per hour, booting and stopping nodes included."""
    by_size = node_index_of(snapshot).count_by_size
    costing = sum(by_size.values())
    spot = sum(count for bought, count in by_size.items() if _market_of(bought, policy) is Market.SPOT)
    price_left, budget_left = policy.limits.price_per_hour_max - price, None
    if limits is not None and limits.left_per_hour is not None and limits.left_per_hour[0] < price_left:
        price_left, budget_left = limits.left_per_hour
    closed = closed_sizes(limits, policy) if limits is not None else {}
    left_in_clouds = limits.left_in_clouds if limits is not None else NO_BUDGETS
    sizes = unavailable_sizes(snapshot, policy, left_in_clouds)
    return Supply(
        snapshot,
        policy,
        rank_index=rank_index_of(snapshot.ranks, snapshot.indexes.ranks, policy),
        blocked={
            **unavailable_types(snapshot, policy, sizes),
            **_why_nothing_added(snapshot, policy),
            **unavailable_types(snapshot, policy, closed),
        },
        blocked_sizes={name: {**sizes.get(name, {}), **closed.get(name, {})} for name in {**sizes, **closed}},
        nodes_left=policy.limits.nodes_max - costing - len(ownerless_strays(snapshot)),
        price_left=price_left,
        fleet=(costing, spot),
        budget_left=budget_left,
        budget_left_in_clouds=left_in_clouds,
    )


def _why_nothing_added(snapshot: Snapshot, policy: Policy) -> Mapping[TypeName, Reason]:
    """Why no type is bought now: while nodes are removed, a larger number would bring these back."""
    node_index = node_index_of(snapshot)
    if not policy.stacked or not any(node_index.count_by_state.get(state) for state in _BEING_REMOVED):
        return {}
    leave = sorted(node.launch.slot for node in node_index.to_check.values() if node.state in _BEING_REMOVED)
    reason = because(Code.NODES_BEING_REMOVED, nodes=tuple(leave[:NAMED_MAX]))
    return {node_type.name: reason for node_type in policy.node_types}


def _leased_indexes(
    snapshot: Snapshot, policy: Policy, rank_index: RankIndex
) -> Mapping[TypeName, Mapping[int, bool]]:
    """By type, the indexes of vacant slots that are leased, and whether the lease is ending."""
    node_index = node_index_of(snapshot)
    held = {stray.node.identity.slot for stray in ownerless_strays(snapshot) if stray.node.identity is not None}
    leased: dict[TypeName, dict[int, bool]] = {}
    ranks, rank_of_slot, index_of_slot = snapshot.ranks, snapshot.slots.rank_of_slot, policy.index_of_slot
    # Simply busy nodes are left out: their slots are not vacant.
    for slot in (*[node.launch.slot for node in node_index.to_check.values()], *held):
        if slot not in rank_of_slot or (rank := ranks.get(rank_of_slot[slot])) is None or rank.online:
            continue
        type_and_index = index_of_slot.get(slot)
        if type_and_index is None or not _is_vacant(rank_index, type_and_index):
            continue
        owner = node_index.launch_of_slot.get(slot)
        # The node is gone, and only its lease is left, which ends in a moment.
        ends = owner is not None and slot not in held and snapshot.nodes[owner].state is NodeState.GONE
        leased.setdefault(type_and_index[0], {})[type_and_index[1]] = ends
    return leased


def _is_vacant(rank_index: RankIndex, type_and_index: tuple[TypeName, int]) -> bool:
    vacant = rank_index.vacant.get(type_and_index[0], ())
    at = bisect_left(vacant, type_and_index[1])
    return at < len(vacant) and vacant[at] == type_and_index[1]
