"""Drives the brain in a replay, as the Manager actor drives it in the service.

It plans only when the live service would find something new to decide: when the queue and the ranks have settled,
when a call is answered, and when the brain's ``next_at_s`` comes. It leaves out ticks at
which the live service would plan and find nothing to do: when jobs have only started, or booting nodes have joined
as planned. Calls take a fixed time, and fail only for lack of capacity or quota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from math import inf
from typing import assert_never

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    CloudCallFailed,
    CloudListed,
    Fact,
    JobsHeld,
    JobsReleased,
    LaunchesRecorded,
    LeaseEnded,
    NodeCordoned,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    NodeUndrained,
    QueueSeen,
    RanksSeen,
    SpendKept,
    Tick,
)
from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, RankAllocation
from nodemanager.core.nodes import (
    CloudNode,
    FailureKind,
    FluxRank,
    Identity,
    Launch,
    LaunchId,
    NodeState,
    ProviderId,
)
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    CordonNode,
    CreateNode,
    DelegateJob,
    DestroyNode,
    DrainNode,
    EndLease,
    HoldJobs,
    KeepSpend,
    KillHousekeeping,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    StartCopy,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.slots import Rank
from nodemanager.planner.brain import Brain
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.plan import Action, plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.trust import settles_at_s
from nodemanager.whatif.cloud.cloud import ReplayMachine
from nodemanager.whatif.replay.engine import BROKER_STOP_S, ReplayEngine
from nodemanager.whatif.replay.invariants import ReplayInvariants, without_true_reason
from nodemanager.whatif.replay.sched_simple import QueuedJob
from nodemanager.whatif.workload.event_log import EventLog

HEARD_S = 0.1  # from an event to its observation
TICK_S = 0.2  # from a call's answer to the plan that uses it
FLUX_CALL_S = 0.05
CLOUD_CALL_S = 1.0
GRACE_S = 0.01  # after the time for which the next decision is due


class Effect(Enum):
    """What news means for the next plan."""

    DECIDES = auto()  # there may be something to decide
    AS_PLANNED = auto()  # jobs wait; others started, or nodes joined, as the last plan expected
    NONE = auto()


class PlannerDriver:
    """A :class:`~nodemanager.whatif.replay.engine.Decider` that decides as the service does."""

    def __init__(self, policy: Policy, event_log: EventLog) -> None:
        # The engine always answers, so data never becomes stale, even if it is not read again.
        self._policy = replace(policy, timing=replace(policy.timing, stale_after_s=inf))
        self._brain = Brain(self._policy, hears_all=True)
        self._event_log = event_log
        self._unseen: dict[int, FluxRank] = {}  # changed ranks that the planner has not observed yet
        self._answers: list[Fact] = []  # of calls answered at ``_answers_s``, not yet observed
        self._answers_s = 0.0
        self._hear_due = False
        self._list_due = False
        self._plan_due_s = inf  # plan then, whether or not the queue has settled
        self._plans_settled = False  # plan as soon as the queue has settled
        self._wakes_s = inf  # the next event that may plan
        self._calls_held = False  # a create or destroy waits until another call has been answered
        self._last_list_s = 0.0
        self._last_look_s = 0.0
        self.plans = 0
        self.facts = 0
        self.invariants = ReplayInvariants()

    # --- the Decider interface ---

    def begin(self, engine: ReplayEngine) -> None:
        self._engine, self._view = engine, PlannerView(engine, self._policy)
        engine.news.ranks.update(engine.scheduler.ranks)
        self._advance_snapshot()
        self._take(ClaimHeld(0.0, ()))
        self._take(QueueSeen(0.0, complete=True, queues_stopped=frozenset()))
        self._read_ranks()
        for name in self._policy.cloud_names:
            self._take(CloudListed(0.0, (), name))
        self._plan_by(self._policy.timing.settle_s)

    def on_change(self) -> None:
        news, now_s = self._engine.news, self._engine.now_s
        if not self._hear_due and (news.jobs or news.ended or news.ranks):
            self._hear_due = True
            self._engine.at(now_s + HEARD_S, self._read_journals)
        if not self._list_due and news.cloud:
            self._list_due = True
            self._engine.at(max(now_s + HEARD_S, self._last_list_s + self._policy.timing.probe_s), self._list_nodes)

    def why_waiting(self, jobs: Iterable[QueuedJob]) -> Mapping[JobId, str]:
        self._advance_snapshot()
        reasons = plan(self._brain.snapshot, self._policy).jobs
        return {job.id: reasons[job.id].code if job.id in reasons else "waits" for job in jobs}

    def broken_rules(self) -> tuple[str, ...]:
        """The rules that the run broke. Call it at its end."""
        self._advance_snapshot()
        snapshot = self._brain.snapshot
        self.invariants.check_plan(snapshot, plan(snapshot, self._brain.policy), self._brain.policy)
        self.invariants.check_plans(self.plans, self._engine.events, self._engine.now_s)
        waiting = [*self._engine.scheduler.queue, *self._engine.scheduler.held.values()]
        reasons = plan(snapshot, self._policy).jobs if waiting else {}
        unserved = without_true_reason(waiting, reasons, snapshot, self._policy, self._engine.setup.conditions)
        return (*self.invariants.broken.values(), *(f"unserved: {it}" for it in unserved))

    # --- facts ---

    def _advance_snapshot(self) -> None:
        self._apply_answers()
        self._set_now(self._engine.now_s)

    def _set_now(self, now_s: float) -> None:
        self._brain.advance(Tick(now_s, self._engine.setup.start_at + now_s))

    def _take(self, *facts: Fact) -> None:
        self.facts += len(facts)
        self._brain.take(*facts)

    def _read_journals(self, _: None) -> None:
        """Observe what has changed, and schedule a plan if there is something to decide."""
        self._hear_due = False
        engine, news = self._engine, self._engine.news
        self._apply_answers()
        if not self._plans_settled and settles_at_s(self._brain.snapshot, self._policy) <= engine.now_s:
            self._brain.skip()  # the queue settled and there was nothing to decide
        self._advance_snapshot()
        effect = self._effect_of_news()
        if news.jobs or news.ended:
            jobs, ended = tuple(map(self._view.job, news.jobs.values())), tuple(news.ended)
            news.jobs.clear()
            news.ended.clear()
            self._take(QueueSeen(engine.now_s, jobs=jobs, ended=ended))
        if news.ranks:
            self._read_ranks()
        match effect:
            case Effect.DECIDES:
                self._plan_once_settled()
            case Effect.AS_PLANNED:  # a joined node that no job uses may be retired after its idle timeout
                policy = self._brain.policy
                self._plan_by(engine.now_s + min(map(policy.idle_timeout_s, policy.node_types)))
            case Effect.NONE:
                pass

    def _effect_of_news(self) -> Effect:
        """What the news that is about to be observed means for the next plan."""
        news, view, waiting = self._engine.news, self._view, bool(self._engine.scheduler.queue)
        if self._brain.policy.has_spares:
            return Effect.DECIDES  # a job may have taken a spare
        if waiting:
            only_started = not news.ended and all(job.started_s is not None for job in news.jobs.values())
            as_planned = only_started and all(view.is_used(it) or view.has_joined(it) for it in news.ranks)
            return Effect.AS_PLANNED if as_planned else Effect.DECIDES
        at_work = all(view.is_used(rank) or view.stays_offline(rank) for rank in news.ranks)
        return Effect.NONE if at_work and not news.ended else Effect.DECIDES

    def _read_ranks(self) -> None:
        news, now_s = self._engine.news, self._engine.now_s
        for rank in news.ranks:
            self._unseen[rank] = self._view.look_at(rank)
        news.ranks.clear()
        self._last_look_s = now_s
        known = self._brain.snapshot
        before_s = known.sources.flux.seen_s
        self._take(RanksSeen(now_s, tuple(self._unseen.values()), previous=known.ranks))
        if before_s is None or now_s > before_s:  # a second look at the same moment is not observed
            self._unseen.clear()

    def _list_nodes(self, _: None) -> None:
        engine = self._engine
        self._list_due = False
        engine.news.cloud = False
        self._last_list_s = engine.now_s
        self._advance_snapshot()
        self.invariants.check_ended(engine.ended_machines, self._policy)
        machines = [*engine.ended_machines, *engine.machines.values()]
        for name in self._policy.cloud_names:
            here = [it for it in machines if self._policy.only_cloud(it.node_type.cloud) == name]
            self._take(CloudListed(engine.now_s, tuple(map(self._view.cloud_node, here)), name))
        self._view.forget_all_but(machines)
        self._plan_by(engine.now_s + TICK_S)

    def _on_answer(self, answer: tuple[Callable[[], Fact], bool]) -> None:
        """Take a call's answer: a fact, and whether it may change the plan."""
        fact, plans = answer
        now_s = self._engine.now_s
        if now_s != self._answers_s:
            self._apply_answers()
        self._answers.append(fact())
        self._answers_s = now_s
        if plans or self._calls_held:
            self._plan_by(self._engine.now_s + TICK_S)

    def _apply_answers(self) -> None:
        if self._answers:
            self._set_now(self._answers_s)
            self._take(*self._answers)
            self._answers.clear()

    # --- deciding ---

    def _plan_by(self, at_s: float) -> None:
        """Plan at this time, whether or not the queue has settled by then."""
        self._plan_due_s = min(self._plan_due_s, at_s)
        self._wake_at(at_s)

    def _plan_once_settled(self) -> None:
        """Plan as soon as the queue has settled."""
        self._plans_settled = True
        self._wake_at(settles_at_s(self._brain.snapshot, self._policy))

    def _wake_at(self, at_s: float) -> None:
        at_s = max(at_s, self._engine.now_s)
        if at_s < self._wakes_s:
            self._wakes_s = at_s
            self._engine.at(at_s, self._wake, at_s)

    def _wake(self, at_s: float) -> None:
        """Plan if it is time, else wake again when it may be."""
        if at_s != self._wakes_s:
            return  # superseded by an earlier event
        self._wakes_s = inf
        self._apply_answers()
        settles_s = settles_at_s(self._brain.snapshot, self._policy) if self._plans_settled else inf
        if min(self._plan_due_s, settles_s) <= self._engine.now_s:
            self._decide()
        else:
            self._wake_at(min(self._plan_due_s, settles_s))

    def _decide(self) -> None:
        now_s = self._engine.now_s
        self._plan_due_s, self._plans_settled = inf, False
        self._advance_snapshot()
        # News that is still on its way comes with the jobs: a look now might show a job's ranks before its start.
        if not self._hear_due and now_s - self._last_look_s >= self._policy.timing.probe_s:
            self._read_ranks()
        decision = self._brain.decide()
        self.plans += 1
        self.invariants.check_plan(decision.snapshot, decision.plan, decision.policy)
        for ask in decision.asks:
            if isinstance(ask, KeepSpend):
                self._take(SpendKept(ask.spend))
                self._plan_by(now_s + TICK_S)  # leases wait until the spending is kept
        self._carry_out(decision.orders)
        # A lease ends only once the call for its node is answered, even if a list shows the node gone before.
        calls = node_index_of(decision.snapshot).with_call.values()
        self._calls_held = decision.plan.calls_held or any(node.state is NodeState.GONE for node in calls)
        if decision.next_at_s < inf:
            self._plan_by(decision.next_at_s + GRACE_S)

    def _carry_out(self, actions: tuple[Action, ...]) -> None:  # noqa: C901, PLR0912 - one arm an order
        leases: list[Launch] = []
        for action in actions:
            match action:
                case BootNode(launch=launch):
                    leases.append(launch)
                    self._log_decision(action, launch.slot, str(action.reason))
                case RecordLaunches(launches=launches):
                    leases += launches
                case CreateNode():
                    self._create(action)
                case DrainNode(launch=launch_id, rank=rank, replaces=replaces):
                    self._log_decision(action, launch_id, str(action.reason))
                    if replaces is not None and self._engine.drained.get(rank) == replaces:
                        del self._engine.drained[rank]
                    self._engine.drain(rank, drain_text(launch_id))
                    self._answer(FLUX_CALL_S, lambda order=action: self._drained(order), plans=True)  # type: ignore[misc]
                case UndrainNode(launch=launch_id, rank=rank):
                    self._log_decision(action, launch_id, str(action.reason))
                    self._engine.undrain(rank)
                    self._answer(FLUX_CALL_S, _constant(NodeUndrained(launch_id)))
                case StopBroker(launch=launch_id, rank=rank):
                    self._engine.stop_broker(rank)
                    heard_s = BROKER_STOP_S + HEARD_S + FLUX_CALL_S
                    self._answer(heard_s, _constant(BrokerStopped(launch_id)), plans=True)
                case DestroyNode():
                    self._destroy(action)
                case EndLease(launch=launch):
                    self._engine.undrain(launch.rank)
                    waits = bool(self._engine.scheduler.queue)
                    self._answer(FLUX_CALL_S, _constant(LeaseEnded(launch.id)), plans=waits)
                case CordonNode(launch=launch_id, rank=rank, text=text):
                    self._log_decision(action, launch_id, str(action.reason))
                    self._engine.drain(rank, text)
                    self._answer(FLUX_CALL_S, lambda order=action: self._cordoned(order))  # type: ignore[misc]
                case HoldJobs(jobs=jobs):
                    self._engine.hold(jobs)
                    self._answer(FLUX_CALL_S, _constant(JobsHeld(jobs)))
                    self._answer(FLUX_CALL_S, lambda ids=tuple(jobs): self._view.jobs_seen(ids))  # type: ignore[misc]
                case ReleaseJobs(jobs=jobs):
                    self._engine.release(jobs)
                    self._answer(FLUX_CALL_S, _constant(JobsReleased(frozenset(jobs))))
                    self._answer(FLUX_CALL_S, lambda ids=tuple(jobs): self._view.jobs_seen(ids))  # type: ignore[misc]
                case ReadResult() | StartCopy() | CancelCopy():
                    raise ValueError(f"a replay has no copies of jobs: {action}")
                case ChangeSlots() | RefuseSlots() | KillHousekeeping() | RequeueJob() | DelegateJob():
                    raise ValueError(f"a replay has no wishes for slots, no housekeeping and no requeues: {action}")
                case _:
                    assert_never(action)
        if leases:
            self._answer(FLUX_CALL_S, _constant(LaunchesRecorded(tuple(leases))), plans=True)

    def _create(self, order: CreateNode) -> None:
        launch = order.launch
        machine = self._engine.create(launch.rank, launch.id, order.node_type)
        if machine is not None:
            self._answer(CLOUD_CALL_S, _constant(NodeCreated(launch.id, self._view.cloud_node(machine))))
            return
        detail = f"no {order.node_type.size} to be had"
        refused = CloudCallFailed("create", launch.id, self._engine.refusal or FailureKind.CAPACITY, detail)
        self._answer(CLOUD_CALL_S, _constant(refused), plans=True)

    def _destroy(self, order: DestroyNode) -> None:
        self._log_decision(order, order.provider_id, str(order.reason))
        self._engine.destroy(self._view.machines[order.provider_id])
        self._answer(CLOUD_CALL_S, _constant(NodeDestroyed(order.launch, order.provider_id)))

    def _cordoned(self, order: CordonNode) -> NodeCordoned:
        return NodeCordoned(order.launch, self._engine.now_s, self._view.rank(order.rank))

    def _drained(self, order: DrainNode) -> NodeDrained:
        """The answer to a drain, with the second look at the rank at that moment."""
        return NodeDrained(order.launch, self._engine.now_s, self._view.rank(order.rank))

    def _answer(self, after_s: float, fact: Callable[[], Fact], *, plans: bool = False) -> None:
        self._engine.at(self._engine.now_s + after_s, self._on_answer, (fact, plans))

    def _log_decision(self, action: Action, subject: str | LaunchId | None, why: str) -> None:
        self._event_log.write_decided(self._engine.now_s, type(action).__name__, str(subject), why)


def _constant(fact: Fact) -> Callable[[], Fact]:
    return lambda: fact


# --- planner view -----------------------------------------------------------------------------------------
#
# What the planner is shown of the engine's queue, ranks and machines: the same values as in the service.


class PlannerView:
    """Converts the engine's state to the planner's values, and knows what it showed last."""

    def __init__(self, engine: ReplayEngine, policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        self._seen: dict[int, FluxRank] = {}  # each rank at the latest look
        self._listed: dict[ProviderId, CloudNode] = {}
        self.machines: dict[ProviderId, ReplayMachine] = {}  # those listed

    # --- jobs ---

    def job(self, job: QueuedJob) -> Job:
        """A job as Flux's queue shows it."""
        start_at = self._engine.setup.start_at
        began_at = start_at + job.started_s if job.started_s is not None else None
        held = job.id in self._engine.scheduler.held
        return Job(
            id=job.id,
            urgency=0 if held else 16,
            priority=0 if held else 16,
            state=JobState.SCHED if job.started_s is None else JobState.RUN,
            request=JobRequest(job.shape, job.limit_s),
            submitted_at=start_at + job.submitted_s,
            userid=job.userid,
            allocations=tuple(RankAllocation(Rank(grant.rank), grant.cores, grant.gpus) for grant in job.grants),
            ends_at=began_at + job.limit_s if began_at is not None and job.limit_s else None,
            began_at=began_at,
        )

    def jobs_seen(self, ids: Sequence[JobId]) -> QueueSeen:
        """What the queue says of waiting jobs after their urgency was changed."""
        scheduler = self._engine.scheduler
        waiting = {job.id: job for job in (*scheduler.queue, *scheduler.held.values())}
        return QueueSeen(self._engine.now_s, tuple(self.job(waiting[id_]) for id_ in ids if id_ in waiting))

    # --- ranks ---

    def look_at(self, rank: int) -> FluxRank:
        """A rank as it is now. The next questions about it are answered by this look."""
        seen = self._seen[rank] = self.rank(rank)
        return seen

    def is_used(self, rank: int) -> bool:
        """Whether a job holds cores there and has not given them back."""
        return self._engine.scheduler.ranks[rank].jobs > 0 and rank not in self._engine.given_back

    def has_joined(self, rank: int) -> bool:
        """Whether an expected node has come up since the latest look. The jobs it is for are planned on it."""
        return self._engine.scheduler.ranks[rank].up and not self._seen[rank].online

    def stays_offline(self, rank: int) -> bool:
        """Whether the rank was and is offline. That its slot became free matters only to waiting jobs."""
        machine = self._engine.machines.get(rank)
        return not self._seen[rank].online and not (machine is not None and machine.online)

    def rank(self, rank: int) -> FluxRank:
        """A rank as it is now."""
        capacity, machine = self._engine.scheduler.ranks[rank], self._engine.machines.get(rank)
        ended_s = self._engine.last_ended_s.get(rank)
        online = machine is not None and machine.online
        known = self._seen.get(rank)
        return replace(
            known or FluxRank(Rank(rank), capacity.host, online, capacity.cores, capacity.gpus),
            online=online,
            cores_free=capacity.cores_free if capacity.up else 0,  # 0 if it was given back: its job holds it whole
            gpus_free=capacity.gpus_free if capacity.up else 0,
            allocated=self.is_used(rank),
            given_back=self._engine.given_back.get(rank),
            schedulable=capacity.up,
            drain_reason=self._engine.drained.get(rank),
            last_job_ended_at=None if ended_s is None else self._engine.setup.start_at + ended_s,
        )

    # --- machines ---

    def cloud_node(self, machine: ReplayMachine) -> CloudNode:
        """A machine as the provider lists it."""
        known = self._listed.get(machine.provider_id)
        if known is not None and known.state is machine.state:
            return known
        node = CloudNode(
            machine.provider_id,
            machine.state,
            known.identity if known is not None else self._identity(machine),
            created_at=self._engine.setup.start_at + machine.created_s,
            died_because=machine.died_because,
            market=machine.node_type.market,
            size=machine.node_type.size,
        )
        self.machines[machine.provider_id] = machine
        self._listed[machine.provider_id] = node
        return node

    def _identity(self, machine: ReplayMachine) -> Identity:
        policy, node_type = self._policy, machine.node_type
        return Identity(
            policy.cluster, policy.cluster_uuid, machine.launch, machine.slot, node_type.name, node_type.made_from
        )

    def forget_all_but(self, machines: Iterable[ReplayMachine]) -> None:
        """Forget the machines that the provider no longer lists."""
        shown = {machine.provider_id for machine in machines}
        for forgotten in self._listed.keys() - shown:
            del self._listed[forgotten], self.machines[forgotten]
