"""The supply: free room on existing nodes, the nodes that are booting, and those that may be bought."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from math import inf

from nodemanager.core.drains import drain_text, is_our_drain
from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, JobId, NodeLoad, Not
from nodemanager.core.nodes import COMING, USABLE, FluxRank, Launch, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Market, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.cost import timings
from nodemanager.planner.cost.billing import PREPAID
from nodemanager.planner.cost.billing import price_per_hour as launch_price
from nodemanager.planner.cost.budget import BudgetLimits, closed_sizes
from nodemanager.planner.observe.backoff import Allowance, unavailable_sizes, unavailable_types
from nodemanager.planner.observe.node_health import gets_no_work, why_give_up
from nodemanager.planner.observe.zones import open_zones
from nodemanager.planner.scheduler.sched_simple import cores_of_piece, pieces_of
from nodemanager.planner.scheduler.seating import Availability, Bin
from nodemanager.planner.state.constraints import Matches, alike
from nodemanager.planner.state.frozen import lazy_property, replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import bought_as, node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey, QueueIndex
from nodemanager.planner.state.rank_index import FeasibilityCache, RankIndex, rank_index_of
from nodemanager.planner.state.snapshot import Bought, Snapshot, Stray
from nodemanager.planner.upkeep.consolidation import free_while_emptying, is_emptying
from nodemanager.planner.upkeep.due import is_on_its_way_out
from nodemanager.planner.upkeep.prepaid import prepaid_launches, prepaid_left

SlotAndRank = tuple[SlotName, Rank]

# If jobs need more than this part of the nodes with room, each gets a bin, whether a job could get it or not.
REACHABLE_PART = 0.25
NAMED_MAX = 10  # nodes in a reason
_BEING_REMOVED = (NodeState.STOPPING, NodeState.GONE)


# --- existing nodes ---------------------------------------------------------------------------------------


def free_bins(
    snapshot: Snapshot,
    policy: Policy,
    *,
    all_go: bool = False,
    batches: Mapping[BatchKey, Sequence[JobId]] | None = None,
) -> list[Bin]:
    """A bin for every node that takes jobs now, and for every draining node that could be kept.

    ``all_go``: the budget is spent, so no node is kept and none takes another job. ``batches``: the jobs to seat;
    nodes that are up and that none of these can get are left out.
    """
    node_index = node_index_of(snapshot)
    bins: list[Bin] = []

    def bin_of(rank: FluxRank) -> Bin | None:
        owner = node_index.launch_of_rank.get(rank.rank)
        node = snapshot.nodes[owner] if owner is not None else None
        takes_jobs = node is None or _takes_jobs(node, snapshot, policy, all_go)
        return _bin_of_rank(rank, policy, node) if takes_jobs else None

    rank_index = rank_index_of(snapshot.ranks, snapshot.indexes.ranks, policy)
    bins += _reachable_bins(rank_index, batches, bin_of)
    for node in node_index.to_check.values() if not all_go else ():
        if is_emptying(node) and node.state is NodeState.BUSY and (kept := _emptying_bin(node, snapshot, policy)):
            bins.append(kept)
        if not (_may_be_kept(node) or _will_be_undrained(node)):
            continue
        node_type = policy.types.get(node.launch.type_name)
        if node_type is None or snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s):
            continue
        if is_on_its_way_out(node, snapshot, policy):
            continue
        bins.append(_empty_bin(node_type, node.launch, Availability.KEPT))
    return bins


def _reachable_bins(
    index: RankIndex,
    batches: Mapping[BatchKey, Sequence[JobId]] | None,
    bin_of: Callable[[FluxRank], Bin | None],
) -> list[Bin]:
    """The bins of nodes that are up and that these jobs may get; None stands for any jobs.

    By worst fit, each piece of a job gets the bin with the most room of those that suit it. Before the n-th piece
    is seated, at most n - 1 bins have changed, and these only moved back in the order. So one of the first n bins
    that suit a shape is chosen for it, and for n pieces in all, no shape gets any other.
    """
    pieces, shapes = 0, dict.fromkeys(key.shape for key in batches or ())
    for key, ids in (batches or {}).items():
        pieces += pieces_of(key.shape) * len(ids)
    few = pieces * len(shapes) <= len(index.by_room) * REACHABLE_PART
    if batches is None or not few or any(shape.one_zone for shape in shapes):
        return [it for it in map(bin_of, index.with_room.values()) if it is not None]
    made: dict[Rank, Bin | None] = {}
    found: dict[Rank, Bin] = {}
    for shape in shapes:
        suited = -1 if shape.constraint is ANYWHERE else index.matches.of(shape.constraint)
        least, left = 1 if shape.exclusive else cores_of_piece(shape), pieces
        for _, _, rank in index.by_room:
            if rank not in made:
                made[rank] = bin_of(index.with_room[rank])
            bin_ = made[rank]
            if bin_ is None or (suited >= 0 and not suited >> index.matches.index(rank) & 1):
                continue
            if bin_.cores < least:
                break  # the others have even fewer
            if bin_.pieces_that_fit(shape):
                found[rank] = bin_
                left -= 1
                if left == 0:
                    break
    return list(found.values())


def _takes_jobs(node: Node, snapshot: Snapshot, policy: Policy, all_go: bool) -> bool:
    if all_go or node.state not in USABLE:
        return False
    return not (snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s))


def bins_free_soon(snapshot: Snapshot, policy: Policy, queue_index: QueueIndex) -> list[Bin]:
    """A bin for every full node that will have room sooner than a new node would boot.

    Only ends of jobs with a time limit count. An overdue job is left out: it may run on for long.
    """
    horizon_s = {name: patience_s(snapshot, policy, name) for name in policy.types}
    latest_s = max(horizon_s.values(), default=0.0)
    freed: dict[Rank, tuple[int, int, float]] = {}
    for ends_at, job in queue_index.job_ends:
        in_s = ends_at - snapshot.wall_at
        if in_s > latest_s:
            break
        if in_s >= 0.0:
            for held in snapshot.jobs[job].allocations:
                cores, gpus, _ = freed.get(held.rank, (0, 0, 0.0))
                freed[held.rank] = cores + held.cores, gpus + held.gpus, in_s
    bins = []
    for number, (cores, gpus, in_s) in freed.items():
        rank = snapshot.ranks.get(number)
        type_and_index = policy.index_of_slot.get(rank.host) if rank is not None else None
        if rank is None or type_and_index is None or not (rank.online and rank.schedulable) or rank.cores_free > 0:
            continue
        if in_s <= horizon_s[type_and_index[0]]:
            properties = policy.types[type_and_index[0]].properties
            whole = cores >= rank.cores
            zone = _zone_of(_node_of_rank(number, snapshot))
            bins.append(Bin(rank.host, number, properties, cores, gpus, Availability.SOON, whole, in_s, zone))
    return bins


def room_changes_s(snapshot: Snapshot, policy: Policy, queue_index: QueueIndex) -> float:
    """When time alone changes what :func:`bins_free_soon` offers; infinity if it never does.

    Either a running job's time limit comes within the patience of a node type, or it passes.
    """
    horizons_s = sorted({patience_s(snapshot, policy, name) for name in policy.types})
    least_s = inf
    for ends_at, _ in queue_index.job_ends if horizons_s else ():
        in_s = ends_at - snapshot.wall_at
        if in_s >= 0.0:
            waits_s = [in_s - horizon_s for horizon_s in horizons_s if in_s > horizon_s] or [in_s]
            least_s = min(least_s, *waits_s, in_s)
            if in_s > horizons_s[-1] + least_s:
                break
    return snapshot.now_s + least_s


def patience_s(snapshot: Snapshot, policy: Policy, type_name: TypeName) -> float:
    """How many seconds to wait for room on a busy node before a node of the type is bought."""
    return (timings.boot_s(snapshot, type_name) or 0.0) + policy.rules.patience_s


def _node_of_rank(rank: Rank, snapshot: Snapshot) -> Node | None:
    id_ = node_index_of(snapshot).launch_of_rank.get(rank)
    return snapshot.nodes[id_] if id_ is not None else None


def _zone_of(node: Node | None) -> str:
    """The zone of a node; "" if the rank has no node of ours."""
    return node.launch.zone if node is not None else ""


def _bin_of_rank(rank: FluxRank, policy: Policy, node: Node | None) -> Bin:
    type_and_index = policy.index_of_slot.get(rank.host)
    properties = policy.types[type_and_index[0]].properties if type_and_index is not None else frozenset()
    return Bin(
        rank.host,
        rank.rank,
        properties,
        rank.cores_free,
        rank.gpus_free,
        Availability.UP,
        is_empty=not rank.allocated,
        zone=_zone_of(node),
    )


def _empty_bin(node_type: NodeType, launch: Launch, standing: Availability) -> Bin:
    cores, gpus = node_type.cores, node_type.gpus
    return Bin(launch.slot, launch.rank, node_type.properties, cores, gpus, standing, zone=launch.zone)


def _emptying_bin(node: Node, snapshot: Snapshot, policy: Policy) -> Bin | None:
    """The room on a busy node that takes no jobs now because it empties, but would if it were undrained."""
    node_type = policy.types.get(node.launch.type_name)
    if node_type is None or not _takes_jobs(node, snapshot, policy, all_go=False):
        return None
    cores, gpus = free_while_emptying(node, snapshot)
    launch = node.launch
    return Bin(
        launch.slot,
        launch.rank,
        node_type.properties,
        cores,
        gpus,
        Availability.KEPT,
        is_empty=False,
        zone=launch.zone,
    )


def _may_be_kept(node: Node) -> bool:
    rank = node.rank
    if node.state is not NodeState.DRAINING or rank is None or not rank.online:
        return False
    return rank.drain_reason in (None, drain_text(node.id))


def _will_be_undrained(node: Node) -> bool:
    """Whether it is idle under a stale drain of ours: it is undrained now."""
    rank = node.rank
    if node.state is not NodeState.IDLE or rank is None or not rank.online:
        return False
    return is_our_drain(rank.drain_reason)


# --- booting nodes, and nodes on sale ---------------------------------------------------------------------


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

    @property
    def is_ordered(self) -> bool:
        """Whether the nodes are ordered already; if not, they are on sale."""
        return self.ordered_s is not None

    def suits(self, constraint: Constraint) -> bool:
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
    kinds = _kinds([node.launch.rank for node in booting], constraints, matches)
    found: dict[tuple[float, TypeName, tuple[int, ...], str, NodeLoad], list[SlotAndRank]] = {}
    for node in booting:
        launch = node.launch
        kind = kinds.get(launch.rank, ())
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
        return not gets_no_work(node, policy, snapshot.now_s) and why_give_up(node, policy, snapshot.now_s) is None
    if node.state is not NodeState.IDLE or node.rank is None or node.rank.schedulable:
        return False
    return _just_up(node, node.rank, snapshot, policy) and not gets_no_work(node, policy, snapshot.now_s)


def _just_up(node: Node, rank: FluxRank, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the node is online but the scheduler has not noticed yet, a moment after Flux's resource module."""
    kept_out = rank.schedulable or rank.drain_reason is not None or rank.excluded or rank.torpid
    return rank.online and not kept_out and snapshot.now_s - node.since_s < policy.timing.rejoin_timeout_s


def _kinds(
    ranks: Iterable[Rank], constraints: Sequence[Constraint], matches: Matches
) -> Mapping[Rank, tuple[int, ...]]:
    """For each rank a key that is equal for ranks that meet the same constraints. The others have ()."""
    if not constraints:
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
    budget_left: Reason | None = None  # set if the budget, not the price limit, decides ``price_left``

    @lazy_property
    def feasibility(self) -> FeasibilityCache:
        """The cache of shapes that could never be served, if it belongs to this policy; else a new one."""
        kept = self.rank_index.feasibility
        return kept if kept is not None and kept.policy is self.policy else FeasibilityCache(self.policy)

    @property
    def matches(self) -> Matches:
        return self.rank_index.matches

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
    def prepaid_left(self) -> Mapping[TypeName, int]:
        """How many further nodes of each type cost nothing."""
        return prepaid_left(self.snapshot, self.policy)

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
        return [
            offer
            for node_type in self.policy.node_types
            if node_type.name not in self.blocked
            for offer in self._offers_of(node_type, constraints)
        ]

    def count_free(self, type_name: TypeName) -> int:
        """How many slots of the type are free now or in a moment."""
        vacant = len(self.rank_index.vacant.get(type_name, ()))
        return vacant - len(self.leased_indexes.get(type_name, ())) + len(self.ending_indexes.get(type_name, ()))

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
        return (place for place in free if place[0] not in of_slot)

    def slots_free_soon(self, node_type: NodeType) -> Iterator[SlotAndRank]:
        """The slots of the type that are free in a moment, in the order of the site."""
        return self._places(node_type, self.ending_indexes.get(node_type.name, ()))

    def _places(self, node_type: NodeType, indexes: Iterable[int]) -> Iterator[SlotAndRank]:
        rank_of_slot = self.snapshot.slots.rank_of_slot
        return ((slot, rank_of_slot[slot]) for index in indexes for slot in (node_type.slots[index],))

    def _offers_of(self, node_type: NodeType, constraints: Sequence[Constraint]) -> Iterator[Offer]:
        """The offers of a type, of which the first nodes may be prepaid."""
        left = self.prepaid_left.get(node_type.name, 0)
        for offer in self._priced_offers_of(node_type, constraints):
            free = min(left, offer.count)
            left -= free
            if free:
                prepaid = replace(node_type, price_per_hour=Decimal(0), billing=PREPAID.billing)
                yield replace(offer, node_type=prepaid, count=free, places=partial(_some, offer.places, 0, free))
            if offer.count > free:
                rest = partial(_some, offer.places, free, None) if free else offer.places
                yield replace(offer, count=offer.count - free, places=rest, example=next(rest()))

    def _priced_offers_of(self, node_type: NodeType, constraints: Sequence[Constraint]) -> Iterator[Offer]:
        name = node_type.name
        now = self.count_free(name) - len(self.ending_indexes.get(name, ()))
        soon = len(self.ending_indexes.get(name, ()))
        for standing, count, places in (
            (Availability.NEW, now, partial(self.slots_free_now, node_type)),
            (Availability.COMING, soon, partial(self.slots_free_soon, node_type)),
        ):
            if not count:
                continue
            groups: dict[tuple[int, ...], list[SlotAndRank]] = {}
            kinds = _kinds((rank for _, rank in places()), constraints, self.matches) if constraints else {}
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

    def _counts_left(self, sizes: Sequence[NodeType], count: int) -> list[int]:
        """How many nodes quotas allow of each size. If they allow too few in all, the dearest gets the rest.

        The orders are limited later, as with a type of a single size.
        """
        allowance = Allowance(self.snapshot, self.policy)
        left = [count if most is None else min(most, count) for most in map(allowance.count_left, sizes)]
        return left if sum(left) >= count else [*left[:-1], count]


def _some(places: Callable[[], Iterator[SlotAndRank]], first: int, last: int | None) -> Iterator[SlotAndRank]:
    """Some of the places of an offer, by their numbers."""
    return islice(places(), first, last)


def current_supply(
    snapshot: Snapshot, policy: Policy, price: Decimal, limits: BudgetLimits | None = None
) -> Supply:
    """What may be bought now. ``price``: what the fleet costs per hour, booting and stopping nodes included."""
    costing = sum(node_index_of(snapshot).count_by_type.values())
    price_left, budget_left = policy.limits.price_per_hour_max - price, None
    if limits is not None and limits.left_per_hour is not None and limits.left_per_hour[0] < price_left:
        price_left, budget_left = limits.left_per_hour
    closed = closed_sizes(limits, policy) if limits is not None else {}
    sizes = unavailable_sizes(snapshot, policy)
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
        budget_left=budget_left,
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


# --- the cost of the fleet --------------------------------------------------------------------------------


def ownerless_strays(snapshot: Snapshot) -> list[Stray]:
    """The strays that still have no owner. Those that got their lease back stay listed until the next list."""
    return [stray for stray in snapshot.account.strays.values() if not _has_owner(stray, snapshot)]


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


def _type_bought(bought: Bought, policy: Policy) -> NodeType | None:
    """A type as the size it was bought as; None if the site no longer has the type or the size."""
    node_type = policy.types.get(bought[0])
    return policy.of_size.get(bought) if node_type is not None and node_type.sizes else node_type


def create_credit(snapshot: Snapshot, policy: Policy) -> float:
    """The tokens in the rate limiter's bucket for creates: each create takes one."""
    if snapshot.account.create_credit_s is None:
        return float(policy.calls.creates_burst)
    gained = (snapshot.now_s - snapshot.account.create_credit_s) * policy.calls.creates_per_s
    return min(float(policy.calls.creates_burst), snapshot.account.create_credit + gained)
