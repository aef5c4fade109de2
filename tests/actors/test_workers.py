"""The workers turn orders into calls, and results into facts. No expected failure escapes as an exception."""

import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodemanager.actors.base import Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.actors.flux import FluxWorker
from nodemanager.core.facts import (
    ClaimHeld,
    ClaimRefused,
    CloudCallFailed,
    CloudListed,
    CopySettled,
    FluxCallFailed,
    FluxUnreachable,
    HousekeepingKilled,
    LeaseEnded,
    LeftoversRemoved,
    NodeCordoned,
    NodeCreated,
    NodeDestroyed,
    NodeDrained,
    OrderLapsed,
    RanksMeasured,
    RanksSeen,
    RecordSeen,
    ResultRead,
    SlotsChanged,
    SlotsRefused,
    SpendKept,
    SpendNotKept,
    SteeringKept,
    SteeringNotKept,
)
from nodemanager.core.jobs import JobId, JobResult, NodeOrder
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    FluxRank,
    Launch,
    LaunchId,
    Leftover,
    LeftoverKind,
    ProviderId,
)
from nodemanager.core.orders import (
    CancelCopy,
    ChangeSlots,
    ClaimInstance,
    CordonNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    FluxEffect,
    KeepSpend,
    KeepSteering,
    KillHousekeeping,
    ListCloud,
    LookAtRanks,
    ReadResult,
    RecordLaunches,
    RequeueJob,
    ShowOnJobs,
    StartCopy,
    StopBroker,
    SweepCloud,
    Together,
    WithDeadline,
)
from nodemanager.core.ports import CloudError, FluxError, NotTheActor, SlotsUnchanged
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.records import HeldJob, Mark, Spend, Steering
from nodemanager.core.slots import Billing, Hardware, NodeType, Rank, SlotName, SlotsWish, TypeName
from nodemanager.simulation.time.world import World

SMALL = NodeType(TypeName("small"), "s1", 4, 0, 2**34, Decimal("0.1"), Billing(3600), slots=(SlotName("cloud1"),))
LAUNCH = Launch(LaunchId("cloud1-1"), SlotName("cloud1"), Rank(1), SMALL.name, "token", 0.0)
STEERING = Steering(holds={LaunchId("cloud1-1"): Mark("ada", 900.0)})
SPEND = Spend({("day", 0, ""): Decimal("1.25")}, frozenset({LaunchId("cloud1-1")}))
LEFT = Leftover(LeftoverKind.VOLUME, ProviderId("vol-1"), LAUNCH.id)
NODE = CloudNode(ProviderId("i-1"), CloudState.PENDING, None)
RANK = FluxRank(Rank(1), SlotName("cloud1"), online=True, cores=4)

HARDWARE = {Rank(1): Hardware(cores=2, threads=4)}
WISH = SlotsWish("wish-1", {TypeName("small"): 1})


@dataclass
class Post:
    told: list[Any] = field(default_factory=list)

    def tell(self, message: Any) -> None:
        self.told.append(message)


NOW_S = 7.0


class FrozenClock:
    def monotonic_s(self) -> float:
        return NOW_S

    def wall_at(self) -> float:
        return 1000.0


@dataclass
class Cloud:
    """A cloud port that fails as configured."""

    error: Exception | None = None

    def _call(self) -> None:
        if self.error is not None:
            raise self.error

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        self._call()
        return NODE

    def list_nodes(self) -> tuple[CloudNode, ...]:
        self._call()
        return (NODE,)

    def destroy(self, provider_id: ProviderId) -> None:
        self._call()

    def sweep(self) -> tuple[Leftover, ...]:
        self._call()
        return (LEFT,)


@dataclass
class Flux:
    """A Flux port that records its calls, and fails at the named one."""

    fails_at: str = ""
    error: FluxError = field(default_factory=lambda: FluxError("no answer"))
    calls: list[str] = field(default_factory=list)
    shown: dict[JobId, str | None] = field(default_factory=dict)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise self.error

    def claim(self) -> None:
        self._call("claim")

    def ensure_actor(self) -> None:
        self._call("must_act")

    def launches(self) -> tuple[Launch, ...]:
        self._call("launches")
        return (LAUNCH,)

    def held_jobs(self) -> Mapping[JobId, HeldJob]:
        return {}

    def hold_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        self._call("hold_jobs")

    def release_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        self._call("release_jobs")

    def record(self, launches: Sequence[Launch]) -> None:
        self._call("record")

    def forget(self, launch: Launch) -> None:
        self._call("forget")

    def ranks(self) -> tuple[FluxRank, ...]:
        self._call("ranks")
        return (RANK,)

    def drain(self, rank: Rank, reason: str, replaces: str | None = None) -> None:
        self._call(f"drain {reason}" + (f", which replaces {replaces}" if replaces is not None else ""))

    def undrain(self, rank: Rank) -> None:
        self._call("undrain")

    def steering(self) -> Steering:
        self._call("steering")
        return STEERING

    def keep_steering(self, steering: Steering) -> None:
        self._call("keep_steering")

    def spend(self) -> Spend:
        self._call("spend")
        return SPEND

    def keep_spend(self, spend: Spend) -> None:
        self._call("keep_spend")

    def read_hardware(self) -> Mapping[Rank, Hardware]:
        self._call("measured")
        return HARDWARE

    def jobs_ended(self) -> int:
        self._call("jobs_ended")
        return 3

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        self._call("show_on_jobs")
        self.shown = dict(texts)

    def stop_broker(self, rank: Rank) -> None:
        self._call("stop_broker")

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        self._call(f"kill_housekeeping {rank} {signal}")

    def requeue(self, job: JobId) -> JobId:
        self._call(f"requeue {job}")
        return JobId(job + 1)

    def node_order(self) -> NodeOrder | None:
        return None

    def result(self, job: JobId) -> JobResult | None:
        self._call(f"result {job}")
        return JobResult.COMPLETED

    def start_copy(self, job: JobId) -> None:
        self._call(f"start_copy {job}")

    def cancel_copy(self, job: JobId, why: str) -> None:
        self._call(f"cancel_copy {job} {why}")

    def repair(self) -> bool:
        self._call("repair")
        return False

    def slots_wish(self) -> SlotsWish | None:
        self._call("slots_wish")
        return WISH

    def change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        self._call("change_slots")

    def refuse_slots(self, wish: SlotsWish, why: str) -> None:
        self._call(f"refuse_slots {why}")


def flux_worker(port: Flux, *, acts: bool = True) -> tuple[FluxWorker, list[Any]]:
    post = Post()
    return FluxWorker(port, FrozenClock(), post, acts, Fate()), post.told


def cloud_worker(port: Cloud, post: Post, mandate: Flux | None = None) -> CloudWorker:
    return CloudWorker(port, mandate or Flux(), FrozenClock(), post, Fate())


MOVES = {SlotName("cloud1"): TypeName("large")}


def test_a_change_of_the_slots_brings_a_look_of_what_is_now() -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(WithDeadline(ChangeSlots(WISH, MOVES, because(Code.SLOTS_WISHED)), NOW_S))
    assert port.calls == ["change_slots", "ranks"]
    assert told == [SlotsChanged("wish-1", 7.0, (RANK,))]


def test_a_change_that_left_nothing_behind_is_answered_with_why() -> None:
    port = Flux("change_slots", SlotsUnchanged("slot cloud1 has been taken meanwhile"))
    worker, told = flux_worker(port)
    worker.on_receive(WithDeadline(ChangeSlots(WISH, MOVES, because(Code.SLOTS_WISHED)), NOW_S))
    assert port.calls == ["change_slots", "refuse_slots slot cloud1 has been taken meanwhile"]
    assert told == [SlotsRefused("wish-1")]


def test_a_change_that_may_be_half_done_is_no_answer() -> None:
    worker, told = flux_worker(Flux("change_slots"))
    worker.on_receive(WithDeadline(ChangeSlots(WISH, MOVES, because(Code.SLOTS_WISHED)), NOW_S))
    assert told == [FluxCallFailed((), "ChangeSlots", "no answer")]


def test_a_wish_comes_with_a_look_of_one_who_acts() -> None:
    for acts in (True, False):
        worker, told = flux_worker(Flux(), acts=acts)
        worker.on_receive(LookAtRanks())
        measured = [RanksMeasured(HARDWARE)] if acts else []
        beside = [] if acts else [RecordSeen((LAUNCH,), STEERING, SPEND)]
        assert told == [*beside, RanksSeen(7.0, (RANK,), WISH if acts else None, 3), *measured]


def test_one_that_only_observes_reads_before_each_look_what_the_other_has_put_on_record() -> None:
    port = Flux()
    worker, told = flux_worker(port, acts=False)
    worker.on_receive(LookAtRanks())
    assert port.calls == ["launches", "steering", "spend", "ranks", "jobs_ended"]
    assert isinstance(told[0], RecordSeen)


def test_what_was_seen_is_told_before_the_nodes_are_asked_which_may_hang() -> None:
    worker, told = flux_worker(Flux("measured"))
    worker.on_receive(LookAtRanks())
    assert told == [RanksSeen(7.0, (RANK,), WISH, 3), FluxUnreachable(7.0, "no answer")]


def test_a_look_tells_how_long_it_took() -> None:
    clock = World(1)

    class Slow(Flux):
        def jobs_ended(self) -> int:
            clock.advance_by(0.25)
            return super().jobs_ended()

    post = Post()
    FluxWorker(Slow(), clock.clock(), post, acts=True, fate=Fate()).on_receive(LookAtRanks())
    assert post.told[0].took_s == 0.25


def test_a_create_that_works_and_one_that_does_not() -> None:
    post = Post()
    cloud_worker(Cloud(), post).on_receive(WithDeadline(CreateNode(LAUNCH, SMALL), NOW_S))
    broken = Cloud(CloudError(FailureKind.AMBIGUOUS, "reply lost", 3.0))
    cloud_worker(broken, post).on_receive(WithDeadline(CreateNode(LAUNCH, SMALL), NOW_S))
    assert post.told == [
        NodeCreated(LAUNCH.id, NODE),
        CloudCallFailed("create", LAUNCH.id, FailureKind.AMBIGUOUS, "reply lost", 3.0),
    ]


def test_a_destroy_that_works_and_one_that_does_not() -> None:
    post = Post()
    order = DestroyNode(LAUNCH.id, NODE.provider_id, because(Code.GONE))
    cloud_worker(Cloud(), post).on_receive(WithDeadline(order, NOW_S))
    cloud_worker(Cloud(CloudError(FailureKind.TRANSIENT, "500")), post).on_receive(WithDeadline(order, NOW_S))
    assert post.told == [
        NodeDestroyed(LAUNCH.id, NODE.provider_id),
        CloudCallFailed("destroy", LAUNCH.id, FailureKind.TRANSIENT, "500", provider_id=NODE.provider_id),
    ]


CREATE = CreateNode(LAUNCH, SMALL)
DESTROY = DestroyNode(LAUNCH.id, NODE.provider_id, because(Code.GONE))
CREATE_LAPSED = ("CreateNode", (LAUNCH.id,), None)
DESTROY_LAPSED = ("DestroyNode", (LAUNCH.id,), NODE.provider_id)


@pytest.mark.parametrize(("order", "lapsed"), [(CREATE, CREATE_LAPSED), (DESTROY, DESTROY_LAPSED)])
def test_53_an_order_that_comes_late_to_the_cloud_is_left_undone(
    order: CreateNode | DestroyNode, lapsed: tuple[str, tuple[LaunchId, ...], ProviderId | None]
) -> None:
    """As after a SIGSTOP: another manager may have taken over since the order was given."""
    post = Post()
    calls_are_bugs = Cloud(AssertionError("a late order was carried out"))
    cloud_worker(calls_are_bugs, post).on_receive(WithDeadline(order, NOW_S - 0.5))
    assert post.told == [OrderLapsed(*lapsed, "0.5 s too late")]


def test_53_a_late_call_for_several_nodes_is_left_undone_for_each_of_them() -> None:
    post = Post()
    calls_are_bugs = Cloud(AssertionError("a late order was carried out"))
    cloud_worker(calls_are_bugs, post).on_receive(WithDeadline(Together((CREATE, DESTROY)), NOW_S - 0.5))
    late = "0.5 s too late"
    assert post.told == [OrderLapsed(*CREATE_LAPSED, late), OrderLapsed(*DESTROY_LAPSED, late)]


@pytest.mark.parametrize(("order", "lapsed"), [(CREATE, CREATE_LAPSED), (DESTROY, DESTROY_LAPSED)])
@pytest.mark.parametrize("error", [NotTheActor("process 7 has it"), FluxError("no answer")])
def test_53_who_does_not_surely_act_calls_no_cloud(
    order: CreateNode | DestroyNode,
    lapsed: tuple[str, tuple[LaunchId, ...], ProviderId | None],
    error: FluxError,
) -> None:
    post = Post()
    calls_are_bugs = Cloud(AssertionError("one that does not act called the cloud"))
    mandate = Flux(fails_at="must_act", error=error)
    cloud_worker(calls_are_bugs, post, mandate).on_receive(WithDeadline(order, NOW_S + 30))
    assert post.told == [OrderLapsed(*lapsed, str(error))]


def test_53_the_clock_is_looked_at_after_the_name() -> None:
    """A stop during the check of the claim counts as well."""
    clock = FrozenClock()

    class SlowMandate(Flux):
        def ensure_actor(self) -> None:
            clock.monotonic_s = lambda: NOW_S + 60.0  # type: ignore[method-assign]

    post = Post()
    CloudWorker(Cloud(), SlowMandate(), clock, post, Fate()).on_receive(WithDeadline(CREATE, NOW_S + 30))
    assert post.told == [OrderLapsed(*CREATE_LAPSED, "30.0 s too late")]


@pytest.mark.parametrize(
    ("order", "launches"),
    [
        (StopBroker(LAUNCH.id, Rank(1)), (LAUNCH.id,)),
        (RecordLaunches((LAUNCH,)), (LAUNCH.id,)),
        (EndLease(LAUNCH, because(Code.GONE)), (LAUNCH.id,)),
        (ChangeSlots(WISH, MOVES, because(Code.SLOTS_WISHED)), ()),
    ],
)
def test_53_an_order_that_comes_late_to_flux_is_left_undone(
    order: FluxEffect, launches: tuple[LaunchId, ...]
) -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(WithDeadline(order, NOW_S - 2.0))
    assert port.calls == []
    assert told == [OrderLapsed(type(order).__name__, launches, None, "2.0 s too late")]


def test_a_requeue_that_is_left_undone_names_its_job() -> None:
    order = RequeueJob(JobId(7), LAUNCH.id, because(Code.REQUEUED))
    worker, told = flux_worker(Flux())
    worker.on_receive(WithDeadline(order, NOW_S - 2.0))
    assert told == [OrderLapsed("RequeueJob", (), None, "2.0 s too late", JobId(7))]
    worker, told = flux_worker(Flux(fails_at="requeue 7"))
    worker.on_receive(WithDeadline(order, NOW_S + 30))
    assert told == [FluxCallFailed((), "RequeueJob", "no answer", JobId(7))]


def test_a_list_carries_the_moment_it_was_begun() -> None:
    post = Post()
    CloudWatcher(Cloud(), FrozenClock(), post, Fate()).on_receive(ListCloud())
    CloudWatcher(Cloud(CloudError(FailureKind.THROTTLED, "slow", 9.0)), FrozenClock(), post, Fate()).on_receive(
        ListCloud()
    )
    assert post.told == [
        CloudListed(7.0, (NODE,)),
        CloudCallFailed("list", None, FailureKind.THROTTLED, "slow", 9.0),
    ]


def test_a_list_that_took_long_is_as_old_as_its_beginning() -> None:
    """A node that was created meanwhile may be missing from it."""
    clock = FrozenClock()

    class Slow(Cloud):
        def list_nodes(self) -> tuple[CloudNode, ...]:
            clock.monotonic_s = lambda: NOW_S + 20.0  # type: ignore[method-assign]
            return (NODE,)

    post = Post()
    CloudWatcher(Slow(), clock, post, Fate()).on_receive(ListCloud())
    assert post.told == [CloudListed(NOW_S, (NODE,))]


def test_a_look_at_the_ranks_that_took_long_is_as_old_as_its_beginning() -> None:
    """A job that began meanwhile may be missing from it."""
    clock = FrozenClock()

    class Slow(Flux):
        def ranks(self) -> tuple[FluxRank, ...]:
            clock.monotonic_s = lambda: NOW_S + 20.0  # type: ignore[method-assign]
            return super().ranks()

    post = Post()
    FluxWorker(Slow(), clock, post, acts=True, fate=Fate()).on_receive(LookAtRanks())
    (seen,) = (fact for fact in post.told if isinstance(fact, RanksSeen))
    assert (seen.started_s, seen.took_s) == (NOW_S, 20.0)


def test_a_sweep_that_works_and_one_that_does_not() -> None:
    post = Post()
    CloudWatcher(Cloud(), FrozenClock(), post, Fate()).on_receive(SweepCloud())
    broken = Cloud(CloudError(FailureKind.CREDENTIALS, "may not"))
    CloudWatcher(broken, FrozenClock(), post, Fate()).on_receive(SweepCloud())
    assert post.told == [
        LeftoversRemoved((LEFT,)),
        CloudCallFailed("sweep", None, FailureKind.CREDENTIALS, "may not"),
    ]


def test_a_claim_brings_what_is_on_record() -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(ClaimInstance())
    assert port.calls == ["claim", "repair", "launches", "steering", "spend"]
    assert told == [ClaimHeld(7.0, (LAUNCH,), STEERING, SPEND)]


def test_one_that_only_observes_does_not_take_the_name() -> None:
    port = Flux()
    worker, told = flux_worker(port, acts=False)
    worker.on_receive(ClaimInstance())
    assert (port.calls, told) == (
        ["launches", "steering", "spend"],
        [ClaimHeld(7.0, (LAUNCH,), STEERING, SPEND)],
    )


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (NotTheActor("pid 7 has it"), ClaimRefused(7.0, "pid 7 has it")),
        (FluxError("gone"), FluxUnreachable(7.0, "gone")),
    ],
)
def test_a_claim_that_fails_says_whether_another_one_acts(error: FluxError, fact: object) -> None:
    worker, told = flux_worker(Flux(fails_at="claim", error=error))
    worker.on_receive(ClaimInstance())
    assert told == [fact]


def test_the_second_look_is_asked_after_the_drain() -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(WithDeadline(DrainNode(LAUNCH.id, Rank(1), because(Code.WINDOW_CLOSES)), NOW_S))
    assert port.calls == ["drain flux-node-manager:cloud1-1", "ranks"]
    assert told == [NodeDrained(LAUNCH.id, 7.0, RANK)]


def test_a_drain_names_the_drain_of_flux_that_it_replaces() -> None:
    port = Flux()
    worker, _ = flux_worker(port)
    order = DrainNode(LAUNCH.id, Rank(1), because(Code.DRAINED_BY_FLUX), note="its fan", replaces="prolog failed")
    worker.on_receive(WithDeadline(order, NOW_S))
    assert port.calls == ["drain flux-node-manager:cloud1-1 its fan, which replaces prolog failed", "ranks"]


def test_without_a_second_look_no_drain_counts() -> None:
    worker, told = flux_worker(Flux(fails_at="ranks"))
    worker.on_receive(WithDeadline(DrainNode(LAUNCH.id, Rank(1), because(Code.WINDOW_CLOSES)), NOW_S))
    assert told == [FluxCallFailed((LAUNCH.id,), "DrainNode", "no answer")]


@pytest.mark.parametrize(("hard", "number"), [(False, 15), (True, 9)])
def test_housekeeping_is_asked_to_end_and_then_made_to(hard: bool, number: int) -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(
        WithDeadline(KillHousekeeping(LAUNCH.id, Rank(1), hard, because(Code.HOUSEKEEPING_STUCK)), NOW_S)
    )
    assert (port.calls, told) == ([f"kill_housekeeping 1 {number}"], [HousekeepingKilled(LAUNCH.id)])


def test_a_lease_ends_after_its_slot_is_undrained() -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(WithDeadline(EndLease(LAUNCH, because(Code.GONE)), NOW_S))
    assert (port.calls, told) == (["undrain", "forget"], [LeaseEnded(LAUNCH.id)])


def test_who_lost_the_name_says_so_beside_the_failure() -> None:
    worker, told = flux_worker(Flux(fails_at="record", error=NotTheActor("lost")))
    worker.on_receive(WithDeadline(RecordLaunches((LAUNCH,)), NOW_S))
    assert told == [FluxCallFailed((LAUNCH.id,), "RecordLaunches", "lost"), ClaimRefused(7.0, "lost")]


def test_a_look_brings_all_ranks() -> None:
    worker, told = flux_worker(Flux())
    worker.on_receive(LookAtRanks())
    assert told == [RanksSeen(7.0, (RANK,), WISH, 3), RanksMeasured(HARDWARE)]


def test_a_cordon_drains_by_its_own_text_and_looks_again() -> None:
    port = Flux()
    worker, told = flux_worker(port)
    worker.on_receive(WithDeadline(CordonNode(LAUNCH.id, Rank(1), "ours", because(Code.HELD_BY_OPERATOR)), NOW_S))
    assert port.calls == ["drain ours", "ranks"]
    assert told == [NodeCordoned(LAUNCH.id, 7.0, RANK)]


def test_what_operators_set_is_said_to_be_on_record_once_it_is() -> None:
    worker, told = flux_worker(Flux())
    worker.on_receive(KeepSteering(STEERING))
    assert told == [SteeringKept(STEERING)]


def test_what_was_spent_is_said_to_be_on_record_once_it_is() -> None:
    worker, told = flux_worker(Flux())
    worker.on_receive(KeepSpend(SPEND))
    assert told == [SpendKept(SPEND)]


@pytest.mark.parametrize(
    ("error", "more"), [(FluxError("away"), []), (NotTheActor("away"), [ClaimRefused(7.0, "away")])]
)
def test_what_could_not_be_put_on_record_is_said(error: FluxError, more: list[object]) -> None:
    worker, told = flux_worker(Flux(fails_at="keep_steering", error=error))
    worker.on_receive(KeepSteering(STEERING))
    assert told == [SteeringNotKept("away"), *more]
    worker, told = flux_worker(Flux(fails_at="keep_spend", error=error))
    worker.on_receive(KeepSpend(SPEND))
    assert told == [SpendNotKept("away"), *more]


def test_memos_name_users_by_name() -> None:
    port = Flux()
    worker, _ = flux_worker(port)
    worker.on_receive(ShowOnJobs({JobId(1): "user 0 would exceed the budget", JobId(2): None}))
    assert port.shown == {JobId(1): f"user {pwd.getpwuid(0).pw_name} would exceed the budget", JobId(2): None}


def test_a_text_that_cannot_be_shown_on_a_job_is_no_failure() -> None:
    port = Flux(fails_at="show_on_jobs")
    worker, told = flux_worker(port)
    worker.on_receive(ShowOnJobs({JobId(1): "waits"}))
    assert (port.calls, told) == (["show_on_jobs"], [])


class BrokenPost:
    """A mailbox with a bug."""

    def tell(self, message: Any) -> None:
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    "start",
    [
        lambda fate: CloudWorker.start(Cloud(), Flux(), FrozenClock(), BrokenPost(), fate).tell(
            WithDeadline(CREATE, NOW_S)
        ),
        lambda fate: CloudWatcher.start(Cloud(), FrozenClock(), BrokenPost(), fate).tell(ListCloud()),
    ],
)
def test_49_a_bug_in_any_actor_ends_the_process(start: Callable[[Fate], None]) -> None:
    fate = Fate()
    start(fate)
    assert fate.ended.wait(10)
    assert isinstance(fate.crashed, ZeroDivisionError)


@pytest.mark.parametrize("error", [KeyError("instanceId"), RecursionError("too deep"), AssertionError()])
def test_an_answer_that_an_adapter_does_not_understand_is_a_failed_call(error: Exception) -> None:
    post, cloud = Post(), Cloud(error)
    lister = CloudWatcher(cloud, FrozenClock(), post, Fate())
    worker = CloudWorker(cloud, Flux(), FrozenClock(), post, Fate())
    with capture_logs() as logs:
        for _ in range(3):
            lister.on_receive(ListCloud())
            lister.on_receive(SweepCloud())
            for order in (CREATE, DestroyNode(LAUNCH.id, NODE.provider_id, because(Code.STOPPING))):
                worker.on_receive(WithDeadline(order, NOW_S))
    assert all(isinstance(fact, CloudCallFailed) and not fact.foreseen for fact in post.told)
    assert [(fact.operation, fact.kind) for fact in post.told] == 3 * [
        ("list", FailureKind.TRANSIENT),
        ("sweep", FailureKind.TRANSIENT),
        ("create", FailureKind.AMBIGUOUS),  # the node may exist
        ("destroy", FailureKind.TRANSIENT),
    ]
    shown = [line["operation"] for line in logs if line["event"] == "cloud_call_not_understood"]
    assert shown == ["list", "sweep", "create", "destroy"], "each once, with its traceback"
    assert all(line["exc_info"].__cause__ is error for line in logs)


def test_a_batch_whose_answers_do_not_match_its_orders_has_failed_as_a_whole() -> None:
    class Short(Cloud):
        def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode]:
            return (NODE,)

        def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[None]:
            return ()

    post = Post()
    worker = CloudWorker(Short(), Flux(), FrozenClock(), post, Fate())
    worker.on_receive(WithDeadline(Together((CREATE, CREATE)), NOW_S))
    end = DestroyNode(LAUNCH.id, NODE.provider_id, because(Code.STOPPING))
    worker.on_receive(WithDeadline(Together((end, end)), NOW_S))
    assert [(fact.operation, fact.kind) for fact in post.told] == [
        *2 * [("create", FailureKind.AMBIGUOUS)],
        *2 * [("destroy", FailureKind.TRANSIENT)],
    ]


def test_a_copy_is_settled_and_its_user_is_told_in_a_sentence() -> None:
    reason = because(Code.COPY_NOT_NEEDED, job="7", result="COMPLETED")
    for order, call, fact in (
        (ReadResult(JobId(8), JobId(7), reason), "result 7", ResultRead(JobId(8), JobResult.COMPLETED)),
        (StartCopy(JobId(8), reason), "start_copy 8", CopySettled(JobId(8))),
        (
            CancelCopy(JobId(8), reason),
            "cancel_copy 8 not needed: job f8, which it would have replaced, ended as COMPLETED",
            CopySettled(JobId(8)),
        ),
    ):
        port = Flux()
        worker, told = flux_worker(port)
        worker.on_receive(WithDeadline(order, 60.0))
        assert (port.calls, told) == ([call], [fact])
        worker, told = flux_worker(Flux(fails_at=call))
        worker.on_receive(WithDeadline(order, 60.0))
        assert told == [FluxCallFailed((), type(order).__name__, "no answer", JobId(8))]
