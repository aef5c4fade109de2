"""Offers: empty nodes of one type, booting or on sale."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, NodeLoad, Not
from nodemanager.core.nodes import COMING, FluxRank, NodeState
from nodemanager.core.slots import NodeType, Rank, SlotName, TypeName
from nodemanager.planner.health.node_health import gets_no_work, why_give_up
from nodemanager.planner.scheduler.seating import Availability
from nodemanager.planner.state.constraints import Matches, alike
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

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
