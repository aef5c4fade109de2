"""One manager process of a run: actors in a pump, a claim, a watch, and ports that check every call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nodemanager.actors.base import Fate
from nodemanager.actors.delegation.delegator import DelegatorMessage
from nodemanager.actors.manager import Publication
from nodemanager.actors.messages import Mailbox, ManagerMessage
from nodemanager.chaos.run.history_file import ProcessHistory
from nodemanager.chaos.run.invariants import WatchedBatches, WatchedCloud, WatchedFlux, WatchedStack, Witness
from nodemanager.chaos.run.plan_checks import PlanChecks
from nodemanager.chaos.run.run import Run
from nodemanager.chaos.run.site import CLUSTER, CLUSTER_UUID
from nodemanager.core.facts import FluxUnreachable, PeersSeen, QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    CreateNode,
    DelegateJob,
    DestroyNode,
    EndLease,
    HoldJobs,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    StartCopy,
)
from nodemanager.core.slots import CloudName
from nodemanager.delegation.offers import peers_seen
from nodemanager.delegation.view import DelegationView
from nodemanager.planner.observe.hardware import with_promises
from nodemanager.planner.plan import Action
from nodemanager.service.assembly.ports import DelegationPorts, SitePorts
from nodemanager.service.assembly.wiring import wire, wire_delegation
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.pump import Killed, Pump

USER = 0  # who submits all jobs


class ManagerProcess:
    """A process of the service. It runs from its construction until it is killed."""

    def __init__(self, run: Run, token: str, killed_at_a_call: Callable[[ManagerProcess], None]) -> None:
        self._run = run
        self.token = token
        self.calls_left: int | None = None  # how many calls until it is killed; None: it is not killed at a call
        self.down_s = 0.0
        world = run.world
        self.witness = Witness(world, run.policy.timing.absences, self._maybe_die)
        self.plan_checks = PlanChecks(
            run.invariants, self.witness, run.jobs, run.script, run.spend_is_knowable, run.peace
        )
        self.history_writer = ProcessHistory(run.history) if run.history is not None else None
        self._draws = world.draws_for(f"{token} on the wire")
        self._watch = SimulatedFluxWatch(run.flux)
        self._pump = Pump(
            world,
            token,
            idle_tick_s=run.script.idle_tick_s,
            on_killed=lambda: killed_at_a_call(self),
        )
        clock = world.clock()
        join = run.join_port()
        self.delegation = run.peers.ports(token, self.witness.step) if run.peers is not None else None
        self._told: PeersSeen | None = None
        delegator: Mailbox[DelegatorMessage] | None = None
        if run.peers is not None and self.delegation is not None:
            ports = DelegationPorts(self.delegation.home, self.delegation.peer, run.peers.targets)
            delegator = wire_delegation(
                ports, CLUSTER_UUID, clock, self._on_delegation, Fate(), spawn=self._pump.spawn
            )
        clouds = {
            name: partial(self._watched_cloud, name, provider)
            for name, provider in zip(run.policy.cloud_names, run.invariants.providers, strict=True)
        }
        outside = SitePorts(
            clock=clock,
            flux=lambda: WatchedFlux(run.flux, token, run.invariants, self.witness),
            clouds=clouds,
            watch=self._watch,
            close=lambda: None,
            join=(lambda: join) if join is not None else None,
        )
        self.manager: Mailbox[ManagerMessage] = wire(
            outside,
            with_promises(run.policy, run.flux.promises),
            acts=True,
            publish=self._on_published,
            fate=Fate(),
            spawn=self._pump.spawn,
            delegator=delegator,
        )
        self._pump.start_ticks(self.manager, clock)
        if delegator is not None:
            self._pump.start_ticks(delegator, clock)
        self._watch.start(self._take_news, lambda why: self.manager.tell(FluxUnreachable(clock.monotonic_s(), why)))

    def _watched_cloud(self, name: CloudName, provider: SimulatedProvider) -> WatchedCloud:
        run = self._run
        watched = WatchedStack if run.policy.stacked else WatchedBatches
        return watched(provider.port(CLUSTER, CLUSTER_UUID), run.invariants, self.witness, name)

    def kill(self) -> None:
        self.calls_left = None  # a call on the wire may still be carried out, and must not kill the process again
        self._watch.stop()
        self._pump.kill(lambda: self._draws.random() < 0.5)
        if self.delegation is not None:
            self.delegation.kill(lambda: self._draws.random() < 0.5)
        self._run.flux.drop_claim(self.token)
        self.close()

    def close(self) -> None:
        """Close the files that the end of a real process would close."""
        if self.history_writer is not None:
            self.history_writer.close()

    def freeze(self, until_s: float) -> None:
        self._pump.freeze_until(until_s)

    def _maybe_die(self) -> None:
        """Before and after each call: kill the process here if ``calls_left`` is used up."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.calls_left = None
                raise Killed

    def _take_news(self, news: QueueSeen | QueueProbed | RanksChanged) -> None:
        if not isinstance(news, RanksChanged):
            self.witness.note_answer("queue")
        self.manager.tell(news)

    def _on_delegation(self, view: DelegationView) -> None:
        seen = peers_seen(view, USER)
        if self._run.policy.bursts and seen != self._told:
            self._told = seen
            self.manager.tell(seen)

    def _on_published(self, published: Publication) -> None:
        run = self._run
        run.decisions += 1
        if self.history_writer is not None:
            self.history_writer.record(published)
        if run.trace is not None:
            for action in published.plan.actions:
                run.note(f"{self.token} {_describe_order(action)}")
        if published.snapshot.sources.claimed:
            self.witness.knows_leases = True
            run.published = published
            self.plan_checks.check(published)


def _describe_order(action: Action) -> str:
    """Write an order as one line: its kind, its node or slot, and the reason."""
    match action:
        case RecordLaunches(launches=launches):
            whose = ",".join(launch.id for launch in launches)
        case BootNode(launch=launch) | CreateNode(launch=launch) | EndLease(launch=launch):
            whose = launch.id
        case DestroyNode(launch=launch_id, provider_id=provider_id):
            whose = f"{launch_id} {provider_id}"
        case ChangeSlots(wish=wish) | RefuseSlots(wish=wish):
            whose = wish.id
        case HoldJobs(jobs=jobs) | ReleaseJobs(jobs=jobs):
            whose = ",".join(map(str, jobs))
        case DelegateJob(job=job) | ReadResult(job=job) | StartCopy(job=job) | CancelCopy(job=job):
            whose = str(job)
        case _:
            whose = action.launch
    return f"{type(action).__name__} {whose} {getattr(action, 'reason', '')}".rstrip()
