"""The manager actor: it passes facts and times to the brain, and sends the brain's orders to the other actors.

Each fact is taken in at once. A decision is made only at a tick, if there is a new fact or the next decision is
due. So facts that arrive together are decided on together, and time alone can lead to a decision too. Any other
tick only records the time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.decision_log import DecisionLog
from nodemanager.actors.job_memos import JobMemos
from nodemanager.actors.messages import Begin, Mailbox, ManagerMessage, UsePolicy
from nodemanager.core.facts import (
    ClaimHeld,
    CloudCallFailed,
    Fact,
    NodeCreated,
    NodeDestroyed,
    OrderLapsed,
    QueueSeen,
    Tick,
)
from nodemanager.core.nodes import Launch
from nodemanager.core.orders import (
    BootNode,
    ClaimInstance,
    CloudEffect,
    CloudOrder,
    CreateNode,
    DelegateJob,
    DestroyNode,
    KeepSpend,
    KeepSteering,
    ListCloud,
    LookAtRanks,
    PostRoster,
    RecordLaunches,
    ShowOnJobs,
    SweepCloud,
    Together,
    WithDeadline,
    key_of_call,
)
from nodemanager.core.slots import CloudName
from nodemanager.planner.brain import Brain, Decision
from nodemanager.planner.plan import Ask, Plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Snapshot, roster

POST_EVERY_S = 1.0
# Without news, a decision is made and published all the same: for the memos of waiting jobs, and so that figures
# are current and a manager that is stuck is noticed.
SHOW_WAITING_EVERY_S = 1.0
SHOW_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Publication:
    """One snapshot with its plan, for status, metrics, history and demo. Never changed, only replaced.

    ``facts``: the facts taken in since the publication before. ``phases_s``: how long observing, planning and
    acting took, in real seconds.
    """

    snapshot: Snapshot
    plan: Plan
    policy: Policy
    acts: bool
    facts: tuple[Fact, ...] = ()
    phases_s: Mapping[str, float] = field(default_factory=dict)


class Manager(CrashOnlyActor):
    """The brain's mailbox. ``acts`` is false if decisions are only logged and published."""

    def __init__(self, policy: Policy, acts: bool, publish: Callable[[Publication], None], fate: Fate) -> None:
        super().__init__(fate)
        self._brain = Brain(policy, acts=acts)
        self._acts = acts
        self._publish = publish
        self._log = DecisionLog(acts)
        self._addresses: Begin | None = None
        self._workers: Mapping[CloudName, WorkerPool] = {}
        self._post_by_s = 0.0
        self._show_by_s = 0.0
        self._memos = JobMemos()
        self._facts: list[Fact] = []
        self._phases_s: defaultdict[str, float] = defaultdict(float)

    def on_receive(self, message: ManagerMessage) -> None:
        match message:
            case Begin():
                self._addresses = message
                self._workers = {name: WorkerPool(cloud.workers) for name, cloud in message.clouds.items()}
            case Tick():
                self._brain.advance(message)
                if self._addresses is not None:
                    self._act_if_due(message.now_s, self._addresses)
            case UsePolicy(policy=policy):
                self._brain.use_policy(policy)
            case _:
                self._take_fact(message)

    def _take_fact(self, fact: Fact) -> None:
        began_s = time.perf_counter()
        before = self._brain.snapshot
        self._log.log_fact(fact, before)
        if (subject := _answered_subject(fact)) is not None:
            for workers in self._workers.values():
                workers.mark_done(subject)
        self._facts.append(fact)
        self._remove_memos(fact)
        self._brain.take(fact)
        self._log.log_moves(before, self._brain.snapshot)
        self._log.log_set_aside(before, self._brain.snapshot)
        self._phases_s["observe"] += time.perf_counter() - began_s

    def _remove_memos(self, fact: Fact) -> None:
        """Remove the memo of each job that has just started. A short job may have ended before the next plan."""
        match fact:
            case ClaimHeld():
                self._memos.distrust()
            case QueueSeen() if (started := self._memos.removals(fact)) and self._addresses is not None:
                self._addresses.flux.tell(ShowOnJobs(started))
            case _:
                pass

    def _act_if_due(self, now_s: float, addresses: Begin) -> None:
        if self._brain.is_due(now_s) or now_s >= self._show_by_s:
            self._act(addresses)
        elif addresses.join is not None and now_s >= self._post_by_s:
            # The join actor answers with the reports of nodes, for example that a spot node is reclaimed.
            self._post_roster(addresses)

    def _act(self, addresses: Begin) -> None:
        """Have the brain decide, send what it decided, and publish it."""
        began_s = time.perf_counter()
        before = self._brain.snapshot
        decision = self._brain.decide()
        decided_s = time.perf_counter()
        self._log.log_set_aside(before, decision.snapshot)
        for ask in decision.asks:
            _send_ask(ask, addresses)
        self._log.log_plan(decision.plan)
        if self._acts:
            self._send_orders(decision, addresses)
            self._log.log_moves(before, decision.snapshot)
            self._post_roster(addresses)
            if texts := self._memos.changes(decision.snapshot, decision.plan):
                addresses.flux.tell(ShowOnJobs(texts))
        self._phases_s |= {"plan": decided_s - began_s, "act": time.perf_counter() - decided_s}
        every_s = SHOW_WAITING_EVERY_S if decision.plan.jobs else SHOW_EVERY_S
        self._show_by_s = decision.snapshot.now_s + every_s
        facts, phases_s = tuple(self._facts), dict(self._phases_s)
        self._facts.clear()
        self._phases_s.clear()
        self._publish(Publication(decision.snapshot, decision.plan, decision.policy, self._acts, facts, phases_s))

    def _post_roster(self, addresses: Begin) -> None:
        """Post the roster, but only while this manager holds the instance and acts."""
        snapshot = self._brain.snapshot
        self._post_by_s = snapshot.now_s + POST_EVERY_S
        if addresses.join is not None and snapshot.sources.claimed and self._acts:
            addresses.join.tell(PostRoster(snapshot.now_s, snapshot.wall_at, roster(snapshot, self._brain.policy)))

    def _send_orders(self, decision: Decision, addresses: Begin) -> None:
        start_before_s = decision.snapshot.now_s + decision.policy.fixed.order_good_s
        leases: list[Launch] = []
        to_cloud: list[CreateNode | DestroyNode] = []
        for order in decision.orders:
            match order:
                case BootNode(launch=launch):
                    leases.append(launch)
                case RecordLaunches(launches=launches):
                    leases += launches
                case CreateNode() | DestroyNode():
                    to_cloud.append(order)
                case DelegateJob():
                    if addresses.delegator is not None:
                        addresses.delegator.tell(order)
                case _:
                    addresses.flux.tell(WithDeadline(order, start_before_s))
        self._call_cloud(to_cloud, decision.policy, start_before_s)
        if leases:
            # One commit for all leases, so that a burst of jobs costs one flush and not one per node.
            addresses.flux.tell(WithDeadline(RecordLaunches(tuple(leases)), start_before_s))

    def _call_cloud(
        self, orders: Sequence[CreateNode | DestroyNode], policy: Policy, start_before_s: float
    ) -> None:
        """Dispatch the orders to the providers, those together that one call can carry out."""
        by_cloud: dict[CloudName, list[CreateNode | DestroyNode]] = {}
        for order in orders:
            by_cloud.setdefault(policy.only_cloud(_cloud_of(order)), []).append(order)
        for cloud, to_cloud in by_cloud.items():
            limits = policy.calls_of(cloud)
            if policy.stacked:
                calls = [tuple(to_cloud)]
            else:
                calls = list(gather_orders(to_cloud, limits.nodes_per_create, limits.nodes_per_destroy))
            for call in calls:
                together = len(call) > 1 or policy.stacked
                subjects = [order.subject for order in call]
                timed = WithDeadline(Together(call) if together else call[0], start_before_s)
                self._workers[cloud].dispatch_together(subjects, timed)


def _send_ask(ask: Ask, addresses: Begin) -> None:
    match ask:
        case ClaimInstance() | LookAtRanks() | KeepSteering() | KeepSpend():
            addresses.flux.tell(ask)
        case ListCloud(cloud=name) | SweepCloud(cloud=name):
            addresses.clouds[name].lister.tell(ask)
        case _:
            assert_never(ask)


def _cloud_of(order: CreateNode | DestroyNode) -> CloudName:
    return order.node_type.cloud if isinstance(order, CreateNode) else order.cloud


def _answered_subject(fact: Fact) -> str | None:
    """The subject of the cloud order that a fact answers, as given to the worker pool; None for other facts."""
    match fact:
        case OrderLapsed(order="CreateNode" | "DestroyNode", launches=launches, provider_id=provider_id):
            return launches[0] if launches else provider_id
        case (
            NodeDestroyed(launch=launch, provider_id=provider_id)
            | CloudCallFailed(launch=launch, provider_id=provider_id)
        ):
            return launch or provider_id
        case NodeCreated(launch=launch):
            return launch
        case _:
            return None


# --- gathers orders that one call can carry out -----------------------------------------------------------
#
# Which orders are given is decided elsewhere.


def gather_orders(
    orders: Sequence[CloudEffect], nodes_per_create: int, nodes_per_destroy: int
) -> Iterator[tuple[CloudEffect, ...]]:
    """Yield the orders of each call, with so many nodes at most.

    One call creates launches of one plan that differ only in their slots, or destroys any nodes.
    """
    alike: dict[Hashable, list[CloudEffect]] = {}
    for order in orders:
        alike.setdefault(key_of_call(order) if isinstance(order, CreateNode) else (), []).append(order)
    for group in alike.values():
        most = nodes_per_create if isinstance(group[0], CreateNode) else nodes_per_destroy
        for start in range(0, len(group), most):
            yield tuple(group[start : start + most])


# --- the pool of cloud workers: the next order goes to the one with the fewest open orders ----------------


class WorkerPool:
    """A few cloud workers. A call that hangs blocks its own worker only."""

    def __init__(self, workers: Sequence[Mailbox[CloudOrder]]) -> None:
        self._workers = workers
        self._load = [0] * len(workers)
        self._busy_with: dict[str, list[int]] = {}

    def dispatch(self, subject: str, order: CloudOrder) -> None:
        """Send an order about a subject (a launch or a provider id) to the worker with the fewest open orders."""
        self.dispatch_together([subject], order)

    def dispatch_together(self, subjects: Sequence[str], order: CloudOrder) -> None:
        """Send one order about several subjects to the worker with the fewest open orders."""
        worker = min(range(len(self._workers)), key=lambda index: (self._load[index], index))
        self._load[worker] += len(subjects)
        for subject in subjects:
            self._busy_with.setdefault(subject, []).append(worker)
        self._workers[worker].tell(order)

    def mark_done(self, subject: str) -> None:
        """Record that the oldest open order about a subject was answered."""
        workers = self._busy_with.get(subject)
        if workers:
            self._load[workers.pop(0)] -= 1
            if not workers:
                del self._busy_with[subject]
