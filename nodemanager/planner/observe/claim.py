"""The claim on the instance and the record that comes with it: launches, spending, steering, slot types.

Only the manager that holds the claim acts. When it gets the claim, it takes over the record of the one before.
"""

from __future__ import annotations

from nodemanager.core.facts import ClaimHeld, ClaimRefused, FluxUnreachable, RecordSeen, SlotsRefused
from nodemanager.core.nodes import Launch, LaunchId, NodeState
from nodemanager.planner.cost import spending
from nodemanager.planner.observe import hardware, held_jobs, operator
from nodemanager.planner.observe.sources import require_look, with_answer
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Create, Listing, Node
from nodemanager.planner.state.node_index import with_nodes
from nodemanager.planner.state.snapshot import Snapshot


def lose_instance(snapshot: Snapshot, fact: FluxUnreachable) -> Snapshot:
    """The instance is unreachable, so the claim on it is lost too and must be renewed."""
    away = replace(snapshot.sources.flux, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=False, flux=away, claim=claim, unreachable_s=fact.started_s),
    )


def apply_claim(snapshot: Snapshot, fact: ClaimHeld) -> Snapshot:
    """Follow the record: adopt launches we do not know, and drop those that were never made.

    If the record gives a node's slot to another launch, the node has lost it: its machine is a stray from now on.
    """
    on_record = {launch.id: launch for launch in fact.launches}
    held = {launch.slot for launch in fact.launches}
    nodes: dict[LaunchId, Node] = {}
    for node in snapshot.nodes.values():
        if node.id in on_record:
            nodes[node.id] = replace(node, create=replace(node.create, recorded=True))
        elif node.launch.slot in held:
            continue
        elif node.call is not None or node.create.sent_s is not None or node.cloud is not None:
            nodes[node.id] = replace(node, create=replace(node.create, recorded=False))
    for launch in fact.launches:
        nodes.setdefault(launch.id, adopt(launch, snapshot))
    gone = [id_ for id_ in snapshot.nodes if id_ not in nodes]
    nodes = {id_: _void_second_look(node) for id_, node in nodes.items()}
    claim = with_answer(snapshot.sources.claim, fact.started_s)
    # A look is due, and before it nothing is bought.
    snapshot = spending.apply_spend_record(require_look(with_nodes(snapshot, nodes, gone)), fact.spend)
    snapshot = replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=True, claim=claim),
        queues=replace(snapshot.queues, held_jobs=fact.held_jobs),
    )
    return operator.apply_steering_record(held_jobs.with_held_jobs(snapshot, fact.held_jobs), fact.steering)


def apply_refused_claim(snapshot: Snapshot, fact: ClaimRefused) -> Snapshot:
    """Note why the claim was refused, and try again soon."""
    refused = replace(snapshot.sources.claim, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + 1.0)
    return replace(snapshot, sources=replace(snapshot.sources, claimed=False, claim=refused))


def apply_record(snapshot: Snapshot, fact: RecordSeen) -> Snapshot:
    """Take over the record. An observer has created nothing itself, so the record is complete."""
    on_record = {launch.id: launch for launch in fact.launches}
    come = {id_: adopt(launch, snapshot) for id_, launch in on_record.items() if id_ not in snapshot.nodes}
    gone = [id_ for id_ in snapshot.nodes if id_ not in on_record]
    known = with_nodes(snapshot, come, gone)
    # The acting manager has recorded the costs that were counted here since the last look, or will do so.
    known = replace(
        known,
        operator=replace(known.operator, steering=known.operator.steering_on_record),
        spending=replace(known.spending, amounts={}, counted=frozenset()),
    )
    return operator.apply_steering_record(spending.apply_spend_record(known, fact.spend), fact.steering)


def _void_second_look(node: Node) -> Node:
    """Void the second look: another manager may have acted meanwhile.

    Departures are forgotten too. If rank 0 was away, every node was, which says nothing about a single node.
    """
    if node.stop.drained_s is None and not node.health.departures_s:
        return node
    return replace(node, stop=replace(node.stop, drained_s=None), health=replace(node.health, departures_s=()))


def adopt(launch: Launch, snapshot: Snapshot) -> Node:
    """A node for a launch of an earlier process. Its create may or may not have been sent, so we look for it."""
    age_s = max(0.0, snapshot.wall_at - launch.requested_at)
    return Node(
        launch=launch,
        state=NodeState.REQUESTED,
        since_s=snapshot.now_s,
        create=Create(snapshot.now_s - age_s, adopted=True, recorded=True, sent_s=snapshot.now_s),
        listing=Listing(known_s=snapshot.now_s),
    )


def apply_slots_refusal(snapshot: Snapshot, fact: SlotsRefused) -> Snapshot:
    """Forget the wish for other slots, and the promise that came with it."""
    return hardware.drop_promise(
        replace(snapshot, slots=replace(snapshot.slots, wish=None, wish_due_s=None)), fact.wish_id
    )


def distrust_slots(snapshot: Snapshot, why: str) -> Snapshot:
    """A change of slot types may be half done. Renew the claim, which repairs it, and look at the ranks again."""
    claim = replace(snapshot.sources.claim, answer_due_s=None, failure=why, retry_s=snapshot.now_s + 1.0)
    flux = replace(snapshot.sources.flux, seen_s=None, answer_due_s=None)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, claimed=False, claim=claim, flux=flux),
        slots=replace(snapshot.slots, wish=None, wish_due_s=None),
    )
