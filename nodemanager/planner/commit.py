"""Record a plan's orders in the snapshot: every call in flight is in it, with its deadline.

So an order counts at once, no order is given twice, and a missing answer is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import NodeLoad
from nodemanager.core.nodes import LEAVING, Call, CallKind, Launch, LaunchId, NodeState, ProviderId
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
from nodemanager.core.slots import CloudName
from nodemanager.planner.backoff.boot_failures import count_failed_boot
from nodemanager.planner.cost.create_calls import create_calls, create_credit
from nodemanager.planner.observe.calls import delay_stop
from nodemanager.planner.observe.held_jobs import commit_copy_order
from nodemanager.planner.plan import Action, Plan
from nodemanager.planner.requeue import CopyOrder
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.lifecycle import Event, move
from nodemanager.planner.state.node import Create, Listing, Node, Stop
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Source

JobOrder = RequeueJob | CopyOrder | HoldJobs | ReleaseJobs | DelegateJob | ChangeSlots | RefuseSlots
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


def commit_actions(snapshot: Snapshot, plan: Plan, policy: Policy) -> Snapshot:
    """The snapshot after the plan's actions were ordered. Not for observe mode."""
    orders = _Orders(snapshot, policy)
    for action in plan.actions:
        orders.commit(action)
    return orders.result()


class _Orders:
    """The orders of one plan, as they are committed one by one. Each sees what those before it changed."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._nodes: dict[LaunchId, Node] = {}  # the changed ones
        self._strays = {name: dict(account.strays) for name, account in snapshot.accounts.items()}
        self._credit = {name: create_credit(snapshot, policy, name) for name in policy.cloud_names}
        self._calls = {name: create_calls(snapshot, policy, name) for name in policy.cloud_names}

    def commit(self, action: Action) -> None:
        """Commit the next order."""
        match action:
            case BootNode(launch=launch, load=load):
                self._record(_requested_node(launch, self._snapshot, load))
            case RecordLaunches(launches=launches):
                for launch in launches:
                    known = self._nodes.get(launch.id) or self._snapshot.nodes.get(launch.id)
                    self._record(known or _readopted_stray(launch, self._snapshot))
            case CreateNode():
                self._create(action)
            case DestroyNode(launch=None, provider_id=provider_id, cloud=name):
                self._leave_stray_alone(name, provider_id, self._policy.timing.relist_s)
            case CordonNode(launch=id_) if id_ not in self._snapshot.nodes:
                self._cordon_stray(id_)
            case EndLease(launch=launch):
                self._nodes[launch.id] = self._with_call(self._node(launch.id), CallKind.END_LEASE)
            case DrainNode() | CordonNode() | UndrainNode() | StopBroker() | KillHousekeeping() | DestroyNode():
                self._order_node(action)
            case _:
                self._snapshot = _after_order_for_jobs(self._snapshot, action, self._policy)

    def result(self) -> Snapshot:
        """The snapshot after all orders."""
        snapshot = self._snapshot
        accounts = {
            name: replace(
                snapshot.account_of(name),
                strays=self._strays.get(name, {}),
                create_credit=self._credit.get(name, 0.0),
                create_calls_credit=self._calls[name].credit if name in self._calls else 0.0,
                create_credit_s=snapshot.now_s,
            )
            for name in {**self._strays, **self._credit}
        }
        return replace(with_nodes(snapshot, self._nodes), accounts=accounts)

    def _node(self, id_: LaunchId) -> Node:
        """The node after the earlier orders."""
        return self._nodes.get(id_) or self._snapshot.nodes[id_]

    def _with_call(self, node: Node, kind: CallKind) -> Node:
        return replace(node, call=_new_call(kind, self._snapshot, self._policy))

    def _record(self, node: Node) -> None:
        self._nodes[node.id] = self._with_call(node, CallKind.RECORD)

    def _create(self, order: CreateNode) -> None:
        cloud = self._policy.only_cloud(order.node_type.cloud)
        self._credit[cloud] -= 1
        self._calls[cloud].take(order)
        node = self._node(order.launch.id)
        create = replace(node.create, sent_s=self._snapshot.now_s, image=order.node_type.image)
        self._nodes[node.id] = self._with_call(replace(node, create=create), CallKind.CREATE)

    def _cordon_stray(self, id_: LaunchId) -> None:
        """A stray is drained first, and looked at once more before it is destroyed."""
        for name, account in self._snapshot.accounts.items():
            for provider_id, stray in account.strays.items():
                if stray.node.identity is not None and stray.node.identity.launch == id_:
                    self._leave_stray_alone(name, provider_id, self._policy.timing.probe_s)

    def _leave_stray_alone(self, cloud: CloudName, provider_id: ProviderId, for_s: float) -> None:
        stray = self._strays[cloud][provider_id]
        self._strays[cloud][provider_id] = replace(stray, destroy_after_s=self._snapshot.now_s + for_s)

    def _order_node(self, order: NodeOrder) -> None:
        if order.launch is None:
            return
        node = self._node(order.launch)
        if isinstance(order, DrainNode) and order.boot_failed:
            self._snapshot = count_failed_boot(self._snapshot, node, order.reason.code, self._policy)
        self._nodes[order.launch] = _after_order(node, order, self._snapshot, self._policy)


def _after_order_for_jobs(snapshot: Snapshot, order: JobOrder, policy: Policy) -> Snapshot:
    """The snapshot after an order that concerns no node: for jobs, or for the slots."""
    due_s = snapshot.now_s + policy.calls.call_timeout_s
    match order:
        case RequeueJob(job=job):
            requeued = snapshot.queues.requeued | {job}
            return replace(snapshot, queues=replace(snapshot.queues, requeued=requeued))
        case ReadResult(job=job) | StartCopy(job=job) | CancelCopy(job=job):
            return commit_copy_order(snapshot, job, policy.calls.call_timeout_s)
        case HoldJobs() | ReleaseJobs():
            hold_write = _await_answer(snapshot.queues.hold_write, due_s)
            return replace(snapshot, queues=replace(snapshot.queues, hold_write=hold_write))
        case DelegateJob(job=job):
            ordered = {**snapshot.peers.ordered, job: snapshot.now_s + policy.fixed.order_good_s}
            return replace(snapshot, peers=replace(snapshot.peers, ordered=ordered))
        case ChangeSlots() | RefuseSlots():
            return replace(snapshot, slots=replace(snapshot.slots, wish_due_s=due_s))
        case _:
            assert_never(order)


def _await_answer(source: Source, due_s: float) -> Source:
    return replace(source, answer_due_s=due_s)


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
