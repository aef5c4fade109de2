"""Apply what operators set: held nodes, nodes to retire, paused decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, assert_never

from nodemanager.core.drains import drain_text, hold_text
from nodemanager.core.facts import (
    DecisionsPaused,
    DecisionsResumed,
    HoldPlaced,
    NodeReleased,
    OperatorFact,
    ReplacementsRequested,
    RetirementRequested,
    SteeringKept,
    SteeringNotKept,
    SteeringSeen,
)
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.orders import CordonNode, DrainNode, EndLease, UndrainNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.records import UNSTEERED, Mark, Steering, with_words
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import with_nodes
from nodemanager.planner.snapshot import Node, Snapshot, Source

SteeredAction = CordonNode | DrainNode | UndrainNode | EndLease

KEEP_AGAIN_S = 1.0


# --- orders ----------------------------------------------------------------------------------------------


def apply_operator_fact(snapshot: Snapshot, fact: OperatorFact) -> Snapshot:
    """The snapshot after an operator's command. Commands for a node we no longer know are ignored."""
    now = snapshot.operator.steering
    match fact:
        case DecisionsPaused(mark=mark):
            return replace(
                snapshot,
                operator=replace(snapshot.operator, steering=replace(now, paused=_newest(now.paused, mark))),
            )
        case DecisionsResumed():
            return replace(snapshot, operator=replace(snapshot.operator, steering=replace(now, paused=None)))
        case HoldPlaced() | RetirementRequested() if fact.launch not in snapshot.nodes:
            return snapshot
        case HoldPlaced(launch=launch, mark=mark):
            holds = {**now.holds, launch: _newest(now.holds.get(launch), mark)}
            held = replace(
                snapshot, operator=replace(snapshot.operator, steering=replace(_without(now, launch), holds=holds))
            )
            return _change_drain_reason(held, launch, held_by_operator(holds[launch]))
        case RetirementRequested(launch=launch, mark=mark):
            retirements = {**now.retirements, launch: _newest(now.retirements.get(launch), mark)}
            retired = replace(
                snapshot,
                operator=replace(
                    snapshot.operator, steering=replace(_without(now, launch), retirements=retirements)
                ),
            )
            return _change_drain_reason(retired, launch, retired_by_operator(retirements[launch]))
        case ReplacementsRequested(launches=launches, mark=mark):
            wanted = {id_: _newest(now.replacements.get(id_), mark) for id_ in launches if id_ in snapshot.nodes}
            steering = replace(now, replacements={**now.replacements, **wanted})
            return replace(snapshot, operator=replace(snapshot.operator, steering=steering))
        case NodeReleased(launch=launch):
            return forget_steering(snapshot, launch)
        case _:
            assert_never(fact)


def _newest(earlier: Mark | None, mark: Mark) -> Mark:
    """The mark that counts: the earlier one, unless the new one gives another reason or end."""
    return earlier if earlier is not None and mark.says_as(earlier) else mark


def _change_drain_reason(snapshot: Snapshot, launch: LaunchId, reason: Reason) -> Snapshot:
    """Make the operator the reason of a drain that is under way already, so that a release undrains the node."""
    node = snapshot.nodes[launch]
    if node.state is not NodeState.DRAINING:
        return snapshot
    retired = replace(node, stop=replace(node.stop, retiring=reason, by_operator=True, retired_s=snapshot.now_s))
    return with_nodes(snapshot, {launch: retired})


def forget_steering(snapshot: Snapshot, launch: LaunchId) -> Snapshot:
    """The snapshot without an operator's hold, retirement or replacement of a launch."""
    if launch not in snapshot.operator.steering.launches:
        return snapshot
    return replace(
        snapshot, operator=replace(snapshot.operator, steering=_without(snapshot.operator.steering, launch))
    )


def _without(steering: Steering, launch: LaunchId) -> Steering:
    return replace(
        steering,
        holds={id_: mark for id_, mark in steering.holds.items() if id_ != launch},
        retirements={id_: mark for id_, mark in steering.retirements.items() if id_ != launch},
        replacements={id_: mark for id_, mark in steering.replacements.items() if id_ != launch},
    )


def withdraw_lapsed(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the settings whose time has come."""
    steering = snapshot.operator.steering
    if steering is UNSTEERED or snapshot.wall_at < steering.lapses_at:
        return snapshot
    steering = Steering(
        holds=_lasting(steering.holds, snapshot.wall_at),
        retirements=_lasting(steering.retirements, snapshot.wall_at),
        paused=steering.paused if steering.paused and not _has_lapsed(steering.paused, snapshot.wall_at) else None,
        replacements=_lasting(steering.replacements, snapshot.wall_at),
    )
    return replace(snapshot, operator=replace(snapshot.operator, steering=steering))


def _lasting(marks: Mapping[LaunchId, Mark], wall_at: float) -> Mapping[LaunchId, Mark]:
    return {launch: mark for launch, mark in marks.items() if not _has_lapsed(mark, wall_at)}


def _has_lapsed(mark: Mark, wall_at: float) -> bool:
    return mark.until_at is not None and mark.until_at <= wall_at


def steered_nodes(snapshot: Snapshot) -> Mapping[LaunchId, Node]:
    """The nodes that an operator keeps jobs off."""
    steering = snapshot.operator.steering
    return {id_: snapshot.nodes[id_] for id_ in (*steering.holds, *steering.retirements) if id_ in snapshot.nodes}


def count_held(snapshot: Snapshot, state: NodeState) -> int:
    """How many held nodes are in a state."""
    return sum(
        1
        for id_ in snapshot.operator.steering.holds
        if id_ in snapshot.nodes and snapshot.nodes[id_].state is state
    )


# --- orders on record -------------------------------------------------------------------------------------


def apply_steering_record(snapshot: Snapshot, on_record: Steering) -> Snapshot:
    """After the record was read: it applies, unless a change made here is not on it yet."""
    unkept = snapshot.operator.steering != snapshot.operator.steering_on_record
    steering = snapshot.operator.steering if unkept else on_record
    for launch in steering.launches:
        if launch not in snapshot.nodes:
            steering = _without(steering, launch)
    return replace(
        snapshot,
        operator=replace(
            snapshot.operator, steering=steering, steering_on_record=on_record, steering_write=Source()
        ),
    )


def apply_steering_written(snapshot: Snapshot, fact: SteeringKept | SteeringNotKept) -> Snapshot:
    """After the record was written, or the write failed: then it is tried again soon."""
    if isinstance(fact, SteeringKept):
        return replace(
            snapshot, operator=replace(snapshot.operator, steering_on_record=fact.steering, steering_write=Source())
        )
    failed = replace(
        snapshot.operator.steering_write, answer_due_s=None, failure=fact.why, retry_s=snapshot.now_s + KEEP_AGAIN_S
    )
    return replace(snapshot, operator=replace(snapshot.operator, steering_write=failed))


def apply_steering_seen(snapshot: Snapshot, fact: SteeringSeen) -> Snapshot:
    """Note whether operators can steer this manager."""
    return replace(snapshot, operator=replace(snapshot.operator, steering_lost=fact.lost))


# --- what follows for a node ------------------------------------------------------------------------------


class OperatorStep(NamedTuple):
    """The step that an operator's command requires. ``waits_for_jobs``: the node leaves once nothing runs there."""

    reason: Reason
    action: SteeredAction | None
    waits_for_jobs: bool = False


def operator_step(node: Node, steering: Steering) -> OperatorStep | None:
    """The step that an operator's command requires now; None if the other rules decide."""
    if not (steering.holds or steering.retirements or node.stop.retiring) and _drain_reason(node) is None:
        return None
    if node.state in (NodeState.REQUESTED, NodeState.STOPPING, NodeState.GONE):
        # Too early to keep jobs off it, or too late.
        return _end_unsent_lease(node, steering.retirements) if node.state is NodeState.REQUESTED else None
    if (hold := steering.holds.get(node.id)) is not None:
        return _hold(node, hold)
    if (retirement := steering.retirements.get(node.id)) is not None:
        return _retire(node, retirement)
    if _drain_reason(node) == hold_text(node.id) or (node.state is NodeState.DRAINING and node.stop.by_operator):
        return _undrain(node, because(Code.RELEASED_BY_OPERATOR))
    return None


def _hold(node: Node, mark: Mark) -> OperatorStep:
    """Hold the node. If it was leaving, it keeps our drain: between an undrain and a drain a job might start."""
    reason = held_by_operator(mark)
    return OperatorStep(reason, _cordon(node, hold_text(node.id), reason))


def _retire(node: Node, mark: Mark) -> OperatorStep | None:
    reason = retired_by_operator(mark)
    drain_reason = _drain_reason(node)
    if drain_reason == hold_text(node.id):
        return _undrain(node, reason)  # Flux keeps the reason of an existing drain, so undrain first
    if drain_reason not in (None, drain_text(node.id)):
        return None  # somebody else's drain is a hold
    if node.state is NodeState.BUSY or (node.rank is not None and node.rank.allocated):
        cordon = _cordon(node, drain_text(node.id), reason)
        return OperatorStep(reason, cordon, waits_for_jobs=cordon is None)
    if node.state is NodeState.DRAINING:
        return None
    return OperatorStep(reason, DrainNode(node.id, node.launch.rank, reason, for_operator=True))


def _end_unsent_lease(node: Node, retirements: Mapping[LaunchId, Mark]) -> OperatorStep | None:
    """End the lease of a node that is to be retired before its create was sent."""
    mark = retirements.get(node.id)
    if mark is None or not node.create.recorded or node.create.sent_s is not None:
        return None
    reason = retired_by_operator(mark)
    return OperatorStep(reason, EndLease(node.launch, reason))


def _cordon(node: Node, text: str, reason: Reason) -> CordonNode | None:
    """A drain for the node; None if it is drained already and so takes no job."""
    if _drain_reason(node) is not None:
        return None
    return CordonNode(node.id, node.launch.rank, text, reason, for_operator=True)


def _undrain(node: Node, reason: Reason) -> OperatorStep:
    return OperatorStep(reason, UndrainNode(node.id, node.launch.rank, reason))


def _drain_reason(node: Node) -> str | None:
    return node.rank.drain_reason if node.rank is not None else None


def held_by_operator(mark: Mark) -> Reason:
    """The reason of a node that an operator holds."""
    return with_words(because(Code.HELD_BY_OPERATOR, by=mark.by, since_at=mark.at), mark)


def retired_by_operator(mark: Mark) -> Reason:
    """The reason of a node that an operator retires."""
    return with_words(because(Code.RETIRED_BY_OPERATOR, by=mark.by, since_at=mark.at), mark)
