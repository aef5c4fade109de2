"""The job manager of a simulated instance: jobs, their events, and the order in which they get resources.

The events, their order and their contexts are those of flux-core 0.88. Jobs of one priority start in strict FIFO
order, as with sched-simple: a job at the head that must wait blocks all jobs behind it, and an infeasible job is
rejected only when it reaches the head. The scheduler's estimates (``t_estimate``) are not simulated.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.jobs import JobId, JobResult, JobState
from nodemanager.core.slots import Rank
from nodemanager.flux.resubmit import requeue_jobspec
from nodemanager.simulation.flux.housekeeping import Housekeepers, HousekeepingTime
from nodemanager.simulation.flux.jobid import format_f58, parse_f58
from nodemanager.simulation.flux.jobspec import Count, Dependency, DependencyScheme, Jobspec, Request, read_request
from nodemanager.simulation.flux.resource_set import Grant, R, format_summary
from nodemanager.simulation.flux.sched_simple import Infeasible, Pool, ResourcesBusy
from nodemanager.simulation.time.world import Scheduled, World

SCHEDULE_DELAY_S = 0.002
START_DELAY_S = 0.01

URGENCY_DEFAULT = 16
URGENCY_EXPEDITE = 31
PRIORITY_MAX = 2**32 - 1

# The status in ``finish``, encoded as in wait(2): the shell's exit code after a signal, and 1.
_STATUS_CANCELLED = (128 + 15) << 8
_STATUS_TIMED_OUT = (128 + 14) << 8
_STATUS_NODE_LOST = 1 << 8

_RESULTS = {"cancel": JobResult.CANCELED, "timeout": JobResult.TIMEOUT}  # of exceptions; any other is a failure
_USER = 0
NO_REQUEST = Request(
    nodes=None,
    slots=Count(1, 1),
    cores_per_slot=1,
    gpus_per_slot=0,
    exclusive=False,
    constraint="",
    duration_s=0.0,
    queue="",
    dependencies=(),
    requeue=False,
)
_BEFORE_RESOURCES = frozenset({JobState.NEW, JobState.DEPEND, JobState.PRIORITY, JobState.SCHED})


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of the job manager's journal. ``submit`` carries the jobspec, ``alloc`` carries R."""

    job_id: JobId
    name: str
    timestamp: float
    context: Mapping[str, Any]
    jobspec: Jobspec | None = None
    R: R | None = None


@dataclass(slots=True)
class SimulatedJobState:
    id: JobId
    jobspec: Jobspec
    request: Request
    run_s: float
    urgency: int
    housekeeping_s: HousekeepingTime
    state: JobState = JobState.NEW
    started: bool = False
    scheduled: bool = True  # False: the scheduler never considers it
    priority: int = 0
    grants: tuple[Grant, ...] = ()
    next_step: Scheduled | None = None
    result: JobResult | None = None  # None until it ends
    hold: str = ""  # the description of a dependency on a time
    given_back: frozenset[Rank] = frozenset()  # on which nothing of it runs any more, although it holds them
    safe_ranks: set[Rank] = field(default_factory=set)  # from which its data was copied before its end
    dependencies: dict[JobId, Dependency] = field(default_factory=dict)
    events: list[JobEvent] = field(default_factory=list)


class JobManager:
    """``connected`` tells whether a rank's broker can be reached.

    ``clock_skew_s``: how far the leader's wall clock is ahead of the world's.
    """

    def __init__(self, world: World, pool: Pool, connected: Callable[[int], bool]) -> None:
        self.listeners: list[Callable[[JobEvent], None]] = []
        self.housekeeping_s: HousekeepingTime = 0.0  # of jobs submitted without their own
        self.housekeepers = Housekeepers(world, connected, self._free)
        self.clock_skew_s = 0.0
        self.stopped_queues: dict[str, None] = {}
        self.last_ended_at: dict[Rank, float] = {}
        self.unsafe_on: dict[Rank, dict[JobId, float]] = {}  # ended jobs whose data nobody called safe, and when
        self.ended_count = 0
        self._world = world
        self._pool = pool
        self._connected = connected
        self._active: dict[JobId, SimulatedJobState] = {}
        self._giving_back: dict[JobId, SimulatedJobState] = {}
        self._by_rank: defaultdict[int, dict[JobId, SimulatedJobState]] = defaultdict(dict)
        self._requeueable: dict[JobId, SimulatedJobState] = {}  # ended jobs that ask to be submitted again
        self._dependents: dict[JobId, dict[JobId, None]] = {}
        self._queue: list[tuple[int, JobId]] = []
        self._head_blocked: tuple[JobId, int] | None = None
        self._next_pass: Scheduled | None = None
        self._last_id = 0

    # --- actions of users ---

    def submit(
        self, jobspec: Jobspec, run_s: float, urgency: int, housekeeping_s: HousekeepingTime | None
    ) -> JobId:
        """Accept a job. Raises ValueError for a jobspec that the ingest would reject."""
        request = read_request(jobspec)
        housekeeping_s = self.housekeeping_s if housekeeping_s is None else housekeeping_s
        job = SimulatedJobState(self._new_id(), jobspec, request, run_s, urgency, housekeeping_s)
        self._active[job.id] = job
        self._post_event(
            job, "submit", {"userid": _USER, "urgency": urgency, "flags": 0, "version": 1}, jobspec=jobspec
        )
        for awaited in request.dependencies:
            self._add_dependency(job, awaited)
        self._note_submitted(job)
        self._post_event(job, "validate")
        job.state = JobState.DEPEND
        self._enter_priority_if_free(job)
        return job.id

    def submit_unscheduled(self, jobspec: Jobspec, urgency: int, userid: int) -> JobId:
        """Accept a job whose jobspec nobody here reads: it waits until it is cancelled."""
        job = SimulatedJobState(self._new_id(), jobspec, NO_REQUEST, 0.0, urgency, 0.0, scheduled=False)
        self._active[job.id] = job
        submitted = {"userid": userid, "urgency": urgency, "flags": 0, "version": 1}
        self._post_event(job, "submit", submitted, jobspec=jobspec)
        self._post_event(job, "validate")
        job.state = JobState.DEPEND
        self._enter_priority_if_free(job)
        return job.id

    def update_jobspec(self, job_id: JobId, updates: Mapping[str, Any]) -> None:
        """Post a jobspec-update event (RFC 21) for a job that the scheduler never considers."""
        self._post_event(self._active[job_id], "jobspec-update", updates)
        self._prioritize(self._active[job_id])

    def requeue(self, job_id: JobId) -> JobId:
        """Submit a job again, held. Raises ValueError if there is no such job, or it does not ask for that."""
        job = self._active.get(job_id) or self._requeueable.get(job_id)
        if job is None:
            raise ValueError(f"job {job_id} never existed, or does not ask for it")
        payload = base64.b64encode(json.dumps(job.jobspec).encode()).decode()
        jobspec = requeue_jobspec(f"header.{payload}.signature", format_f58(job_id))
        return self.submit(jobspec, job.run_s, URGENCY_DEFAULT, job.housekeeping_s)

    def result(self, job_id: JobId) -> JobResult | None:
        """How a job ended that asked to be submitted again; None if it is active."""
        if job_id in self._active:
            return None
        ended = self._requeueable.get(job_id)
        return JobResult.UNKNOWN if ended is None else ended.result

    def remove_hold(self, job_id: JobId, description: str) -> None:
        """Remove a dependency on a time. No effect if the job has none."""
        job = self._active.get(job_id)
        if job is not None and job.hold == description:
            job.hold = ""
            self._post_event(job, "dependency-remove", {"description": description})
            self._enter_priority_if_free(job)

    def is_held(self, job_id: JobId, description: str) -> bool:
        """Whether a job has this dependency on a time."""
        job = self._active.get(job_id)
        return job is not None and job.hold == description

    def set_urgency(self, job_id: JobId, urgency: int) -> None:
        """Set a pending job's urgency: 0 holds it, 31 puts it first. Raises ValueError once it has resources."""
        job = self._active.get(job_id)
        if job is None or job.state not in _BEFORE_RESOURCES:
            raise ValueError(f"job {job_id} is not pending: its urgency cannot be changed")
        job.urgency = urgency
        self._post_event(job, "urgency", {"userid": _USER, "urgency": urgency})
        if job.state == JobState.SCHED:
            self._prioritize(job)

    def cancel(self, job_id: JobId, note: str = "") -> None:
        """Cancel a job. No effect if it has ended."""
        if (job := self._active.get(job_id)) is not None:
            cancelled = {"type": "cancel", "severity": 0, "note": note, "userid": _USER}
            self._fail(job, cancelled, _STATUS_CANCELLED)

    def give_back(self, job_id: JobId, ranks: Collection[Rank]) -> None:
        """Let a running job, an instance, give back ranks but its first one."""
        job = self._active[job_id]
        held = sorted(Rank(grant.rank) for grant in job.grants)
        job.given_back |= frozenset(ranks) & frozenset(held[1:])
        self._giving_back[job_id] = job

    def given_back(self) -> Mapping[Rank, JobId]:
        """The ranks that jobs hold whole and have given back."""
        return {
            Rank(grant.rank): job.id
            for job in self._giving_back.values()
            for grant in job.grants
            if grant.rank in job.given_back and grant.cores.bit_count() == self._pool.ranks[grant.rank].cores
        }

    def say_data_safe(self, job_id: JobId, rank: Rank) -> None:
        """Note that the data of a job was copied off a rank."""
        self.unsafe_on.get(rank, {}).pop(job_id, None)
        if (job := self._active.get(job_id)) is not None:
            job.safe_ranks.add(rank)

    def stop_queue(self, queue: str) -> None:
        self.stopped_queues[queue] = None
        self._head_blocked = None

    def start_queue(self, queue: str) -> None:
        self.stopped_queues.pop(queue, None)
        for job in self._active.values():
            if job.state == JobState.SCHED and job.request.queue == queue:
                self._enqueue(job)

    # --- events of nodes ---

    def lose_rank(self, rank: int) -> None:
        """Fail the jobs of a rank whose broker is gone, and end its housekeeping."""
        host = self._pool.ranks[rank].host
        for job in tuple(self._by_rank[rank].values()):
            if job.started and rank not in job.given_back:
                self._fail(job, _exec_exception(f"node failure on {host} (rank {rank})"), _STATUS_NODE_LOST)
        self.housekeepers.lose_rank(rank)

    def on_resources_changed(self) -> None:
        self._schedule_soon()

    def restart(self) -> None:
        """Rank 0 restarted: give every job that waits for resources its priority again."""
        for job in self._active.values():
            if job.state == JobState.SCHED:
                self._post_event(job, "flux-restart")
                self._prioritize(job)

    # --- queries ---

    def active_events(self) -> Iterator[JobEvent]:
        """Yield every event so far of every active job, job by job. A journal reader gets these first."""
        for job in self._active.values():
            yield from job.events

    def state(self, job_id: JobId) -> JobState | None:
        """The job's state; None if it is inactive or never existed."""
        job = self._active.get(job_id)
        return None if job is None else job.state

    def active(self) -> tuple[JobId, ...]:
        return tuple(self._active)

    def held_grants(self) -> Iterator[tuple[JobId, Grant]]:
        """Yield every job with each of its grants: active jobs first, then those in housekeeping."""
        for job in self._active.values():
            for grant in job.grants:
                yield job.id, grant
        yield from self.housekeepers.held_grants()

    # --- before resources ---

    def _new_id(self) -> JobId:
        # RFC 19: milliseconds since the instance started, then a sequence number within the millisecond.
        self._last_id = max(int(self._world.now_s * 1000) << 24, self._last_id + 1)
        return JobId(self._last_id)

    def _add_dependency(self, job: SimulatedJobState, awaited: Dependency) -> None:
        if awaited.scheme is DependencyScheme.TIME:
            job.hold = awaited.description
            self._post_event(job, "dependency-add", {"description": job.hold})
            return
        job_id = parse_f58(awaited.value)
        if job_id in self._active:
            job.dependencies[job_id] = awaited
            self._dependents.setdefault(job_id, {})[job.id] = None
            self._post_event(job, "dependency-add", {"description": awaited.description})

    def _enter_priority_if_free(self, job: SimulatedJobState) -> None:
        if job.dependencies or job.hold:
            return
        self._post_event(job, "depend")
        job.state = JobState.PRIORITY
        self._prioritize(job)

    def _prioritize(self, job: SimulatedJobState) -> None:
        job.priority = PRIORITY_MAX if job.urgency == URGENCY_EXPEDITE else job.urgency
        self._post_event(job, "priority", {"priority": job.priority})
        job.state = JobState.SCHED
        self._enqueue(job)

    def _enqueue(self, job: SimulatedJobState) -> None:
        """Add the job to the queue. Its older entries stay, and are skipped when they reach the head."""
        if job.priority > 0 and job.scheduled:
            heapq.heappush(self._queue, (-job.priority, job.id))
        self._schedule_soon()

    # --- the scheduler ---

    def _schedule_soon(self) -> None:
        if self._next_pass is None:
            self._next_pass = self._world.after(SCHEDULE_DELAY_S, self._schedule)

    def _schedule(self) -> None:
        self._next_pass = None
        while (job := self._head()) is not None:
            if self._head_blocked == (job.id, self._pool.generation):
                return
            try:
                grants = self._pool.allocate(job.request)
            except ResourcesBusy:
                self._head_blocked = (job.id, self._pool.generation)
                return
            except Infeasible as never:
                denied = {"type": "alloc", "severity": 0, "note": str(never), "userid": _USER}
                self._fail(job, denied, status=0)
            else:
                self._allocate(job, grants)

    def _head(self) -> SimulatedJobState | None:
        while self._queue:
            priority, job_id = self._queue[0]
            job = self._active.get(job_id)
            if job is not None and self._is_waiting(job) and job.priority == -priority:
                return job
            heapq.heappop(self._queue)
        return None

    def _is_waiting(self, job: SimulatedJobState) -> bool:
        return job.scheduled and job.state == JobState.SCHED and job.request.queue not in self.stopped_queues

    def _allocate(self, job: SimulatedJobState, grants: tuple[Grant, ...]) -> None:
        heapq.heappop(self._queue)
        job.grants = grants
        for grant in grants:
            self._by_rank[grant.rank][job.id] = job
        job.state = JobState.RUN
        annotations = {"annotations": {"sched": {"resource_summary": format_summary(grants)}}}
        self._post_event(job, "annotations", annotations)
        resources = self._pool.job_R(grants, job.request, self._wall_at())
        self._post_event(job, "alloc", annotations, resources=resources)
        expires_s = self._world.now_s + (job.request.duration_s or math.inf)
        job.next_step = self._world.after(START_DELAY_S, lambda: self._start(job, expires_s))

    # --- with resources ---

    def _start(self, job: SimulatedJobState, expires_s: float) -> None:
        # The scheduler learns of a broker's end 0.1 s later. Meanwhile it may start a job there.
        unreachable = next((grant.rank for grant in job.grants if not self._connected(grant.rank)), None)
        self._post_event(job, "start")
        job.started = True
        if unreachable is not None:
            host = self._pool.ranks[unreachable].host
            self._fail(job, _exec_exception(f"node failure on {host} (rank {unreachable})"), _STATUS_NODE_LOST)
            return
        left_s = max(expires_s - self._world.now_s, 0.0)
        if job.run_s < left_s:
            job.next_step = self._world.after(job.run_s, lambda: self._finish(job, 0))
        elif left_s < math.inf:
            job.next_step = self._world.after(left_s, lambda: self._time_out(job))

    def _time_out(self, job: SimulatedJobState) -> None:
        expired = {"type": "timeout", "severity": 0, "userid": _USER, "note": "resource allocation expired"}
        self._fail(job, expired, _STATUS_TIMED_OUT)

    def _fail(self, job: SimulatedJobState, exception: Mapping[str, Any], status: int) -> None:
        """End a job with a fatal exception. ``status``: the exit status of its tasks, if they had started."""
        job.result = _RESULTS.get(exception["type"], JobResult.FAILED)
        self._post_event(job, "exception", exception)
        self._finish(job, status)

    def _finish(self, job: SimulatedJobState, status: int) -> None:
        if job.next_step is not None:
            job.next_step.cancel()
        if job.started:
            self._post_event(job, "finish", {"status": status})
        job.state = JobState.CLEANUP
        if job.grants:
            self._post_event(job, "release", {"ranks": "all", "final": True})
            self._post_event(job, "free")
        self._post_event(job, "clean")
        self._deactivate(job)
        self.housekeepers.take_over(job.id, job.grants, job.housekeeping_s)
        for job_id in self._dependents.pop(job.id, ()):
            self._resolve_dependency(job_id, job)
        self._schedule_soon()  # jobs that it blocked may start now

    def _deactivate(self, job: SimulatedJobState) -> None:
        self.ended_count += 1
        job.result = job.result or JobResult.COMPLETED
        del self._active[job.id]
        self._giving_back.pop(job.id, None)
        for grant in job.grants:
            del self._by_rank[grant.rank][job.id]
            self.last_ended_at[Rank(grant.rank)] = self._wall_at()
            if Rank(grant.rank) not in job.safe_ranks:
                self.unsafe_on.setdefault(Rank(grant.rank), {})[job.id] = self._wall_at()
        for awaited in job.dependencies:
            self._dependents[awaited].pop(job.id, None)
        if job.request.requeue:
            self._requeueable[job.id] = job

    def _free(self, grant: Grant) -> None:
        self._pool.free(grant)
        self._schedule_soon()

    def _resolve_dependency(self, job_id: JobId, ended: SimulatedJobState) -> None:
        job = self._active[job_id]
        awaited = job.dependencies.pop(ended.id)
        self._post_event(job, "dependency-remove", {"description": awaited.description})
        self._enter_priority_if_free(job)

    # --- for plugins ---

    def _note_submitted(self, job: SimulatedJobState) -> None:
        """A plugin may add a hold and flags to a new job."""

    # --- the journal ---

    def _wall_at(self) -> float:
        return self._world.wall_at() + self.clock_skew_s

    def _post_event(
        self,
        job: SimulatedJobState,
        name: str,
        context: Mapping[str, Any] | None = None,
        *,
        jobspec: Jobspec | None = None,
        resources: R | None = None,
    ) -> None:
        event = JobEvent(job.id, name, self._wall_at(), context or {}, jobspec, resources)
        job.events.append(event)
        for listener in self.listeners:
            listener(event)


def _exec_exception(note: str) -> Mapping[str, Any]:
    return {"type": "exec", "severity": 0, "userid": _USER, "note": note}
