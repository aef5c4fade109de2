"""The types of the slots, and which slots change their type to fulfil a wish.

A slot may change its type while it has no node and none is coming: offline, not allocated, not leased, and not
drained by anybody else. So no core that a job holds ever leaves the instance's resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nodemanager.core.drains import drained_by_others
from nodemanager.core.nodes import CallKind, FluxRank
from nodemanager.core.orders import ChangeSlots, RefuseSlots
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, SlotName, SlotsWish, TypeName
from nodemanager.planner.billing import ownerless_strays
from nodemanager.planner.hardware import WISH_PREFIX
from nodemanager.planner.node_index import calls_in_flight
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Snapshot

SlotTypes = Mapping[SlotName, TypeName]


def with_slot_types(policy: Policy, type_of_slot: SlotTypes) -> Policy:
    """The policy with each slot's type as the instance reports it, or as the site sets it if it does not."""
    if not type_of_slot:
        return policy
    merged = {slot: node_type.name for node_type in policy.node_types for slot in node_type.slots}
    merged |= type_of_slot
    slots: dict[TypeName, list[SlotName]] = {}
    for slot, type_name in merged.items():
        slots.setdefault(type_name, []).append(slot)
    types = tuple(replace(node_type, slots=tuple(slots.get(node_type.name, ()))) for node_type in policy.node_types)
    return policy if types == policy.node_types else replace(policy, node_types=types)


def movable_slots(snapshot: Snapshot) -> tuple[SlotName, ...]:
    """The slots that may change their type now, the last rank first, because low ranks are leased first."""
    leased = {node.launch.slot for node in snapshot.nodes.values()}
    leased |= {stray.node.identity.slot for stray in ownerless_strays(snapshot) if stray.node.identity is not None}
    ranks = sorted(snapshot.ranks.values(), key=lambda rank: -rank.rank)
    return tuple(rank.host for rank in ranks if may_move(rank) and rank.host not in leased)


def may_move(rank: FluxRank) -> bool:
    """Whether the rank has no node, and nobody else has drained it."""
    held = rank.allocated or rank.given_back is not None
    return not (rank.online or held or rank.excluded or drained_by_others(rank))


def order_for_slots(snapshot: Snapshot, policy: Policy) -> ChangeSlots | RefuseSlots | None:
    """The order that answers a wish for other slots, or declares what a type really has; None if none is due.

    It waits until no lease is being written: a slot might be taken meanwhile.
    """
    if calls_in_flight(snapshot, CallKind.RECORD, CallKind.END_LEASE):
        return None
    if snapshot.slots.wish is not None:
        return answer_wish(snapshot.slots.wish, snapshot, policy)
    return redeclare_type(snapshot, policy)


def answer_wish(wish: SlotsWish, snapshot: Snapshot, policy: Policy) -> ChangeSlots | RefuseSlots:
    """Fulfil a wish or refuse it, at once; nothing is kept for later."""
    in_place = {
        slot: node_type.name
        for slot, node_type in policy.type_of_slot.items()
        if slot in snapshot.slots.rank_of_slot
    }
    found = choose_moves(wish.counts, in_place, movable_slots(snapshot), policy.types.keys())
    if isinstance(found, Reason):
        return RefuseSlots(wish, found)
    return ChangeSlots(wish, found.slot_types, because(Code.SLOTS_WISHED, slots=len(found.slot_types)))


@dataclass(frozen=True, slots=True)
class SlotMoves:
    """The slots that change, each with its new type. Empty if all is as wished."""

    slot_types: SlotTypes


def choose_moves(
    counts: Mapping[TypeName, int], type_of_slot: SlotTypes, free: Iterable[SlotName], types: Iterable[TypeName]
) -> SlotMoves | Reason:
    """Choose the slots that change so that the named types get the wished numbers; or say why that cannot be.

    ``free``: the slots that may change, best first. Types that are not named keep theirs, so the named types
    together must have as many as before.
    """
    unknown = counts.keys() - set(types)
    if unknown:
        return because(Code.SLOTS_UNKNOWN_TYPE, node_type=min(unknown))
    have = Counter(type_of_slot.values())
    wanted, there = sum(counts.values()), sum(have[name] for name in counts)
    if wanted != there:
        return because(Code.SLOTS_DO_NOT_ADD_UP, wanted=wanted, have=there, types=tuple(sorted(counts)))
    surplus = {name: have[name] - count for name, count in counts.items() if have[name] > count}
    gaining = [name for name in sorted(counts) for _ in range(counts[name] - have[name])]
    going: list[SlotName] = []
    left = dict(surplus)
    for slot in free:
        giver = type_of_slot.get(slot)
        if giver is not None and left.get(giver, 0) > 0:
            left[giver] -= 1
            going.append(slot)
    for name, lacking in sorted(left.items()):
        if lacking:
            return because(Code.SLOTS_IN_USE, node_type=name, to_give=surplus[name], free=surplus[name] - lacking)
    return SlotMoves(dict(zip(going, gaining, strict=True)))


def redeclare_type(snapshot: Snapshot, policy: Policy) -> ChangeSlots | None:
    """Declare a type with what its nodes really have, once none of its slots is in use; None if nothing is due."""
    free = set(movable_slots(snapshot))
    for name, promise in sorted(snapshot.slots.to_promise.items()):
        node_type = policy.types.get(name)
        slots = (
            [slot for slot in node_type.slots if slot in snapshot.slots.rank_of_slot]
            if node_type is not None
            else []
        )
        if slots and free.issuperset(slots):
            wish = SlotsWish(f"{WISH_PREFIX}{name}-{int(snapshot.wall_at * 1000):x}", {}, {name: promise})
            return ChangeSlots(wish, dict.fromkeys(slots, name), because(Code.DECLARED_AS_MEASURED, node_type=name))
    return None


# --- how many nodes of each type may leave, and must: the limits that a schedule sets for single types ----


@dataclass(slots=True)
class TypeCounts:
    """The nodes of the types that have limits of their own. The counts change as nodes take their steps.

    ``beyond_min``: nodes that take jobs, beyond ``nodes_min``. ``above_max``: billed nodes that do not leave yet,
    above ``nodes_max``; 0 or less if there are not too many.
    """

    beyond_min: dict[TypeName, int] = field(default_factory=dict)
    above_max: dict[TypeName, int] = field(default_factory=dict)

    def is_at_min(self, name: TypeName) -> bool:
        """Whether no further node of the type may leave."""
        return self.beyond_min.get(name, 1) <= 0

    def is_above_max(self, name: TypeName) -> bool:
        """Whether idle nodes of the type leave because there are too many."""
        return self.above_max.get(name, 0) > 0

    def note(self, name: TypeName, nodes: int, *, takes_jobs: bool) -> None:
        """Count so many more nodes of a type, or fewer."""
        if name in self.beyond_min:
            self.beyond_min[name] += nodes * takes_jobs
        if name in self.above_max:
            self.above_max[name] += nodes

    def copy(self) -> TypeCounts:
        """The same counts, which no longer change with these."""
        return TypeCounts(dict(self.beyond_min), dict(self.above_max))

    def signs(self) -> tuple[list[TypeName], list[TypeName]]:
        """The types at their minimum, and those above their maximum."""
        return [it for it in self.beyond_min if self.is_at_min(it)], [
            it for it in self.above_max if self.is_above_max(it)
        ]


def type_counts(
    node_types: Iterable[NodeType], taking_jobs: Mapping[TypeName, int], live: Mapping[TypeName, int]
) -> TypeCounts:
    """The counts for the types that have limits. ``taking_jobs``, ``live``: nodes by type."""
    types = list(node_types)
    return TypeCounts(
        {it.name: taking_jobs.get(it.name, 0) - it.limits.nodes_min for it in types if it.limits.nodes_min},
        {it.name: live.get(it.name, 0) - it.limits.nodes_max for it in types if it.limits.nodes_max is not None},
    )
