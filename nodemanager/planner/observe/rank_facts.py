"""Take in a look at the ranks: what changed in the instance, and which nodes that concerns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nodemanager.core.facts import RanksSeen
from nodemanager.core.nodes import FluxRank, LaunchId
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.planner.backoff import drain_breaker
from nodemanager.planner.backoff.boot_failures import count_ended_boots
from nodemanager.planner.cost import timings
from nodemanager.planner.health import instance_check, safe_mode
from nodemanager.planner.observe.node_looks import apply_look, is_no_news
from nodemanager.planner.observe.sources import is_old, unsettled_since_s
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of, with_confirmations, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.rank_index import rank_index_of, updated_rank_index
from nodemanager.planner.state.snapshot import Snapshot, Source


class RankChanges(NamedTuple):
    """What a look changed, for the parts of the snapshot that need to be rebuilt only then."""

    ranks: Mapping[Rank, FluxRank]  # all, as the look shows them
    pairs: list[tuple[FluxRank | None, FluxRank | None]]  # the changed ones, as they were and as they are
    same_resources: bool
    same_hosts: bool
    same_slot_types: bool


def apply_ranks(snapshot: Snapshot, fact: RanksSeen, policy: Policy) -> Snapshot:
    """The snapshot after a look at the ranks. Looks that are older than what we know are ignored."""
    if is_old(snapshot.sources.flux, fact.started_s):
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
    snapshot = count_ended_boots(snapshot.nodes, changed, timings.with_boots(snapshot, changed), policy)
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
        if not (same and is_no_news(node, rank, policy)):
            changed[id_] = apply_look(node, rank, started_s, snapshot)
    return changed


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
