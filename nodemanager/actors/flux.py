"""The actor that calls Flux. It owns its port, because a Flux handle belongs to one thread."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import assert_never

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.messages import Mailbox
from nodemanager.actors.user_names import user_name
from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    BrokerStopped,
    ClaimHeld,
    ClaimRefused,
    CopySettled,
    FluxCallFailed,
    FluxFact,
    FluxUnreachable,
    HousekeepingKilled,
    JobRequeued,
    JobsHeld,
    JobsReleased,
    LaunchesRecorded,
    LeaseEnded,
    NodeCordoned,
    NodeDrained,
    NodeUndrained,
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
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import FluxRank
from nodemanager.core.orders import (
    CancelCopy,
    ChangeSlots,
    ClaimInstance,
    CordonNode,
    DrainNode,
    EndLease,
    FluxEffect,
    FluxOrder,
    HoldJobs,
    KeepSpend,
    KeepSteering,
    KillHousekeeping,
    LookAtRanks,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    ShowOnJobs,
    StartCopy,
    StopBroker,
    UndrainNode,
    WithDeadline,
)
from nodemanager.core.ports import Clock, FluxError, FluxPort, NotRequeued, NotTheActor, SlotsUnchanged
from nodemanager.core.reason_text import ClockReading, with_user_names
from nodemanager.core.slots import Rank, SlotName, SlotsWish, TypeName


class FluxWorker(CrashOnlyActor):
    """Carries out orders to Flux, one after the other. ``acts`` is false if the manager only observes."""

    def __init__(self, port: FluxPort, clock: Clock, manager: Mailbox[FluxFact], acts: bool, fate: Fate) -> None:
        super().__init__(fate)
        self._port = port
        self._clock = clock
        self._manager = manager
        self._acts = acts

    def on_receive(self, message: FluxOrder) -> None:
        match message:
            case ClaimInstance():
                self._claim()
            case LookAtRanks():
                self._report_ranks()
            case KeepSteering() | KeepSpend():
                self._save_and_report(message)
            case ShowOnJobs():
                self._show_on_jobs(message)
            case WithDeadline(order=order, start_before_s=start_before_s):
                self._carry_out(order, start_before_s)
            case _:
                assert_never(message)

    def _claim(self) -> None:
        started_s = self._clock.monotonic_s()
        try:
            if self._acts:
                self._port.claim()
                self._port.repair()  # before the first plan: the scheduler may not be loaded
            launches = self._port.launches()
            steering = self._port.steering()
            spend = self._port.spend()
            held_jobs = self._port.held_jobs()
        except NotTheActor as error:
            self._manager.tell(ClaimRefused(started_s, str(error)))
        except FluxError as error:
            self._manager.tell(FluxUnreachable(started_s, str(error)))
        else:
            self._manager.tell(ClaimHeld(started_s, launches, steering, spend, held_jobs))

    def _report_ranks(self) -> None:
        started_s = self._clock.monotonic_s()
        try:
            if not self._acts:
                self._manager.tell(self._read_record())
            ranks = self._port.ranks()
            wish = self._port.slots_wish() if self._acts else None
            jobs_ended = self._port.jobs_ended()
            took_s = self._clock.monotonic_s() - started_s
            self._manager.tell(RanksSeen(started_s, ranks, wish, jobs_ended, took_s, self._port.node_order()))
            # Last, because this call asks the nodes themselves, and some of them may hang.
            if self._acts and (hardware := self._port.read_hardware()):
                self._manager.tell(RanksMeasured(hardware))
        except FluxError as error:
            self._manager.tell(FluxUnreachable(started_s, str(error)))

    def _read_record(self) -> RecordSeen:
        """Read again what the acting manager has recorded: this one only observes."""
        return RecordSeen(self._port.launches(), self._port.steering(), self._port.spend())

    def _save_and_report(self, order: KeepSteering | KeepSpend) -> None:
        started_s = self._clock.monotonic_s()
        try:
            self._manager.tell(self._save(order))
        except FluxError as error:
            refused = SteeringNotKept if isinstance(order, KeepSteering) else SpendNotKept
            self._manager.tell(refused(str(error)))
            if isinstance(error, NotTheActor):
                self._manager.tell(ClaimRefused(started_s, str(error)))

    def _save(self, order: KeepSteering | KeepSpend) -> SteeringKept | SpendKept:
        match order:
            case KeepSteering(steering=steering):
                self._port.keep_steering(steering)
                return SteeringKept(steering)
            case KeepSpend(spend=spend):
                self._port.keep_spend(spend)
                return SpendKept(spend)

    def _show_on_jobs(self, order: ShowOnJobs) -> None:
        """Set the memos of jobs. A failure is ignored and not retried: nothing depends on memos."""
        texts = {job: text and with_user_names(text, user_name) for job, text in order.texts.items()}
        with suppress(FluxError):
            self._port.show_on_jobs(texts)

    def _carry_out(self, order: FluxEffect, start_before_s: float) -> None:
        started_s = self._clock.monotonic_s()
        name, launches = order.name, order.launch_ids if order.call is not None else ()
        job = order.job if isinstance(order, RequeueJob | ReadResult | StartCopy | CancelCopy) else None
        if started_s > start_before_s:
            late = f"{started_s - start_before_s:.1f} s too late"
            self._manager.tell(OrderLapsed(name, launches, None, late, job))
            return
        try:
            self._manager.tell(self._apply(order))
        except FluxError as error:
            self._manager.tell(FluxCallFailed(launches, name, str(error), job))
            if isinstance(error, NotTheActor):
                self._manager.tell(ClaimRefused(started_s, str(error)))

    def _apply(self, order: FluxEffect) -> FluxFact:  # noqa: C901, PLR0912 - one arm an order
        match order:
            case RecordLaunches(launches=launches):
                self._port.record(launches)
                return LaunchesRecorded(launches)
            case DrainNode(launch=launch, rank=rank, note=note, replaces=replaces):
                text = f"{drain_text(launch)} {note}".rstrip()
                return NodeDrained(launch, *self._drain(rank, text, replaces))
            case CordonNode(launch=launch, rank=rank, text=text):
                return NodeCordoned(launch, *self._drain(rank, text))
            case UndrainNode(launch=launch, rank=rank):
                self._port.undrain(rank)
                return NodeUndrained(launch)
            case StopBroker(launch=launch, rank=rank):
                self._port.stop_broker(rank)
                return BrokerStopped(launch)
            case RequeueJob(job=job):
                return self._requeue(job)
            case ReadResult(job=job, original=original):
                return ResultRead(job, self._port.result(original))
            case StartCopy(job=job):
                self._port.start_copy(job)
                return CopySettled(job)
            case CancelCopy(job=job, reason=reason):
                reading = ClockReading(self._clock.monotonic_s(), self._clock.wall_at())
                self._port.cancel_copy(job, reading.sentence(reason))
                return CopySettled(job)
            case HoldJobs(jobs=jobs):
                self._port.hold_jobs(jobs)
                return JobsHeld(jobs)
            case ReleaseJobs(jobs=jobs):
                self._port.release_jobs(jobs)
                return JobsReleased(frozenset(jobs))
            case KillHousekeeping(launch=launch, rank=rank, hard=hard):
                self._port.kill_housekeeping(rank, signal.SIGKILL if hard else signal.SIGTERM)
                return HousekeepingKilled(launch)
            case EndLease(launch=launch):
                # In this order: after a crash in between, the lease is still there and the next start repeats both.
                self._port.undrain(launch.rank)
                self._port.forget(launch)
                return LeaseEnded(launch.id)
            case ChangeSlots(wish=wish, moves=moves):
                return self._change_slots(wish, moves)
            case RefuseSlots(wish=wish, reason=reason):
                self._port.refuse_slots(wish, str(reason))
                return SlotsRefused(wish.id)
            case _:
                assert_never(order)

    def _requeue(self, job: JobId) -> JobRequeued:
        try:
            return JobRequeued(job, self._port.requeue(job))
        except NotRequeued as refused:
            return JobRequeued(job, None, str(refused))

    def _change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> SlotsChanged | SlotsRefused:
        try:
            self._port.change_slots(wish, moves)
        except SlotsUnchanged as unchanged:
            self._port.refuse_slots(wish, str(unchanged))
            return SlotsRefused(wish.id)
        started_s = self._clock.monotonic_s()
        return SlotsChanged(wish.id, started_s, self._port.ranks())

    def _drain(self, rank: Rank, text: str, replaces: str | None = None) -> tuple[float, FluxRank]:
        """Drain a rank, then read it again: a job may have started before the drain took effect."""
        self._port.drain(rank, text, replaces)
        started_s = self._clock.monotonic_s()
        looked = {seen.rank: seen for seen in self._port.ranks()}
        if rank not in looked:
            raise FluxError(f"rank {rank} is not in the instance's resources")
        return started_s, looked[rank]
