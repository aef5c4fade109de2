"""One chaos run: the production service in a simulated world, with the jobs and faults of a script.

A run has two phases. During the faults the invariants must hold. Then comes "peace", a phase without faults: every
feasible job must run, and every node must be terminated. A failing seed is a test case, because the same seed gives
the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from random import Random

from nodemanager.actors.base import Fate
from nodemanager.actors.delegation.delegator import DelegatorMessage
from nodemanager.actors.manager import Publication
from nodemanager.actors.messages import Mailbox, ManagerMessage, UsePolicy
from nodemanager.core.facts import (
    DecisionsResumed,
    FluxUnreachable,
    NodeReleased,
    OperatorFact,
    PeersSeen,
    QueueProbed,
    QueueSeen,
    RanksChanged,
)
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.nodes import CloudNode, CloudState, ProviderId
from nodemanager.core.ports import FluxError, JoinPort
from nodemanager.core.slots import CloudName, SlotName, TypeName
from nodemanager.delegation.choose import ANY
from nodemanager.delegation.view import DelegationView, peers_seen
from nodemanager.planner import spending
from nodemanager.planner.hardware import with_promises
from nodemanager.planner.node_health import survives_kills
from nodemanager.planner.plan import Action
from nodemanager.planner.policy import Policy
from nodemanager.service.assembly.ports import DelegationPorts, SitePorts
from nodemanager.service.assembly.wiring import wire, wire_delegation
from nodemanager.simulation.boot_faults import BootFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.cloud.stacked import StackedProvider
from nodemanager.simulation.delegation.flux_home import DelegatingFlux
from nodemanager.simulation.flux.faults import FluxFaults
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.jobspec import write_jobspec
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.pump import Killed, Pump
from nodemanager.simulation.time.world import World
from tests.chaos.faults.registry import apply_fault
from tests.chaos.faults.types import EndFault
from tests.chaos.run.history_file import HistoryFile, ProcessHistory
from tests.chaos.run.invariants import (
    Invariants,
    Violation,
    WatchedBatches,
    WatchedCloud,
    WatchedFlux,
    WatchedStack,
    Witness,
)
from tests.chaos.run.peers import PeerWorld
from tests.chaos.run.plan_checks import PlanChecks
from tests.chaos.run.run import Run
from tests.chaos.run.script import FAULTS_S, JOB, PEER_JOB, Act, Script, pick
from tests.chaos.run.site import (
    CLUSTER,
    CLUSTER_UUID,
    P_LOSES_POWER,
    PREPAID,
    SCRATCH,
    chaos_policy,
    healthy_cloud,
    own_hosts,
    shape_of_job,
    shapes_of,
    slots_of,
    types_of,
)
from tests.chaos.run.upkeep import UpkeepTruth

AMPLE_BUDGET = Decimal(1000)
PEACE_S = 1500.0  # how long the phase without faults may last
RELEASE_EVERY_S = 15.0
ROUNDING = Decimal("1e-9")  # a sum of thirds depends on the order of its terms
END_KNOWN_S = 200.0  # the longest time until the manager knows of a node's end: an outage, a lag, a wait
# With these faults the manager cannot know the exact amount spent: its clock jumps, or nodes hide.
SPEND_HIDING_FAULTS = (
    "manager.clock_jumps",
    "cloud.forgotten",
    "cloud.empty_list",
    "cloud.truncated_list",
    "cloud.stale_list",
)
TRACE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The counts of a finished run."""

    seed: int
    jobs: int
    acts: int
    creates: int
    destroys: int
    kills: int
    nodes_peak: int
    decisions: int
    virtual_s: float


@dataclass
class Scenario:
    """Runs one script. ``run`` raises :class:`Violation` if an invariant breaks or the run does not finish.

    ``trace``, if given, gets a line for each event, up to ``TRACE_MAX``.
    """

    script: Script
    trace: list[str] | None = None
    kills: int = 0
    decisions: int = 0
    processes: list[ManagerProcess] = field(default_factory=list)
    published: Publication | None = None

    def __post_init__(self) -> None:
        self.world = World(self.script.seed)
        self.policy = chaos_policy(self.script)
        types, slots = types_of(self.script), slots_of(self.script)
        self.peers: PeerWorld | None = None
        self.flux = SimulatedFlux(self.world, types, slots)
        if self.script.peers:
            self.flux = DelegatingFlux(self.world, types, slots)
        self.flux.set_housekeeping(self.script.housekeeping_s)
        self.provider = SimulatedProvider(self.world, healthy_cloud())
        if self.script.stacked:
            self.provider = StackedProvider(self.world, healthy_cloud(), types[0].slots)
        if self.script.list_lag_s:
            self.provider.faults.list_lag_s = (0.0, self.script.list_lag_s)
        self.boots = BootFaults(self.world, self.flux, self.provider)
        self.provider.on_boot, self.provider.on_end = self.boots.on_node_booted, self.boots.on_node_ended
        self.twin = twin = None
        if self.script.twin:
            faults = own_hosts() if self.script.own_hosts else healthy_cloud()
            self.twin = twin = SimulatedProvider(self.world, faults, number=1)
            twin.on_boot, twin.on_end = self._boot_in_twin, self.flux.on_node_ended
            self._power = Random(f"{self.script.seed}/power")
        with_data = frozenset(it.name for it in types if SCRATCH in it.properties)
        self.upkeep = UpkeepTruth(self.world, self.flux, with_data, PREPAID, Invariants.require)
        self.invariants = Invariants(self.flux, self.provider, self.policy, self.upkeep, twin)
        if isinstance(self.flux, DelegatingFlux):
            self.peers = PeerWorld(self.world, self.flux, self.script.peers, self.invariants.require)
        self.jobs = self.invariants.jobs
        # Whether the manager can know the amount spent: only with a correct clock and correct lists.
        self.spend_is_knowable = not any(act.kind.startswith(SPEND_HIDING_FAULTS) for act in self.script.acts)
        self.history: HistoryFile | None = None
        self.peace = False
        self._started = 0
        self._end_faults: list[EndFault] = []

    def _boot_in_twin(self, node: CloudNode) -> None:
        """A node of the second cloud has booted. An own host may lose power some time later."""
        self.flux.on_node_booted(node)
        if self.script.own_hosts and not self.peace and self._power.random() < P_LOSES_POWER:
            self.world.after(self._power.uniform(0.0, 30.0), lambda: self._cut_power(node.provider_id))

    def _cut_power(self, host: ProviderId) -> None:
        if self.twin is not None and not self.peace:
            self.twin.kill(host, "lost power")

    def run(self) -> RunSummary:
        """Run the phase with faults, then the phase without, and check the end."""
        try:
            return self._run()
        finally:
            self._close_files()

    def _run(self) -> RunSummary:
        self.begin()
        self._run_until(FAULTS_S, lambda: False)
        self._make_peace()
        if not self._run_until(FAULTS_S + PEACE_S, self._all_done):
            raise Violation(f"not done in peace: {self._describe_unfinished()}")
        self._check_end()
        return RunSummary(
            seed=self.script.seed,
            jobs=len(self.jobs.shapes),
            acts=len(self.script.acts),
            creates=self.invariants.creates,
            destroys=self.invariants.destroys,
            kills=self.kills,
            nodes_peak=self.invariants.nodes_peak,
            decisions=self.decisions,
            virtual_s=self.world.now_s,
        )

    def begin(self) -> None:
        if any(act.kind.startswith("journal.") for act in self.script.acts):
            self.history = HistoryFile()
        self.provider.add_foreign_node()
        for act in self.script.acts:
            self.world.after(act.at_s, lambda act=act: self._apply_act(act))  # type: ignore[misc]
        self.start_process()

    def _run_until(self, end_s: float, done: Callable[[], bool]) -> bool:
        """Advance event by event until ``end_s`` or until ``done``, checking invariants; return whether done."""
        while (next_s := self.world.next_event_s()) is not None and next_s <= end_s:
            self.world.advance_to(next_s)
            self.invariants.check()
            if done():
                return True
        return False

    def note(self, line: str) -> None:
        if self.trace is not None and len(self.trace) < TRACE_MAX:
            self.trace.append(f"{self.world.now_s:9.2f} s  {line}")

    # --- the script ---

    def _apply_act(self, act: Act) -> None:
        if act.kind == JOB:
            self._submit(act)
            return
        if act.kind == PEER_JOB:
            self._submit_to_peer(act)
            return
        self.note(f"fault {act}")
        end = apply_fault(self, act)
        if end is not None:
            self._end_faults.append(end)
            self.world.after(act.lasts_s, lambda: self._end_fault(end, act))

    def _end_fault(self, end: EndFault, act: Act) -> None:
        if end in self._end_faults:
            self.note(f"end of fault {act.number}: {act.kind}")
            self._end_faults.remove(end)
            end()

    def _submit(self, act: Act) -> None:
        shape = shape_of_job(self.script, act)
        try:
            job = self.flux.submit(shape, 120.0, run_s=act.lasts_s, requeue=act.number % 2 == 1)
        except FluxError:  # rank 0 is away: the user tries again
            self.world.after(5.0, lambda: self._submit(act))
        else:
            self.jobs.shapes[job] = shape
            self.note(f"job {job}: {shape.slots} x {shape.cores_per_slot} cores, for {act.lasts_s:.1f} s")

    def _submit_to_peer(self, act: Act) -> None:
        if self.peers is None:
            return
        target = pick([*sorted(self.peers.instances), ANY], act.amount) or ANY
        shape = shapes_of(self.script)[act.number % 3]
        jobspec = write_jobspec(shape, duration_s=120.0)
        try:
            job = self.peers.home.submit_to(target, jobspec)
        except FluxError:  # rank 0 is away: the user tries again
            self.world.after(5.0, lambda: self._submit_to_peer(act))
        else:
            self.note(f"job {job}: delegate:{target}")

    def _make_peace(self) -> None:
        """End all faults, raise the budget, end schedules and contracts, and let the operator release all."""
        self.note("peace")
        self.peace = True
        for process in self.processes:
            process.plan_checks.begin_peace()
            process.calls_left = None
        self.use_policy(_peaceful(self.policy))
        self.provider.faults = healthy_cloud()
        if self.twin is not None:
            self.twin.faults = healthy_cloud()
        self.flux.faults = FluxFaults()
        self.boots.p_loop = self.boots.p_wrong_slot = 0.0
        self.world.skew_s = 0.0
        if self.peers is not None:
            self.peers.make_peace()
        for end in self._end_faults:
            end()
        self._end_faults.clear()
        self._release_holds()

    # --- the processes of the service ---

    def start_process(self) -> None:
        self._started += 1
        self.note(f"manager-{self._started} is started")
        self.processes.append(
            ManagerProcess(self, f"manager-{self._started}", lambda it: self.kill_process(it, it.down_s))
        )

    def kill(self, amount: float, down_s: float) -> None:
        """SIGKILL a process of the service, and start another one ``down_s`` later."""
        process = pick(self.processes, amount)
        if process is not None:
            self.kill_process(process, down_s)

    def kill_process(self, process: ManagerProcess, down_s: float) -> None:
        self.note(f"{process.token} is killed")
        self.kills += 1
        self.processes.remove(process)
        process.kill()
        self.world.after(down_s, self.start_process)

    def end_process(self, amount: float) -> None:
        """End one of several processes, and start none instead."""
        process = pick(self.processes, amount) if len(self.processes) > 1 else None
        if process is not None:
            self.note(f"{process.token} is ended")
            self.processes.remove(process)
            process.kill()

    def kill_at_a_call(self, amount: float, down_s: float) -> None:
        """Kill a process at one of its next calls, before or after the call is carried out."""
        process = pick(self.processes, amount)
        if process is not None:
            process.calls_left, process.down_s = int(amount * 1000) % 20, down_s

    def lose_link(self, amount: float, *, home: bool) -> None:
        """Break a connection of a process's delegator: to home, or to a peer."""
        process = pick(self.processes, amount)
        links = process.delegation.links() if process is not None and process.delegation is not None else []
        if (link := pick(links[:1] if home else links[1:], amount)) is not None:
            link.lose()

    def freeze(self, amount: float, lasts_s: float) -> None:
        """SIGSTOP a process, and SIGCONT it later."""
        process = pick(self.processes, amount)
        if process is not None:
            process.freeze(self.world.now_s + lasts_s)

    def join_port(self) -> JoinPort | None:
        """The join port of a manager that starts now; None if nodes join without a service."""
        return None

    def give_notice(self, provider_id: ProviderId) -> None:
        """Have the provider announce to a node that it is about to reclaim it."""

    def turn_join_knob(self, name: str, probability: float) -> None:
        """Ignore a fault of the join service: here nodes join without one."""

    def use_policy(self, policy: Policy) -> None:
        """Reload the site in every process of the service, and for those that start later."""
        self.policy = policy
        for process in self.processes:
            # With the reduced declarations of its types, as a reload of the site file has them.
            process.manager.tell(UsePolicy(with_promises(policy, self.flux.promises)))

    def tell_manager(self, fact: OperatorFact) -> None:
        """Tell the acting manager a fact, as an operator does."""
        for process in self.processes:
            if process.token == self.flux.claimed_by:
                process.manager.tell(fact)

    def _release_holds(self) -> None:
        """Resume decisions, release all holds, save data, and end stuck housekeeping; repeat this until the end."""
        self.tell_manager(DecisionsResumed())
        self.upkeep.say_all()
        for launch in self.flux.steering.holds:
            self.tell_manager(NodeReleased(launch))
        nodes = self.published.snapshot.nodes if self.published is not None else {}
        if any(map(survives_kills, nodes.values())):
            self.flux.end_housekeeping()
        self.world.after(RELEASE_EVERY_S, self._release_holds)

    # --- faults that touch several parts ---

    def restart_rank_0(self, down_s: float) -> None:
        self.flux.restart(down_s=down_s)

    def reconnected(self, slot: SlotName, machine: str) -> None:
        """Restore the network to a machine: its broker joins again, unless another one has the slot."""
        if self.flux.machine_of(slot) is None:
            self.flux.broker_up(slot, machine)

    def resize(self, added: Mapping[SlotName, TypeName], down_s: float) -> None:
        self.flux.resize(added, down_s=down_s)

    def flux_is_up(self) -> bool:
        try:
            self.flux.check_reachable()
        except FluxError:
            return False
        return True

    # --- nodes ---

    def our_nodes(self) -> list[ProviderId]:
        return [node.provider_id for node in self.invariants.our_nodes()]

    def running_nodes(self) -> set[ProviderId]:
        return {node.provider_id for node in self.provider.nodes() if node.state is CloudState.RUNNING}

    # --- the end ---

    def _all_done(self) -> bool:
        here = not self.flux.leases and not self.our_nodes() and not self._unfinished_jobs()
        here = here and not self.provider.groups()
        return here and (self.peers is None or not self.peers.truth.unfinished())

    def _unfinished_jobs(self) -> list[JobId]:
        return [job for job in self.flux.active_jobs() if job not in self.jobs.held]

    def _check_end(self) -> None:
        self._check_spend()
        self._check_history()
        if self.peers is not None:
            self.peers.truth.check_end(self.jobs.held)

    def _check_spend(self) -> None:
        """Check that the recorded spending is the true cost."""
        if not self.policy.budgets or not self.spend_is_knowable:
            return
        day, month = spending.periods(self.world.wall_at())
        for owner, name in self.policy.budgets:
            self._check_spend_of(owner, day if name == day.name else month)

    def _check_spend_of(self, owner: str, period: spending.Period) -> None:
        recorded = self.flux.spend.amounts.get((period.name, period.begins_at, owner), Decimal(0))
        now_s = self.world.now_s
        # A list shows the nodes at some moment of the call, and counts from the start of the call.
        asked_s = -self.policy.calls.call_timeout_s
        least = self.invariants.true_cost(
            now_s,
            lambda line: line.launch not in self.invariants.unseen_launches,
            owner=owner,
            end_shift_s=asked_s,
        )
        most = self.invariants.true_cost(now_s, owner=owner, start_shift_s=asked_s, end_shift_s=END_KNOWN_S)
        self.invariants.require(
            least - ROUNDING <= recorded <= most + ROUNDING,
            f"{recorded:.4f} recorded as spent by {owner or 'the site'}, {least:.4f} to {most:.4f} in truth",
        )

    def _check_history(self) -> None:
        """Check that the events of the phase without faults were written, whatever happened to the file."""
        for process in self.processes:
            lost = process.history_writer.why_incomplete() if process.history_writer is not None else ""
            self.invariants.require(not lost, f"the journal lacks what was told last: {lost}")

    def _close_files(self) -> None:
        for process in self.processes:
            process.close()
        if self.history is not None:
            self.history.close()

    def _describe_unfinished(self) -> str:
        waiting = [job for job in self._unfinished_jobs() if self.flux.job_state(job) is JobState.SCHED]
        parts = [
            f"jobs {self._unfinished_jobs()[:5]} ({len(waiting)} waiting)",
            f"nodes {self.our_nodes()}",
            f"leases {sorted(self.flux.leases)}",
            f"groups {list(self.provider.groups())}",
        ]
        parts += [f"copies {self.peers.truth.unfinished()}"] if self.peers is not None else []
        if self.published is not None:
            made = self.published.plan
            parts += [f"stands still: {made.stands_still}"]
            parts += [f"job {job}: {made.jobs.get(job)}" for job in waiting[:3]]
            parts += [f"node {id_}: {reason}" for id_, reason in made.nodes.items()]
        return "; ".join(parts)


def _peaceful(policy: Policy) -> Policy:
    """The site in the phase without faults: nothing keeps a node that no job needs."""
    return replace(
        policy,
        budgets=dict.fromkeys(policy.budgets, AMPLE_BUDGET),
        node_types=tuple(replace(it, prepaid=0) for it in policy.node_types),
        upkeep=replace(policy.upkeep, schedules=()),
    )


# --- one manager process of a run: actors in a pump, a claim, a watch, and ports that check every call ----


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
    """Write an order as one line: its kind, its node, slot or job, and the reason."""
    return f"{action.name} {action.subject or action.subject_in_log} {action.why or ''}".rstrip()
