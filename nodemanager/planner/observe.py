"""Take facts in: the snapshot and a fact make the next snapshot.

State is replaced, never tracked: a fact replaces what we believed about its subject, unless it is older than what
we know. The age of an answer counts from the moment its query *began*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    ClaimRefused,
    CloudCallFailed,
    CloudChanged,
    CloudListed,
    CopySettled,
    DecisionsPaused,
    DecisionsResumed,
    Fact,
    FluxCallFailed,
    FluxUnreachable,
    HoldPlaced,
    HousekeepingKilled,
    JobRequeued,
    JobsHeld,
    JobsReleased,
    LaunchesRecorded,
    LeaseEnded,
    LeftoversRemoved,
    NodeCordoned,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    NodeMeasured,
    NodeReleased,
    NodeReported,
    NodeUndrained,
    OrderLapsed,
    PeersSeen,
    QueueProbed,
    QueueSeen,
    RanksChanged,
    RanksMeasured,
    RanksSeen,
    RecordSeen,
    ReplacementsRequested,
    ResultRead,
    RetirementRequested,
    SlotsChanged,
    SlotsRefused,
    SpendKept,
    SpendNotKept,
    SteeringKept,
    SteeringNotKept,
    SteeringSeen,
    Tick,
)
from nodemanager.core.nodes import FailureKind, JoinPhase, LaunchId
from nodemanager.planner import calls, hardware, operator, spending
from nodemanager.planner.backoff import apply_refusal, end_pauses
from nodemanager.planner.calls import (
    all_sources,
    apply_claim,
    apply_failed_flux_call,
    apply_lapsed_order,
    apply_record,
    apply_recorded,
    apply_refused_claim,
    apply_slots_refusal,
    apply_undrain,
    change_nodes,
    count_housekeeping_kill,
    distrust_slots,
    drop_ended_leases,
    expire_calls,
    fail_call,
    lose_instance,
    note_broker_told,
    note_destroy_accepted,
    require_list,
    require_look,
)
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of, with_nodes
from nodemanager.planner.observe_cloud import (
    apply_cloud_failure,
    apply_cloud_list,
    apply_create,
    apply_create_to_node,
)
from nodemanager.planner.observe_flux import apply_cordon, apply_drain, apply_probe, apply_queue, apply_ranks
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Peers, Snapshot
from nodemanager.planner.spending import accrue


def observe(snapshot: Snapshot, fact: Fact, policy: Policy) -> Snapshot:
    """The snapshot after a fact. It never raises for bad input from outside, only for a bug of ours."""
    return accrue(snapshot, HANDLERS[type(fact)](snapshot, (fact,), policy), fact, policy)


def observe_all(snapshot: Snapshot, facts: Iterable[Fact], policy: Policy) -> Snapshot:
    """The snapshot after several facts: the same as one by one, but faster."""
    if policy.budgets:  # the cost of each fact is added up by itself
        for fact in facts:
            snapshot = observe(snapshot, fact, policy)
        return snapshot
    for kind, alike in groupby(facts, key=type):
        snapshot = HANDLERS[kind](snapshot, tuple(alike), policy)
    return snapshot


def advance_to(snapshot: Snapshot, tick: Tick) -> Snapshot:
    """The snapshot at a later moment: calls past their deadline count as failed."""
    snapshot = operator.withdraw_lapsed(replace(snapshot, now_s=tick.now_s, wall_at=tick.wall_at))
    for source in all_sources(snapshot):
        if source.answer_due_s is not None and source.answer_due_s <= tick.now_s:
            snapshot = expire_calls(snapshot)
            break
    if snapshot.slots.wish_due_s is not None and snapshot.slots.wish_due_s <= tick.now_s:
        snapshot = distrust_slots(snapshot, "the change of slot types was not answered in time")
    # This runs with every fact and every plan, so it checks only the few nodes with a call.
    waiting = node_index_of(snapshot).with_call.values()
    late = [node.id for node in waiting if node.call is not None and node.call.deadline_s <= tick.now_s]
    return change_nodes(snapshot, late, lambda node: fail_call(node, tick.now_s)) if late else snapshot


def _apply_report(snapshot: Snapshot, fact: NodeReported, policy: Policy) -> Snapshot:
    node = snapshot.nodes.get(fact.launch)
    if node is None:
        return snapshot
    match fact.phase:
        case JoinPhase.REPLAYED:
            return with_nodes(snapshot, {node.id: replace(node, health=replace(node.health, replayed=True))})
        case JoinPhase.RECLAIMED:
            # The provider is short of capacity here, so nodes of this type are bought elsewhere for a while.
            if node.health.reclaimed is None:
                snapshot = apply_refusal(snapshot, node, FailureKind.CAPACITY, fact.detail, policy)
            return with_nodes(
                snapshot, {node.id: replace(node, health=replace(node.health, reclaimed=fact.detail))}
            )
        case _:
            return with_nodes(
                snapshot,
                {
                    node.id: replace(
                        node, join_report=replace(node.join_report, phase=fact.phase, detail=fact.detail)
                    )
                },
            )


def _apply_peers(snapshot: Snapshot, fact: PeersSeen, policy: Policy) -> Snapshot:
    del policy
    ordered = {
        id_: until_s
        for id_, until_s in snapshot.peers.ordered.items()
        if until_s > snapshot.now_s and id_ not in fact.taken and id_ in snapshot.jobs
    }
    return replace(snapshot, peers=Peers(fact, ordered))


def _apply_ranks(snapshot: Snapshot, fact: RanksSeen, policy: Policy) -> Snapshot:
    return end_pauses(hardware.apply_repaired_promises(apply_ranks(snapshot, fact, policy), policy))


def _apply_slots_change(snapshot: Snapshot, fact: SlotsChanged, policy: Policy) -> Snapshot:
    """The slot types changed. Earlier looks are void; the look that came with the answer replaces them."""
    changed = hardware.apply_kept_promise(
        replace(snapshot, slots=replace(snapshot.slots, wish_due_s=None)), fact.wish_id
    )
    changed = replace(changed, sources=replace(changed.sources, flux=replace(snapshot.sources.flux, seen_s=None)))
    return apply_ranks(changed, RanksSeen(fact.started_s, fact.ranks), policy)


def _apply_creates(snapshot: Snapshot, facts: Sequence[NodeCreated], policy: Policy) -> Snapshot:
    """While something is blocked or a quota is known, each create may lift it before the next is counted."""
    matters = snapshot.learned.blocks or snapshot.learned.quotas
    return (_create_one_by_one if matters else _create_together)(snapshot, facts, policy)


def _end_leases(snapshot: Snapshot, facts: Sequence[LeaseEnded], policy: Policy) -> Snapshot:
    del policy
    return drop_ended_leases(snapshot, [fact.launch for fact in facts])


# Takes facts of one type in, in their order.
Handler = Callable[[Snapshot, Sequence[Any], Policy], Snapshot]


def one_by_one(apply: Callable[[Snapshot, Any, Policy], Snapshot]) -> Handler:
    """Takes facts in with a function of the snapshot, one fact and the policy."""

    def handle(snapshot: Snapshot, facts: Sequence[Any], policy: Policy) -> Snapshot:
        for fact in facts:
            snapshot = apply(snapshot, fact, policy)
        return snapshot

    return handle


def whatever_the_policy(apply: Callable[[Snapshot, Any], Snapshot]) -> Handler:
    """Takes facts in with a function of the snapshot and one fact."""
    return one_by_one(lambda snapshot, fact, _: apply(snapshot, fact))


def to_nodes(apply: Callable[[Node, Any, Snapshot, Policy], Node]) -> Handler:
    """Takes facts in that each concern one node. News of a node we no longer know is ignored."""

    def handle(snapshot: Snapshot, facts: Sequence[Any], policy: Policy) -> Snapshot:
        changed: dict[LaunchId, Node] = {}
        for fact in facts:
            node = changed.get(fact.launch) or snapshot.nodes.get(fact.launch)
            if node is not None:
                changed[node.id] = apply(node, fact, snapshot, policy)
        return with_nodes(snapshot, changed)

    return handle


_create_together = to_nodes(apply_create_to_node)
_create_one_by_one = one_by_one(apply_create)
_nothing_follows = whatever_the_policy(lambda snapshot, _: snapshot)
_written = whatever_the_policy(operator.apply_steering_written)
_spend_written = whatever_the_policy(spending.apply_spend_written)
_told_by_operator = whatever_the_policy(operator.apply_operator_fact)
# What each type of fact does to the snapshot.
HANDLERS: Mapping[type[Fact], Handler] = {
    # the queue and the ranks
    QueueSeen: one_by_one(apply_queue),
    QueueProbed: whatever_the_policy(apply_probe),
    RanksChanged: whatever_the_policy(lambda snapshot, _: require_look(snapshot)),
    RanksSeen: one_by_one(_apply_ranks),
    RanksMeasured: one_by_one(hardware.apply_rank_measurements),
    # the instance and the claim on it
    FluxUnreachable: whatever_the_policy(lose_instance),
    ClaimHeld: whatever_the_policy(apply_claim),
    ClaimRefused: whatever_the_policy(apply_refused_claim),
    RecordSeen: whatever_the_policy(apply_record),
    SlotsChanged: one_by_one(_apply_slots_change),
    SlotsRefused: whatever_the_policy(apply_slots_refusal),
    # answers of Flux to orders
    LaunchesRecorded: whatever_the_policy(apply_recorded),
    NodeDrained: to_nodes(apply_drain),
    NodeCordoned: to_nodes(apply_cordon),
    NodeUndrained: whatever_the_policy(apply_undrain),
    BrokerStopped: to_nodes(note_broker_told),
    HousekeepingKilled: to_nodes(count_housekeeping_kill),
    LeaseEnded: _end_leases,
    JobRequeued: _nothing_follows,  # the queue shows the new job
    ResultRead: whatever_the_policy(calls.apply_copy_answer),
    CopySettled: whatever_the_policy(calls.apply_copy_answer),
    JobsHeld: whatever_the_policy(calls.apply_held),
    JobsReleased: whatever_the_policy(calls.apply_held),
    FluxCallFailed: whatever_the_policy(apply_failed_flux_call),
    OrderLapsed: whatever_the_policy(apply_lapsed_order),
    # the cloud
    CloudListed: one_by_one(apply_cloud_list),
    CloudChanged: one_by_one(require_list),
    NodeCreated: _apply_creates,
    NodeDestroyed: to_nodes(note_destroy_accepted),
    CloudCallFailed: one_by_one(apply_cloud_failure),
    LeftoversRemoved: _nothing_follows,  # they belonged to no node
    # what nodes report about themselves
    NodeReported: one_by_one(_apply_report),
    NodeMeasured: one_by_one(hardware.apply_measurement),
    # other Flux instances
    PeersSeen: one_by_one(_apply_peers),
    # operators, and the written records
    HoldPlaced: _told_by_operator,
    RetirementRequested: _told_by_operator,
    ReplacementsRequested: _told_by_operator,
    NodeReleased: _told_by_operator,
    DecisionsPaused: _told_by_operator,
    DecisionsResumed: _told_by_operator,
    SteeringKept: _written,
    SteeringNotKept: _written,
    SteeringSeen: whatever_the_policy(operator.apply_steering_seen),
    SpendKept: _spend_written,
    SpendNotKept: _spend_written,
}
