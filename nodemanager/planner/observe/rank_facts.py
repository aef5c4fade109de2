"""Apply lists of the cloud and looks at the ranks to the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nodemanager.core.drains import drain_text, is_drain_by_flux
from nodemanager.core.facts import (
    CloudCallFailed,
    CloudListed,
    NodeCordoned,
    NodeCreated,
    NodeDrained,
    OrderLapsed,
    RanksSeen,
)
from nodemanager.core.nodes import (
    LEAVING,
    CallKind,
    CloudNode,
    CloudState,
    FailureKind,
    FluxRank,
    LaunchId,
    NodeState,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import CloudName, Rank, SlotName, TypeName
from nodemanager.planner.cost import timings
from nodemanager.planner.observe import backoff, drain_breaker, instance_check, safe_mode
from nodemanager.planner.observe.node_health import FLAPS
from nodemanager.planner.observe.operator import held_by_operator, retired_by_operator
from nodemanager.planner.observe.pairing import pair
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, allows, move
from nodemanager.planner.state.node import Node, Seen
from nodemanager.planner.state.node_index import node_index_of, with_confirmations, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.rank_index import rank_index_of, updated_rank_index
from nodemanager.planner.state.snapshot import Snapshot, Source, Stray

RETRY_S_MAX = 60.0
FEW_VANISHED = 2  # a list that lacks no more nodes than this is believed at once


def fail_call(node: Node, now_s: float, retry_after_s: float = 0.0) -> Node:
    """The node after a call for it failed or was not answered. Nothing is assumed; it is left alone a while."""
    if node.call is None:
        return node
    kind = node.call.kind
    if kind is CallKind.CREATE:
        # The create may have worked up to this moment, so lists that began earlier prove nothing.
        node = replace(node, listing=replace(node.listing, known_s=now_s, absences=0, absent_s=None))
    if kind is CallKind.END_LEASE and node.state is NodeState.REQUESTED:
        # The lease may or may not still be on record: write it again before the node is created.
        node = replace(node, create=replace(node.create, recorded=False))
    wait_s = max(retry_after_s, min(RETRY_S_MAX, 0.5 * 2.0**node.tries))
    return replace(delay_stop(node), call=None, tries=node.tries + 1, retry_s=now_s + wait_s)


def delay_stop(node: Node) -> Node:
    """Mark the node's stop as delayed, so that its duration is not used as a measurement."""
    if node.state not in LEAVING or node.stop.delayed:
        return node
    return replace(node, stop=replace(node.stop, delayed=True))


def unsettled_since_s(snapshot: Snapshot) -> float:
    """Since when news has arrived that no plan has considered: now, if there was none."""
    return snapshot.news.unsettled_s if snapshot.news.unsettled_s is not None else snapshot.now_s


def waits_for(node: Node, kind: CallKind) -> bool:
    """Whether a call of this kind is in flight for the node."""
    return node.call is not None and node.call.kind is kind


def end_call(node: Node, kind: CallKind) -> Node:
    """The node after a call of the kind was answered. A late answer does not end a later call of another kind."""
    call = node.call
    return replace(node, call=None, tries=0, retry_s=0.0) if call is not None and call.kind is kind else node


def undo_order(node: Node, fact: OrderLapsed) -> Node:
    """The node after an order for it lapsed: nothing has happened, and the order may be given again."""
    if fact.order == "CreateNode" and node.state is NodeState.REQUESTED:
        node = replace(
            node, create=replace(node.create, sent_s=None), listing=replace(node.listing, absences=0, absent_s=None)
        )
    return end_call(node, node.call.kind) if node.call is not None else node


# --- ranks ------------------------------------------------------------------------------------------------


class RankChanges(NamedTuple):
    """What a look changed, for the parts of the snapshot that need to be rebuilt only then."""

    ranks: Mapping[Rank, FluxRank]  # all, as the look shows them
    pairs: list[tuple[FluxRank | None, FluxRank | None]]  # the changed ones, as they were and as they are
    same_resources: bool
    same_hosts: bool
    same_slot_types: bool


def apply_ranks(snapshot: Snapshot, fact: RanksSeen, policy: Policy) -> Snapshot:
    """The snapshot after a look at the ranks. Looks that are older than what we know are ignored."""
    if _is_old(snapshot.sources.flux, fact.started_s):
        return snapshot
    snapshot = with_confirmations(snapshot, policy.rules.idle_confirmations)
    changes = _compare_ranks(snapshot, fact)
    if not changes.same_hosts:
        snapshot = _update_launch_ranks(snapshot, changes.ranks.values())
    seen = _note_look(_with_seen_nodes(snapshot, changes, fact, policy), changes, fact, policy)
    return _with_changed_ranks(seen, changes, policy) if changes.pairs else seen


def _compare_ranks(snapshot: Snapshot, fact: RanksSeen) -> RankChanges:
    named = {rank.rank: rank for rank in fact.ranks}
    if fact.previous is None:
        ranks: Mapping[Rank, FluxRank] = named
    else:
        ranks = {**fact.previous, **named} if named else fact.previous
    pairs = _changed_ranks(snapshot.ranks, ranks, named if fact.previous is snapshot.ranks else ranks)
    same_resources = _same_resources(pairs)
    same_hosts = same_resources or all(was and is_ and was.host == is_.host for was, is_ in pairs)
    same_slot_types = same_resources or (
        same_hosts and all(was.type_name == is_.type_name for was, is_ in pairs if was and is_)
    )
    return RankChanges(ranks, pairs, same_resources, same_hosts, same_slot_types)


def _with_seen_nodes(snapshot: Snapshot, changes: RankChanges, fact: RanksSeen, policy: Policy) -> Snapshot:
    """The nodes as the look shows them, with what their joins and drains teach."""
    changed = _nodes_after_look(snapshot, changes.ranks, changes.pairs, fact.started_s, policy)
    snapshot = backoff.count_ended_boots(snapshot.nodes, changed, timings.with_boots(snapshot, changed), policy)
    return with_nodes(drain_breaker.count_drains(snapshot.nodes, changed, snapshot, policy), changed)


def _note_look(snapshot: Snapshot, changes: RankChanges, fact: RanksSeen, policy: Policy) -> Snapshot:
    """Note that the ranks were read, and what the look reports besides them."""
    snapshot = safe_mode.with_unready(snapshot, policy)
    due_s = snapshot.news.look_due_since_s
    return replace(
        snapshot,
        sources=replace(
            snapshot.sources,
            flux=Source(seen_s=fact.started_s, retry_s=_next_look_s(fact, snapshot.now_s, policy)),
        ),
        news=replace(
            snapshot.news, look_due_since_s=None if due_s is not None and due_s <= fact.started_s else due_s
        ),
        queues=replace(
            snapshot.queues, jobs_ended=fact.jobs_ended, node_order=fact.node_order or snapshot.queues.node_order
        ),
        slots=replace(
            snapshot.slots,
            types=snapshot.slots.types if changes.same_slot_types else _slot_types_seen(changes.ranks, snapshot),
            wish=fact.wish,
        ),
    )


def _with_changed_ranks(snapshot: Snapshot, changes: RankChanges, policy: Policy) -> Snapshot:
    ranks = changes.ranks
    known = rank_index_of(snapshot.ranks, snapshot.indexes.ranks, policy)
    mismatch = snapshot.slots.mismatch
    if not changes.same_resources:
        mismatch = instance_check.find_mismatch(tuple(ranks.values()), policy)
    return replace(
        snapshot,
        ranks=ranks,
        slots=replace(
            snapshot.slots,
            rank_of_slot=snapshot.slots.rank_of_slot
            if changes.same_hosts
            else {it.host: it.rank for it in ranks.values()},
            mismatch=mismatch,
        ),
        indexes=replace(snapshot.indexes, ranks=updated_rank_index(known, ranks, changes.pairs, policy)),
        news=replace(snapshot.news, changed_s=snapshot.now_s, unsettled_s=unsettled_since_s(snapshot)),
    )


def _next_look_s(fact: RanksSeen, now_s: float, policy: Policy) -> float:
    """The earliest time of the next look, even if the ranks change. The rest never exceeds one probe interval."""
    rest_s = min(policy.timing.probe_s, policy.fixed.look_rest * fact.took_s)
    return max(fact.started_s + policy.fixed.look_every_s, now_s + rest_s)


def _update_launch_ranks(snapshot: Snapshot, ranks: Iterable[FluxRank]) -> Snapshot:
    """Give each launch the rank that has its slot's host name. Ranks change if Flux assigns them at the join."""
    of_slot = node_index_of(snapshot).launch_of_slot
    moved = {
        id_: replace(node, launch=replace(node.launch, rank=rank.rank))
        for rank in ranks
        if (id_ := of_slot.get(rank.host)) is not None and (node := snapshot.nodes[id_]).launch.rank != rank.rank
    }
    return with_nodes(snapshot, moved)


def _changed_ranks(
    before: Mapping[Rank, FluxRank], after: Mapping[Rank, FluxRank], named: Mapping[Rank, FluxRank]
) -> list[tuple[FluxRank | None, FluxRank | None]]:
    """The changed ranks, each as it was and as it is. Ranks that are not ``named`` are unchanged."""
    changes: list[tuple[FluxRank | None, FluxRank | None]] = [
        (was, rank) for number, rank in named.items() if (was := before.get(number)) is not rank and was != rank
    ]
    if len(before) + sum(was is None for was, _ in changes) > len(after):
        changes += [(was, None) for number, was in before.items() if number not in after]
    return changes


def _nodes_after_look(
    snapshot: Snapshot,
    ranks: Mapping[Rank, FluxRank],
    changes: list[tuple[FluxRank | None, FluxRank | None]],
    started_s: float,
    policy: Policy,
) -> dict[LaunchId, Node]:
    """The nodes that the look changes. Of those simply busy or at rest, only a changed rank changes the node."""
    node_index = node_index_of(snapshot)
    touched = dict(node_index.to_check)
    for _, rank in changes:
        id_ = node_index.launch_of_rank.get(rank.rank) if rank is not None else None
        if id_ is not None:
            touched[id_] = snapshot.nodes[id_]
    changed: dict[LaunchId, Node] = {}
    for id_, node in touched.items():
        rank = ranks.get(node.launch.rank)
        if rank is None or started_s < node.seen.rank_seen_s:
            continue
        same = node.rank is rank or node.rank == rank
        if not (same and _is_no_news(node, rank, policy)):
            changed[id_] = _apply_look(node, rank, started_s, snapshot)
    return changed


def _is_no_news(node: Node, rank: FluxRank, policy: Policy) -> bool:
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


def _same_resources(changes: list[tuple[FluxRank | None, FluxRank | None]]) -> bool:
    """Whether all changed ranks kept their host, type, cores and GPUs."""
    for was, is_ in changes:
        if was is None or is_ is None or was.host != is_.host or was.type_name != is_.type_name:
            return False
        if was.cores != is_.cores or was.gpus != is_.gpus:
            return False
    return True


def _slot_types_seen(ranks: Mapping[Rank, FluxRank], snapshot: Snapshot) -> Mapping[SlotName, TypeName]:
    """The types of the slots, in the order of the ranks. If nothing changed, the snapshot's own object."""
    seen = {rank.host: rank.type_name for rank in ranks.values() if rank.type_name is not None}
    return snapshot.slots.types if seen == snapshot.slots.types else seen


def _is_old(source: Source, started_s: float) -> bool:
    """Whether this answer or a later one is known already."""
    return source.seen_s is not None and started_s <= source.seen_s


def _apply_look(node: Node, rank: FluxRank, started_s: float, snapshot: Snapshot) -> Node:
    if _is_still_idle(node, rank):
        return replace(node, rank=rank, seen=_with_idle_look(node, rank, snapshot, started_s))
    before = node
    node = _follow_rank(node, rank, snapshot, rank=rank)
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


def _follow_rank(node: Node, rank: FluxRank, snapshot: Snapshot, /, **seen: Any) -> Node:
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


# --- the cloud --------------------------------------------------------------------------------------------


def apply_create(snapshot: Snapshot, fact: NodeCreated, policy: Policy) -> Snapshot:
    """The provider answered the create, perhaps long after we stopped waiting for it."""
    if fact.launch not in snapshot.nodes:
        return snapshot
    node = apply_create_to_node(snapshot.nodes[fact.launch], fact, snapshot, policy)
    return backoff.apply_success(with_nodes(snapshot, {node.id: node}), node, policy)


def apply_create_to_node(node: Node, fact: NodeCreated, snapshot: Snapshot, policy: Policy) -> Node:
    """The node after the provider answered its create."""
    del policy
    return _apply_listing(end_call(node, CallKind.CREATE), fact.node, snapshot, snapshot.now_s)


def apply_cloud_list(snapshot: Snapshot, fact: CloudListed, policy: Policy) -> Snapshot:
    """The snapshot after a list of the cloud. Lists that are older than what we know are ignored."""
    cloud_name = policy.only_cloud(fact.cloud)
    account = snapshot.account_of(cloud_name)
    if _is_old(account.source, fact.started_s):
        return snapshot
    here = _nodes_of_cloud(snapshot, policy, cloud_name)
    pairing = pair(here, fact.nodes, policy.cluster, policy.cluster_uuid)
    lacking = [
        node
        for node in here.values()
        if node.id not in pairing.paired and fact.started_s > node.listing.known_s and _should_be_listed(node)
    ]
    doubted = account.doubted_lists + 1 if _too_many_vanished(here, lacking) else 0
    believed = doubted == 0 or doubted > policy.timing.absences
    nodes: dict[LaunchId, Node] = {}
    for id_, cloud in pairing.paired.items():
        if not _is_listed_unchanged(snapshot.nodes[id_], cloud):
            nodes[id_] = _apply_listing(snapshot.nodes[id_], cloud, snapshot, fact.started_s)
    if believed:
        for node in lacking:
            nodes[node.id] = _count_absence(node, fact.started_s, snapshot, policy)
    for id_, cloud in pairing.paired.items():
        if cloud.died_of is not None and snapshot.nodes[id_].state in backoff.NOT_UP_YET:
            # Accepted, but never made: for the next create this means the same as a refusal.
            snapshot = backoff.apply_refusal(
                snapshot, snapshot.nodes[id_], cloud.died_of, cloud.died_because, policy
            )
    snapshot = backoff.count_ended_boots(
        snapshot.nodes,
        nodes,
        timings.with_reclaims(timings.with_stops(snapshot, nodes, fact.started_s), nodes),
        policy,
    )
    seen = replace(
        account,
        source=Source(seen_s=fact.started_s, news_s=_newer(account.source.news_s, fact.started_s)),
        doubted_lists=doubted,
        strays={
            cloud.provider_id: replace(
                account.strays.get(cloud.provider_id, Stray(cloud, snapshot.now_s)), node=cloud
            )
            for cloud in pairing.strays
            if not _is_of_another_cloud(cloud, snapshot, here)
        },
        intruders=pairing.intruders,
        strangers=pairing.strangers,
    )
    return with_nodes(snapshot, nodes).with_account(cloud_name, seen)


def _nodes_of_cloud(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Mapping[LaunchId, Node]:
    """The nodes whose launches belong to a cloud."""
    if all(policy.cloud_of_name(name) == cloud for name in node_index_of(snapshot).count_by_cloud):
        return snapshot.nodes
    return {id_: node for id_, node in snapshot.nodes.items() if policy.cloud_of(node.launch) == cloud}


def _is_of_another_cloud(cloud: CloudNode, snapshot: Snapshot, here: Mapping[LaunchId, Node]) -> bool:
    """Whether its launch belongs to a node of another cloud. Then two sections name one account: leave it alone."""
    launch = cloud.identity.launch if cloud.identity is not None else None
    return launch in snapshot.nodes and launch not in here


def _newer(news_s: float | None, started_s: float) -> float | None:
    """The time of news that a query begun at ``started_s`` may lack; None if there is none."""
    return news_s if news_s is not None and news_s > started_s else None


def _should_be_listed(node: Node) -> bool:
    """Whether its absence from a list means anything: its create was sent and is not in flight."""
    return node.call is None and node.create.sent_s is not None and node.state is not NodeState.GONE


def _too_many_vanished(nodes: Mapping[LaunchId, Node], lacking: list[Node]) -> bool:
    """Whether a list lacks so many known nodes that it is more likely wrong than true."""
    vanished = sum(1 for node in lacking if node.exists_at_provider)
    if vanished <= FEW_VANISHED:
        return False
    shown = sum(1 for node in nodes.values() if node.exists_at_provider)
    return vanished > shown // 2


def _is_listed_unchanged(node: Node, cloud: CloudNode) -> bool:
    """Whether the list says nothing new about the node. (``known_s`` matters only while the node is missing.)"""
    return (
        node.listing.absences == 0
        and node.listing.billed_from_s is not None
        and (node.cloud is cloud or node.cloud == cloud)
        and not allows(node, Event.ENDED if cloud.state is CloudState.TERMINATED else Event.APPEARED)
    )


def _apply_listing(node: Node, cloud: CloudNode, snapshot: Snapshot, seen_s: float) -> Node:
    """The node as the provider listed it at ``seen_s``. Lists are long, so each node is replaced only once."""
    billed_from_s = node.listing.billed_from_s
    if billed_from_s is None:
        age_s = max(0.0, snapshot.wall_at - cloud.created_at) if cloud.created_at is not None else 0.0
        billed_from_s = snapshot.now_s - age_s
    node = replace(
        node,
        cloud=cloud,
        listing=replace(
            node.listing,
            billed_from_s=billed_from_s,
            absences=0,
            absent_s=None,
            known_s=max(node.listing.known_s, seen_s),
        ),
    )
    event = Event.ENDED if cloud.state is CloudState.TERMINATED else Event.APPEARED
    if not allows(node, event):
        return node
    node = move(node, event, snapshot.now_s)
    if event is Event.ENDED:
        return _clear_retries(node)
    # It may have joined before the provider listed it.
    return _follow_rank(node, node.rank, snapshot) if node.rank is not None else node


def _count_absence(node: Node, started_s: float, snapshot: Snapshot, policy: Policy) -> Node:
    absent_s = node.listing.absent_s if node.listing.absent_s is not None else started_s
    node = replace(node, listing=replace(node.listing, absences=node.listing.absences + 1, absent_s=absent_s))
    if node.listing.absences < policy.timing.absences:
        return node
    if node.state is NodeState.REQUESTED:
        long_enough = started_s - node.listing.known_s >= policy.timing.create_grace_s
        return move(node, Event.DISPROVED, snapshot.now_s) if long_enough else node
    if node.rank is not None and node.rank.online:
        return node  # Flux still reaches it: the provider may be wrong, and a job may run there
    return _clear_retries(move(node, Event.ENDED, snapshot.now_s))


def _clear_retries(node: Node) -> Node:
    """Forget the wait before the next try to stop it: the node is gone, and its slot should be freed."""
    return replace(node, retry_s=0.0, tries=0)


def apply_cloud_failure(snapshot: Snapshot, fact: CloudCallFailed, policy: Policy) -> Snapshot:
    """The snapshot after a call to the cloud failed."""
    if fact.operation == "list":
        wait_s = max(fact.retry_after_s, 1.0)
        name = policy.only_cloud(fact.cloud)
        account = snapshot.account_of(name)
        failed = replace(account.source, answer_due_s=None, failure=fact.detail, retry_s=snapshot.now_s + wait_s)
        return snapshot.with_account(name, replace(account, source=failed))
    node = snapshot.nodes.get(fact.launch) if fact.launch is not None else None
    if node is None:
        return snapshot
    if fact.operation == "create":
        return _apply_create_failure(snapshot, node, fact, policy)
    if not waits_for(node, CallKind.DESTROY):
        return snapshot
    failed_node = fail_call(node, snapshot.now_s, fact.retry_after_s)
    return with_nodes(snapshot, {node.id: failed_node})


def _apply_create_failure(snapshot: Snapshot, node: Node, fact: CloudCallFailed, policy: Policy) -> Snapshot:
    if waits_for(node, CallKind.CREATE):
        node = fail_call(node, snapshot.now_s, fact.retry_after_s)
    if fact.kind is FailureKind.AMBIGUOUS:
        return with_nodes(snapshot, {node.id: replace(node, create=replace(node.create, failure=fact.detail))})
    if allows(node, Event.DISPROVED):
        node = replace(move(node, Event.DISPROVED, snapshot.now_s), retry_s=0.0, tries=0)
    snapshot = with_nodes(snapshot, {node.id: node})
    return backoff.apply_refusal(
        snapshot, node, fact.kind, fact.detail, policy, fact.retry_after_s, fact.quota_scope
    )
