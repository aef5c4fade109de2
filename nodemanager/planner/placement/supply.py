"""The room there is for jobs, the nodes that are on their way, and those on sale."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import chain

from nodemanager.core.drains import drain_text, is_our_drain
from nodemanager.core.jobs import All, AnyOf, Constraint, HasProperty, Not
from nodemanager.core.nodes import COMING, USABLE, FluxRank, Launch, NodeState
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import NodeType, Rank, SlotName, TypeName
from nodemanager.planner.cost import budget as spending
from nodemanager.planner.cost import timings
from nodemanager.planner.observe.backoff import unavailable_types
from nodemanager.planner.observe.node_health import gets_no_work, why_give_up
from nodemanager.planner.observe.zones import blocked_types, open_zones
from nodemanager.planner.placement.flux_scheduler import Availability, Bin
from nodemanager.planner.state.constraints import holds
from nodemanager.planner.state.frozen import worked_out
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import QueueIndex
from nodemanager.planner.state.rank_index import FeasibilityCache, RankIndex, rank_index_of
from nodemanager.planner.state.snapshot import Node, Snapshot, Stray

SlotAndRank = tuple[SlotName, Rank]


# --- what is there ----------------------------------------------------------------------------------------


def free_bins(snapshot: Snapshot, policy: Policy, *, all_go: bool = False) -> list[Bin]:
    """What is free on every node that takes jobs, and on those that could be kept from leaving.

    ``all_go``: the budget is spent, so none is kept, and none takes a job any more.
    """
    roll = node_index_of(snapshot)
    bins: list[Bin] = []
    for rank in rank_index_of(snapshot.ranks, snapshot.rank_index, policy).with_room.values():
        owner = roll.launch_of_rank.get(rank.rank)
        node = snapshot.nodes[owner] if owner is not None else None
        if node is None or _takes_jobs(node, snapshot, policy, all_go):
            bins.append(_what_is_free(rank, policy, node))
    for node in roll.to_check.values() if not all_go else ():
        if not (_may_be_kept(node) or _is_let_back(node)):
            continue
        node_type = policy.types.get(node.launch.type_name)
        if node_type is None or snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s):
            continue
        bins.append(_empty(node_type, node.launch, Availability.KEPT))
    return bins


def _takes_jobs(node: Node, snapshot: Snapshot, policy: Policy, all_go: bool) -> bool:
    if all_go or node.state not in USABLE:
        return False
    return not (snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s))


def bins_free_soon(snapshot: Snapshot, policy: Policy, line: QueueIndex) -> list[Bin]:
    """What will be free on nodes that are full, sooner than another node would boot.

    Only where a job's end is known. One that is overdue has not ended in time, and may not for long.
    """
    horizon_s = {name: patience_s(snapshot, policy, name) for name in policy.types}
    latest_s = max(horizon_s.values(), default=0.0)
    freed: dict[Rank, tuple[int, int, float]] = {}
    for ends_at, job in line.job_ends:
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
        place = policy.index_of_slot.get(rank.host) if rank is not None else None
        if rank is None or place is None or not (rank.online and rank.schedulable) or rank.cores_free > 0:
            continue
        if in_s <= horizon_s[place[0]]:
            properties = policy.types[place[0]].properties
            whole = cores >= rank.cores
            zone = _zone_of(_owner(number, snapshot))
            bins.append(Bin(rank.host, number, properties, cores, gpus, Availability.SOON, whole, in_s, zone))
    return bins


def patience_s(snapshot: Snapshot, policy: Policy, type_name: TypeName) -> float:
    """For how long room that will be free is waited for, where a node of the type could be bought."""
    return (timings.boot_s(snapshot, type_name) or 0.0) + policy.patience_s


def _owner(rank: Rank, snapshot: Snapshot) -> Node | None:
    id_ = node_index_of(snapshot).launch_of_rank.get(rank)
    return snapshot.nodes[id_] if id_ is not None else None


def _zone_of(node: Node | None) -> str:
    """Of a rank that no node of ours stands behind, nothing is known: it counts as left to the provider."""
    return node.launch.zone if node is not None else ""


def _what_is_free(rank: FluxRank, policy: Policy, node: Node | None) -> Bin:
    place = policy.index_of_slot.get(rank.host)
    properties = policy.types[place[0]].properties if place is not None else frozenset()
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


def _empty(node_type: NodeType, launch: Launch, standing: Availability) -> Bin:
    cores, gpus = node_type.cores, node_type.gpus
    return Bin(launch.slot, launch.rank, node_type.properties, cores, gpus, standing, zone=launch.zone)


def _may_be_kept(node: Node) -> bool:
    rank = node.rank
    if node.state is not NodeState.DRAINING or rank is None or not rank.online:
        return False
    return rank.drain_reason in (None, drain_text(node.id))


def _is_let_back(node: Node) -> bool:
    """Whether it is idle under a drain of ours that nobody wants any more: it is undrained now."""
    rank = node.rank
    if node.state is not NodeState.IDLE or rank is None or not rank.online:
        return False
    return is_our_drain(rank.drain_reason)


# --- what comes, and what is on sale ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """Empty nodes of one type that meet the same constraints: on their way, or on sale."""

    node_type: NodeType
    availability: Availability
    count: int
    example: SlotAndRank
    places: Callable[[], Iterator[SlotAndRank]]
    zones: tuple[str, ...]  # where they stand, or where they may be made, in the order in which that is tried
    ordered_s: float | None = None  # when those that come were ordered; None for those on sale

    @property
    def is_ordered(self) -> bool:
        return self.ordered_s is not None

    def suits(self, constraint: Constraint) -> bool:
        slot, rank = self.example
        return holds(constraint, properties=self.node_type.properties, host=slot, rank=rank)


def coming_offers(snapshot: Snapshot, policy: Policy, told_apart: Sequence[Constraint]) -> list[Offer]:
    """The nodes that will be up, in the order in which they were ordered."""
    found: dict[tuple[float, TypeName, tuple[bool, ...], str], list[SlotAndRank]] = {}
    for node in node_index_of(snapshot).to_check.values():
        if not _will_be_up(node, snapshot, policy):
            continue
        node_type = policy.types.get(node.launch.type_name)
        if node_type is not None and not snapshot.steered(node):
            place = (node.launch.slot, node.launch.rank)
            kind = _kind(node_type, place, told_apart)
            found.setdefault((node.requested_s, node_type.name, kind, node.launch.zone), []).append(place)
    return [
        Offer(
            policy.types[name],
            Availability.COMING,
            len(places),
            min(places),
            sorted(places).__iter__,
            (zone,),
            since_s,
        )
        for (since_s, name, _, zone), places in sorted(found.items(), key=lambda entry: entry[0])
    ]


def _will_be_up(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    if node.state in COMING:
        return not gets_no_work(node, policy, snapshot.now_s) and why_give_up(node, policy, snapshot.now_s) is None
    if node.state is not NodeState.IDLE or node.rank is None or node.rank.schedulable:
        return False
    return _just_up(node, node.rank, snapshot, policy) and not gets_no_work(node, policy, snapshot.now_s)


def _just_up(node: Node, rank: FluxRank, snapshot: Snapshot, policy: Policy) -> bool:
    """Online, and the scheduler has not noticed yet: it hears of a rank a moment after the resource module."""
    kept_out = rank.schedulable or rank.drain_reason is not None or rank.excluded or rank.torpid
    return rank.online and not kept_out and snapshot.now_s - node.since_s < policy.rejoin_timeout_s


def _kind(node_type: NodeType, place: SlotAndRank, told_apart: Sequence[Constraint]) -> tuple[bool, ...]:
    slot, rank = place
    return tuple(holds(it, properties=node_type.properties, host=slot, rank=rank) for it in told_apart)


def is_slot_specific(constraint: Constraint, policy: Policy) -> bool:
    """Whether it may hold on one slot of a type and not on another. A host's name counts as its property, too."""
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
    """What may be bought: slots that are free, within the limits that are left.

    A slot that is free in a moment, because its lease is being ended, is taken when no other of its type is left:
    that is waited for, where a dearer type would else be bought.
    """

    snapshot: Snapshot
    policy: Policy
    rank_index: RankIndex
    blocked: Mapping[TypeName, Reason]
    nodes_left: int
    price_left: Decimal
    budget_left: Reason | None = None  # where it is the budget that leaves no more

    @worked_out
    def feasibility(self) -> FeasibilityCache:
        kept = self.rank_index.feasibility
        return kept if kept is not None and kept.policy is self.policy else FeasibilityCache(self.policy)

    @worked_out
    def open_zones(self) -> Mapping[TypeName, tuple[str, ...]]:
        """Where each may be made now, in the order of the site."""
        return {it.name: open_zones(it, self.snapshot) for it in self.policy.node_types}

    @worked_out
    def leased_indexes(self) -> Mapping[TypeName, Mapping[int, bool]]:
        """Vacant places that are taken all the same, and whether they are free in a moment."""
        return _leased(self.snapshot, self.policy, self.rank_index)

    @worked_out
    def ending_indexes(self) -> Mapping[TypeName, Sequence[int]]:
        """Those that are free in a moment."""
        leased = self.leased_indexes.items()
        return {name: sorted(place for place, ends in places.items() if ends) for name, places in leased}

    def offers(self, told_apart: Sequence[Constraint]) -> list[Offer]:
        """What is on sale now: of each type what is free, then what will be in a moment."""
        return [
            offer
            for node_type in self.policy.node_types
            if node_type.name not in self.blocked
            for offer in self._offers_of(node_type, told_apart)
        ]

    def count_free(self, type_name: TypeName) -> int:
        vacant = len(self.rank_index.vacant.get(type_name, ()))
        return vacant - len(self.leased_indexes.get(type_name, ())) + len(self.ending_indexes.get(type_name, ()))

    def count_free_for(self, node_type: NodeType, constraint: Constraint) -> int:
        if not is_slot_specific(constraint, self.policy):
            return self.count_free(node_type.name) if self._suit_all(node_type, constraint) else 0
        places = chain(self.slots_free_now(node_type), self.slots_free_soon(node_type))
        return sum(_kind(node_type, place, (constraint,))[0] for place in places)

    def count_slots_for(self, node_type: NodeType, constraint: Constraint) -> int:
        """How many slots of the type the constraint could ever be met on."""
        if not is_slot_specific(constraint, self.policy):
            known = self.rank_index.slots.get(node_type.name, 0)
            return known if self._suit_all(node_type, constraint) else 0
        rank_of_slot = self.snapshot.rank_of_slot
        known_places = [(slot, rank_of_slot[slot]) for slot in node_type.slots if slot in rank_of_slot]
        return sum(_kind(node_type, place, (constraint,))[0] for place in known_places)

    def slots_free_now(self, node_type: NodeType) -> Iterator[SlotAndRank]:
        leased = self.leased_indexes.get(node_type.name, ())
        vacant = self.rank_index.vacant.get(node_type.name, ())
        free = self._places(node_type, (place for place in vacant if place not in leased))
        of_slot = node_index_of(self.snapshot).launch_of_slot
        return (place for place in free if place[0] not in of_slot)

    def slots_free_soon(self, node_type: NodeType) -> Iterator[SlotAndRank]:
        return self._places(node_type, self.ending_indexes.get(node_type.name, ()))

    def _suit_all(self, node_type: NodeType, constraint: Constraint) -> bool:
        return holds(constraint, properties=node_type.properties, host="", rank=-1)

    def _places(self, node_type: NodeType, places: Iterable[int]) -> Iterator[SlotAndRank]:
        rank_of_slot = self.snapshot.rank_of_slot
        return ((slot, rank_of_slot[slot]) for place in places for slot in (node_type.slots[place],))

    def _offers_of(self, node_type: NodeType, told_apart: Sequence[Constraint]) -> Iterator[Offer]:
        name = node_type.name
        now = self.count_free(name) - len(self.ending_indexes.get(name, ()))
        soon = len(self.ending_indexes.get(name, ()))
        for standing, count, places in (
            (Availability.NEW, now, partial(self.slots_free_now, node_type)),
            (Availability.COMING, soon, partial(self.slots_free_soon, node_type)),
        ):
            if not told_apart and count:
                yield Offer(node_type, standing, count, next(places()), places, self.open_zones[name])
            elif count:
                kinds: dict[tuple[bool, ...], list[SlotAndRank]] = {}
                for place in places():
                    kinds.setdefault(_kind(node_type, place, told_apart), []).append(place)
                for alike in kinds.values():
                    yield Offer(node_type, standing, len(alike), alike[0], alike.__iter__, self.open_zones[name])


def current_supply(
    snapshot: Snapshot, policy: Policy, price: Decimal, budget: spending.BudgetLimits | None = None
) -> Supply:
    """What may be bought beside a fleet that costs ``price`` an hour now, those coming and going included."""
    costing = sum(node_index_of(snapshot).count_by_type.values())
    price_left, budget_left = policy.price_per_hour_max - price, None
    if budget is not None and budget.left_per_hour is not None and budget.left_per_hour[0] < price_left:
        price_left, budget_left = budget.left_per_hour
    closed = spending.closed_types(budget, policy) if budget is not None else {}
    return Supply(
        snapshot,
        policy,
        rank_index=rank_index_of(snapshot.ranks, snapshot.rank_index, policy),
        blocked={**blocked_types(snapshot, policy), **unavailable_types(snapshot, policy), **closed},
        nodes_left=policy.nodes_max - costing - len(ownerless_strays(snapshot)),
        price_left=price_left,
        budget_left=budget_left,
    )


def _leased(snapshot: Snapshot, policy: Policy, ground: RankIndex) -> Mapping[TypeName, Mapping[int, bool]]:
    """The vacant places that somebody has, by their type; of each, whether only a lease keeps it that is ending."""
    roll = node_index_of(snapshot)
    held = {stray.node.identity.slot for stray in ownerless_strays(snapshot) if stray.node.identity is not None}
    leased: dict[TypeName, dict[int, bool]] = {}
    ranks, rank_of_slot, places = snapshot.ranks, snapshot.rank_of_slot, policy.index_of_slot
    # Nodes at rest are at work, and their slots not vacant.
    for slot in (*[node.launch.slot for node in roll.to_check.values()], *held):
        if slot not in rank_of_slot or (rank := ranks.get(rank_of_slot[slot])) is None or rank.online:
            continue
        place = places.get(slot)
        if place is None or not _is_listed(ground, place):
            continue
        owner = roll.launch_of_slot.get(slot)
        # What keeps these is a lease whose end takes a moment.
        ends = owner is not None and slot not in held and snapshot.nodes[owner].state is NodeState.GONE
        leased.setdefault(place[0], {})[place[1]] = ends
    return leased


def _is_listed(ground: RankIndex, place: tuple[TypeName, int]) -> bool:
    vacant = ground.vacant.get(place[0], ())
    at = bisect_left(vacant, place[1])
    return at < len(vacant) and vacant[at] == place[1]


# --- the bill ---------------------------------------------------------------------------------------------


def ownerless_strays(snapshot: Snapshot) -> list[Stray]:
    """Those that are still ownerless: one that was given its lease back stays listed until the next list."""
    return [stray for stray in snapshot.strays.values() if not _owned(stray, snapshot)]


def _owned(stray: Stray, snapshot: Snapshot) -> bool:
    owner = snapshot.nodes.get(stray.node.identity.launch) if stray.node.identity is not None else None
    return owner is not None and (owner.cloud is None or owner.cloud.provider_id == stray.node.provider_id)


def price_per_hour(snapshot: Snapshot, policy: Policy) -> Decimal:
    """Of all that is, or may be, on the bill.

    A node of a type that the site no longer names counts as it was bought, if its lease says so. An ownerless one
    of such a type counts nothing: its tags have no price.
    """
    counts = dict(node_index_of(snapshot).count_by_type)
    for stray in ownerless_strays(snapshot):
        if stray.node.identity is not None:
            counts[stray.node.identity.type_name] = counts.get(stray.node.identity.type_name, 0) + 1
    priced = [(policy.types[name].price_per_hour, count) for name, count in counts.items() if name in policy.types]
    price = sum((price * count for price, count in priced), Decimal(0))
    if any(count > 0 and name not in policy.types for name, count in counts.items()):
        unnamed = (node for node in snapshot.nodes.values() if node.launch.type_name not in policy.types)
        tariffs = (node.launch.tariff for node in unnamed if node.may_be_billed)
        price += sum((tariff.price_per_hour for tariff in tariffs if tariff is not None), Decimal(0))
    return price


def create_credit(snapshot: Snapshot, policy: Policy) -> float:
    """What the rate bucket for creates holds now: each call takes one."""
    if snapshot.create_credit_s is None:
        return float(policy.creates_burst)
    gained = (snapshot.now_s - snapshot.create_credit_s) * policy.creates_per_s
    return min(float(policy.creates_burst), snapshot.create_credit + gained)
