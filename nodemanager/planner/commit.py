"""Record a plan's orders in the snapshot: every call in flight is in it, with its deadline.

So an order counts at once, no order is given twice, and a missing answer is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import NodeLoad
from nodemanager.core.nodes import LEAVING, Call, CallKind, Launch, LaunchId, NodeState
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    ClaimInstance,
    CordonNode,
    CreateNode,
    DelegateJob,
    DestroyNode,
    DrainNode,
    EndLease,
    HoldJobs,
    KeepSpend,
    KeepSteering,
    KillHousekeeping,
    ListCloud,
    LookAtRanks,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    StartCopy,
    StopBroker,
    SweepCloud,
    UndrainNode,
)
from nodemanager.planner.backoff.boot_failures import count_failed_boot
from nodemanager.planner.cost.create_calls import create_calls, create_credit
from nodemanager.planner.observe.calls import delay_stop
from nodemanager.planner.observe.held_jobs import commit_copy_order
from nodemanager.planner.plan import Plan
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, move
from nodemanager.planner.state.node import Create, Listing, Node, Stop
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Source

NodeOrder = DrainNode | CordonNode | UndrainNode | StopBroker | KillHousekeeping | DestroyNode

# For each order to a node: the kind of its call, and the move in the lifecycle that giving it makes.
CALL_AND_MOVE: Mapping[type[NodeOrder], tuple[CallKind, Event | None]] = {
    DrainNode: (CallKind.DRAIN, Event.RETIRED),
    CordonNode: (CallKind.DRAIN, None),
    UndrainNode: (CallKind.UNDRAIN, None),
    StopBroker: (CallKind.STOP_BROKER, Event.CONDEMNED),
    KillHousekeeping: (CallKind.KILL_HOUSEKEEPING, None),
    DestroyNode: (CallKind.DESTROY, Event.CONDEMNED),
}


def commit_asks(snapshot: Snapshot, plan: Plan, policy: Policy) -> Snapshot:
    """The snapshot after the plan's asks were sent. Call it for every plan, also in observe mode."""
    due_s = snapshot.now_s + policy.calls.call_timeout_s
    if plan.settled:
        snapshot = replace(snapshot, news=replace(snapshot.news, unsettled_s=None))
    if plan.stands_still is not None:
        snapshot = _mark_stops_delayed(snapshot)
    for ask in plan.asks:
        match ask:
            case ClaimInstance():
                snapshot = replace(
                    snapshot, sources=replace(snapshot.sources, claim=_await_answer(snapshot.sources.claim, due_s))
                )
            case LookAtRanks():
                snapshot = replace(
                    snapshot, sources=replace(snapshot.sources, flux=_await_answer(snapshot.sources.flux, due_s))
                )
            case ListCloud(cloud=name):
                account = snapshot.account_of(name)
                answer_due_s = snapshot.now_s + policy.calls_of(name).call_timeout_s
                source = _await_answer(account.source, answer_due_s)
                snapshot = snapshot.with_account(name, replace(account, source=source))
            case SweepCloud(cloud=name):
                swept = replace(snapshot.account_of(name), swept_s=snapshot.now_s)
                snapshot = snapshot.with_account(name, swept)
            case KeepSteering():
                snapshot = replace(
                    snapshot,
                    operator=replace(
                        snapshot.operator, steering_write=_await_answer(snapshot.operator.steering_write, due_s)
                    ),
                )
            case KeepSpend():
                snapshot = replace(
                    snapshot,
                    spending=replace(snapshot.spending, write=_await_answer(snapshot.spending.write, due_s)),
                )
            case _:
                assert_never(ask)
    return snapshot


def _mark_stops_delayed(snapshot: Snapshot) -> Snapshot:
    """Mark every stop as delayed: while nothing is decided, none proceeds."""
    leaving = [node for node in node_index_of(snapshot).to_check.values() if node.state in LEAVING]
    return with_nodes(snapshot, {node.id: delay_stop(node) for node in leaving if not node.stop.delayed})


def commit_actions(snapshot: Snapshot, plan: Plan, policy: Policy) -> Snapshot:  # noqa: C901, PLR0912 - one arm an order
    """The snapshot after the plan's actions were ordered. Not for observe mode."""
    changed: dict[LaunchId, Node] = {}
    strays = {name: dict(account.strays) for name, account in snapshot.accounts.items()}
    credit = {name: create_credit(snapshot, policy, name) for name in policy.cloud_names}
    calls = {name: create_calls(snapshot, policy, name) for name in policy.cloud_names}
    for action in plan.actions:
        match action:
            case BootNode(launch=launch, load=load):
                changed[launch.id] = _with_call(
                    _requested_node(launch, snapshot, load), CallKind.RECORD, snapshot, policy
                )
            case RecordLaunches(launches=launches):
                for launch in launches:
                    known = changed.get(launch.id) or snapshot.nodes.get(launch.id)
                    changed[launch.id] = _with_call(
                        known or _readopted_stray(launch, snapshot), CallKind.RECORD, snapshot, policy
                    )
            case CreateNode(launch=launch, node_type=node_type):
                credit[policy.only_cloud(node_type.cloud)] -= 1
                calls[policy.only_cloud(node_type.cloud)].take(action)
                node = _node_after(launch.id, changed, snapshot)
                create = replace(node.create, sent_s=snapshot.now_s, image=node_type.image)
                changed[launch.id] = _with_call(replace(node, create=create), CallKind.CREATE, snapshot, policy)
            case DestroyNode(launch=None, provider_id=provider_id, cloud=name):
                again_s = snapshot.now_s + policy.timing.relist_s
                strays[name][provider_id] = replace(strays[name][provider_id], destroy_after_s=again_s)
            case CordonNode(launch=id_) if id_ not in snapshot.nodes:
                looked_s = snapshot.now_s + policy.timing.probe_s
                for name, account in snapshot.accounts.items():
                    for provider_id, stray in account.strays.items():
                        if stray.node.identity is not None and stray.node.identity.launch == id_:
                            strays[name][provider_id] = replace(stray, destroy_after_s=looked_s)
            case EndLease(launch=launch):
                node = _node_after(launch.id, changed, snapshot)
                changed[launch.id] = _with_call(node, CallKind.END_LEASE, snapshot, policy)
            case DrainNode() | CordonNode() | UndrainNode() | StopBroker() | KillHousekeeping() | DestroyNode():
                if action.launch is None:
                    continue
                node = _node_after(action.launch, changed, snapshot)
                if isinstance(action, DrainNode) and action.boot_failed:
                    snapshot = count_failed_boot(snapshot, node, action.reason.code, policy)
                changed[action.launch] = _after_order(node, action, snapshot, policy)
            case RequeueJob(job=job):
                snapshot = replace(
                    snapshot, queues=replace(snapshot.queues, requeued=snapshot.queues.requeued | {job})
                )
            case ReadResult(job=job) | StartCopy(job=job) | CancelCopy(job=job):
                snapshot = commit_copy_order(snapshot, job, policy.calls.call_timeout_s)
            case HoldJobs() | ReleaseJobs():
                due_s = snapshot.now_s + policy.calls.call_timeout_s
                snapshot = replace(
                    snapshot,
                    queues=replace(snapshot.queues, hold_write=_await_answer(snapshot.queues.hold_write, due_s)),
                )
            case DelegateJob(job=job):
                ordered = {**snapshot.peers.ordered, job: snapshot.now_s + policy.fixed.order_good_s}
                snapshot = replace(snapshot, peers=replace(snapshot.peers, ordered=ordered))
            case ChangeSlots() | RefuseSlots():
                snapshot = replace(
                    snapshot, slots=replace(snapshot.slots, wish_due_s=snapshot.now_s + policy.calls.call_timeout_s)
                )
            case _:
                assert_never(action)
    accounts = {
        name: replace(
            snapshot.account_of(name),
            strays=strays.get(name, {}),
            create_credit=credit.get(name, 0.0),
            create_calls_credit=calls[name].credit if name in calls else 0.0,
            create_credit_s=snapshot.now_s,
        )
        for name in {**strays, **credit}
    }
    return replace(with_nodes(snapshot, changed), accounts=accounts)


def _node_after(id_: LaunchId, changed: Mapping[LaunchId, Node], snapshot: Snapshot) -> Node:
    """The node after the earlier orders of this plan."""
    return changed.get(id_) or snapshot.nodes[id_]


def _await_answer(source: Source, due_s: float) -> Source:
    return replace(source, answer_due_s=due_s)


def _with_call(node: Node, kind: CallKind, snapshot: Snapshot, policy: Policy) -> Node:
    return replace(node, call=_new_call(kind, snapshot, policy))


def _new_call(kind: CallKind, snapshot: Snapshot, policy: Policy) -> Call:
    return Call(kind, snapshot.now_s, snapshot.now_s + policy.calls.call_timeout_s)


def _after_order(node: Node, order: NodeOrder, snapshot: Snapshot, policy: Policy) -> Node:
    kind, event = CALL_AND_MOVE[type(order)]
    now_s = snapshot.now_s
    call, stop = _new_call(kind, snapshot, policy), _stop_after_order(node.stop, order, node.id, now_s)
    # A drain or a destroy may be ordered again; only the first one moves the node.
    if event is not None and not _has_moved_already(node, event):
        return move(node, event, now_s, call=call, stop=stop)
    return replace(node, call=call, stop=stop)


def _stop_after_order(stop: Stop, order: NodeOrder, id_: LaunchId, now_s: float) -> Stop:
    if isinstance(order, DrainNode):
        drained_before = stop.retired_s is not None and stop.retiring is not None
        retired_s = stop.retired_s if drained_before else now_s
        return Stop(order.reason, order.for_operator, retired_s, delayed=drained_before and stop.delayed)
    if isinstance(order, CordonNode) and order.text == drain_text(id_):
        # It leaves once its jobs have ended.
        return replace(stop, retiring=order.reason, by_operator=order.for_operator)
    if isinstance(order, UndrainNode):
        return replace(stop, drained_s=None)  # even if the undrain fails, a new second look is needed
    return stop


def _has_moved_already(node: Node, event: Event) -> bool:
    return (event is Event.RETIRED and node.state in (NodeState.DRAINING, NodeState.STOPPING)) or (
        event is Event.CONDEMNED and node.state is NodeState.STOPPING
    )


def _requested_node(launch: Launch, snapshot: Snapshot, load: NodeLoad = ()) -> Node:
    return Node(launch, NodeState.REQUESTED, since_s=snapshot.now_s, create=Create(snapshot.now_s, load=load))


def _readopted_stray(launch: Launch, snapshot: Snapshot) -> Node:
    """A node for a stray that gets its lease back. Its create was sent long ago; the next list pairs it."""
    age_s = max(0.0, snapshot.wall_at - launch.requested_at)
    return Node(
        launch,
        NodeState.REQUESTED,
        since_s=snapshot.now_s,
        create=Create(snapshot.now_s - age_s, adopted=True, sent_s=snapshot.now_s),
        listing=Listing(known_s=snapshot.now_s),
    )
