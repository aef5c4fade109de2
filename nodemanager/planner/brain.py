"""The decision loop: facts and times go in, decisions come out.

``Brain`` owns the snapshot. The manager actor, the replay of ``simulate`` and the tests all drive it::

    brain = Brain(policy)
    brain.advance(tick)                  # the time
    brain.take(fact)                     # what happened
    if brain.is_due(now_s):
        decision = brain.decide()        # carry out decision.asks and decision.orders

The same policy, facts and times give the same decisions. Nothing is sent or read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import assert_never

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import Fact, QueueSeen, Tick
from nodemanager.core.jobs import Job, JobId, NodeLoad, UnreadableJob
from nodemanager.core.nodes import LEAVING, Call, CallKind, Launch, LaunchId, NodeState, ProviderId
from nodemanager.core.notation import escape_unprintable
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
from nodemanager.planner.breakers import count_failed_boot
from nodemanager.planner.calls import commit_copy_order, delay_stop
from nodemanager.planner.consolidation import with_demand
from nodemanager.planner.frozen import replace
from nodemanager.planner.hardware import check_instance, with_promises
from nodemanager.planner.node_index import node_index_of, with_node_index, with_nodes
from nodemanager.planner.observe import advance_to, observe_all
from nodemanager.planner.plan import Action, Ask, Plan, next_ask_s, plan
from nodemanager.planner.policy import Policy, schedule_changes_at, scheduled_policy
from nodemanager.planner.ranks_and_queue import STARTED, rank_index_of, with_policy
from nodemanager.planner.requeue import CopyOrder
from nodemanager.planner.slot_types import with_slot_types
from nodemanager.planner.snapshot import Create, Event, Listing, Node, Snapshot, Source, Stop, move
from nodemanager.planner.timings import create_calls, create_credit
from nodemanager.planner.trust import settles_at_s

# Asks that change something outside. An observer makes none of them.
CHANGING_ASKS = (SweepCloud, KeepSteering, KeepSpend)

AGAIN_MIN_S = 0.001  # a rounding error may leave something to wait for although its time has come


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, in this order, and when to decide again."""

    asks: tuple[Ask, ...]
    orders: tuple[Action, ...]  # empty if the brain only observes
    snapshot: Snapshot  # with the asks and orders counted as given
    plan: Plan  # why: the reason of every node and job
    policy: Policy
    next_at_s: float  # decide again then, if no fact arrives before


class Brain:
    """Owns the snapshot and the policy, and makes the decisions.

    ``acts``: False if nothing that it decides is carried out. ``hears_all``: True in a replay, which reports every
    change and answers every call in time. Then no list is asked for, and no deadline of a call or list counts.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        acts: bool = True,
        hears_all: bool = False,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._site_policy = self._policy = policy
        self._scheduled = -inf, -inf  # from when and until when the schedules' settings in the policy apply
        self._acts = acts
        self._hears_all = hears_all
        self._snapshot = with_node_index(snapshot) if snapshot is not None else Snapshot()
        self._tick: Tick | None = None  # the latest, until the snapshot has been advanced to it
        self._has_news = True
        self._next_at_s = 0.0

    @property
    def snapshot(self) -> Snapshot:
        """All that is known now."""
        self._catch_up()
        return self._snapshot

    @property
    def policy(self) -> Policy:
        """The policy in use: the site's, with slots and types as the instance has them."""
        return self._policy

    def advance(self, tick: Tick) -> None:
        """Take the time. A tick that leads to no decision costs nothing."""
        self._tick = tick

    def take(self, *facts: Fact) -> None:
        """Take facts in, in the order in which they arrived."""
        self._catch_up()
        before = self._snapshot
        try:
            after = observe_all(before, facts, self._policy)
        except Exception as fault:
            if self._hears_all or len(facts) != 1 or not isinstance(facts[0], QueueSeen):
                raise
            after = self._set_aside(facts[0], facts[0].jobs, fault, lambda _: None)
        self._snapshot = after
        self._has_news = True
        if after.slots.types is not before.slots.types or after.slots.promised is not before.slots.promised:
            self.use_policy(self._site_policy)

    def use_policy(self, policy: Policy) -> None:
        """Decide by this policy from now on, and check the instance against it again.

        The site states the slots' types as they were at the start; the instance knows the present ones.
        """
        snapshot = self._snapshot
        self._site_policy = policy
        self._scheduled = snapshot.wall_at, schedule_changes_at(policy, snapshot.wall_at)
        policy = scheduled_policy(policy, snapshot.wall_at)
        self._policy = with_slot_types(with_promises(policy, snapshot.slots.promised), snapshot.slots.types)
        # Kept for all plans by this policy; each plan would make its own.
        ranks = rank_index_of(snapshot.ranks, snapshot.indexes.ranks, self._policy)
        snapshot = replace(snapshot, indexes=replace(snapshot.indexes, ranks=with_policy(ranks, self._policy)))
        self._snapshot = check_instance(snapshot, self._policy)
        self._has_news = True

    def is_due(self, now_s: float) -> bool:
        """Whether a fact has arrived since the last decision, or its ``next_at_s`` has come."""
        return self._has_news or now_s >= self._next_at_s

    def decide(self) -> Decision:
        """Decide what to do now, and count it as done: no order is given twice."""
        self._catch_up()
        made = self._plan_for_all()
        known = commit_asks(self._snapshot, made, self._policy)
        if made.basis is not None and self._policy.upkeep.consolidate:
            known = with_demand(known, made.basis.emptying.demand)
        if self._acts:
            known = commit_actions(known, made, self._policy)
        self._snapshot = known
        self._has_news = False
        self._next_at_s = self._again_at_s(made)
        return Decision(
            asks=tuple(ask for ask in made.asks if self._acts or not isinstance(ask, CHANGING_ASKS)),
            orders=made.actions if self._acts else (),
            snapshot=known,
            plan=made,
            policy=self._policy,
            next_at_s=self._next_at_s,
        )

    def skip(self) -> None:
        """Leave out a decision of a settled queue that would give no order: news is counted from now on."""
        if self.snapshot.news.unsettled_s is not None:
            self._snapshot = replace(self._snapshot, news=replace(self._snapshot.news, unsettled_s=None))

    def _plan_for_all(self) -> Plan:
        """Make the plan. If a job makes that fail, set it aside and plan for the others (doc/decisions/0038)."""
        try:
            return self._plan_from(self._snapshot)
        except Exception as fault:
            seen_s = self._snapshot.sources.queue.seen_s
            if self._hears_all or seen_s is None:
                raise
            suspects = self._snapshot.jobs.values()
            self._snapshot = self._set_aside(QueueSeen(seen_s), suspects, fault, self._plan_from)
            return self._plan_from(self._snapshot)

    def _set_aside(
        self, fact: QueueSeen, suspects: Iterable[Job], fault: Exception, then: Callable[[Snapshot], object]
    ) -> Snapshot:
        """The snapshot after the fact, with the jobs set aside that make it fail, or ``then``."""
        before = self._snapshot

        def fails(changed: QueueSeen) -> bool:
            try:
                then(observe_all(before, [changed], self._policy))
            except Exception:  # noqa: BLE001 - any failure; which one is in the job's reason
                return True
            return False

        return observe_all(before, [without_culprits(fact, suspects, fault, fails)], self._policy)

    def _plan_from(self, snapshot: Snapshot) -> Plan:
        made = plan(snapshot, self._policy)
        if not self._hears_all:
            _ = made.warnings, made.types, made.count_by_reason()  # each is kept; they may fail too
            return made
        return replace(made, asks=tuple(ask for ask in made.asks if isinstance(ask, KeepSpend)))

    def _catch_up(self) -> None:
        if self._tick is not None:
            self._snapshot, self._tick = advance_to(self._snapshot, self._tick), None
            from_at, until_at = self._scheduled
            if self._site_policy.has_schedules and not from_at <= self._snapshot.wall_at < until_at:
                self.use_policy(self._site_policy)

    def _again_at_s(self, made: Plan) -> float:
        """When to decide again if nothing is heard before: the first of all times that something waits for."""
        known, now_s = self._snapshot, self._snapshot.now_s
        schedule_s = now_s + (self._scheduled[1] - known.wall_at) if self._site_policy.has_schedules else inf
        lapses_s = now_s + (known.operator.steering.lapses_at - known.wall_at)
        moments = [made.again_at_s, _settles_s(known, made, self._policy), schedule_s, lapses_s]
        if not self._hears_all:
            moments += [next_ask_s(known, self._policy), known.slots.wish_due_s or inf]
            moments += [node.call.deadline_s for node in node_index_of(known).with_call.values() if node.call]
            moments += _stale_times_s(known, self._policy)
        first_s = min(moments)
        return first_s if first_s > now_s else now_s + AGAIN_MIN_S


def _settles_s(known: Snapshot, made: Plan, policy: Policy) -> float:
    """When the queue will have settled, if the plan bought nothing because it had not."""
    if made.settled or made.stands_still is not None:
        return inf
    latest_s = inf if known.news.unsettled_s is None else known.news.unsettled_s + policy.timing.settle_max_s
    moments = (settles_at_s(known, policy), latest_s)
    return min((at_s for at_s in moments if at_s > known.now_s), default=inf)


def _stale_times_s(known: Snapshot, policy: Policy) -> list[float]:
    """When each source will be too old to decide on."""
    clouds = (account.source for account in known.accounts.values())
    seen = (source.seen_s for source in (known.sources.queue, known.sources.flux, *clouds))
    stale = (at_s + policy.timing.stale_after_s for at_s in seen if at_s is not None)
    return [at_s for at_s in stale if at_s >= known.now_s]


# --- record a plan's orders in the snapshot: every call in flight is in it, with its deadline -------------
#
# So an order counts at once, no order is given twice, and a missing answer is noticed.


JobOrder = RequeueJob | CopyOrder | HoldJobs | ReleaseJobs | DelegateJob | ChangeSlots | RefuseSlots
NodeOrder = DrainNode | CordonNode | UndrainNode | StopBroker | KillHousekeeping | DestroyNode

# The move in the lifecycle that giving an order to a node makes.
MOVES: Mapping[type[NodeOrder], Event] = {
    DrainNode: Event.RETIRED,
    StopBroker: Event.CONDEMNED,
    DestroyNode: Event.CONDEMNED,
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
    event, now_s = MOVES.get(type(order)), snapshot.now_s
    call, stop = _new_call(order.call, snapshot, policy), _stop_after_order(node.stop, order, node.id, now_s)
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


# --- find the jobs on which this program fails, so that all others are served without them ----------------
#
# Deciding is pure: what failed fails again with the same jobs, and does not without the culprits. So a search by
# halves finds them. A failure that no job causes is not contained: it ends the process.


SINGLE_MAX = 8  # so many requests are found one by one; then all jobs of the next culprit's user are set aside
WHY_MAX = 300  # characters


def without_culprits(
    fact: QueueSeen, known: Iterable[Job], fault: Exception, fails: Callable[[QueueSeen], bool]
) -> QueueSeen:
    """Return the fact with the culprits as jobs that are set aside. Raises ``fault`` if no job is one.

    ``known``: the jobs to suspect. ``fails``: whether this program fails if it takes such a fact.
    """
    jobs = list(known)

    def without(culprits: Collection[JobId]) -> QueueSeen:
        why = escape_unprintable(f"{type(fault).__name__}: {fault}"[:WHY_MAX])
        bad = (
            UnreadableJob(job.id, why, job.state in STARTED, job.userid, set_aside=True)
            for job in jobs
            if job.id in culprits
        )
        kept = tuple(job for job in fact.jobs if job.id not in culprits)
        return replace(fact, jobs=kept, unreadable=(*fact.unreadable, *bad))

    found: set[JobId] = set()
    everything = {job.id for job in jobs}
    if fails(without(everything)):
        raise fault
    for count in range(len(jobs) + 1):
        if not fails(without(found)):
            return without(found)
        groups = _groups([job for job in jobs if job.id not in found], by_user=count >= SINGLE_MAX)
        found |= _first_culprit(groups, lambda suspects: fails(without(everything - suspects)))
    raise fault


def _groups(jobs: Sequence[Job], *, by_user: bool) -> list[frozenset[JobId]]:
    """Jobs that are culprits together, or not: those of one user with equal requests, or all of one user."""
    groups: dict[object, set[JobId]] = {}
    for job in jobs:
        key = job.userid if by_user else (job.userid, job.request, job.state in STARTED)
        groups.setdefault(key, set()).add(job.id)
    return [frozenset(ids) for ids in groups.values()]


def _first_culprit(groups: Sequence[frozenset[JobId]], fails: Callable[[set[JobId]], bool]) -> frozenset[JobId]:
    """The last group of the shortest beginning of ``groups`` that fails."""
    low, high = 0, len(groups)  # the first ``low`` groups do not fail, the first ``high`` do
    while high - low > 1:
        middle = (low + high) // 2
        if fails(set().union(*groups[:middle])):
            high = middle
        else:
            low = middle
    return groups[high - 1]
