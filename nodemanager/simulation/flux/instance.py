"""A Flux instance in memory, driven in virtual time by users, operators and machines.

It behaves like flux-core 0.88 with sched-simple and placeholder ranks; tests compare it with a recording of the
real one. Its parts are ``job_manager``, ``brokers`` (connections and drains) and ``sched_simple`` (resources). The
node manager uses it only by ``port`` and ``watch``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nodemanager.core.jobs import JobId, JobResult, JobState, Shape
from nodemanager.core.nodes import CloudNode, Launch
from nodemanager.core.ports import FluxError, SlotsUnchanged
from nodemanager.core.records import HeldJob, Spend, Steering
from nodemanager.core.slots import NodeType, Promise, Rank, Slot, SlotName, SlotsWish, TypeName
from nodemanager.delegation.jobs import HOLD
from nodemanager.simulation.flux.brokers import Brokers, ResourceEvent
from nodemanager.simulation.flux.faults import FluxFaults
from nodemanager.simulation.flux.housekeeping import HousekeepingTime
from nodemanager.simulation.flux.job_manager import JobEvent, JobManager
from nodemanager.simulation.flux.jobid import format_f58
from nodemanager.simulation.flux.jobspec import Jobspec, write_jobspec
from nodemanager.simulation.flux.resource_set import Grant, RankResources
from nodemanager.simulation.flux.sched_simple import Pool
from nodemanager.simulation.time.world import World

BROKER_STOP_S = 0.2


@dataclass(frozen=True, slots=True)
class JournalFollower:
    """A reader of both journals. ``lost`` is called once, when the connection is lost; no events follow."""

    on_job: Callable[[JobEvent], None]
    on_resource: Callable[[ResourceEvent], None]
    lost: Callable[[str], None]


class SimulatedFlux:
    """One instance. Rank 0 is ``head``; every slot is a rank that stays offline until a machine joins as it."""

    def __init__(
        self,
        world: World,
        node_types: Sequence[NodeType],
        slots: Sequence[Slot],
        *,
        head: str = "head",
        head_cores: int = 4,
    ) -> None:
        self.faults = FluxFaults()
        self.leases: dict[SlotName, Launch] = {}
        self.steering = Steering()
        self.held_jobs: dict[JobId, HeldJob] = {}
        self.spend = Spend()
        self.shown_on_jobs: dict[JobId, str] = {}  # the annotation ``user.nodes`` of active jobs
        self.claimed_by: str | None = None
        self.cluster_uuid = ""  # of the first manager that claimed the instance
        self.wish: SlotsWish | None = None
        self.wish_answers: dict[str, str] = {}  # by wish, why it was refused; "" if it was fulfilled
        self.unfinished_wish: str | None = None  # the wish that is being carried out: no scheduler meanwhile
        self._types = {node_type.name: node_type for node_type in node_types}
        self.promises: dict[TypeName, Promise] = {}  # as stored in the instance's configuration
        self._type_of = {slot.name: slot.type_name for slot in slots}
        self.world = world
        self._draws = world.draws_for("flux")
        self._followers: list[JournalFollower] = []
        self._down = False
        self._unreachable = False
        self._scheduler_unloaded = False
        self._queue_stopped_s = 0.0  # when the first of the queues that are stopped now was stopped
        self._rank_of = {slot.name: slot.rank for slot in slots}
        # The machines whose brokers join again by themselves after rank 0 restarts.
        self._machines: dict[Rank, str] = {}
        self._pool = Pool(_rank_resources(node_types, slots))
        self.starts = 1  # of rank 0
        self._jobs = self._make_job_manager(world, self._pool, self._connected)
        self._brokers = Brokers(
            world, RankResources(0, head, head_cores, 0, frozenset()), self._pool, self._jobs.on_resources_changed
        )
        self._jobs.listeners.append(self._publish_job_event)
        self._brokers.listeners.append(self._publish_resource_event)
        self._brokers.start()

    def _make_job_manager(self, world: World, pool: Pool, connected: Callable[[int], bool]) -> JobManager:
        return JobManager(world, pool, connected)

    def _connected(self, rank: int) -> bool:
        return self._brokers.connected(rank)

    # --- users ---

    def submit(
        self,
        jobspec: Jobspec | Shape,
        duration_s: float = 0.0,
        *,
        run_s: float = 1.0,
        urgency: int = 16,
        after: Sequence[JobId] = (),
        queue: str = "",
        requeue: bool = False,
        housekeeping_s: HousekeepingTime | None = None,
    ) -> JobId:
        """Submit a job that runs for ``run_s``, or for its time limit ``duration_s`` if that is shorter.

        ``duration_s`` 0 is unlimited. ``after``: jobs that must end first. Give ``duration_s``, ``after``,
        ``queue`` and ``requeue`` only with a shape; a jobspec (V1) contains them. ``housekeeping_s`` None is the
        instance's own time. Raises ValueError for a jobspec that the ingest would reject, FluxError while the
        instance is down.
        """
        if isinstance(jobspec, Shape):
            awaited = tuple(format_f58(job_id) for job_id in after)
            jobspec = write_jobspec(jobspec, duration_s=duration_s, queue=queue, after=awaited, requeue=requeue)
        elif duration_s or after or queue or requeue:
            raise ValueError("a jobspec contains its duration, dependencies, queue and requeue: give none of them")
        with self.world.lock:
            self._check_up()
            return self._jobs.submit(jobspec, run_s, urgency, housekeeping_s)

    def submit_unscheduled(self, jobspec: Jobspec, *, urgency: int = 1, userid: int = 0) -> JobId:
        """Submit any jobspec, unread: the job waits until it is cancelled. Raises FluxError as ``submit`` does."""
        with self.world.lock:
            self._check_up()
            return self._jobs.submit_unscheduled(jobspec, urgency, userid)

    def update_jobspec(self, job_id: JobId, updates: Mapping[str, Any]) -> None:
        """Update the jobspec of such a job."""
        with self.world.lock:
            self._jobs.update_jobspec(job_id, updates)

    def requeue(self, job_id: JobId) -> JobId:
        """Submit a job again, held. Raises FluxError if there is no such job, or it does not ask for that."""
        with self.world.lock:
            self._check_up()
            try:
                return self._jobs.requeue(job_id)
            except ValueError as refused:
                raise FluxError(str(refused)) from refused

    def result(self, job_id: JobId) -> JobResult | None:
        """How a job ended that asked to be submitted again; None if it is active."""
        with self.world.lock:
            return self._jobs.result(job_id)

    def start_copy(self, job_id: JobId) -> None:
        """Remove the manager's hold of a copy, if there is one."""
        with self.world.lock:
            self._jobs.remove_hold(job_id, HOLD)

    def cancel_copy(self, job_id: JobId, note: str) -> None:
        """Cancel a copy that has the manager's hold."""
        with self.world.lock:
            if self._jobs.is_held(job_id, HOLD):
                self._jobs.cancel(job_id, note)

    def set_urgency(self, job_id: JobId, urgency: int) -> None:
        with self.world.lock:
            self._jobs.set_urgency(job_id, urgency)

    def hold_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        """Record the jobs, then hold those that are still pending."""
        self.held_jobs |= jobs
        self._set_urgencies(dict.fromkeys(jobs, 0))

    def release_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        """Give the jobs that are still pending their urgency again, then forget them."""
        self._set_urgencies({id_: held.urgency for id_, held in jobs.items()})
        for id_ in jobs:
            self.held_jobs.pop(id_, None)

    def _set_urgencies(self, urgencies: Mapping[JobId, int]) -> None:
        for id_, urgency in urgencies.items():
            with suppress(ValueError, KeyError):  # it has started, or ended
                self.set_urgency(id_, urgency)

    def cancel(self, job_id: JobId) -> None:
        with self.world.lock:
            self._jobs.cancel(job_id)

    def job_state(self, job_id: JobId) -> JobState | None:
        """The job's state; None once it is inactive."""
        with self.world.lock:
            return self._jobs.state(job_id)

    def active_jobs(self) -> tuple[JobId, ...]:
        with self.world.lock:
            return self._jobs.active()

    @property
    def jobs_ended(self) -> int:
        with self.world.lock:
            return self._jobs.ended_count

    # --- operators ---

    def stop_queue(self, queue: str = "") -> None:
        """Let no more jobs of this queue start. "" is the anonymous queue."""
        with self.world.lock:
            self._queue_stopped_s = self.queues_open_s
            self._jobs.stop_queue(queue)

    def start_queue(self, queue: str = "") -> None:
        with self.world.lock:
            self._jobs.start_queue(queue)

    def drain(self, rank: Rank, reason: str | None, replaces: str | None = None) -> None:
        """Drain a rank, as an administrator does. A rank that is drained keeps its reason, unless ``replaces``."""
        with self.world.lock:
            self._brokers.drain(self._require_rank(rank), reason, replaces)

    def undrain(self, rank: Rank) -> None:
        with self.world.lock:
            self._brokers.undrain(self._require_rank(rank))

    def set_torpid(self, slot: SlotName, *, torpid: bool) -> None:
        with self.world.lock:
            self._brokers.set_torpid(self._rank_of[slot], torpid=torpid)

    def hang(self, slot: SlotName, *, hung: bool = True) -> None:
        """Make the slot's broker hang: it stays connected and answers nothing, until it is removed or released."""
        with self.world.lock:
            self._brokers.set_hung(self._rank_of[slot], hung=hung)

    def set_housekeeping(
        self, housekeeping_s: HousekeepingTime, *, partial_release: bool = True, ignores: Collection[int] = ()
    ) -> None:
        """Set how long housekeeping keeps each rank allocated after a job, for jobs submitted from now on.

        ``ignores``: the signals that do not end a housekeeping started from now on.
        """
        with self.world.lock:
            self._jobs.housekeeping_s = housekeeping_s
            self._jobs.housekeepers.partial_release = partial_release
            self._jobs.housekeepers.ignores = frozenset(ignores)

    def set_clock_skew(self, skew_s: float) -> None:
        """Set how far the leader's wall clock is ahead of the world's."""
        with self.world.lock:
            self._jobs.clock_skew_s = self._brokers.clock_skew_s = skew_s

    def wish_slots(self, wish: SlotsWish) -> None:
        """Ask for other slots, as ``flux-node-manager slots`` does."""
        with self.world.lock:
            self.wish = wish

    def answer_wish(self, wish_id: str, why: str) -> None:
        """Answer a wish: ``why`` it was refused, "" if it was fulfilled. Only the first answer counts."""
        self.wish_answers.setdefault(wish_id, why)
        if self.wish is not None and self.wish.id == wish_id:
            self.wish = None

    @property
    def slot_types(self) -> Mapping[SlotName, TypeName]:
        """The type of each slot, from the instance's configuration."""
        return dict(self._type_of)

    def begin_slot_change(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        """Give slots other types. There is no scheduler until ``end_slot_change``; running jobs keep their grants.

        Raises SlotsUnchanged if one of the slots is online or held.
        """
        held = {grant.rank for _, grant in self._jobs.held_grants()}
        for slot in moves:
            rank = self._rank_of[slot]
            if self._brokers.connected(rank) or rank in held:
                raise SlotsUnchanged(f"slot {slot} has been taken meanwhile")
        for name, promise in wish.promises.items():
            self._types[name] = self._types[name].with_promise(promise)
            self.promises[name] = promise
        for slot, type_name in moves.items():
            self._type_of[slot] = type_name
            of_type = self._types[type_name]
            self._pool.retype(self._rank_of[slot], of_type.cores, of_type.gpus, of_type.properties)
        self.unfinished_wish = wish.id
        self._pool.set_closed(closed=True)
        self._lose_followers("the resource module was reloaded")

    def end_slot_change(self) -> None:
        self.unfinished_wish = None
        self._pool.set_closed(closed=self._scheduler_unloaded)
        self._brokers.post_resource_define()
        self._jobs.on_resources_changed()

    # --- machines ---

    def broker_up(self, slot: SlotName, machine: str = "") -> None:
        """Join a machine's broker as the slot's rank. A broker that is already there is removed; its jobs fail."""
        with self.world.lock:
            rank = self._rank_of[slot]
            self._machines[rank] = machine
            if self._down:
                return  # a follower may start before its leader: it joins once rank 0 is back
            if self._brokers.connected(rank):
                self._drop_rank(rank, lost=True)
            self._brokers.join(rank)

    def broker_down(self, slot: SlotName, *, lost: bool = True, machine: str = "") -> None:
        """End the slot's broker: suddenly if ``lost``, else in good order.

        ``machine``: end it only if it runs on this machine.
        """
        with self.world.lock:
            rank = self._rank_of[slot]
            if machine and self._machines.get(rank) != machine:
                return
            self._machines.pop(rank, None)
            if self._brokers.connected(rank):
                self._drop_rank(rank, lost=lost)

    def machine_of(self, slot: SlotName) -> str | None:
        """The machine whose broker holds a slot, or waits for rank 0 to come back; None if there is none."""
        with self.world.lock:
            return self._machines.get(self._rank_of[slot])

    def on_node_booted(self, node: CloudNode) -> None:
        """For ``SimulatedProvider.on_boot``: start the node's broker, as its user-data does."""
        if node.identity is not None and node.identity.slot in self._rank_of:
            self.broker_up(node.identity.slot, node.provider_id)

    def on_node_ended(self, node: CloudNode) -> None:
        """For ``SimulatedProvider.on_end``: end the node's broker suddenly."""
        if node.identity is not None and node.identity.slot in self._rank_of:
            self.broker_down(node.identity.slot, lost=True, machine=node.provider_id)

    def stop_broker(self, rank: Rank) -> None:
        """Stop a rank's broker in good order, ``BROKER_STOP_S`` later. A hanging broker is removed at once.

        No error if there is no broker.
        """
        with self.world.lock:
            self._require_rank(rank)
            machine = self._machines.get(rank)
            if self._brokers.hung(rank):
                self._machines.pop(rank, None)  # it notices that it was removed, ends, and does not join again
                self._drop_rank(rank, lost=True)
            elif self._brokers.connected(rank):
                self.world.after(BROKER_STOP_S, lambda: self._finish_broker_stop(rank, machine))

    def _finish_broker_stop(self, rank: Rank, machine: str | None) -> None:
        if self._machines.get(rank) == machine and self._brokers.connected(rank):
            self._machines.pop(rank, None)
            self._drop_rank(rank, lost=False)

    def _drop_rank(self, rank: Rank, *, lost: bool) -> None:
        self._brokers.leave(rank, lost=lost)
        self._jobs.lose_rank(rank)

    # --- the instance as a whole ---

    @property
    def unreachable(self) -> bool:
        """Whether the node manager cannot reach the instance, which runs on. May be set."""
        return self._unreachable

    @unreachable.setter
    def unreachable(self, unreachable: bool) -> None:
        with self.world.lock:
            self._unreachable = unreachable
            if unreachable:
                self._lose_followers("the connection to the instance is lost")

    def break_journals(self) -> None:
        """End every follower's journals. Followers may connect again at once."""
        with self.world.lock:
            self._lose_followers("the journal has a gap")

    def reload_scheduler(self, down_s: float) -> None:
        """Unload the scheduler for ``down_s``: no job starts meanwhile, and running jobs run on."""
        with self.world.lock:
            self._scheduler_unloaded = True
            self._pool.set_closed(closed=True)
            self.world.after(down_s, self._scheduler_loaded)

    def _scheduler_loaded(self) -> None:
        self._scheduler_unloaded = False
        self._pool.set_closed(closed=self.unfinished_wish is not None)
        self._jobs.on_resources_changed()

    def restart(self, down_s: float = 2.0, rejoin_s: float = 5.0) -> None:
        """Stop rank 0 in good order, and start it again ``down_s`` later.

        All other brokers end with it and running jobs fail. Pending jobs, drains and leases are kept; the claim is
        dropped. Each machine's broker joins again by itself, about ``rejoin_s`` after rank 0 is back.
        """
        with self.world.lock:
            if self._down:
                return
            left = [rank for rank in self._rank_of.values() if self._brokers.connected(rank)]
            self._brokers.stop()
            for rank in left:
                self._jobs.lose_rank(rank)
            self._down = True
            self.claimed_by = None
            self.shown_on_jobs = {}
            self._lose_followers("rank 0 has stopped")
            self.world.after(down_s, lambda: self._start_rank_0(rejoin_s))

    def resize(self, added: Mapping[SlotName, TypeName], down_s: float = 2.0, rejoin_s: float = 5.0) -> None:
        """Restart with additional slots, which get the last ranks. No effect while rank 0 is down."""
        with self.world.lock:
            if self._down:
                return
            self.restart(down_s, rejoin_s)
            for slot, type_name in added.items():
                rank = Rank(max(self._rank_of.values()) + 1)
                of_type = self._types[type_name]
                self._rank_of[slot], self._type_of[slot] = rank, type_name
                self._pool.add(RankResources(rank, slot, of_type.cores, of_type.gpus, of_type.properties))
                self._brokers.add_rank(rank, slot)

    @property
    def rank_of(self) -> Mapping[SlotName, Rank]:
        return dict(self._rank_of)

    def _start_rank_0(self, rejoin_s: float) -> None:
        self._down = False
        self.starts += 1
        self._brokers.start()
        self._jobs.restart()
        for rank, machine in self._machines.items():
            self._join_later(rank, machine, rejoin_s * self._draws.uniform(0.5, 1.5))

    def _join_later(self, rank: Rank, machine: str, delay_s: float) -> None:
        def join() -> None:
            if not self._down and self._machines.get(rank) == machine and not self._brokers.connected(rank):
                self._brokers.join(rank)

        self.world.after(delay_s, join)

    # --- the node manager ---

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        active = set(self._jobs.active())
        shown = {**self.shown_on_jobs, **texts}
        self.shown_on_jobs = {job: text for job, text in shown.items() if text is not None and job in active}

    def drop_claim(self, token: str) -> None:
        """Release the claim of a manager whose process died."""
        with self.world.lock:
            if self.claimed_by == token:
                self.claimed_by = None

    def check_reachable(self) -> None:
        """Raise FluxError if a call from outside cannot reach the instance."""
        if self._unreachable:
            raise FluxError("the instance does not answer")
        self._check_up()

    def _check_up(self) -> None:
        if self._down:
            raise FluxError("rank 0 is down")

    def _require_rank(self, rank: Rank) -> Rank:
        if rank not in self._pool.ranks:
            raise FluxError(f"rank {rank} is not one of this instance's slots")
        return rank

    # --- the journals ---

    def follow(self, follower: JournalFollower) -> Callable[[], None]:
        """Send every event from now on to a follower. Call the returned function to stop."""
        with self.world.lock:
            self.check_reachable()
            self._followers.append(follower)
            return lambda: self._unfollow(follower)

    def observe_jobs(self, observer: Callable[[JobEvent], None]) -> None:
        """Tell every event of every job to an observer, whatever happens to rank 0: the truth, for checks."""
        self._jobs.listeners.append(observer)

    def _unfollow(self, follower: JournalFollower) -> None:
        with self.world.lock:
            if follower in self._followers:
                self._followers.remove(follower)

    def _lose_followers(self, why: str) -> None:
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.lost(why)

    def _publish_job_event(self, event: JobEvent) -> None:
        for follower in self._followers:
            follower.on_job(event)

    def _publish_resource_event(self, event: ResourceEvent) -> None:
        for follower in self._followers:
            follower.on_resource(event)

    def active_events(self) -> Iterator[JobEvent]:
        return self._jobs.active_events()

    def queues_stopped(self) -> frozenset[str] | None:
        """The stopped queues; None if there is no scheduler, which hides them."""
        if self.unfinished_wish is not None or self._scheduler_unloaded:
            return None
        return frozenset(self._jobs.stopped_queues)

    @property
    def queues_open_s(self) -> float:
        """When all queues were last open: the truth, for checks."""
        return self.world.now_s if not self._jobs.stopped_queues else self._queue_stopped_s

    # --- replies ---

    def resource_status(self) -> Mapping[str, object]:
        with self.world.lock:
            return self._brokers.resource_status()

    def sched_resource_status(self) -> Mapping[str, object]:
        with self.world.lock:
            if self.unfinished_wish is not None or self._scheduler_unloaded:
                raise FluxError("the instance has no scheduler")
            return self._brokers.sched_resource_status()

    def overlay_health(self) -> Mapping[str, Any]:
        with self.world.lock:
            return self._brokers.overlay_health()

    def job_manager_stats(self) -> Mapping[str, object]:
        with self.world.lock:
            return {"housekeeping": self._jobs.housekeepers.stats()}

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        with self.world.lock:
            self._jobs.housekeepers.kill(self._require_rank(rank), signal)

    def end_housekeeping(self) -> None:
        """End all housekeeping, as an administrator would by hand."""
        with self.world.lock:
            self._jobs.housekeepers.end_all()

    def housekeeping_since(self, rank: Rank) -> tuple[float, ...]:
        """When each running housekeeping of a rank began: the truth, for checks."""
        with self.world.lock:
            return self._jobs.housekeepers.started_at(rank)

    def last_job_ended_at(self) -> Mapping[Rank, float]:
        with self.world.lock:
            return dict(self._jobs.last_ended_at)

    def give_back(self, job_id: JobId, ranks: Collection[Rank]) -> None:
        """Let a running job, which is an instance, give back some of its ranks, as ``release-idle`` does."""
        with self.world.lock:
            self._jobs.give_back(job_id, ranks)

    def given_back(self) -> Mapping[Rank, JobId]:
        """The ranks that running jobs have given back."""
        with self.world.lock:
            return self._jobs.given_back()

    def say_data_safe(self, job_id: JobId, rank: Rank) -> None:
        """Say that the data of a job was copied off a rank."""
        with self.world.lock:
            self._jobs.say_data_safe(job_id, rank)

    def unsafe_data(self) -> Mapping[Rank, Mapping[JobId, float]]:
        """The ended jobs whose data nobody called safe, by rank, with the time of their end."""
        with self.world.lock:
            return {rank: dict(jobs) for rank, jobs in self._jobs.unsafe_on.items()}

    def drain_reason(self, rank: Rank) -> str | None:
        with self.world.lock:
            return self._brokers.drain_reason(self._require_rank(rank))

    def online(self, rank: Rank) -> bool:
        """Whether the rank's broker is connected: the truth, for checks."""
        with self.world.lock:
            return self._brokers.connected(self._require_rank(rank))

    def held_grants(self) -> tuple[tuple[JobId, Grant], ...]:
        """Return every job with each of its grants, housekeeping included: the truth, for checks."""
        with self.world.lock:
            return tuple(self._jobs.held_grants())


def _rank_resources(node_types: Sequence[NodeType], slots: Sequence[Slot]) -> list[RankResources]:
    types = {node_type.name: node_type for node_type in node_types}
    resources = [
        RankResources(slot.rank, slot.name, of_type.cores, of_type.gpus, of_type.properties)
        for slot in slots
        for of_type in (types[slot.type_name],)
    ]
    return sorted(resources, key=lambda it: it.rank)
