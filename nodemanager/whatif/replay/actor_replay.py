"""The replay through the production actors, the pump and the full simulated Flux: slow, but complete.

Every tick is sent, every message travels, and every journal event is parsed. Tests compare the fast engine with it.
It does not reclaim spot nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from nodemanager.actors.base import Fate
from nodemanager.actors.manager import Publication
from nodemanager.actors.messages import Mailbox, ManagerMessage
from nodemanager.config.site import Site
from nodemanager.core.facts import FluxUnreachable
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import CloudNode, LaunchId
from nodemanager.core.slots import Rank, Slot, types_by_cloud
from nodemanager.service.assembly.policy import policy_of
from nodemanager.service.assembly.ports import SitePorts
from nodemanager.service.assembly.wiring import wire
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import JournalFollower, SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.pump import Pump
from nodemanager.simulation.time.world import World
from nodemanager.whatif.cloud.cloud import SPREAD, ReplayMachine
from nodemanager.whatif.replay.engine import LINGER_S, STUCK_S
from nodemanager.whatif.replay.result import Outcome, build_outcome
from nodemanager.whatif.replay.sched_simple import GrantCounts, QueuedJob
from nodemanager.whatif.replay.totals import RunTotals
from nodemanager.whatif.workload.workload import TraceJob, Workload


@dataclass
class ActorReplay:
    """One run. Its totals come from the job journal and the provider's bill."""

    site: Site
    workload: Workload
    jobs: Iterator[TraceJob]
    progress: Callable[[int], None]
    totals: RunTotals = field(default_factory=RunTotals)
    events: int = 0
    plans: int = 0
    submitting: bool = True
    active: dict[JobId, QueuedJob] = field(default_factory=dict)
    machines: dict[str, ReplayMachine] = field(default_factory=dict)
    _last_news_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.site.cluster_uuid:  # a real site may not have been initialised yet
            self.site = replace(self.site, cluster_uuid=str(UUID(int=self.site.simulation.seed)))
        site, simulation = self.site, self.site.simulation
        self.world = World(simulation.seed, start_at=self.workload.start_at or 1_700_000_000.0)
        types = [(slot, node_type) for node_type in site.node_types for slot in node_type.slots]
        self.ranks = {slot: Rank(rank) for rank, (slot, _) in enumerate(types, start=1)}
        self.type_of = dict(types)
        slots = [Slot(slot, self.ranks[slot], node_type.name) for slot, node_type in types]
        self.flux = SimulatedFlux(self.world, site.node_types, slots)
        self.provider = SimulatedProvider(
            self.world,
            CloudFaults(
                boot_delay_s=_around(simulation.boot_delay_s),
                stop_delay_s=_around(simulation.stop_delay_s),
                p_boot_fail=simulation.boot_failures,
                capacity=simulation.capacity or None,
            ),
            on_boot=self._on_node_booted,
            on_end=self._on_node_ended,
        )
        self.busy: dict[Rank, int] = {}

    def run(self, name: str) -> Outcome:
        began_s = time.perf_counter()
        pump = Pump(self.world)
        clock = self.world.clock()
        watch = SimulatedFluxWatch(self.flux, probe_s=self.site.timing.probe_s, relist_s=self.site.timing.relist_s)
        outside = SitePorts(
            clock=clock,
            flux=lambda: SimulatedFluxPort(self.flux, "simulate"),
            watch=watch,
            close=lambda: None,
            clouds={
                name: partial(self.provider.port_for, types, self.site.cluster, self.site.cluster_uuid)
                for name, types in types_by_cloud(self.site.node_types).items()
            },
        )
        manager: Mailbox[ManagerMessage] = wire(
            outside, policy_of(self.site), acts=True, publish=self._on_published, fate=Fate(), spawn=pump.spawn
        )
        pump.start_ticks(manager, clock)
        watch.start(manager.tell, lambda why: manager.tell(FluxUnreachable(clock.monotonic_s(), why)))
        self.flux.follow(JournalFollower(self._on_job_event, lambda _: None, lambda _: None))
        self._submit_next()
        while not self._is_over() and (next_s := self.world.next_event_s()) is not None:
            self.world.advance_to(next_s)
        self._close()
        took_s = time.perf_counter() - began_s
        return build_outcome(name, self.totals, events=self.events, plans=self.plans, took_s=took_s)

    def _on_published(self, _: Publication) -> None:
        self.plans += 1
        shown = {node.provider_id: node for node in self.provider.nodes()}
        for node in shown.values():
            self._note_machine(node)
        for provider_id in self.machines.keys() - shown.keys():
            self._close_machine(provider_id)
        self._note_state()

    def _is_over(self) -> bool:
        if self.submitting:
            return False
        quiet_s = self.world.now_s - self._last_news_s
        if self.active:
            return quiet_s > STUCK_S and not any(job.started_s is not None for job in self.active.values())
        return not self.provider.nodes() or quiet_s > LINGER_S

    # --- jobs ---

    def _submit_next(self) -> None:
        next_job = next(self.jobs, None)
        if next_job is None:
            self.submitting = False
            return
        self.world.after(max(0.0, next_job.submit_s - self.world.now_s), lambda: self._submit(next_job))

    def _submit(self, traced: TraceJob) -> None:
        now_s = self.world.now_s
        # The job must be in ``active`` before its first event is delivered.
        job_id = self.flux.submit(traced.shape, traced.limit_s, run_s=traced.run_s)
        job = QueuedJob(job_id, traced.name, now_s, traced.run_s, traced.limit_s, traced.shape, traced.userid)
        self.active[job_id] = job
        self.events += 1
        self.totals.note_submitted(job)
        self.progress(self.totals.jobs)
        self._submit_next()

    def _on_job_event(self, event: JobEvent) -> None:
        job = self.active.get(event.job_id)
        if job is None:
            return
        now_s = self.world.now_s
        if event.name in ("start", "clean"):
            self._last_news_s = now_s
            self.events += 1
        match event.name:
            case "alloc":
                holders = self.flux.held_grants()
                job.grants = tuple(
                    GrantCounts(held.rank, held.cores.bit_count(), held.gpus.bit_count())
                    for job_id, held in holders
                    if job_id == job.id
                )
            case "start":
                job.started_s = now_s
                self.totals.note_started(job)
                self._occupy(job, 1)
            case "clean":
                del self.active[job.id]
                if job.started_s is None:
                    self.totals.note_unserved(job.name, "refused by Flux: larger than the site")
                else:
                    self._occupy(job, -1)
                    self.totals.note_ended(job, now_s)
            case _:
                pass

    def _occupy(self, job: QueuedJob, change: int) -> None:
        now_s = self.world.now_s
        for grant in job.grants:
            rank = Rank(grant.rank)
            self.busy[rank] = self.busy.get(rank, 0) + change
            machine = next((it for it in self.machines.values() if it.rank == rank and it.online), None)
            if machine is None:
                continue
            if machine.busy_from_s is None and self.busy[rank]:
                machine.busy_from_s = now_s
                self.totals.busy_nodes += 1
            elif machine.busy_from_s is not None and not self.busy[rank]:
                machine.busy_s += now_s - machine.busy_from_s
                machine.busy_from_s = None
                self.totals.busy_nodes -= 1
            if change < 0:
                machine.core_s += grant.cores * job.run_s

    # --- nodes ---

    def _note_machine(self, node: CloudNode) -> None:
        if node.provider_id in self.machines or node.identity is None:
            return
        created_s = (node.created_at or 0.0) - self.world.start_at
        slot = node.identity.slot
        machine = ReplayMachine(
            node.provider_id, LaunchId(node.identity.launch), slot, self.ranks[slot], self.type_of[slot], created_s
        )
        self.machines[node.provider_id] = machine
        self.events += 1
        self.totals.note_created(machine)

    def _on_node_booted(self, node: CloudNode) -> None:
        self._note_machine(node)
        if node.provider_id in self.machines:
            self.machines[node.provider_id].joined_s = self.world.now_s
        self.flux.on_node_booted(node)

    def _on_node_ended(self, node: CloudNode) -> None:
        self.flux.on_node_ended(node)
        machine = self.machines.get(node.provider_id)
        if machine is not None:
            machine.left_s = machine.left_s or self.world.now_s

    def _close_machine(self, provider_id: str) -> None:
        machine = self.machines.pop(provider_id)
        ended = next(line.to_s for line in reversed(self.provider.bill()) if line.provider_id == provider_id)
        machine.ended_s = ended if ended is not None else self.world.now_s
        self.events += 1
        self.totals.note_gone(machine, machine.ended_s)

    def _note_state(self) -> None:
        waiting = sum(job.started_s is None for job in self.active.values())
        full = len(self.machines) >= min(self.site.limits.nodes_max, len(self.site.slots))
        self.totals.note_state(
            self.world.now_s, waiting, len(self.machines), self.totals.busy_nodes, capped=bool(waiting) and full
        )

    def _close(self) -> None:
        standing = {node.provider_id for node in self.provider.nodes()}
        for provider_id in tuple(self.machines):
            if provider_id not in standing:
                self._close_machine(provider_id)
            else:
                machine = self.machines[provider_id]
                self.totals.note_gone(machine, max(self._last_news_s, machine.created_s))
        for job in self.active.values():
            self.totals.note_unserved(job.name, "waits")
        self.totals.close(self.world.now_s)


def _around(mean_s: float) -> tuple[float, float]:
    return mean_s * (1 - SPREAD), mean_s * (1 + SPREAD)
