"""The snapshot once a plan's orders are given: every call under way stands in it, with its deadline.

So what is ordered counts at once, a node ordered today is not ordered again tomorrow, and an answer that never
comes is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import LEAVING, Call, CallKind, Launch, LaunchId, NodeState
from nodemanager.core.orders import (
    BootNode,
    ChangeSlots,
    ClaimInstance,
    CordonNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    KeepSpend,
    KeepSteering,
    KillHousekeeping,
    ListCloud,
    LookAtRanks,
    RecordLaunches,
    RefuseSlots,
    RequeueJob,
    StopBroker,
    SweepCloud,
    UndrainNode,
)
from nodemanager.planner.observe.backoff import BOOT_FAILURES, count_failed_boot
from nodemanager.planner.observe.rank_facts import delay_stop
from nodemanager.planner.placement.supply import create_credit
from nodemanager.planner.plan import Plan
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, move
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot, Source

NodeOrder = DrainNode | CordonNode | UndrainNode | StopBroker | KillHousekeeping | DestroyNode

# What an order to a node is while it is under way, and the move that giving it makes.
CALL_AND_MOVE: Mapping[type[NodeOrder], tuple[CallKind, Event | None]] = {
    DrainNode: (CallKind.DRAIN, Event.RETIRED),
    CordonNode: (CallKind.DRAIN, None),
    UndrainNode: (CallKind.UNDRAIN, None),
    StopBroker: (CallKind.STOP_BROKER, Event.CONDEMNED),
    KillHousekeeping: (CallKind.KILL_HOUSEKEEPING, None),
    DestroyNode: (CallKind.DESTROY, Event.CONDEMNED),
}


def commit_asks(snapshot: Snapshot, plan: Plan, policy: Policy) -> Snapshot:
    """After the plan was made and the outside asked for news, whether its actions are ordered or only said."""
    due_s = snapshot.now_s + policy.call_timeout_s
    if plan.settled:
        snapshot = replace(snapshot, unsettled_s=None)
    if plan.stands_still is not None:
        snapshot = _stops_held_up(snapshot)
    for ask in plan.asks:
        match ask:
            case ClaimInstance():
                snapshot = replace(snapshot, claim=_asked(snapshot.claim, due_s))
            case LookAtRanks():
                snapshot = replace(snapshot, flux=_asked(snapshot.flux, due_s))
            case ListCloud():
                snapshot = replace(snapshot, cloud=_asked(snapshot.cloud, due_s))
            case SweepCloud():
                snapshot = replace(snapshot, swept_s=snapshot.now_s)
            case KeepSteering():
                snapshot = replace(snapshot, steering_write=_asked(snapshot.steering_write, due_s))
            case KeepSpend():
                snapshot = replace(snapshot, spend_write=_asked(snapshot.spend_write, due_s))
            case _:
                assert_never(ask)
    return snapshot


def _stops_held_up(snapshot: Snapshot) -> Snapshot:
    """While nothing is decided no stop gets any further."""
    leaving = [node for node in node_index_of(snapshot).to_check.values() if node.state in LEAVING]
    return with_nodes(snapshot, {node.id: delay_stop(node) for node in leaving if not node.stop_delayed})


def commit_actions(snapshot: Snapshot, plan: Plan, policy: Policy) -> Snapshot:  # noqa: C901, PLR0912 - one arm an order
    """After the plan's actions were ordered."""
    changed: dict[LaunchId, Node] = {}
    strays = dict(snapshot.strays)
    credit = create_credit(snapshot, policy)
    for action in plan.actions:
        match action:
            case BootNode(launch=launch):
                changed[launch.id] = _call(_leased(launch, snapshot), CallKind.RECORD, snapshot, policy)
            case RecordLaunches(launches=launches):
                for launch in launches:
                    known = changed.get(launch.id) or snapshot.nodes.get(launch.id)
                    changed[launch.id] = _call(known or _found(launch, snapshot), CallKind.RECORD, snapshot, policy)
            case CreateNode(launch=launch, node_type=node_type):
                credit -= 1
                node = _latest(launch.id, changed, snapshot)
                sent = {"create_sent_s": snapshot.now_s, "image": node_type.image}
                changed[launch.id] = _call(node, CallKind.CREATE, snapshot, policy, **sent)
            case DestroyNode(launch=None, provider_id=provider_id):
                again_s = snapshot.now_s + policy.relist_s
                strays[provider_id] = replace(strays[provider_id], destroy_after_s=again_s)
            case CordonNode(launch=id_) if id_ not in snapshot.nodes:
                looked_s = snapshot.now_s + policy.probe_s
                for provider_id, stray in snapshot.strays.items():
                    if stray.node.identity is not None and stray.node.identity.launch == id_:
                        strays[provider_id] = replace(stray, destroy_after_s=looked_s)
            case EndLease(launch=launch):
                node = _latest(launch.id, changed, snapshot)
                changed[launch.id] = _call(node, CallKind.END_LEASE, snapshot, policy)
            case DrainNode() | CordonNode() | UndrainNode() | StopBroker() | KillHousekeeping() | DestroyNode():
                if action.launch is None:
                    continue
                node = _latest(action.launch, changed, snapshot)
                if isinstance(action, DrainNode) and action.reason.code in BOOT_FAILURES:
                    snapshot = _boot_given_up(snapshot, node, action.reason.code, policy)
                changed[action.launch] = _ordered(node, action, snapshot, policy)
            case RequeueJob(job=job):
                snapshot = replace(snapshot, requeued=snapshot.requeued | {job})
            case ChangeSlots() | RefuseSlots():
                snapshot = replace(snapshot, wish_due_s=snapshot.now_s + policy.call_timeout_s)
            case _:
                assert_never(action)
    return replace(
        with_nodes(snapshot, changed),
        strays=strays,
        create_credit=credit,
        create_credit_s=snapshot.now_s,
    )


def _latest(id_: LaunchId, changed: Mapping[LaunchId, Node], snapshot: Snapshot) -> Node:
    """The node after the orders before this one."""
    return changed.get(id_) or snapshot.nodes[id_]


def _boot_given_up(snapshot: Snapshot, node: Node, why: str, policy: Policy) -> Snapshot:
    """Once for a node: its drain may be ordered again."""
    return count_failed_boot(snapshot, node, why, policy) if node.state is NodeState.BOOTING else snapshot


def _asked(source: Source, due_s: float) -> Source:
    return replace(source, answer_due_s=due_s)


def _call(node: Node, kind: CallKind, snapshot: Snapshot, policy: Policy, **otherwise: Any) -> Node:
    return replace(node, call=_sent(kind, snapshot, policy), **otherwise)


def _sent(kind: CallKind, snapshot: Snapshot, policy: Policy) -> Call:
    return Call(kind, snapshot.now_s, snapshot.now_s + policy.call_timeout_s)


def _ordered(node: Node, order: NodeOrder, snapshot: Snapshot, policy: Policy) -> Node:
    kind, event = CALL_AND_MOVE[type(order)]
    now_s = snapshot.now_s
    changes: dict[str, Any] = {"call": _sent(kind, snapshot, policy)}
    if isinstance(order, DrainNode):
        again = node.retired_s is not None and node.retiring is not None
        retired_s = node.retired_s if again else now_s
        changes |= {"retiring": order.reason, "retired_s": retired_s, "drained_s": None, "broker_told_s": None}
        changes["stop_delayed"] = again and node.stop_delayed
    if isinstance(order, CordonNode) and order.text == drain_text(node.id):
        changes["retiring"] = order.reason  # it goes once its jobs have ended
    if isinstance(order, UndrainNode):
        changes["drained_s"] = None  # whatever becomes of it, the second look has to be taken anew
    # A drain or a destroy may be ordered again; the move was made the first time.
    if event is not None and not _there_already(node, event):
        return move(node, event, now_s, **changes)
    return replace(node, **changes)


def _there_already(node: Node, event: Event) -> bool:
    return (event is Event.RETIRED and node.state in (NodeState.DRAINING, NodeState.STOPPING)) or (
        event is Event.CONDEMNED and node.state is NodeState.STOPPING
    )


def _leased(launch: Launch, snapshot: Snapshot) -> Node:
    return Node(launch, NodeState.REQUESTED, since_s=snapshot.now_s, requested_s=snapshot.now_s)


def _found(launch: Launch, snapshot: Snapshot) -> Node:
    """A stray that gets its lease back. Its create happened once; the next list pairs it."""
    age_s = max(0.0, snapshot.wall_at - launch.requested_at)
    return replace(
        _leased(launch, snapshot),
        adopted=True,
        requested_s=snapshot.now_s - age_s,
        create_sent_s=snapshot.now_s,
        known_s=snapshot.now_s,
    )
