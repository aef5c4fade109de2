"""An index of the ranks: those with free cores, and the slots without a node.

``observe`` keeps it in the snapshot with the ranks. It knows from which ranks and node types it was built.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from nodemanager.core.drains import drained_by_others, is_drain_by_flux
from nodemanager.core.jobs import Shape
from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import NodeType, Rank, TypeName
from nodemanager.planner.state.constraints import Matches, Place
from nodemanager.planner.state.obstacle import Obstacle
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import with_changes


@dataclass(frozen=True, slots=True)
class FeasibilityCache:
    """A cache of why shapes could never be served; None for a shape that could. ``placement`` fills it.

    The answer depends on the policy, on the slots and on their ranks. So the cache passes from one index to the
    next as long as these stay the same (:func:`updated_rank_index`). It may be empty at any time, but never wrong.
    """

    policy: Policy
    obstacle_of: dict[Shape, Obstacle | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankIndex:
    """The ranks by use. ``vacant``: by type, the indexes of vacant slots in the type's list, ascending."""

    ranks: Mapping[Rank, FluxRank] = field(
        default_factory=lambda: MappingProxyType({})
    )  # what the index was built from
    node_types: Sequence[NodeType] = ()
    with_room: Mapping[Rank, FluxRank] = field(default_factory=lambda: MappingProxyType({}))
    by_room: Sequence[tuple[int, int, Rank]] = ()  # those: -cores_free, -gpus_free and rank, ascending
    vacant: Mapping[TypeName, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    slots: Mapping[TypeName, int] = field(default_factory=lambda: MappingProxyType({}))  # how many Flux knows
    feasibility: FeasibilityCache | None = field(default=None, compare=False, repr=False)
    # Which ranks satisfy which constraints. Passes on as long as the ranks' hosts and the types stay the same.
    matches: Matches = field(default_factory=Matches, compare=False, repr=False)


def rank_index_of(ranks: Mapping[Rank, FluxRank], known: RankIndex, policy: Policy) -> RankIndex:
    """The index of these ranks: ``known`` if it was built from them, else a new one."""
    if known.ranks is ranks and known.node_types is policy.node_types:
        return known
    return updated_rank_index(
        RankIndex(node_types=policy.node_types), ranks, [(None, rank) for rank in ranks.values()], policy
    )


def updated_rank_index(  # noqa: C901 - one branch a use of the ranks
    index: RankIndex,
    ranks: Mapping[Rank, FluxRank],
    changes: Iterable[tuple[FluxRank | None, FluxRank | None]],
    policy: Policy,
) -> RankIndex:
    """An index of ``ranks``. ``changes``: each changed rank as it was and as it is; None if it does not exist."""
    with_room: dict[Rank, FluxRank] = dict(index.with_room)
    filled: list[tuple[int, int, Rank]] = []
    freed: list[tuple[int, int, Rank]] = []
    vacated: dict[TypeName, set[int]] = {}
    taken: dict[TypeName, set[int]] = {}
    slots, feasibility, matches = index.slots, index.feasibility, index.matches
    moved: list[tuple[FluxRank | None, FluxRank | None]] = []
    for before, after in changes:
        if before is not None:
            if with_room.pop(before.rank, None) is not None:
                filled.append((-before.cores_free, -before.gpus_free, before.rank))
            _note_vacancy(before, policy, taken)
        if after is not None:
            if after.online and after.schedulable and after.cores_free > 0:
                with_room[after.rank] = after
                freed.append((-after.cores_free, -after.gpus_free, after.rank))
            _note_vacancy(after, policy, vacated)
        if before is None or after is None or before.host != after.host:
            moved.append((before, after))
    if moved:
        slots, feasibility, matches = (
            _count_slots(slots, moved, policy),
            None,
            Matches(partial(_places, ranks, policy)),
        )
    vacant = dict(index.vacant)
    for name in {**taken, **vacated}:
        came, went = vacated.get(name, set()), taken.get(name, set())
        if came != went:
            vacant[name] = _with_changes(vacant.get(name, ()), went - came, came - went)
    if feasibility is None or feasibility.policy is not policy:
        feasibility = FeasibilityCache(policy)
    by_room = with_changes(index.by_room, filled, freed) if filled or freed else index.by_room
    return RankIndex(ranks, policy.node_types, with_room, by_room, vacant, slots, feasibility, matches)


def _places(ranks: Mapping[Rank, FluxRank], policy: Policy) -> Iterator[Place]:
    types, places = policy.types, policy.index_of_slot
    for rank in ranks.values():
        place = places.get(rank.host)
        yield Place(rank.rank, rank.host, types[place[0]].properties if place is not None else frozenset())


def is_vacant(rank: FluxRank) -> bool:
    """Whether no node is on the rank and it may be used. A person's drain is a hold.

    A drain of Flux's own concerned a node that is gone. It is undone when the slot is leased.
    """
    held = drained_by_others(rank) and not is_drain_by_flux(rank.drain_reason)
    return not (rank.online or rank.allocated or rank.given_back is not None or rank.excluded or held)


def _note_vacancy(rank: FluxRank, policy: Policy, vacant: dict[TypeName, set[int]]) -> None:
    type_and_index = policy.index_of_slot.get(rank.host)
    if type_and_index is not None and is_vacant(rank):
        vacant.setdefault(type_and_index[0], set()).add(type_and_index[1])


def _count_slots(
    slots: Mapping[TypeName, int], changes: Iterable[tuple[FluxRank | None, FluxRank | None]], policy: Policy
) -> Mapping[TypeName, int]:
    """The number of slots of each type after the changes."""
    counted = dict(slots)
    for change in changes:
        for rank, more in zip(change, (-1, 1), strict=True):
            type_and_index = policy.index_of_slot.get(rank.host) if rank is not None else None
            if type_and_index is not None:
                counted[type_and_index[0]] = counted.get(type_and_index[0], 0) + more
    return counted


def _with_changes(indexes: Sequence[int], went: set[int], came: set[int]) -> list[int]:
    if len(went) + len(came) > len(indexes) // 8:
        return sorted((set(indexes) - went) | came)
    made = list(indexes)
    for index in went:
        at = bisect_left(made, index)
        if at < len(made) and made[at] == index:
            del made[at]
    for index in came:
        made.insert(bisect_left(made, index), index)
    return made
