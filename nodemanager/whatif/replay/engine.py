"""The replay engine: virtual time, jobs, nodes and a scheduler. A decider creates and destroys the nodes.

All events of one moment happen before the decider is told, once, that something changed. A run depends only on the
workload, the site, the seed and the decider.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Protocol

from nodemanager.core.jobs import JobId, QueuePolicy, Shape
from nodemanager.core.nodes import CloudState, FailureKind, LaunchId, ProviderId
from nodemanager.core.slots import NodeType, SlotName
from nodemanager.planner.billing import PREPAID, node_share
from nodemanager.whatif.cloud.cloud import CloudConditions, CloudDraws, ReplayMachine
from nodemanager.whatif.replay.sched_simple import GrantCounts, QueuedJob, RankCapacity, Scheduler
from nodemanager.whatif.replay.totals import RunTotals
from nodemanager.whatif.workload.event_log import EventLog
from nodemanager.whatif.workload.workload import TraceJob

BROKER_STOP_S = 0.2
NO_LAUNCH = LaunchId("")  # for nodes that a baseline created
REMEMBERED_S = 300.0  # how long the provider lists a terminated node
STUCK_S = 6 * 3600.0  # without a running job and without any job event: the remaining jobs are left unserved
RESTARTS_MAX = 20  # a job that loses its nodes more often is given up
GIVEN_UP = f"lost its nodes more than {RESTARTS_MAX} times"
LINGER_S = 86_400.0  # how long the last nodes may take to end


@dataclass(frozen=True, slots=True)
class RunSetup:
    """The site as all deciders get it: nodes, limits, scheduler, cloud and seed."""

    node_types: Sequence[NodeType]
    nodes_max: int
    price_per_hour_max: Decimal
    queue_policy: QueuePolicy
    conditions: CloudConditions
    seed: int = 0
    start_at: float = 0.0
    early_release: bool = False  # jobs give back the nodes that they use no more

    def rank_capacities(self) -> dict[int, RankCapacity]:
        """Return the ranks by number, as ``init`` numbers the slots: from 1, in the order of the site."""
        slots = [(slot, node_type) for node_type in self.node_types for slot in node_type.slots]
        return {
            rank: RankCapacity(rank, slot, node_type.cores, node_type.gpus, node_type.properties)
            for rank, (slot, node_type) in enumerate(slots, start=1)
        }

    def types_by_rank(self) -> dict[int, NodeType]:
        every = [node_type for node_type in self.node_types for _ in node_type.slots]
        return dict(enumerate(every, start=1))


class Decider(Protocol):
    """Decides which nodes to create and destroy: the production planner, or a baseline."""

    def begin(self, engine: ReplayEngine) -> None:
        """Start before the first job. The decider keeps the engine."""
        ...

    def on_change(self) -> None:
        """React to the events of this moment. All of them have happened already."""
        ...

    def why_waiting(self, jobs: Iterable[QueuedJob]) -> Mapping[JobId, str]:
        """Explain in a few words, by job, why these jobs have not been served."""
        ...

    @property
    def plans(self) -> int:
        """How many times it decided."""
        ...


@dataclass(slots=True)
class News:
    """The events since the decider last read them."""

    jobs: dict[JobId, QueuedJob] = field(default_factory=dict)  # new and started jobs
    ended: list[JobId] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    cloud: bool = False  # a node ended


class ReplayEngine:
    """One run. A decider reads the fields and acts by the methods under "orders"."""

    def __init__(self, setup: RunSetup, totals: RunTotals, event_log: EventLog) -> None:
        self.setup = setup
        self.totals = totals
        self.now_s = 0.0
        self.scheduler = Scheduler(setup.rank_capacities(), setup.queue_policy)
        self.type_of_rank = setup.types_by_rank()
        self.machines: dict[int, ReplayMachine] = {}  # by rank, from creation to end
        self.ended_machines: deque[ReplayMachine] = deque()  # those that the provider still lists
        self.drained: dict[int, str] = {}
        self.last_ended_s: dict[int, float] = {}
        self.given_back: dict[int, JobId] = {}  # ranks that a running job holds but uses no more
        self.news = News()
        self.events = 0
        self.submitting = True
        self.price_per_hour = Decimal(0)
        self.refusal: FailureKind | None = None  # why the last create failed; None if it did not
        self._event_log = event_log
        self._cloud = CloudDraws(setup.conditions, setup.seed)
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._pending_reclaims = 0  # how many scheduled events are reclaims, which keep no run going
        self._sequence = 0
        self._created = 0
        self._jobs = 0
        self._changed = False
        self._last_progress_s = 0.0  # when a job was last submitted, started, ended or restarted
        self._done_s: float | None = None
        self._shapes: dict[Shape, Shape] = {}  # one instance of each shape: lookups by it are faster
        self._cheapest = min(node_type.price_per_hour for node_type in setup.node_types)

    # --- time ---

    def wall_at(self) -> float:
        return self.setup.start_at + self.now_s

    def at(self, at_s: float, action: Callable[[Any], None], subject: Any = None) -> None:
        """Schedule ``action(subject)``. Events at the same time run in the order of these calls."""
        self._sequence += 1
        heapq.heappush(self._due, (max(at_s, self.now_s), self._sequence, action, subject))

    def run(self, decider: Decider, jobs: Iterator[TraceJob], progress: Callable[[int], None]) -> None:
        """Run from the first job until the last node has ended."""
        decider.begin(self)
        next_job = next(jobs, None)
        due = self._due
        while next_job is not None or not self._is_over():
            self.now_s = min(
                next_job.submit_s if next_job is not None else float("inf"), due[0][0] if due else float("inf")
            )
            while next_job is not None and next_job.submit_s <= self.now_s:
                self._submit(next_job)
                progress(self._jobs)
                next_job = next(jobs, None)
            self.submitting = next_job is not None
            while due and due[0][0] <= self.now_s:
                _, _, action, subject = heapq.heappop(due)
                action(subject)
            if self._changed:
                self._changed = False
                self._schedule()
                decider.on_change()
        self._close(decider)

    def _is_over(self) -> bool:
        """Whether the run is over, given that no more jobs will be submitted."""
        scheduler = self.scheduler
        if scheduler.queue or scheduler.held or scheduler.running:
            stuck = not scheduler.running and self.now_s - self._last_progress_s > STUCK_S
            return stuck or not self._has_events()
        if self._done_s is None:
            self._done_s = self.now_s
        return not self.machines or not self._has_events() or self.now_s - self._done_s > LINGER_S

    def _has_events(self) -> bool:
        """Whether any event other than a reclaim is scheduled."""
        return len(self._due) > self._pending_reclaims

    def _schedule(self) -> None:
        """Start the jobs that can start, and note the totals of this moment."""
        for job in self.scheduler.start_ready(self.now_s):
            self._on_job_started(job)
        waiting = len(self.scheduler.queue) + len(self.scheduler.held)
        self.totals.note_state(
            self.now_s,
            waiting,
            len(self.machines),
            self.totals.busy_nodes,
            capped=bool(waiting) and self.is_at_limit(),
        )

    def is_at_limit(self) -> bool:
        """Whether the site's limits forbid one more node."""
        return (
            len(self.machines) >= min(self.setup.nodes_max, len(self.type_of_rank))
            or self.price_per_hour + self._cheapest > self.setup.price_per_hour_max
        )

    # --- jobs ---

    def _submit(self, traced: TraceJob) -> None:
        self._jobs += 1
        self.events += 1
        self._last_progress_s = self.now_s
        job = QueuedJob(
            JobId(self._jobs),
            traced.name,
            self.now_s,
            traced.run_s,
            traced.limit_s,
            self._shapes.setdefault(traced.shape, traced.shape),
            traced.userid,
            traced.narrow_s,
        )
        self._event_log.write_submitted(self.now_s, traced)
        self.totals.note_submitted(job)
        if why := self.scheduler.why_infeasible(job.shape):
            # Flux rejects it as soon as it is first in the queue, so no other job waits for it.
            self.totals.note_unserved(job.name, why)
            self._event_log.write_unserved(self.now_s, job.name, why)
            return
        self.scheduler.submit(job)
        self.news.jobs[job.id] = job
        self._changed = True

    def _on_job_started(self, job: QueuedJob) -> None:
        self.events += 1
        self._last_progress_s = self.now_s
        for grant in job.grants:
            machine = self.machines[grant.rank]
            if machine.busy_from_s is None:
                machine.busy_from_s = self.now_s
                self.totals.busy_nodes += 1
            self.news.ranks.add(grant.rank)
        self.news.jobs[job.id] = job
        self.totals.note_started(job)
        self._event_log.write_started(self.now_s, job.name, (grant.rank for grant in job.grants))
        self.at(self.now_s + job.run_s, self._end_job, (job, job.restarts))
        if self.setup.early_release and 0.0 < job.narrow_s < job.run_s:
            self.at(self.now_s + job.narrow_s, self._give_back, (job, job.restarts))

    def _give_back(self, which: tuple[QueuedJob, int]) -> None:
        """A job gives back the nodes that it holds whole, except its first. Flux keeps them allocated to it."""
        job, life = which
        if job.restarts != life:
            return
        self.events += 1
        for grant in job.grants[1:]:
            if grant.cores == self.scheduler.ranks[grant.rank].cores:
                self._settle(job, grant, lost=False)
                self.given_back[grant.rank] = job.id
        self._changed = True

    def _end_job(self, which: tuple[QueuedJob, int]) -> None:
        job, life = which
        if job.restarts == life:
            self.events += 1
            self._release(job)
            self.totals.note_ended(job, self.now_s)
            self._event_log.write_ended(self.now_s, job.name)
            self.news.jobs.pop(job.id, None)
            self.news.ended.append(job.id)

    def _release(self, job: QueuedJob, *, lost: bool = False) -> None:
        """Free a job's ranks. ``lost``: the job has not ended, and its run time is lost."""
        self.scheduler.finish(job)
        self._last_progress_s = self.now_s
        for grant in job.grants:
            if self.given_back.pop(grant.rank, None) is None:
                self._settle(job, grant, lost=lost)
            self.last_ended_s[grant.rank] = self.now_s
            self.news.ranks.add(grant.rank)
        self._changed = True

    def _settle(self, job: QueuedJob, grant: GrantCounts, *, lost: bool) -> None:
        """Add up what a job has used of a node that it uses no more."""
        self.news.ranks.add(grant.rank)
        machine, ran_s = self.machines.get(grant.rank), self.now_s - (job.started_s or 0.0)
        if machine is None:
            return
        machine.core_s += grant.cores * ran_s
        machine.used_gpus = machine.used_gpus or grant.gpus > 0
        part, whole = node_share(grant.cores, grant.gpus, machine.node_type.cores, machine.node_type.gpus)
        machine.job_s += ran_s * part / whole
        machine.lost_job_s += ran_s * part / whole if lost else 0.0
        used_by = self.scheduler.ranks[grant.rank].jobs - (job.id in self.scheduler.running)
        if not used_by and machine.busy_from_s is not None:
            machine.busy_s += self.now_s - machine.busy_from_s
            machine.busy_from_s = None
            self.totals.busy_nodes -= 1

    # --- orders ---

    def create(
        self, rank: int, launch: LaunchId = NO_LAUNCH, bought_as: NodeType | None = None
    ) -> ReplayMachine | None:
        """Create a node for a slot; None if the cloud refuses, with the cause in ``refusal``.

        ``bought_as``: the slot's type as the size that is bought. None: the cheapest. Raises ValueError if the slot
        has a node.
        """
        node_type = bought_as or self.type_of_rank[rank]
        self.refusal = self._cloud.refusal_kind(node_type, self.machines.values(), self.now_s)
        if self.refusal is not None:
            self.totals.refusals += 1
            return None
        if rank in self.machines:
            raise ValueError(f"rank {rank} has a node already: {self.machines[rank].provider_id}")
        self._created += 1
        self.events += 1
        slot: SlotName = self.scheduler.ranks[rank].host
        provider_id = ProviderId(f"sim-{self._created:07d}")
        prepaid = self._is_prepaid(node_type)
        if prepaid:
            node_type = replace(node_type, price_per_hour=PREPAID.price_per_hour, billing=PREPAID.billing)
        machine = ReplayMachine(provider_id, launch, slot, rank, node_type, self.now_s, prepaid=prepaid)
        self.machines[rank] = machine
        self.price_per_hour += node_type.price_per_hour
        self.drained.pop(rank, None)
        self.totals.note_created(machine)
        self._event_log.write_created(self.now_s, machine.provider_id, machine.slot, machine.node_type)
        takes_s, machine.fails_to_boot = self._cloud.boot(node_type)
        self.at(self.now_s + takes_s, self._boot, machine)
        self._changed = True
        return machine

    def _is_prepaid(self, node_type: NodeType) -> bool:
        """Whether one more node of the type costs nothing."""
        if not node_type.prepaid or 0.0 < node_type.prepaid_until_at <= self.wall_at():
            return False
        there = sum(it.prepaid and it.node_type.name == node_type.name for it in self.machines.values())
        return there < node_type.prepaid

    def drain(self, rank: int, reason: str) -> None:
        self.drained.setdefault(rank, reason)
        self._update_rank(rank)

    def undrain(self, rank: int) -> None:
        if self.drained.pop(rank, None) is not None:
            self._update_rank(rank)

    def hold(self, jobs: Container[JobId]) -> None:
        self.scheduler.hold(jobs)
        self._changed = True

    def release(self, jobs: Iterable[JobId]) -> None:
        self.scheduler.release(jobs)
        self._changed = True

    def stop_broker(self, rank: int) -> None:
        self.at(self.now_s + BROKER_STOP_S, self._drop_broker, self.machines.get(rank))

    def destroy(self, machine: ReplayMachine) -> None:
        """Destroy a node. Its broker leaves at once, if it is still online."""
        if machine.state in (CloudState.STOPPING, CloudState.TERMINATED):
            return
        self.events += 1
        self._drop_broker(machine)
        machine.state = CloudState.STOPPING
        self.at(self.now_s + self._cloud.stop_s(machine.node_type), self._end_machine, machine)

    # --- a node's life ---

    def _boot(self, machine: ReplayMachine) -> None:
        if machine.state is not CloudState.PENDING:
            return
        self.events += 1
        if machine.fails_to_boot:
            self.totals.boot_failures += 1
            machine.died_because = "failed to boot"
            self._end_machine(machine)
            return
        machine.state = CloudState.RUNNING
        machine.joined_s = self.now_s
        self._update_rank(machine.rank)
        lives_s = self._cloud.reclaimed_after_s(machine.node_type)
        if lives_s < float("inf"):
            self._pending_reclaims += 1
            self.at(self.now_s + lives_s, self._reclaim, machine)

    def _reclaim(self, machine: ReplayMachine) -> None:
        self._pending_reclaims -= 1
        if machine.state is CloudState.RUNNING:
            self.totals.reclaims += 1
            machine.died_because = "reclaimed"
            self._end_machine(machine)

    def _drop_broker(self, machine: ReplayMachine | None) -> None:
        """Take a broker offline. The jobs on it restart at the head of the queue, or are given up."""
        if machine is None or not machine.online:
            return
        machine.left_s = self.now_s
        self._update_rank(machine.rank)
        for job in self._jobs_on(machine.rank):
            self._release(job, lost=True)
            self.totals.note_lost(job, self.now_s)
            job.grants, job.started_s = (), None
            if job.restarts >= RESTARTS_MAX:
                job.restarts += 1  # the scheduled end of this run must have no effect
                self.news.jobs.pop(job.id, None)
                self.news.ended.append(job.id)
                self.totals.note_unserved(job.name, GIVEN_UP)
                self._event_log.write_unserved(self.now_s, job.name, GIVEN_UP)
                continue
            job.restarts += 1
            self.totals.restarts += 1
            self.scheduler.submit(job, first=True)
            self.news.jobs[job.id] = job

    def _jobs_on(self, rank: int) -> list[QueuedJob]:
        """The jobs that run on a rank, the latest first. A job that has given it back does without it."""
        if self.scheduler.ranks[rank].is_empty or rank in self.given_back:
            return []
        running = reversed(self.scheduler.running.values())
        return [job for job in running if any(grant.rank == rank for grant in job.grants)]

    def _end_machine(self, machine: ReplayMachine) -> None:
        if machine.state is CloudState.TERMINATED:
            return
        self.events += 1
        self._drop_broker(machine)
        machine.state = CloudState.TERMINATED
        machine.ended_s = self.now_s
        del self.machines[machine.rank]
        self.price_per_hour -= machine.node_type.price_per_hour
        self.ended_machines.append(machine)
        while self.ended_machines and self.now_s - (self.ended_machines[0].ended_s or 0.0) > REMEMBERED_S:
            self.ended_machines.popleft()
        self.news.cloud = True
        self.totals.note_gone(machine, self.now_s)
        self._event_log.write_gone(self.now_s, machine.provider_id, machine.died_because)
        self._changed = True

    def _update_rank(self, rank: int) -> None:
        """Tell the scheduler whether a rank accepts jobs."""
        machine = self.machines.get(rank)
        self.scheduler.set_up(rank, up=machine is not None and machine.online and rank not in self.drained)
        self.news.ranks.add(rank)
        self._changed = True

    # --- the end ---

    def _close(self, decider: Decider) -> None:
        # The remaining nodes would run for ever. They are paid for until the last event of a job.
        for machine in tuple(self.machines.values()):
            until_s = max(self._last_progress_s, machine.created_s)
            self.totals.note_gone(machine, until_s)
            self._event_log.write_gone(until_s, machine.provider_id, machine.died_because)
        waiting = [*self.scheduler.queue, *self.scheduler.held.values()]
        whys = decider.why_waiting(waiting) if waiting else {}
        for job in waiting:
            why = whys.get(job.id, "waits")
            self.totals.note_unserved(job.name, why)
            self._event_log.write_unserved(self.now_s, job.name, why)
        self.totals.close(self.now_s)
