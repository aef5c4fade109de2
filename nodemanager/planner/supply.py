"""The supply: free room on existing nodes, the nodes that are booting, and those that may be bought."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from math import floor, inf

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, NodeLoad, Not, Shape
from nodemanager.core.nodes import COMING, FailureKind, FluxRank, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.backoff import (
    NO_BUDGETS,
    Allowance,
    BudgetsLeft,
    block_on_all_zones,
    open_zones,
    scopes_of,
    unavailable_sizes,
    unavailable_types,
)
from nodemanager.planner.billing import PREPAID, nodes_left_of_type, ownerless_strays, prepaid_left
from nodemanager.planner.budget import BudgetLimits, closed_sizes
from nodemanager.planner.constraints import Matches, alike
from nodemanager.planner.frozen import lazy_property, replace
from nodemanager.planner.node_health import gets_no_work, why_give_up
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy, limits_ahead
from nodemanager.planner.ranks_and_queue import FeasibilityCache, RankIndex, rank_index_of
from nodemanager.planner.seating import Availability
from nodemanager.planner.snapshot import Bought, Node, Snapshot

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
    def limits_ahead(self) -> Sequence[tuple[float, Policy]]:
        """The other limits that schedules set within a week, each with from when on."""
        known = self.feasibility.limits_ahead
        if not known:
            known.append(tuple(limits_ahead(self.policy, self.snapshot.wall_at)))
        return known[0]

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
        known, rank_of_slot = self.matches.of_types, self.snapshot.slots.rank_of_slot
        for it in self.policy.node_types if not known else ():
            known[it.name] = self.matches.mask(rank_of_slot[slot] for slot in it.slots if slot in rank_of_slot)
        return known

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
        most = self.spot_share_left
        if most is None or any(it.market is not Market.SPOT for it in self.on_sale.get(node_type.name, ())):
            return None
        return max(0, most)

    @property
    def spot_share_left(self) -> int | None:
        """How many more spot nodes ``spot_share_max`` allows, less than 0 if there are too many; None if any."""
        share, (count, spot) = self.policy.rules.spot_share_max, self.fleet
        return None if share >= 1.0 else floor((share * count - spot) / (1.0 - share) + 1e-9)

    def is_full_for(self, node_type: NodeType) -> bool:
        """Whether a node of a type that is not on sale may be had if another node of its cloud ends.

        That is certain of quotas and of the cloud's own limits. If the provider lacks capacity, only a try shows
        it: nodes make room for the first, second, fourth, eighth try, and so on.
        """
        known = self._known_full
        if node_type.name not in known:
            known[node_type.name] = self._is_full_for(node_type)
        return known[node_type.name]

    @lazy_property
    def _known_full(self) -> dict[TypeName, bool]:
        """What ``_is_full_for`` has found. It counts a cloud's nodes, and many shapes ask for the same types."""
        return {}

    def _is_full_for(self, node_type: NodeType) -> bool:
        if node_type.name in self.policy.observed or node_type.cloud in self.snapshot.closed_clouds:
            return False
        size = self.policy.by_size[node_type.name][0]
        if (block := block_on_all_zones(size, self.snapshot)) is not None:
            return block.kind is FailureKind.CAPACITY and block.rounds.bit_count() == 1
        return Allowance(self.snapshot, self.policy).count_left(size) == 0

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
            slots = self.slots_mask[node_type.name] if constraints else 0
            kinds = kinds_of((rank for _, rank in places()), constraints, self.matches, slots)
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
            limited = self.policy.has_limits(node_type.cloud) or node_type.cloud in self.budget_left_in_clouds
            if limited or self._is_at_known_quota(sizes[0]):
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

    def _is_at_known_quota(self, node_type: NodeType) -> bool:
        """Whether quotas of the type are known and none is tried now. A try buys more than they allow."""
        quotas, now_s = self.snapshot.learned.quotas, self.snapshot.now_s
        known = [quotas[scope] for scope in scopes_of(node_type) if scope in quotas] if quotas else []
        return bool(known) and all(quota.probe_s > now_s for quota in known)

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
    bounded = limits if policy.budgets else None
    closed = closed_sizes(bounded, policy) if bounded is not None else {}
    left_in_clouds = bounded.left_in_clouds if bounded is not None else NO_BUDGETS
    sizes = unavailable_sizes(snapshot, policy, left_in_clouds)
    together = {name: {**sizes.get(name, {}), **closed.get(name, {})} for name in {**sizes, **closed}}
    return Supply(
        snapshot,
        policy,
        rank_index=rank_index_of(snapshot.ranks, snapshot.indexes.ranks, policy),
        blocked={
            # Of some types the provider refuses a part of the sizes, and the budgets forbid the others.
            **(unavailable_types(snapshot, policy, together) if sizes and closed else {}),
            **unavailable_types(snapshot, policy, sizes),
            **_why_nothing_added(snapshot, policy),
            **unavailable_types(snapshot, policy, closed),
        },
        blocked_sizes=together,
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


# --- offers: empty nodes of one type, booting or on sale --------------------------------------------------


SlotAndRank = tuple[SlotName, Rank]


@dataclass(frozen=True, slots=True)
class Offer:
    """Empty nodes of one type that meet the same constraints: booting, or on sale."""

    node_type: NodeType
    availability: Availability
    count: int
    example: SlotAndRank
    places: Callable[[], Iterator[SlotAndRank]]
    zones: tuple[str, ...]  # where they are, or where they may be created, in the order of the tries
    matches: Matches  # which ranks satisfy which constraints
    ordered_s: float | None = None  # when they were ordered; None if they are on sale
    load: NodeLoad = ()  # what each was bought for
    # Offers of the same slots as different sizes share a pool of so many slots; None if no other offer has them.
    pool: Hashable = None
    slots: int = 0
    # The jobs for which no node is bought here; None: nodes are bought for all.
    keeps_off: Callable[[Shape], bool] | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether the nodes are ordered already; if not, they are on sale."""
        return self.ordered_s is not None

    def suits(self, shape: Shape) -> bool:
        """Whether the nodes meet a job's constraint, and may be bought for it if they are on sale."""
        return self.meets(shape.constraint) and not (self.keeps_off is not None and self.keeps_off(shape))

    def meets(self, constraint: Constraint) -> bool:
        """Whether the nodes meet a job's constraint."""
        return constraint is ANYWHERE or self.matches.suits(constraint, self.example[1])


def coming_offers(
    snapshot: Snapshot, policy: Policy, constraints: Sequence[Constraint], matches: Matches
) -> list[Offer]:
    """The booting nodes as offers, in the order in which they were ordered."""
    booting = [
        node
        for node in node_index_of(snapshot).to_check.values()
        if _will_be_up(node, snapshot, policy)
        and node.launch.type_name in policy.types
        and not snapshot.steered(node)
    ]
    kind_of_rank = kinds_of([node.launch.rank for node in booting], constraints, matches)
    found: dict[tuple[float, TypeName, tuple[int, ...], str, NodeLoad], list[SlotAndRank]] = {}
    for node in booting:
        launch = node.launch
        kind = kind_of_rank.get(launch.rank, ())
        found.setdefault(
            (node.create.requested_s, launch.type_name, kind, launch.zone, node.create.load), []
        ).append((launch.slot, launch.rank))
    return [
        Offer(
            policy.types[name],
            Availability.COMING,
            len(places),
            min(places),
            sorted(places).__iter__,
            (zone,),
            matches,
            since_s,
            load,
        )
        for (since_s, name, _, zone, load), places in sorted(
            found.items(), key=lambda entry: (*entry[0][:4], min(entry[1]))
        )
    ]


def _will_be_up(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    if node.state in COMING:
        if policy.cloud_of(node.launch) in snapshot.closed_clouds:
            return False  # nobody knows whether it comes: its jobs are served elsewhere
        return not gets_no_work(node, policy, snapshot.now_s) and why_give_up(node, policy, snapshot.now_s) is None
    if node.state is not NodeState.IDLE or node.rank is None or node.rank.schedulable:
        return False
    return _just_up(node, node.rank, snapshot, policy) and not gets_no_work(node, policy, snapshot.now_s)


def _just_up(node: Node, rank: FluxRank, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the node is online but the scheduler has not noticed yet, a moment after Flux's resource module."""
    kept_out = rank.schedulable or rank.drain_reason is not None or rank.excluded or rank.torpid
    return rank.online and not kept_out and snapshot.now_s - node.since_s < policy.timing.rejoin_timeout_s


def kinds_of(
    ranks: Iterable[Rank], constraints: Sequence[Constraint], matches: Matches, slots: int | None = None
) -> Mapping[Rank, tuple[int, ...]]:
    """For each rank a key that is equal for ranks that meet the same constraints. The others have ().

    ``slots``: a set of ranks, as in ``matches``, that holds all of these. If no constraint divides it, none has a
    key.
    """
    if not constraints or (slots is not None and all(matches.of(it) & slots in (0, slots) for it in constraints)):
        return {}
    by_index = {matches.index(rank): rank for rank in ranks}
    here = matches.mask(by_index.values())
    masks = dict.fromkeys(matches.of(constraint) & here for constraint in constraints)
    return {by_index[index]: key for index, key in alike(masks, here).items()}


def is_slot_specific(constraint: Constraint, policy: Policy) -> bool:
    """Whether a constraint may hold on some slots of a type only. Host names count as properties too."""
    match constraint:
        case HasProperty(name):
            return name in policy.index_of_slot
        case All(parts) | AnyOf(parts):
            return any(is_slot_specific(part, policy) for part in parts)
        case Not(part):
            return is_slot_specific(part, policy)
        case _:
            return True
