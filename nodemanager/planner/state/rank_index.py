"""The ranks as the planner asks for them: those with room, and the slots that nobody is on.

``observe`` keeps this beside the ranks. It knows which ranks, and which node types, it was read off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodemanager.planner.state.policy import Policy
from nodemanager.core.drains import drained_by_others
from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.core.reasons import Reason
from nodemanager.core.jobs import Shape


@dataclass(frozen=True, slots=True)
class FeasibilityCache:
    """Which shapes could never be served, whoever is up; None of one that could. ``layout`` fills it in.

    That depends on the policy, and on which slots there are and at which ranks: so it goes from one ground to the
    next as long as these stay as they are (:func:`trodden`). It can be empty at any time, never wrong.
    """

    policy: Policy
    obstacle_of: dict[Shape, Reason | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankIndex:
    """``vacant``: the places of the slots in their type's list, ascending."""

    ranks: Mapping[Rank, FluxRank] = field(default_factory=lambda: MappingProxyType({}))  # what it was read off
    node_types: Sequence[NodeType] = ()
    with_room: Mapping[Rank, FluxRank] = field(default_factory=lambda: MappingProxyType({}))
    vacant: Mapping[TypeName, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    slots: Mapping[TypeName, int] = field(default_factory=lambda: MappingProxyType({}))  # that Flux knows
    feasibility: FeasibilityCache | None = field(default=None, compare=False, repr=False)


def rank_index_of(ranks: Mapping[Rank, FluxRank], known: RankIndex, policy: Policy) -> RankIndex:
    """The ground of these ranks: the one that is known, if it is theirs."""
    if known.ranks is ranks and known.node_types is policy.node_types:
        return known
    return updated_rank_index(RankIndex(node_types=policy.node_types), ranks, [(None, rank) for rank in ranks.values()], policy)


def updated_rank_index(
    ground: RankIndex,
    ranks: Mapping[Rank, FluxRank],
    changes: Iterable[tuple[FluxRank | None, FluxRank | None]],
    policy: Policy,
) -> RankIndex:
    """The ground after ranks changed, each told as it was and as it is."""
    open_: dict[Rank, FluxRank] = dict(ground.with_room)
    vacated: dict[TypeName, set[int]] = {}
    taken: dict[TypeName, set[int]] = {}
    slots, ever = ground.slots, ground.feasibility
    elsewhere: list[tuple[FluxRank | None, FluxRank | None]] = []
    for before, after in changes:
        if before is not None:
            open_.pop(before.rank, None)
            _note(before, policy, taken)
        if after is not None:
            if after.online and after.schedulable and after.cores_free > 0:
                open_[after.rank] = after
            _note(after, policy, vacated)
        if before is None or after is None or before.host != after.host:
            elsewhere.append((before, after))
    if elsewhere:
        slots, ever = _counted(slots, elsewhere, policy), None
    vacant = dict(ground.vacant)
    for name in {**taken, **vacated}:
        came, went = vacated.get(name, set()), taken.get(name, set())
        if came != went:
            vacant[name] = _changed(vacant.get(name, ()), went - came, came - went)
    if ever is None or ever.policy is not policy:
        ever = FeasibilityCache(policy)
    return RankIndex(ranks, policy.node_types, open_, vacant, slots, ever)


def is_vacant(rank: FluxRank) -> bool:
    """Nobody is there, and nobody keeps it from being used: a drain that is not ours is a hold."""
    held = drained_by_others(rank)
    return not (rank.online or rank.allocated or rank.excluded or held)


def _note(rank: FluxRank, policy: Policy, places: dict[TypeName, set[int]]) -> None:
    place = policy.index_of_slot.get(rank.host)
    if place is not None and is_vacant(rank):
        places.setdefault(place[0], set()).add(place[1])


def _counted(
    slots: Mapping[TypeName, int], changes: Iterable[tuple[FluxRank | None, FluxRank | None]], policy: Policy
) -> Mapping[TypeName, int]:
    """How many slots of each type there are, after some went and others came."""
    counted = dict(slots)
    for change in changes:
        for rank, more in zip(change, (-1, 1), strict=True):
            place = policy.index_of_slot.get(rank.host) if rank is not None else None
            if place is not None:
                counted[place[0]] = counted.get(place[0], 0) + more
    return counted


def _changed(places: Sequence[int], went: set[int], came: set[int]) -> list[int]:
    if len(went) + len(came) > len(places) // 8:
        return sorted((set(places) - went) | came)
    made = list(places)
    for place in went:
        at = bisect_left(made, place)
        if at < len(made) and made[at] == place:
            del made[at]
    for place in came:
        made.insert(bisect_left(made, place), place)
    return made
