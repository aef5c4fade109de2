"""The manager actor: it keeps the snapshot, has the planner decide, and sends the orders to the other actors.

Each fact updates the snapshot at once. A plan is made only at a tick, if there is a new fact or the next plan is
due. So facts that arrive together are planned for together, and time alone can lead to a decision too. Any other
tick only records the time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, assert_never

import structlog

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.job_memos import JobMemos
from nodemanager.actors.messages import Begin, ManagerMessage, UsePolicy
from nodemanager.actors.worker_pool import WorkerPool
from nodemanager.core.facts import (
    ClaimHeld,
    CloudCallFailed,
    Fact,
    FluxCallFailed,
    LeftoversRemoved,
    NodeCreated,
    NodeDestroyed,
    NodeMeasured,
    NodeReported,
    OrderLapsed,
    QueueSeen,
    RanksMeasured,
    Tick,
)
from nodemanager.core.nodes import JoinPhase, Launch
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
    PostRoster,
    RecordLaunches,
    RefuseSlots,
    RequeueJob,
    ShowOnJobs,
    StopBroker,
    SweepCloud,
    UndrainNode,
    WithDeadline,
)
from nodemanager.core.reasons import Reason
from nodemanager.planner.commit import commit_actions, commit_asks
from nodemanager.planner.observe.hardware import with_promises
from nodemanager.planner.observe.instance_check import check_instance
from nodemanager.planner.observe.observe import advance_to, observe
from nodemanager.planner.outcome import REASON_BY_AVAILABILITY
from nodemanager.planner.pace import next_plan_s
from nodemanager.planner.plan import Action, Plan, plan
from nodemanager.planner.slot_types import with_slot_types
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.roster import roster
from nodemanager.planner.state.snapshot import Snapshot

POST_EVERY_S = 1.0
BOOT = BootNode.__name__
# Reasons to wait that are not logged: the job's nodes are there, booting or ordered, or will be soon.
EXPECTED_WAITS = frozenset({*REASON_BY_AVAILABILITY.values(), "settling", "not_yet_scheduled"})


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
    """The one actor that knows everything. ``acts`` is false if decisions are only logged and published."""

    def __init__(self, policy: Policy, acts: bool, publish: Callable[[Publication], None], fate: Fate) -> None:
        super().__init__(fate)
        self._policy = policy
        self._acts = acts
        self._publish = publish
        self._log: Any = structlog.get_logger()
        self._snapshot = Snapshot()
        self._addresses: Begin | None = None
        self._workers = WorkerPool(())
        self._tick: Tick | None = None  # the latest, until the snapshot has been advanced to it
        self._dirty = True
        self._plan_by_s = 0.0
        self._post_by_s = 0.0
        self._logged: frozenset[str] = frozenset()
        self._memos = JobMemos()
        self._facts: list[Fact] = []
        self._phases_s: defaultdict[str, float] = defaultdict(float)

    def on_receive(self, message: ManagerMessage) -> None:
        match message:
            case Begin():
                self._addresses = message
                self._workers = WorkerPool(message.cloud)
            case Tick():
                self._tick = message
                if self._addresses is not None:
                    self._decide_if_due(message.now_s, self._addresses)
            case UsePolicy(policy=policy):
                # The site gives the slots' types as they were at the start; the instance knows the present ones.
                self._use_policy(policy)
                self._dirty = True
            case _:
                began_s = time.perf_counter()
                self._advance_snapshot()
                self._take_fact(message)
                self._phases_s["observe"] += time.perf_counter() - began_s

    def _decide_if_due(self, now_s: float, addresses: Begin) -> None:
        if self._dirty or now_s >= self._plan_by_s:
            self._advance_snapshot()
            self._decide(addresses)
        elif addresses.join is not None and now_s >= self._post_by_s:
            # The join actor answers with the reports of nodes, for example that a spot node is reclaimed.
            self._advance_snapshot()
            self._post_roster(addresses)

    # -- taking facts in

    def _advance_snapshot(self) -> None:
        if self._tick is not None:
            self._snapshot, self._tick = advance_to(self._snapshot, self._tick), None

    def _take_fact(self, fact: Fact) -> None:
        self._log_fact(fact)
        if (subject := _answered_subject(fact)) is not None:
            self._workers.mark_done(subject)
        self._facts.append(fact)
        self._remove_memos(fact)
        before = self._snapshot
        self._snapshot = observe(before, fact, self._policy)
        self._dirty = True
        after = self._snapshot
        if after.slot_types is not before.slot_types or after.promised is not before.promised:
            self._use_policy(self._policy)
        self._log_moves(before)

    def _remove_memos(self, fact: Fact) -> None:
        """Remove the memo of each job that has just started. A short job may have ended before the next plan."""
        match fact:
            case ClaimHeld():
                self._memos.distrust()
            case QueueSeen() if (started := self._memos.removals(fact)) and self._addresses is not None:
                self._addresses.flux.tell(ShowOnJobs(started))
            case _:
                pass

    def _use_policy(self, policy: Policy) -> None:
        """Take a policy, with slots and types as the instance has them, and check the instance against it again."""
        self._policy = with_slot_types(with_promises(policy, self._snapshot.promised), self._snapshot.slot_types)
        self._snapshot = check_instance(self._snapshot, self._policy)

    def _log_fact(self, fact: Fact) -> None:
        match fact:
            case CloudCallFailed(operation=operation, kind=kind, detail=why):
                self._log.warning("cloud_call_failed", operation=operation, kind=str(kind), why=why)
            case LeftoversRemoved(leftovers=leftovers):
                for left in leftovers:
                    self._log.info("removed", what=left.kind, provider_id=left.provider_id, node=left.launch)
            case (
                FluxCallFailed(order=order, launches=launches, why=why)
                | OrderLapsed(order=order, launches=launches, why=why)
            ):
                what = "order_lapsed" if isinstance(fact, OrderLapsed) else "flux_call_failed"
                self._log.warning(what, order=order, nodes=list(launches), why=why)
            case QueueSeen(unreadable=unreadable):
                for job in unreadable:
                    if job.id not in self._snapshot.unreadable:
                        self._log.warning("unreadable_job", job=str(job.id), why=job.why)
            case NodeReported():
                self._log_report(fact)
            case NodeMeasured() | RanksMeasured():
                self._log_hardware(fact)
            case _:
                pass

    def _log_hardware(self, fact: NodeMeasured | RanksMeasured) -> None:
        of_rank = node_index_of(self._snapshot).launch_of_rank
        found = (
            {fact.launch: fact.hardware}
            if isinstance(fact, NodeMeasured)
            else {of_rank[rank]: had for rank, had in fact.hardware.items() if rank in of_rank}
        )
        for launch, had in found.items():
            if launch in self._snapshot.nodes:
                self._log.info("node_measured", node=launch, **asdict(had))

    def _log_report(self, fact: NodeReported) -> None:
        """Log a node's report; a ticket used twice is an error. Reports of launches that have ended are skipped."""
        if fact.launch not in self._snapshot.nodes:
            return
        match fact.phase:
            case JoinPhase.REPLAYED:
                self._log.error("ticket_replayed", node=fact.launch, why=fact.detail)
            case JoinPhase.FAILED | JoinPhase.RECLAIMED:
                self._log.warning("node_reported", node=fact.launch, phase=str(fact.phase), why=fact.detail)
            case _:
                self._log.info("node_reported", node=fact.launch, phase=str(fact.phase), why=fact.detail)

    def _log_moves(self, before: Snapshot) -> None:
        after = self._snapshot
        if after.claimed and not before.claimed:
            self._log.info("claimed" if self._acts else "observes", launches=len(after.nodes))
        if after.nodes is not before.nodes:
            for id_, node in after.nodes.items():
                old = before.nodes.get(id_)
                if old is None or (old is not node and old.state is not node.state):
                    was = str(old.state) if old is not None else "unknown"
                    self._log.info("node", node=id_, was=was, now=str(node.state), why=node.moves[-1:])
            for id_ in before.nodes.keys() - after.nodes.keys():
                self._log.info("lease_ended", node=id_)
        for intruder in after.intruders:
            if intruder not in before.intruders:
                self._log.error("foreign_cluster_uuid", provider_id=intruder.provider_id)

    # -- deciding

    def _decide(self, addresses: Begin) -> None:
        began_s = time.perf_counter()
        new_plan = plan(self._snapshot, self._policy)
        self._phases_s["plan"] += time.perf_counter() - began_s
        self._dirty = False
        for ask in new_plan.asks:
            match ask:
                case ClaimInstance() | LookAtRanks():
                    addresses.flux.tell(ask)
                case ListCloud():
                    addresses.lister.tell(ask)
                case SweepCloud():
                    if self._acts:
                        addresses.lister.tell(ask)
                case KeepSteering() | KeepSpend():
                    if self._acts:
                        addresses.flux.tell(ask)
                case _:
                    assert_never(ask)
        self._snapshot = commit_asks(self._snapshot, new_plan, self._policy)
        self._log_decisions(new_plan)
        if self._acts:
            before = self._snapshot
            self._snapshot = commit_actions(before, new_plan, self._policy)
            self._send_orders(new_plan, addresses)
            self._log_moves(before)
            self._post_roster(addresses)
            if texts := self._memos.changes(self._snapshot, new_plan):
                addresses.flux.tell(ShowOnJobs(texts))
        self._phases_s["act"] += time.perf_counter() - began_s - self._phases_s["plan"]
        published = Publication(
            self._snapshot, new_plan, self._policy, self._acts, tuple(self._facts), dict(self._phases_s)
        )
        self._facts.clear()
        self._phases_s.clear()
        self._publish(published)
        self._plan_by_s = next_plan_s(self._snapshot, new_plan, self._policy)

    def _post_roster(self, addresses: Begin) -> None:
        """Post the roster, but only while this manager holds the instance and acts."""
        snapshot = self._snapshot
        self._post_by_s = snapshot.now_s + POST_EVERY_S
        if addresses.join is not None and snapshot.claimed and self._acts:
            addresses.join.tell(PostRoster(snapshot.now_s, snapshot.wall_at, roster(snapshot, self._policy)))

    def _send_orders(self, new_plan: Plan, addresses: Begin) -> None:
        start_before_s = self._snapshot.now_s + self._policy.order_good_s
        leases: list[Launch] = []
        for action in new_plan.actions:
            match action:
                case BootNode(launch=launch):
                    leases.append(launch)
                case RecordLaunches(launches=launches):
                    leases += launches
                case CreateNode(launch=launch):
                    self._workers.dispatch(launch.id, WithDeadline(action, start_before_s))
                case DestroyNode(launch=launch_id, provider_id=provider_id):
                    self._workers.dispatch(launch_id or provider_id, WithDeadline(action, start_before_s))
                case (
                    DrainNode()
                    | CordonNode()
                    | UndrainNode()
                    | StopBroker()
                    | KillHousekeeping()
                    | RequeueJob()
                    | EndLease()
                ):
                    addresses.flux.tell(WithDeadline(action, start_before_s))
                case ChangeSlots() | RefuseSlots():
                    addresses.flux.tell(WithDeadline(action, start_before_s))
                case _:
                    assert_never(action)
        if leases:
            # One commit for all leases, so that a burst of jobs costs one flush and not one per node.
            addresses.flux.tell(WithDeadline(RecordLaunches(tuple(leases)), start_before_s))

    # -- logging

    def _log_decisions(self, new_plan: Plan) -> None:
        """Log each decision once. In observe mode every plan makes the same decisions again."""
        verb = "decided" if self._acts else "would"
        for action in new_plan.actions:
            if self._acts or _order_line(action) not in self._logged:
                self._log.info(verb, order=_order_line(action), because=str(_reason_of(action)))
        for action in new_plan.would:
            if _order_line(action) not in self._logged:
                self._log.info("would", order=_order_line(action), because=str(_reason_of(action)))
        lines = {_order_line(action) for action in (*new_plan.actions, *new_plan.would)}
        if not new_plan.settled:  # until the queue has settled, a plan has no decisions on buying
            lines |= {line for line in self._logged if line.startswith(BOOT)}
        if new_plan.stands_still is not None:
            # The numbers change with every plan; only other words are worth a new line.
            words = {name: text for name, text in new_plan.stands_still.figures.items() if isinstance(text, str)}
            lines.add(f"{new_plan.stands_still.code} {words}")
            if not lines <= self._logged:
                self._log.warning("stands_still", because=str(new_plan.stands_still))
        for warning in new_plan.warnings:
            line = f"{warning.code} {_warning_subject(warning)}"
            lines.add(line)
            if line not in self._logged:
                self._log.warning(warning.code, **warning.figures)
        self._logged = frozenset(lines | self._log_waiting_jobs(new_plan))

    def _log_waiting_jobs(self, new_plan: Plan) -> set[str]:
        """Log the number of waiting jobs by reason, whenever it changes. Return the line's key."""
        waiting = {code: count for code, count in new_plan.count_by_reason().items() if code not in EXPECTED_WAITS}
        line = f"waiting {sorted(waiting.items())}"
        if waiting and line not in self._logged:
            self._log.info("jobs_wait", **waiting)
        return {line}


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


def _warning_subject(warning: Reason) -> object:
    figures = warning.figures
    return next((figures[name] for name in ("node", "node_type", "job") if name in figures), "")


def _order_line(action: Action) -> str:
    match action:
        case BootNode(launch=launch) | CreateNode(launch=launch) | EndLease(launch=launch):
            subject: str = launch.slot
        case RecordLaunches(launches=launches):
            subject = ",".join(launch.slot for launch in launches)
        case DestroyNode(provider_id=provider_id):
            subject = provider_id
        case ChangeSlots(moves=moves):
            subject = ",".join(f"{slot}={name}" for slot, name in moves.items())
        case RefuseSlots(wish=wish):
            subject = ",".join(f"{name}={count}" for name, count in wish.counts.items())
        case _:
            subject = action.launch
    return f"{type(action).__name__} {subject}"


def _reason_of(action: Action) -> object:
    return getattr(action, "reason", "")
