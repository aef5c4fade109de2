"""The ranks as the planner asks for them: those with room, and the slots that nobody is on.

``observe`` keeps this beside the ranks. It knows which ranks, and which node types, it was read off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodemanager.fleet.policy import Policy
from nodemanager.model import FluxRank, NodeType, Rank, SlotName, TypeName

# The reason that a drain of ours carries in Flux begins with this.
DRAIN_MARK = "flux-node-manager:"


@dataclass(frozen=True, slots=True)
class Ground:
    """``vacant``: the places of the slots in their type's list, ascending."""

    ranks: Mapping[Rank, FluxRank] = field(default_factory=lambda: MappingProxyType({}))  # what it was read off
    node_types: Sequence[NodeType] = ()
    open: Mapping[Rank, FluxRank] = field(default_factory=lambda: MappingProxyType({}))
    vacant: Mapping[TypeName, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    slots: Mapping[TypeName, int] = field(default_factory=lambda: MappingProxyType({}))  # that Flux knows


def ground_of(ranks: Mapping[Rank, FluxRank], known: Ground, policy: Policy) -> Ground:
    """The ground of these ranks: the one that is known, if it is theirs."""
    if known.ranks is ranks and known.node_types is policy.node_types:
        return known
    return trodden(Ground(node_types=policy.node_types), ranks, [(None, rank) for rank in ranks.values()], policy)


def trodden(
    ground: Ground,
    ranks: Mapping[Rank, FluxRank],
    changes: Iterable[tuple[FluxRank | None, FluxRank | None]],
    policy: Policy,
) -> Ground:
    """The ground after ranks changed, each told as it was and as it is."""
    open_: dict[Rank, FluxRank] = dict(ground.open)
    vacated: dict[TypeName, set[int]] = {}
    taken: dict[TypeName, set[int]] = {}
    slots = dict(ground.slots)
    for before, after in changes:
        if before is not None:
            open_.pop(before.rank, None)
            _note(before, policy, taken)
            _count(before.host, policy, slots, -1)
        if after is not None:
            if after.online and after.schedulable and after.cores_free > 0:
                open_[after.rank] = after
            _note(after, policy, vacated)
            _count(after.host, policy, slots, 1)
    vacant = dict(ground.vacant)
    for name in {**taken, **vacated}:
        came, went = vacated.get(name, set()), taken.get(name, set())
        if came != went:
            vacant[name] = _changed(vacant.get(name, ()), went - came, came - went)
    return Ground(ranks, policy.node_types, open_, vacant, slots)


def is_vacant(rank: FluxRank) -> bool:
    """Nobody is there, and nobody keeps it from being used: a drain that is not ours is a hold."""
    held = rank.drain_reason is not None and not rank.drain_reason.startswith(DRAIN_MARK)
    return not (rank.online or rank.allocated or rank.excluded or held)


def _note(rank: FluxRank, policy: Policy, places: dict[TypeName, set[int]]) -> None:
    place = policy.place_of_slot.get(rank.host)
    if place is not None and is_vacant(rank):
        places.setdefault(place[0], set()).add(place[1])


def _count(slot: SlotName, policy: Policy, slots: dict[TypeName, int], more: int) -> None:
    place = policy.place_of_slot.get(slot)
    if place is not None:
        slots[place[0]] = slots.get(place[0], 0) + more


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
