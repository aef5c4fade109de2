"""Find nodes that should get no more work although they are up, and raise alarms for an administrator.

An unfit node is drained at once. Running jobs continue; the node leaves when the last one ends. It is not kept for
waiting jobs, which get other nodes instead. An alarm alone changes nothing: the trouble may pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import NamedTuple

from nodemanager.core.drains import drain_text, drained_by_others, is_drain_by_flux
from nodemanager.core.nodes import (
    COMING,
    LEAVING,
    USABLE,
    CallKind,
    CloudState,
    JoinPhase,
    Launch,
    LaunchId,
    NodeState,
    UnsafeData,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.records import with_words
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.core.upkeep.rules import Drift, changed_parts
from nodemanager.planner import billing
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.slot_types import TypeCounts, type_counts
from nodemanager.planner.snapshot import Make, Node, Snapshot

FLAPS = 3  # a node that was away so often within FLAPS_WITHIN_S is unfit
FLAPS_WITHIN_S = 900.0
# How often a housekeeping is killed (first by SIGTERM, then by SIGKILL). If it survives, it hangs in the kernel, or
# more signals will not end it: the node is left to an administrator.
KILLS_MAX = 5


def why_unfit(node: Node, policy: Policy, now_s: float) -> Reason | None:
    """Why a node gets no more work; None if it may get some."""
    if node.is_sound:
        return None
    if node.health.reclaimed is not None:
        return because(Code.RECLAIMED, detail=node.health.reclaimed)
    if node.cloud is not None and node.cloud.impaired:
        return because(Code.IMPAIRED, detail=node.cloud.impaired)
    if (lasts_s := overdue_housekeeping_s(node, policy, now_s)) is not None:
        if survives_kills(node):
            return because(Code.HOUSEKEEPING_SURVIVES, lasts_s=lasts_s, kills=node.health.housekeeping_kills)
        return because(
            Code.HOUSEKEEPING_STUCK, lasts_s=lasts_s, housekeeping_max_s=policy.timing.housekeeping_max_s
        )
    if len(node.health.departures_s) < FLAPS:
        return None
    times = [left_s for left_s in node.health.departures_s if now_s - left_s < FLAPS_WITHIN_S]
    return because(Code.FLAPS, times=len(times), within_s=FLAPS_WITHIN_S) if len(times) >= FLAPS else None


def gets_no_work(node: Node, policy: Policy, now_s: float) -> bool:
    """Whether it is unfit, or has less hardware than declared."""
    return not node.is_sound and (node.health.misfit is not None or why_unfit(node, policy, now_s) is not None)


def overdue_housekeeping_s(node: Node, policy: Policy, now_s: float) -> float | None:
    """How long a housekeeping has run that runs too long, or that we killed for that; None if there is none."""
    if node.health.housekeeping_s is None:
        return None
    lasts_s = now_s - node.health.housekeeping_s
    return lasts_s if lasts_s >= policy.timing.housekeeping_max_s or node.health.housekeeping_kills else None


def survives_kills(node: Node) -> bool:
    """Whether a housekeeping still runs there after the last kill we try."""
    runs = node.rank is not None and node.rank.housekeeping_since_at is not None
    return runs and node.health.housekeeping_kills >= KILLS_MAX


def hung_s(node: Node, now_s: float) -> float | None:
    """How long the node's broker has been connected without answering Flux's overlay; None if it answers."""
    rank = node.rank
    if node.is_sound or rank is None or not (rank.online and rank.torpid) or node.health.torpid_s is None:
        return None
    return now_s - node.health.torpid_s


def health_changes_s(node: Node, policy: Policy, now_s: float) -> float:
    """When the passing of time alone may change the trouble of the node; infinity if it never does.

    A node that Flux shows online, but not to its scheduler, gets ``rejoin_timeout_s`` to be noticed.
    """
    rank = node.rank
    unseen = rank is not None and rank.online and not rank.schedulable and rank.drain_reason is None
    if node.is_sound and not unseen:
        return inf
    moments: list[float] = []
    if unseen:
        moments += [
            node.since_s + policy.timing.rejoin_timeout_s,
            node.seen.rank_seen_s + policy.timing.rejoin_timeout_s,
        ]
    if not node.is_sound:
        if node.health.housekeeping_s is not None:
            moments.append(node.health.housekeeping_s + policy.timing.housekeeping_max_s)
        if node.health.torpid_s is not None:
            moments.append(node.health.torpid_s + policy.timing.rejoin_timeout_s)
        if len(node.health.departures_s) >= FLAPS:
            moments.append(sorted(node.health.departures_s)[-FLAPS] + FLAPS_WITHIN_S)
    return min((moment for moment in moments if moment > now_s), default=inf)


class GivenUp(NamedTuple):
    """Why a node is given up. ``boot_failed``: it never came up, and its image may be the cause."""

    reason: Reason
    boot_failed: bool = False


def why_give_up(node: Node, policy: Policy, now_s: float) -> GivenUp | None:
    """Why a node that runs no job is given up; None while it may still become useful."""
    if node.is_sound and _has_time(node, policy, now_s):
        return None
    if node.state is NodeState.BOOTING and (dead := _why_dead_at_provider(node, policy, now_s)) is not None:
        return GivenUp(dead, boot_failed=True)
    if policy.destroy_on_replay and node.health.replayed:
        return GivenUp(because(Code.TICKET_REPLAYED))
    if node.health.misfit is not None:
        return GivenUp(node.health.misfit)
    if node.state is NodeState.BOOTING and node.health.reclaimed is not None:
        return GivenUp(because(Code.RECLAIMED, detail=node.health.reclaimed))
    hangs_s = hung_s(node, now_s)
    if node.state is NodeState.IDLE and hangs_s is not None and hangs_s >= policy.timing.rejoin_timeout_s:
        return GivenUp(because(Code.HANGS, hangs_s=hangs_s, rejoin_timeout_s=policy.timing.rejoin_timeout_s))
    if node.state is NodeState.BOOTING and node.join_report.phase is JoinPhase.FAILED:
        return GivenUp(because(Code.JOIN_FAILED, detail=node.join_report.detail), boot_failed=True)
    waited_s = now_s - node.create.boots_from_s
    # After a restart of ours it may look long overdue although its broker was away only briefly.
    known_s = now_s - node.since_s
    if (
        node.state is NodeState.BOOTING
        and not node.is_queued
        and waited_s >= policy.timing.boot_timeout_s
        and known_s >= policy.timing.rejoin_timeout_s
    ):
        return GivenUp(_never_joined(node, waited_s, policy), boot_failed=True)
    away_s = now_s - node.since_s
    if node.state is NodeState.LOST and away_s >= policy.timing.rejoin_timeout_s:
        return GivenUp(because(Code.BROKER_LOST, away_s=away_s, rejoin_timeout_s=policy.timing.rejoin_timeout_s))
    return None


def _why_dead_at_provider(node: Node, policy: Policy, now_s: float) -> Reason | None:
    """Why a booting node will never run: the provider says so, or has not listed it for too long."""
    if node.listing.vanished:
        unlisted_s = now_s - node.listing.known_s
        return because(Code.VANISHED, unlisted_s=unlisted_s, create_grace_s=policy.timing.create_grace_s)
    failed = node.cloud is not None and node.cloud.state is CloudState.FAILED
    return because(Code.FAILED_AT_PROVIDER, detail=node.cloud.died_because) if failed and node.cloud else None


def _never_joined(node: Node, waited_s: float, policy: Policy) -> Reason:
    reason = because(Code.NEVER_JOINED, waited_s=waited_s, boot_timeout_s=policy.timing.boot_timeout_s)
    if node.join_report.phase is None:
        return reason
    return reason.with_figures(phase=str(node.join_report.phase), detail=node.join_report.detail)


def _has_time(node: Node, policy: Policy, now_s: float) -> bool:
    """Whether a sound node is not overdue: it is not lost, or still booting within its time and not failed."""
    if node.state is not NodeState.BOOTING:
        return node.state is not NodeState.LOST
    failed = node.cloud is not None and node.cloud.state is CloudState.FAILED
    return (
        not failed
        and not node.listing.vanished
        and node.join_report.phase is not JoinPhase.FAILED
        and (node.is_queued or now_s - node.create.boots_from_s < policy.timing.boot_timeout_s)
    )


@dataclass(frozen=True, slots=True)
class DrainedNodes:
    """Idle nodes that cost money and take no jobs, because somebody other than the manager drained them."""

    nodes: tuple[Node, ...]
    price_per_hour: Decimal

    @property
    def count(self) -> int:
        return len(self.nodes)


def drained_nodes(snapshot: Snapshot, policy: Policy) -> Mapping[str, DrainedNodes]:
    """The idle nodes that Flux itself ("flux") and that persons ("person") have drained.

    A drained node whose job still runs is not among them: so far its cost is that of the job.
    """
    found: dict[str, list[Node]] = {"flux": [], "person": []}
    for node in node_index_of(snapshot).to_check.values():
        if node.state is NodeState.IDLE and node.rank is not None and drained_by_others(node.rank):
            found["flux" if is_drain_by_flux(node.rank.drain_reason) else "person"].append(node)
    return {by: DrainedNodes(tuple(nodes), price_of(nodes, policy)) for by, nodes in found.items()}


def price_of(nodes: Iterable[Node], policy: Policy) -> Decimal:
    """What nodes cost in an hour."""
    return sum((billing.price_per_hour(node.launch, policy) for node in nodes), Decimal(0))


def alarms(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """What an administrator should look at, node by node."""
    for node in node_index_of(snapshot).to_check.values():
        if node.is_sound and not node.listing.absences:
            continue
        name = node.launch.slot
        hangs_s = hung_s(node, snapshot.now_s)
        if node.state is NodeState.BUSY and hangs_s is not None:
            yield because(Code.HANGS_AT_WORK, node=name, hangs_s=hangs_s)
        if node.listing.absences >= policy.timing.absences and node.rank is not None and node.rank.online:
            yield because(Code.GONE_AT_PROVIDER_YET_UP, node=name, absences=node.listing.absences)
        if node.listing.vanished and node.failure and node.stop.destroyed_s is None:
            unlisted_s = snapshot.now_s - node.listing.known_s
            yield because(Code.VANISHED_NOT_DESTROYED, node=name, unlisted_s=unlisted_s, detail=node.failure)
        if survives_kills(node):
            yield because(Code.HOUSEKEEPING_SURVIVES, node=name, kills=node.health.housekeeping_kills)
        why = why_unfit(node, policy, snapshot.now_s)
        if why is not None and node.state in (NodeState.IDLE, NodeState.BUSY, NodeState.DRAINING):
            yield because(Code.UNFIT, node=name, why=why.code)


# --- due --------------------------------------------------------------------------------------------------
#
# Find the nodes that are to be replaced, and why: they are too old, made differently, or an operator says so.


UNDER_WAY = (NodeState.DRAINING, NodeState.STOPPING)


def why_due(launch: Launch, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why a node is to be replaced; None if it is not."""
    mark = snapshot.operator.steering.replacements.get(launch.id)
    if mark is not None:
        return with_words(because(Code.REPLACED_BY_OPERATOR, by=mark.by, since_at=mark.at), mark)
    node_type = policy.types.get(launch.type_name)
    if node_type is None:
        return None
    if policy.upkeep.drift is Drift.REPLACE and (changed := drift_of(launch, node_type)):
        return because(Code.DRIFTED, node_type=node_type.name, changed=changed)
    age_s = snapshot.wall_at - launch.requested_at
    if node_type.max_age_s is None or age_s < node_type.max_age_s:
        return None
    return because(Code.TOO_OLD, age_s=age_s, max_age_s=node_type.max_age_s)


def drift_of(launch: Launch, node_type: NodeType) -> tuple[str, ...]:
    """In what a node differs from what the site would make today; empty if in nothing, or that is unknown."""
    return _drift((launch.type_name, launch.made_from, launch.zone, launch.prepaid), node_type)


def is_on_its_way_out(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it was drained to be replaced: it gets no more work, and is not kept for waiting jobs."""
    drained = node.rank is not None and node.rank.drain_reason == drain_text(node.id)
    if not drained and node.state not in UNDER_WAY:
        return False
    due = why_owed(node) is not None or why_due(node.launch, snapshot, policy) is not None
    return due and not snapshot.steered(node)


def why_owed(node: Node) -> Reason | None:
    """Why the provider wants the node back as soon as no job runs there; None if it does not."""
    if node.cloud is None or not node.cloud.tenure.owed:
        return None
    return because(Code.OWED_TO_OTHERS, detail=node.cloud.tenure.owed)


def due_nodes(snapshot: Snapshot, policy: Policy) -> Mapping[LaunchId, Reason]:
    """All nodes that are due, with the reason, by the time of their order. Costs little while none is."""
    found: dict[LaunchId, Reason] = {}
    for id_ in (*_too_old(snapshot, policy), *_drifted(snapshot, policy), *snapshot.operator.steering.replacements):
        node = snapshot.nodes.get(id_)
        if node is not None and id_ not in found:
            why = why_due(node.launch, snapshot, policy)
            if why is not None:
                found[id_] = why
    return dict(sorted(found.items(), key=lambda it: (snapshot.nodes[it[0]].launch.requested_at, it[0])))


def drifted_nodes(snapshot: Snapshot, policy: Policy) -> list[Node]:
    """The nodes that were made from something else than the site says now."""
    counts = node_index_of(snapshot).count_by_make
    drifted = {make for make in counts if (of := policy.types.get(make[0])) is not None and _drift(make, of)}
    if not drifted:
        return []
    launches = ((node, node.launch) for node in snapshot.nodes.values() if node.state is not NodeState.GONE)
    return [node for node, it in launches if (it.type_name, it.made_from, it.zone, it.prepaid) in drifted]


def next_due_at(snapshot: Snapshot, policy: Policy) -> float:
    """When the next node becomes too old; infinity if none does. Seconds since the epoch."""
    ages_s, first_at = _ages(policy), inf
    for at, id_ in node_index_of(snapshot).by_age if ages_s else ():
        if at + min(ages_s) >= first_at:
            break
        node_type = policy.types.get(snapshot.nodes[id_].launch.type_name)
        if (
            node_type is not None
            and node_type.max_age_s is not None
            and at + node_type.max_age_s > snapshot.wall_at
        ):
            first_at = min(first_at, at + node_type.max_age_s)
    return first_at


def _too_old(snapshot: Snapshot, policy: Policy) -> Iterator[LaunchId]:
    """The nodes that may be too old: at least of the least age that a type allows."""
    ages_s = _ages(policy)
    if not ages_s:
        return
    for at, id_ in node_index_of(snapshot).by_age:
        if snapshot.wall_at - at < min(ages_s):
            return
        yield id_


def _ages(policy: Policy) -> list[float]:
    return [it.max_age_s for it in policy.node_types if it.max_age_s is not None]


def _drifted(snapshot: Snapshot, policy: Policy) -> Iterator[LaunchId]:
    if policy.upkeep.drift is Drift.REPLACE:
        yield from (node.id for node in drifted_nodes(snapshot, policy))


def _drift(make: Make, node_type: NodeType) -> tuple[str, ...]:
    _, made_from, zone, _ = make
    changed = changed_parts(made_from, node_type.made_from) if made_from != node_type.made_from else ()
    return (*changed, "zone") if zone and node_type.zones and zone not in node_type.zones else changed


# --- nodes that are not terminated because data of their jobs may still be there --------------------------


NAMES_MAX = 10
NEVER = "never"


def unsafe_data(node: Node, policy: Policy) -> tuple[UnsafeData, ...]:
    """The jobs that ended on the node and whose data is not safe, the oldest first; none if its type does not wait.

    A type that the site no longer has is taken to wait, because the look at its rank shows such jobs.
    """
    if node.rank is None or not node.rank.unsafe or policy.upkeep.wait_for_data == NEVER:
        return ()
    node_type = policy.types.get(node.launch.type_name)
    if node_type is not None and policy.upkeep.wait_for_data not in node_type.properties:
        return ()
    return tuple(it for it in node.rank.unsafe if it.ended_at >= node.launch.requested_at)


def why_held_for_data(node: Node, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why the node may not be terminated; None if no data is awaited, or an operator retires it all the same."""
    unsafe = unsafe_data(node, policy)
    if not unsafe or node.id in snapshot.operator.steering.retirements:
        return None
    return because(Code.HELD_FOR_DATA, jobs=_names(unsafe), lasts_s=snapshot.wall_at - unsafe[0].ended_at)


def why_data_overdue(node: Node, snapshot: Snapshot, policy: Policy) -> Reason | None:
    """Why somebody should look after the data on the node; None if it is not overdue."""
    late = [it for it in unsafe_data(node, policy) if snapshot.wall_at - it.ended_at >= policy.upkeep.data_max_s]
    if not late:
        return None
    return because(
        Code.DATA_NOT_SAFE,
        node=node.launch.slot,
        jobs=_names(tuple(late)),
        lasts_s=snapshot.wall_at - late[0].ended_at,
        data_max_s=policy.upkeep.data_max_s,
    )


def data_alarms(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """The nodes whose data somebody should look after."""
    if policy.upkeep.wait_for_data == NEVER:
        return
    for node in snapshot.nodes.values():
        if (why := why_data_overdue(node, snapshot, policy)) is not None:
            yield why


def overdue_at_s(node: Node, snapshot: Snapshot, policy: Policy) -> float:
    """When data on the node becomes overdue, in monotonic time; infinity if none does later."""
    ends = (it.ended_at + policy.upkeep.data_max_s for it in unsafe_data(node, policy))
    later = [at for at in ends if at > snapshot.wall_at]
    return snapshot.now_s + (later[0] - snapshot.wall_at) if later else inf


def _names(unsafe: tuple[UnsafeData, ...]) -> tuple[str, ...]:
    return tuple(str(it.job) for it in unsafe[:NAMES_MAX])


# --- whether a node takes jobs, and how many do -----------------------------------------------------------


def takes_jobs(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether a node gets jobs once it is up. If not, keeping it ready is useless.

    A scheduler that was reloaded, or has not noticed the node yet, gets a moment to do so.
    """
    rank = node.rank
    if snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s) or _is_lease_ending(node):
        return False
    if is_on_its_way_out(node, snapshot, policy):
        return False
    if rank is None:
        return True
    if rank.excluded or rank.given_back is not None or drained_by_others(rank):
        return False
    unschedulable = node.state in USABLE and not (rank.schedulable or rank.drain_reason)
    return not unschedulable or snapshot.now_s - node.seen.rank_seen_s < policy.timing.rejoin_timeout_s


def _is_lease_ending(node: Node) -> bool:
    return node.call is not None and node.call.kind is CallKind.END_LEASE


# --- how many ----------------------------------------------------------------------------------------------


def count_of_types(
    snapshot: Snapshot, policy: Policy, states: Container[NodeState], ended: Container[LaunchId] = ()
) -> Mapping[TypeName, int]:
    """How many nodes in these states take jobs, of each type with limits of its own. ``ended``: leases left out."""
    names = {node_type.name for node_type in policy.limited_types}
    return Counter(
        node.launch.type_name
        for node in snapshot.nodes.values()
        if node.launch.type_name in names
        and node.state in states
        and node.id not in ended
        and takes_jobs(node, snapshot, policy)
    )


def count_usable(snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes are up and take jobs. Without ``nodes_min`` every node that is up counts."""
    if policy.limits.nodes_min <= 0:
        return sum(node_index_of(snapshot).count_by_state.get(state, 0) for state in USABLE)
    return _count_taking_jobs(snapshot, policy, USABLE)


def count_beyond_nodes_min(snapshot: Snapshot, policy: Policy, ended: Container[LaunchId] = ()) -> int:
    """How many nodes that take jobs, now or soon, exceed ``nodes_min``. Nodes in ``ended`` are not counted."""
    return _count_taking_jobs(snapshot, policy, (*USABLE, *COMING), ended) - policy.limits.nodes_min


def _count_taking_jobs(
    snapshot: Snapshot, policy: Policy, states: Container[NodeState], ended: Container[LaunchId] = ()
) -> int:
    at_rest = node_index_of(snapshot).at_rest  # these take jobs, except where an operator keeps them off
    others = (node for id_, node in snapshot.nodes.items() if id_ not in at_rest and node.state in states)
    taking = sum(takes_jobs(node, snapshot, policy) for node in others if node.id not in ended)
    return taking + len(at_rest) - len(steered_at_rest(snapshot))


def steered_at_rest(snapshot: Snapshot) -> set[LaunchId]:
    """The nodes at rest that an operator keeps jobs off."""
    at_rest = node_index_of(snapshot).at_rest
    return {
        id_
        for id_ in (*snapshot.operator.steering.holds, *snapshot.operator.steering.retirements)
        if id_ in at_rest
    }


def count_ready(
    snapshot: Snapshot, policy: Policy, needed: Mapping[SlotName, object], ended: Container[LaunchId] = ()
) -> dict[TypeName, int]:
    """How many nodes of each type are idle or booting and needed by no waiting job; empty if no type has spares.

    ``ended``: nodes that are not counted because their leases end.
    """
    counts: dict[TypeName, int] = {}
    if not policy.has_spares:
        return counts
    node_index = node_index_of(snapshot)
    counts = {name: len(resting.idle_since) for name, resting in node_index.resting.items()}
    owners = (node_index.launch_of_slot.get(slot) for slot in needed)
    for id_ in steered_at_rest(snapshot).union(id_ for id_ in owners if id_ is not None):
        if id_ in node_index.at_rest:
            counts[node_index.at_rest[id_].launch.type_name] -= 1
    for node in node_index.to_check.values():
        ready = node.state in COMING or (node.state is NodeState.IDLE and node.stop.retiring is None)
        unneeded = node.launch.slot not in needed and node.id not in ended
        if ready and unneeded and takes_jobs(node, snapshot, policy):
            counts[node.launch.type_name] = counts.get(node.launch.type_name, 0) + 1
    return counts


def counts_of_types(snapshot: Snapshot, policy: Policy, ended: Collection[LaunchId]) -> TypeCounts:
    """The nodes of the types that have limits of their own."""
    if not policy.limited_types:
        return TypeCounts()
    live = Counter(
        node.launch.type_name
        for node in snapshot.nodes.values()
        if node.may_be_billed and node.state not in LEAVING and node.id not in ended
    )
    return type_counts(policy.limited_types, count_of_types(snapshot, policy, USABLE), live)
