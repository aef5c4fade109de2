"""Observe, plan, commit, again and again, with facts in any order: late, repeated, contradictory.

The checks need no simulated world: they test which orders the planner may give by its latest facts. (The simulation
checks the same rules against the true state of a world.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodemanager.core.drains import DRAIN_MARK, drain_text
from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    ClaimRefused,
    CloudCallFailed,
    CloudListed,
    Fact,
    FluxCallFailed,
    FluxUnreachable,
    LaunchesRecorded,
    LeaseEnded,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    NodeUndrained,
    OrderLapsed,
    QueueProbed,
    QueueSeen,
    RanksChanged,
    RanksSeen,
    Tick,
)
from nodemanager.core.jobs import Job, JobId, JobState, UnreadableJob
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, FluxRank, NodeState
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    CreateNode,
    DelegateJob,
    DestroyNode,
    DrainNode,
    EndLease,
    HoldJobs,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    StartCopy,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.brain import commit_actions, commit_asks
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.plan import Action, Plan, plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot
from tests.builders import a_cloud_node, a_launch
from tests.planner.strategies import CONDITIONS, POLICIES, SLOTS, a_rank_that_is, jobs, snapshots

AGES_S = st.sampled_from([0.0, 0.0, 0.5, 20.0, 200.0])
STARTS = POLICIES.flatmap(lambda policy: st.tuples(st.just(policy), snapshots(policy)))
# For each of a few things: how the next fact shows it, or None if it does not.
CLOUD_STATES = st.lists(st.sampled_from([None, CloudState.RUNNING, *CloudState]), min_size=9, max_size=9)
RANKS_SEEN = st.lists(st.sampled_from([None, None, *CONDITIONS]), min_size=len(SLOTS), max_size=len(SLOTS))


class Loop(RuleBasedStateMachine):
    snapshot: Snapshot
    policy: Policy

    @initialize(start=STARTS)
    def begin(self, start: tuple[Policy, Snapshot]) -> None:
        self.policy, self.snapshot = start
        nodes = self.snapshot.nodes.values()
        self.given: list[Action] = []  # unanswered orders
        self.launches = {slot: a_launch(slot, self.policy) for slot in SLOTS}  # the latest launch of each slot
        # The nodes whose latest drain was answered.
        self.answered = {node.id for node in nodes if node.stop.drained_s is not None}
        self.past: list[Fact] = []

    def _take(self, fact: Fact) -> None:
        self.snapshot = observe(self.snapshot, fact, self.policy)
        self.past.append(fact)

    def _ago_s(self, age_s: float) -> float:
        return self.snapshot.now_s - age_s

    # --- time and decisions ---

    @rule(
        seconds=st.sampled_from([0.05, 0.3, 1.0, 3.0, 12.0, 65.0, 130.0, 1300.0]),
        jump_s=st.sampled_from([0, 0, -3600, 3600]),
    )
    def time_passes(self, seconds: float, jump_s: float) -> None:
        tick = Tick(self.snapshot.now_s + seconds, self.snapshot.wall_at + seconds + jump_s)
        self.snapshot = advance_to(self.snapshot, tick)

    @rule()
    def decide(self) -> None:
        made = plan(self.snapshot, self.policy)
        assert made == plan(self.snapshot, self.policy)
        self._check(made)
        self.snapshot = commit_actions(commit_asks(self.snapshot, made, self.policy), made, self.policy)
        for action in made.actions:
            self.given.append(action)
            if isinstance(action, BootNode):
                self.launches[action.launch.slot] = action.launch
            if isinstance(action, DrainNode | UndrainNode):
                self.answered.discard(action.launch)

    @rule(condition=st.sampled_from(["drained by us", "away"]), seconds=st.sampled_from([1.0, 12.0, 60.0]))
    def all_goes_well_for_a_while(self, condition: str, seconds: float) -> None:
        """Without this, random facts are nearly always too old or too unsettled for any decision."""
        for action in self.given:
            self._done(action, 0.0, CloudState.RUNNING, condition)
        self.given = []
        now_s = self.snapshot.now_s
        self._take(QueueProbed(now_s))
        self._take(RanksSeen(now_s, tuple(self.snapshot.ranks.values())))
        self._take(CloudListed(now_s, tuple(self._standing())))
        if not self.snapshot.sources.claimed:
            recorded = [node.launch for node in self.snapshot.nodes.values() if node.create.recorded]
            self._take(ClaimHeld(now_s, tuple(recorded)))
        self.time_passes(seconds, 0)
        self.decide()

    def _standing(self) -> list[CloudNode]:
        nodes = [node.cloud for node in self.snapshot.nodes.values() if node.cloud is not None]
        return [*nodes, *(stray.node for stray in self.snapshot.account_of().strays.values())]

    # --- answers to what was ordered ---

    @precondition(lambda self: self.given)
    @rule(
        which=st.integers(0, 30),
        how=st.sampled_from(["done", "done", "done", "failed", "lost", "lapsed"]),
        age_s=AGES_S,
        state=st.sampled_from([CloudState.RUNNING, *CloudState]),
        condition=st.sampled_from(["drained by us", "drained by us", *CONDITIONS]),
        kind=st.sampled_from(FailureKind),
    )
    def an_order_is_answered(
        self, which: int, how: str, age_s: float, state: CloudState, condition: str, kind: FailureKind
    ) -> None:
        action = self.given.pop(which % len(self.given))
        if how == "done":
            self._done(action, age_s, state, condition)
        elif how == "failed":
            self._failed(action, kind)
        elif how == "lapsed":
            self._lapsed(action)

    def _done(self, action: Action, age_s: float, state: CloudState, condition: str) -> None:
        match action:
            case BootNode(launch=launch):
                self._take(LaunchesRecorded((launch,)))
            case RecordLaunches(launches=launches):
                self._take(LaunchesRecorded(launches))
            case CreateNode(launch=launch):
                self._take(NodeCreated(launch.id, a_cloud_node(launch, state=state)))
            case DrainNode(launch=launch_id, rank=rank):
                looked = a_rank_that_is(condition, self.policy, self._slot(rank), launch_id)
                self._take(NodeDrained(launch_id, self._ago_s(age_s), looked))
                self.answered.add(launch_id)
            case UndrainNode(launch=launch_id):
                self._take(NodeUndrained(launch_id))
            case StopBroker(launch=launch_id):
                self._take(BrokerStopped(launch_id))
            case DestroyNode(launch=owner, provider_id=provider_id):
                self._take(NodeDestroyed(owner, provider_id))
            case EndLease(launch=launch):
                self._take(LeaseEnded(launch.id))

    def _failed(self, action: Action, kind: FailureKind) -> None:
        match action:
            case CreateNode(launch=launch):
                self._take(CloudCallFailed("create", launch.id, kind, "no", 3.0))
            case DestroyNode(launch=owner):
                self._take(CloudCallFailed("destroy", owner, FailureKind.TRANSIENT, "no"))
            case BootNode(launch=launch):
                self._take(FluxCallFailed((launch.id,), "RecordLaunches", "no"))
            case RecordLaunches(launches=launches):
                self._take(FluxCallFailed(tuple(launch.id for launch in launches), "RecordLaunches", "no"))
            case EndLease(launch=launch):
                self._take(FluxCallFailed((launch.id,), "EndLease", "no"))
            case DrainNode() | UndrainNode() | StopBroker():
                self._take(FluxCallFailed((action.launch,), type(action).__name__, "no"))

    def _lapsed(self, action: Action) -> None:
        match action:
            case BootNode(launch=launch):
                lapsed = OrderLapsed("RecordLaunches", (launch.id,), None, "late")
            case RecordLaunches(launches=launches):
                lapsed = OrderLapsed("RecordLaunches", tuple(launch.id for launch in launches), None, "late")
            case CreateNode(launch=launch) | EndLease(launch=launch):
                lapsed = OrderLapsed(type(action).__name__, (launch.id,), None, "late")
            case DestroyNode(launch=owner, provider_id=provider_id):
                lapsed = OrderLapsed("DestroyNode", (owner,) if owner is not None else (), provider_id, "late")
            case ReadResult(job=job) | StartCopy(job=job) | CancelCopy(job=job):
                lapsed = OrderLapsed(type(action).__name__, (), None, "late", job)
            case ChangeSlots() | RefuseSlots() | HoldJobs() | ReleaseJobs() | DelegateJob():
                lapsed = OrderLapsed(type(action).__name__, (), None, "late")
            case _:
                lapsed = OrderLapsed(type(action).__name__, (action.launch,), None, "late")
        self._take(lapsed)

    # --- what is seen ---

    @rule(
        states=CLOUD_STATES,
        slot=st.sampled_from(SLOTS),
        other=st.sampled_from(["", "", "a twin", "of an unknown launch", "of the latest launch"]),
        age_s=AGES_S,
    )
    def the_cloud_is_listed(self, states: list[CloudState | None], slot: str, other: str, age_s: float) -> None:
        standing = zip(self._standing(), states, strict=False)
        listed = [replace(node, state=state) for node, state in standing if state is not None]
        if other:
            unknown = a_launch(slot, self.policy, number=99)
            launch = unknown if other == "of an unknown launch" else self.launches[slot]
            listed.append(a_cloud_node(launch, provider_id=f"twin-{slot}" if other == "a twin" else ""))
        self._take(CloudListed(self._ago_s(age_s), tuple(listed)))

    @rule(conditions=RANKS_SEEN, age_s=AGES_S)
    def the_ranks_are_looked_at(self, conditions: list[str | None], age_s: float) -> None:
        owners = {node.launch.slot: node.id for node in self.snapshot.nodes.values()}
        seen = dict(self.snapshot.ranks)
        for slot, condition in zip(SLOTS, conditions, strict=True):
            if condition is not None:
                rank = a_rank_that_is(condition, self.policy, slot, owners.get(SlotName(slot)))
                seen[rank.rank] = rank
        self._take(RanksSeen(self._ago_s(age_s), tuple(seen.values())))

    @rule(
        seen=jobs(4), ended=st.sets(st.integers(1, 4), max_size=2), unreadable=st.booleans(), complete=st.booleans()
    )
    def the_queue_is_seen(self, seen: list[Job], ended: set[int], unreadable: bool, complete: bool) -> None:
        bad = (UnreadableJob(seen[0].id, "cut"),) if seen and unreadable else ()
        gone = tuple(JobId(number) for number in ended)
        stopped = frozenset({"debug"})
        self._take(QueueSeen(self.snapshot.now_s, tuple(seen), bad, gone, complete, queues_stopped=stopped))

    @rule(
        held=st.lists(st.sampled_from(["latest", "latest", "another", "none"]), min_size=5, max_size=5),
        age_s=AGES_S,
    )
    def the_claim_is_answered(self, held: list[str], age_s: float) -> None:
        """Each slot has one key on record."""
        on_record = [
            self.launches[slot] if which == "latest" else a_launch(slot, self.policy, number=98)
            for slot, which in zip(SLOTS, held, strict=True)
            if which != "none"
        ]
        self._take(ClaimHeld(self._ago_s(age_s), tuple(on_record)))

    @rule(kind=st.sampled_from(["refused", "unreachable", "stirred", "list failed"]))
    def something_else(self, kind: str) -> None:
        now_s = self.snapshot.now_s
        facts: dict[str, Fact] = {
            "refused": ClaimRefused(now_s, "held by another"),
            "unreachable": FluxUnreachable(now_s, "connection lost"),
            "stirred": RanksChanged(),
            "list failed": CloudCallFailed("list", None, FailureKind.THROTTLED, "slower", 3.0),
        }
        self._take(facts[kind])

    @precondition(lambda self: self.past)
    @rule(back=st.integers(1, 40))
    def an_old_fact_comes_again(self, back: int) -> None:
        self.snapshot = observe(self.snapshot, self.past[-min(back, len(self.past))], self.policy)

    # --- what must hold ---

    @invariant()
    def no_slot_is_leased_twice(self) -> None:
        held = Counter(node.launch.slot for node in getattr(self, "snapshot", Snapshot()).nodes.values())
        assert not [slot for slot, count in held.items() if count > 1]

    def _check(self, made: Plan) -> None:
        if made.stands_still is not None:
            assert made.actions == ()
            return
        self._check_limits(made)
        self._check_that_all_is_explained(made)
        subjects = Counter(subject for action in made.actions for subject in _subjects(action))
        assert not [subject for subject, count in subjects.items() if count > 1]
        for action in made.actions:
            self._check_action(action)

    def _check_limits(self, made: Plan) -> None:
        bought = [action.launch for action in made.actions if isinstance(action, BootNode)]
        if not bought:
            return
        owned = {node.cloud.provider_id for node in self.snapshot.nodes.values() if node.cloud is not None}
        types = [node.launch.type_name for node in self.snapshot.nodes.values() if node.state is not NodeState.GONE]
        for id_, stray in self.snapshot.account_of().strays.items():
            identity = stray.node.identity
            assert identity is not None
            owner = self.snapshot.nodes.get(identity.launch)
            if id_ not in owned and (owner is None or owner.cloud is not None):
                types.append(identity.type_name)
        types += [launch.type_name for launch in bought]
        assert len(types) <= self.policy.limits.nodes_max
        prices = {node_type.name: node_type.price_per_hour for node_type in self.policy.node_types}
        assert sum((prices[name] for name in types), Decimal(0)) <= self.policy.limits.price_per_hour_max
        taken = {node.launch.slot for node in self.snapshot.nodes.values()}
        assert not [launch.slot for launch in bought if launch.slot in taken]

    def _check_that_all_is_explained(self, made: Plan) -> None:
        running = (JobState.RUN, JobState.CLEANUP)
        waiting = {job.id for job in self.snapshot.jobs.values() if job.state not in running}
        assert made.jobs.keys() == waiting | self.snapshot.queues.unreadable.keys()
        bought = {action.launch.id for action in made.actions if isinstance(action, BootNode)}
        assert made.nodes.keys() == self.snapshot.nodes.keys() | bought

    def _check_action(self, action: Action) -> None:
        match action:
            case BootNode(launch=launch):
                rank = self.snapshot.ranks[launch.rank]
                assert rank.host == launch.slot
                assert not rank.online
                assert not rank.allocated
            case RecordLaunches(launches=launches):
                for launch in launches:
                    node = self.snapshot.nodes.get(launch.id)
                    assert node is None or node.call is None
            case DestroyNode(launch=None, provider_id=provider_id):
                identity = self.snapshot.account_of().strays[provider_id].node.identity
                assert identity is not None
                rank = self.snapshot.ranks[self.launches[identity.slot].rank]
                assert not (rank.online and rank.allocated)
                owner = self.snapshot.nodes.get(identity.launch)
                assert owner is None or (owner.cloud is not None and owner.cloud.provider_id != provider_id)
            case CreateNode(launch=launch) | EndLease(launch=launch):
                self._check_node_order(self.snapshot.nodes[launch.id], action)
            case DrainNode() | UndrainNode() | StopBroker() | DestroyNode():
                assert action.launch is not None
                self._check_node_order(self.snapshot.nodes[action.launch], action)

    def _check_node_order(self, node: Node, action: Any) -> None:
        assert node.call is None, "while a call is under way nothing else is ordered"
        assert node.retry_s <= self.snapshot.now_s
        match action:
            case CreateNode():
                assert node.create.recorded
                assert node.create.sent_s is None
            case EndLease():
                never_made = node.state is NodeState.REQUESTED and node.create.sent_s is None
                assert node.state is NodeState.GONE or never_made
            case StopBroker() | DestroyNode():
                assert node.id in self.answered, "nothing is stopped unless its drain was answered"
                assert node.rank is not None
                assert not node.rank.allocated
                if node.state is NodeState.DRAINING:
                    assert not node.rank.schedulable
                    assert not node.rank.online or node.rank.drain_reason == drain_text(node.id)
            case DrainNode():
                # After a new claim a stopping node is drained again: another manager may have kept it.
                retired = node.state in (NodeState.IDLE, NodeState.BOOTING, NodeState.LOST, NodeState.DRAINING)
                assert retired or (node.state is NodeState.STOPPING and node.stop.drained_s is None)
            case UndrainNode():
                assert node.rank is None or not _held_by_others(node.rank)

    def _slot(self, rank: Rank) -> SlotName:
        return next(launch.slot for launch in self.launches.values() if launch.rank == rank)


def _held_by_others(rank: FluxRank) -> bool:
    return rank.online and rank.drain_reason is not None and not rank.drain_reason.startswith(DRAIN_MARK)


def _subjects(action: Action) -> list[str]:
    """The slots or machines that an action concerns: none may occur twice in a plan."""
    match action:
        case RecordLaunches(launches=launches):
            return [launch.slot for launch in launches]
        case BootNode(launch=launch) | CreateNode(launch=launch) | EndLease(launch=launch):
            return [launch.slot]
        case DestroyNode(launch=None, provider_id=provider_id):
            return [provider_id]
        case ChangeSlots(moves=moves):
            return list(moves)
        case RefuseSlots(wish=wish):
            return [wish.id]
        case HoldJobs(jobs=jobs) | ReleaseJobs(jobs=jobs):
            return [str(job) for job in jobs]
        case DelegateJob(job=job) | ReadResult(job=job) | StartCopy(job=job) | CancelCopy(job=job):
            return [str(job)]
        case _:
            return [str(action.launch)]


TestLoop = Loop.TestCase
TestLoop.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
