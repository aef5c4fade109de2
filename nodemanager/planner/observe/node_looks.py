"""What a look at its rank says about one node: idle, busy, away, drained, or broken."""

from __future__ import annotations

from typing import Any

from nodemanager.core.drains import drain_text, is_drain_by_flux
from nodemanager.core.facts import NodeCordoned, NodeDrained
from nodemanager.core.nodes import CallKind, FluxRank, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.planner.health.node_health import FLAPS
from nodemanager.planner.observe.calls import delay_stop, end_call, fail_call
from nodemanager.planner.observe.operator import held_by_operator, retired_by_operator
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, allows, move
from nodemanager.planner.state.node import Node, Seen
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


def apply_look(node: Node, rank: FluxRank, started_s: float, snapshot: Snapshot) -> Node:
    """The node as a look shows its rank."""
    if _is_still_idle(node, rank):
        return replace(node, rank=rank, seen=_with_idle_look(node, rank, snapshot, started_s))
    before = node
    node = follow_rank(node, rank, snapshot, rank=rank)
    if node.state is NodeState.IDLE and node.call is None and rank.drain_reason == drain_text(node.id):
        node = _continue_retirement(node, snapshot)
    if node.state is NodeState.DRAINING and _is_drain_no_longer_ours(node, rank, started_s):
        node = _give_up_drain(node, snapshot.now_s)
    if rank.allocated:
        node = delay_stop(node)
    if before.state is NodeState.BUSY and node.state is NodeState.IDLE:
        seen = replace(
            node.seen, rank_seen_s=started_s, idle_looks=node.seen.idle_looks + 1, idle_since_s=snapshot.now_s
        )
    elif node.state is NodeState.IDLE:
        seen = _with_idle_look(node, rank, snapshot, started_s)
    else:
        seen = replace(node.seen, rank_seen_s=started_s, idle_looks=0, idle_since_s=None)
    return replace(_update_condition(node, before.rank, rank, snapshot), seen=seen)


def is_no_news(node: Node, rank: FluxRank, policy: Policy) -> bool:
    """Whether a node whose rank is unchanged stays unchanged too, because one more look decides nothing."""
    match node.state:
        case NodeState.IDLE:
            seen = node.seen.idle_since_s is not None and node.seen.idle_looks >= policy.rules.idle_confirmations
            return seen and rank.idle and rank.drain_reason is None
        case NodeState.BUSY:
            return rank.online and rank.allocated
        case NodeState.DRAINING:
            return rank.drain_reason == drain_text(node.id) and node.seen.idle_looks == 0
        case NodeState.STOPPING:
            return node.seen.idle_looks == 0
        case _:
            return not rank.online  # it waits for its rank, which is still away


def _update_condition(node: Node, was: FluxRank | None, rank: FluxRank, snapshot: Snapshot) -> Node:
    """Update since when the broker hangs and since when a housekeeping runs. One that we killed is remembered."""
    hangs = rank.online and rank.torpid
    if hangs != (node.health.torpid_s is not None):
        node = replace(node, health=replace(node.health, torpid_s=snapshot.now_s if hangs else None))
    by_flux = is_drain_by_flux(rank.drain_reason)
    if by_flux != (node.health.drained_by_flux_s is not None):
        ago_s = max(0.0, snapshot.wall_at - rank.drained_at) if rank.drained_at is not None else 0.0
        node = replace(
            node, health=replace(node.health, drained_by_flux_s=snapshot.now_s - ago_s if by_flux else None)
        )
    since_at = rank.housekeeping_since_at
    if since_at is None:
        ended = node.health.housekeeping_s is not None and not node.health.housekeeping_kills
        return replace(node, health=replace(node.health, housekeeping_s=None)) if ended else node
    same = was is not None and was.housekeeping_since_at == since_at
    if node.health.housekeeping_s is not None and (same or node.health.housekeeping_kills):
        return node
    return replace(
        node, health=replace(node.health, housekeeping_s=snapshot.now_s - max(0.0, snapshot.wall_at - since_at))
    )


def _continue_retirement(node: Node, snapshot: Snapshot) -> Node:
    """Continue with a drain of ours from before a restart. What an operator set says whether it was for them."""
    moved = move(node, Event.RETIRED, snapshot.now_s)
    if node.stop.retiring is not None:
        return moved
    steering = snapshot.operator.steering
    if (mark := steering.retirements.get(node.id)) is not None:
        return replace(moved, stop=replace(moved.stop, retiring=retired_by_operator(mark), by_operator=True))
    if (mark := steering.holds.get(node.id)) is not None:
        return replace(moved, stop=replace(moved.stop, retiring=held_by_operator(mark), by_operator=True))
    return replace(
        moved,
        stop=replace(
            moved.stop,
            retiring=node.health.misfit if node.health.misfit is not None else because(Code.FOUND_DRAINED),
        ),
    )


def follow_rank(node: Node, rank: FluxRank, snapshot: Snapshot, /, **seen: Any) -> Node:
    """Bring the node's state in line with its rank. Moves that the lifecycle does not allow are skipped.

    ``seen``: other fields to change in any case.
    """
    at_work = Event.JOB_BEGAN if rank.allocated else Event.JOBS_ENDED
    for event in (Event.JOINED, at_work) if rank.online else (Event.LEFT,):
        if allows(node, event):
            if event is Event.LEFT and not _is_first_look(snapshot):
                departures_s = (*node.health.departures_s, snapshot.now_s)[-FLAPS:]
                seen["health"] = replace(node.health, departures_s=departures_s)
            node = move(node, event, snapshot.now_s, **seen)
            seen = {}
    return replace(node, **seen) if seen else node


def _is_first_look(snapshot: Snapshot) -> bool:
    """Whether this is the first look since the claim. If rank 0 was away, all nodes were."""
    looked_s, claimed_s = snapshot.sources.flux.seen_s, snapshot.sources.claim.seen_s
    return looked_s is None or (claimed_s is not None and looked_s < claimed_s)


def _give_up_drain(node: Node, now_s: float) -> Node:
    """Stop retiring the node: somebody undrained it, or holds it with a drain that is not ours to undo."""
    moved = move(node, Event.REPRIEVED, now_s)
    return replace(
        moved, stop=replace(moved.stop, retiring=None, by_operator=False, retired_s=None, drained_s=None)
    )


def _is_drain_no_longer_ours(node: Node, rank: FluxRank, started_s: float) -> bool:
    return (
        node.call is None
        and rank.online
        and rank.drain_reason != drain_text(node.id)
        and node.stop.drained_s is not None
        and started_s > node.stop.drained_s
    )


def _is_still_idle(node: Node, rank: FluxRank) -> bool:
    """Whether it was and is idle and nothing else is to be noted: the most frequent case."""
    marked = rank.torpid or rank.drain_reason is not None or rank.housekeeping_since_at is not None
    was_drained = node.health.drained_by_flux_s is not None
    return node.state is NodeState.IDLE and rank.idle and node.is_sound and not (marked or was_drained)


def _with_idle_look(node: Node, rank: FluxRank, snapshot: Snapshot, started_s: float) -> Seen:
    since_s = node.seen.idle_since_s if node.seen.idle_since_s is not None else _idle_since_s(node, rank, snapshot)
    return replace(node.seen, rank_seen_s=started_s, idle_looks=node.seen.idle_looks + 1, idle_since_s=since_s)


def _idle_since_s(node: Node, rank: FluxRank, snapshot: Snapshot) -> float:
    """Since when it has been idle, from what Flux remembers: a restart of ours must not reset this."""
    created_at = node.cloud.created_at if node.cloud is not None and node.cloud.created_at is not None else 0.0
    if rank.last_job_ended_at is None or rank.last_job_ended_at < created_at:
        return node.since_s
    ended_s = snapshot.now_s - (snapshot.wall_at - rank.last_job_ended_at)
    return min(snapshot.now_s, max(node.create.requested_s, ended_s))  # clocks differ, and jump


def _rank_seen_s(node: Node, snapshot: Snapshot) -> float:
    """When the latest look at its rank began, be it at all ranks or at this one."""
    of_all_s = snapshot.sources.flux.seen_s if node.launch.rank in snapshot.ranks else None
    return node.seen.rank_seen_s if of_all_s is None else max(node.seen.rank_seen_s, of_all_s)


def apply_drain(node: Node, fact: NodeDrained, snapshot: Snapshot, policy: Policy) -> Node:
    """Apply the answer to a drain, which includes the second look at the rank."""
    del policy
    if node.call is None or node.call.kind is not CallKind.DRAIN or fact.started_s < node.call.started_s:
        return node  # the answer to an earlier drain; the node may have been undrained since
    if fact.rank.host != node.launch.slot:
        return fail_call(node, fact.started_s)  # its rank now belongs to another node
    node = end_call(node, CallKind.DRAIN)
    if node.state not in (NodeState.DRAINING, NodeState.STOPPING):
        return node
    node = replace(node, stop=replace(node.stop, drained_s=fact.started_s))
    if fact.started_s < _rank_seen_s(node, snapshot):
        return node
    node = replace(node, rank=fact.rank, seen=replace(node.seen, rank_seen_s=fact.started_s))
    if node.state is NodeState.STOPPING:
        return node
    held = fact.rank.online and fact.rank.drain_reason not in (None, drain_text(node.id))
    return _give_up_drain(node, fact.started_s) if held else node


def apply_cordon(node: Node, fact: NodeCordoned, snapshot: Snapshot, policy: Policy) -> Node:
    """Apply the answer to a cordon, which includes a look at the rank."""
    del policy
    node = end_call(node, CallKind.DRAIN)
    if fact.started_s < _rank_seen_s(node, snapshot):
        return node
    return replace(node, rank=fact.rank, seen=replace(node.seen, rank_seen_s=fact.started_s))
