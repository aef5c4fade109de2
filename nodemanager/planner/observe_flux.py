"""Take in what Flux reports: looks at the ranks, the queue, drains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nodemanager.core.drains import drain_text, is_drain_by_flux
from nodemanager.core.facts import NodeCordoned, NodeDrained, QueueProbed, QueueSeen, RanksSeen
from nodemanager.core.jobs import Job, JobId, JobState, UnreadableJob
from nodemanager.core.nodes import CallKind, FluxRank, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.planner import backoff, breakers, calls, hardware, timings, trust
from nodemanager.planner.breakers import count_ended_boots
from nodemanager.planner.calls import delay_stop, end_call, fail_call, is_old, unsettled_since_s, with_answer
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_health import FLAPS
from nodemanager.planner.node_index import node_index_of, with_confirmations, with_nodes
from nodemanager.planner.operator import held_by_operator, retired_by_operator
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import (
    STARTED,
    queue_index_of,
    rank_index_of,
    updated_queue_index,
    updated_rank_index,
)
from nodemanager.planner.snapshot import Event, Node, Seen, Snapshot, Source, allows, move


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
    return with_nodes(breakers.count_drains(snapshot.nodes, changed, snapshot, policy), changed)


def _note_look(snapshot: Snapshot, changes: RankChanges, fact: RanksSeen, policy: Policy) -> Snapshot:
    """Note that the ranks were read, and what the look reports besides them."""
    snapshot = trust.with_unready(snapshot, policy)
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
        mismatch = hardware.find_mismatch(tuple(ranks.values()), policy)
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


# --- take in what Flux's queue reports: jobs that came, changed or ended ----------------------------------


def apply_queue(snapshot: Snapshot, fact: QueueSeen, policy: Policy) -> Snapshot:
    """Take over the jobs that the queue reports."""
    fact = backoff.gather_wide_jobs(fact, snapshot, policy)
    jobs, unreadable = _jobs_after(snapshot, fact)
    gone, come = _changed_jobs(snapshot.jobs, jobs, None if fact.complete else fact)
    stopped = snapshot.queues.stopped if fact.queues_stopped is None else fact.queues_stopped
    news = snapshot.news
    if any(_starts_waiting(job, snapshot.jobs) for job in come):
        news = replace(news, newest_job_s=snapshot.now_s, unsettled_s=unsettled_since_s(snapshot))
    if gone or come or stopped != snapshot.queues.stopped:
        news = replace(news, changed_s=snapshot.now_s)
    if gone or come:
        snapshot = _with_jobs(snapshot, jobs, gone, come)
    return replace(
        snapshot,
        news=news,
        queues=replace(
            snapshot.queues,
            unreadable=unreadable,
            stopped=stopped,
            asked_s=snapshot.queues.asked_s if fact.queues_stopped is None else fact.started_s,
        ),
        sources=replace(snapshot.sources, queue=with_answer(snapshot.sources.queue, fact.started_s)),
    )


def _jobs_after(snapshot: Snapshot, fact: QueueSeen) -> tuple[dict[JobId, Job], dict[JobId, UnreadableJob]]:
    """The jobs after the report, and those that cannot be read."""
    jobs: dict[JobId, Job] = {} if fact.complete else dict(snapshot.jobs)
    unreadable = {} if fact.complete else dict(snapshot.queues.unreadable)
    for job in fact.jobs:
        bad = snapshot.queues.unreadable.get(job.id)
        if bad is not None and bad.set_aside:  # it is not tried again, whatever changes
            unreadable[job.id] = UnreadableJob(job.id, bad.why, job.state in STARTED, job.userid, set_aside=True)
            continue
        jobs[job.id] = calls.as_waiting(job, snapshot) if snapshot.queues.held_jobs else job
        unreadable.pop(job.id, None)
    for job_id in fact.ended:
        jobs.pop(job_id, None)
        unreadable.pop(job_id, None)
    for bad in fact.unreadable:
        unreadable[bad.id] = bad
        jobs.pop(bad.id, None)
    return jobs, unreadable


def _with_jobs(snapshot: Snapshot, jobs: Mapping[JobId, Job], gone: list[Job], come: list[Job]) -> Snapshot:
    """The snapshot with other jobs. ``gone``: the changed jobs as they were; ``come``: as they are."""
    if gone and snapshot.queues.requeued:
        requeued = snapshot.queues.requeued & jobs.keys()
        snapshot = replace(snapshot, queues=replace(snapshot.queues, requeued=requeued))
    known = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    queue_index = updated_queue_index(known, jobs, gone, come)
    snapshot = replace(snapshot, jobs=jobs, indexes=replace(snapshot.indexes, queue=queue_index))
    return timings.with_runs(breakers.remember_users(snapshot, gone), gone)


def _changed_jobs(
    before: Mapping[JobId, Job], after: Mapping[JobId, Job], fact: QueueSeen | None
) -> tuple[list[Job], list[Job]]:
    """The changed jobs as they were, and as they are. ``fact``: compare only the jobs it names; None: all."""
    if fact is None:
        named: Iterable[JobId] = {**before, **after}
    else:
        named = dict.fromkeys([*(job.id for job in fact.jobs), *fact.ended, *(bad.id for bad in fact.unreadable)])
    gone: list[Job] = []
    come: list[Job] = []
    for id_ in named:
        was, is_ = before.get(id_), after.get(id_)
        if was is not is_ and was != is_:
            gone += [was] if was is not None else []
            come += [is_] if is_ is not None else []
    return gone, come


def _starts_waiting(job: Job, known: Mapping[JobId, Job]) -> bool:
    before = known.get(job.id)
    return job.state is JobState.SCHED and (
        before is None or before.state is not JobState.SCHED or before.shape != job.shape
    )


def apply_probe(snapshot: Snapshot, fact: QueueProbed) -> Snapshot:
    """Note that the queue was asked, and reported nothing new."""
    answered = with_answer(snapshot.sources.queue, fact.started_s)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, queue=answered),
        queues=replace(snapshot.queues, asked_s=fact.started_s),
    )


# --- what a look at its rank says about one node: idle, busy, away, drained, or broken --------------------


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
        return fail_call(node, fact.started_s, why="its rank belongs to another node")
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
