"""One run: a world, a workload and faults drawn from a seed, and the production service in it.

First a phase with faults, in which the rules must hold; then one without, in which every job that can run must run
and every node must go. A failing seed is a test case: the same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random

from nodemanager.actors.base import Fate
from nodemanager.actors.manager import Published
from nodemanager.app import Outside, wire
from nodemanager.facts import FluxUnreachable
from nodemanager.fleet.hardware import as_promised
from nodemanager.fleet.policy import Policy
from nodemanager.messages import Mailbox, ManagerMessage
from nodemanager.model import (
    Billing,
    HasProperty,
    JobId,
    JobState,
    NodeType,
    ProviderId,
    Rank,
    Shape,
    Slot,
    SlotName,
    SlotsWish,
    TypeName,
)
from nodemanager.ports import FluxError, JoinPort
from nodemanager.simulation.cloud import SimulatedProvider
from nodemanager.simulation.cloud_faults import CloudFaults
from nodemanager.simulation.flux import SimulatedFlux
from nodemanager.simulation.flux_port import FluxFaults
from nodemanager.simulation.invariants import Rules, Violation, WatchedCloud, WatchedFlux
from nodemanager.simulation.pump import Pump
from nodemanager.simulation.world import World

CLUSTER = "sim"
CLUSTER_UUID = "5eed0000-0000-4000-8000-000000000000"

FAULTS_S = 2400.0  # the phase with faults
PEACE_S = 6 * 3600.0  # what the rest may take without them


def _slots(prefix: str, count: int) -> tuple[SlotName, ...]:
    return tuple(SlotName(f"{prefix}{number}") for number in range(1, count + 1))


NODE_TYPES = (
    NodeType(
        TypeName("small"),
        "s",
        4,
        0,
        2**34,
        Decimal("0.20"),
        Billing(60.0, 60.0),
        _slots("small", 5),
    ),
    NodeType(
        TypeName("large"),
        "l",
        16,
        0,
        2**36,
        Decimal("0.80"),
        Billing(600.0),
        _slots("large", 2),
        properties=frozenset({"large"}),
    ),
    NodeType(
        TypeName("gpu"),
        "g",
        8,
        2,
        2**36,
        Decimal("3.00"),
        Billing(600.0),
        _slots("gpu", 2),
        properties=frozenset({"gpu"}),
    ),
)
SLOTS = tuple(
    Slot(slot, Rank(rank), node_type.name)
    for rank, (slot, node_type) in enumerate(
        ((slot, node_type) for node_type in NODE_TYPES for slot in node_type.slots), start=1
    )
)
SHAPES = (
    Shape(slots=1, cores_per_slot=1),
    Shape(slots=3, cores_per_slot=2),
    Shape(nodes=1, slots=1, cores_per_slot=4),
    Shape(nodes=3, slots=1, cores_per_slot=1, exclusive=True),
    Shape(nodes=2, slots=2, cores_per_slot=1),
    Shape(slots=1, cores_per_slot=2, gpus_per_slot=1),
    Shape(slots=1, cores_per_slot=8, constraint=HasProperty("large")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    jobs: int
    creates: int
    destroys: int
    kills: int
    nodes_peak: int
    virtual_s: float


@dataclass
class Scenario:
    """One seed. ``run`` raises :class:`Violation` where a rule is broken or an end is not reached."""

    seed: int
    faults: bool = True
    faults_s: float = FAULTS_S
    jobs: list[JobId] = field(default_factory=list)
    kills: int = 0
    wishes: int = 0

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self._draws: Random = self.world.draws_for("scenario")
        self.policy = Policy(
            cluster=CLUSTER,
            cluster_uuid=CLUSTER_UUID,
            node_types=NODE_TYPES,
            nodes_max=self._draws.randint(4, 8),
            price_per_hour_max=Decimal("8.00"),
            boot_timeout_s=300.0,
            rejoin_timeout_s=60.0,
            create_grace_s=30.0,
            orphan_grace_s=120.0,
            idle_timeout_s=self._draws.choice([30.0, 120.0]),
            stop_lead_s=30.0,
            call_timeout_s=30.0,
            relist_s=30.0,
            calls_in_flight_max=3,
        )
        self.flux = SimulatedFlux(self.world, NODE_TYPES, SLOTS)
        self.flux.set_housekeeping(self._draws.choice([0.0, 3.0]))
        self.provider = SimulatedProvider(
            self.world, CloudFaults(), on_boot=self.flux.node_booted, on_end=self.flux.node_ended
        )
        self.rules = Rules(self.flux, self.provider, self.policy)
        self.published: Published | None = None
        self._process: _Process | None = None

    def run(self) -> Outcome:
        """Faults, then peace."""
        self.provider.add_stranger()
        self._submit_over(self.faults_s)
        self._start()
        if self.faults:
            self._let_things_go_wrong()
        self._until(self.faults_s, lambda: False)
        self._make_peace()
        if not self._until(self.faults_s + PEACE_S, self._all_done):
            raise Violation(f"seed {self.seed}: not done in peace: {self._what_is_left()}")
        return Outcome(
            seed=self.seed,
            jobs=len(self.jobs),
            creates=self.rules.creates,
            destroys=self.rules.destroys,
            kills=self.kills,
            nodes_peak=self.rules.nodes_peak,
            virtual_s=self.world.now_s,
        )

    def _until(self, end_s: float, done: Callable[[], bool]) -> bool:
        """Step by step, each step checked, to a moment or an end."""
        while (next_s := self.world.next_event_s()) is not None and next_s <= end_s:
            self.world.advance_to(next_s)
            self.rules.check()
            if done():
                return True
        return False

    # --- the process of the service ---

    def _start(self) -> None:
        self._process = _Process(self, f"manager-{self.kills}")

    def kill(self) -> None:
        """SIGKILL the service, and start another a little later."""
        if self._process is not None:
            self.kills += 1
            self._process.kill(lambda: self._draws.random() < 0.5)
            self._process = None
            self.world.after(self._draws.uniform(0.0, 60.0), self._start)

    def join_port(self) -> JoinPort | None:
        """Of the manager that starts now; None where nodes join without a service."""
        return None

    def publish(self, published: Published) -> None:
        self.published = published

    # --- the workload ---

    def _submit_over(self, span_s: float) -> None:
        at_s = 0.0
        while at_s < span_s:
            for _ in range(self._draws.choice([1, 1, 2, 8])):
                self.world.after(at_s, self._submit)
            at_s += self._draws.expovariate(1 / 200.0)

    def _submit(self) -> None:
        shape = self._draws.choice(SHAPES)
        run_s = self._draws.uniform(1.0, 300.0)
        try:
            self.jobs.append(self.flux.submit(shape, 600.0, run_s=run_s))
        except FluxError:  # rank 0 is away: the user tries again
            self.world.after(20.0, self._submit)

    # --- faults ---

    def _let_things_go_wrong(self) -> None:
        draw = self._draws.random
        faults = self.provider.faults
        faults.p_lost_reply = 0.2 * draw()
        faults.p_refused_ambiguous = 0.1 * draw()
        faults.p_transient = 0.2 * draw()
        faults.p_throttle = 0.1 * draw()
        faults.p_boot_fail = 0.1 * draw()
        faults.p_boot_hang = 0.1 * draw()
        faults.p_capacity = 0.1 * draw()
        faults.p_death_per_hour = 0.5 * draw()
        faults.p_destroy_ignored = 0.1 * draw()
        faults.p_empty_list = 0.05 * draw()
        faults.p_truncated_list = 0.05 * draw()
        faults.p_shuffled_list = 0.5 * draw()
        faults.list_lag_s = (0.0, 15.0 * draw())
        self.flux.faults.p_fail = 0.05 * draw()
        self.flux.faults.p_lost_reply = 0.05 * draw()
        self._now_and_then(600.0, self.kill)
        self._now_and_then(1200.0, self._restart_rank_0)
        self._now_and_then(900.0, self._cut_off)
        self._now_and_then(900.0, self._kill_a_node)
        self._now_and_then(1200.0, self._jump)
        self.flux.faults.p_half_changed = 0.3 * draw()
        self._now_and_then(400.0, self._wish_slots)
        self._now_and_then(2400.0, self._resize)

    def _now_and_then(self, every_s: float, happen: Callable[[], None]) -> None:
        at_s = self._draws.expovariate(1 / every_s)
        while at_s < self.faults_s:
            self.world.after(at_s, happen)
            at_s += self._draws.expovariate(1 / every_s)

    def _restart_rank_0(self) -> None:
        self.flux.restart(down_s=self._draws.uniform(1.0, 30.0))

    def _cut_off(self) -> None:
        self.flux.unreachable = True
        self.world.after(self._draws.uniform(1.0, 120.0), self._reconnect)

    def _reconnect(self) -> None:
        self.flux.unreachable = False

    def _kill_a_node(self) -> None:
        standing: list[ProviderId] = [
            node.provider_id for node in self.provider.nodes() if node.identity is not None
        ]
        if standing:
            self.provider.kill(self._draws.choice(standing))

    def _resize(self) -> None:
        """Somebody gives a type two slots more, for which rank 0 restarts."""
        type_name = self._draws.choice([node_type.name for node_type in NODE_TYPES])
        size = len(self.flux.rank_of)
        added = {SlotName(f"more{size + number}"): type_name for number in (1, 2)}
        self.flux.resize(added, down_s=self._draws.uniform(1.0, 30.0))

    def _wish_slots(self) -> None:
        """Somebody wants two types to share their slots otherwise."""
        one, other = self._draws.sample([node_type.name for node_type in NODE_TYPES], 2)
        have = list(self.flux.division.values())
        both = have.count(one) + have.count(other)
        # One of each is left: a job that no rank could ever run is refused, by Flux and in this run's end.
        share = self._draws.randint(1, both - 1)
        self.wishes += 1
        self.flux.wish_slots(SlotsWish(f"wish-{self.wishes}", {one: share, other: both - share}))

    def _jump(self) -> None:
        """The manager's wall clock jumps by up to an hour, forth or back."""
        self.world.skew_s = self._draws.uniform(-3600.0, 3600.0)

    def _make_peace(self) -> None:
        self.provider.faults = CloudFaults()
        self.flux.faults = FluxFaults()
        self.flux.unreachable = False
        self.world.skew_s = 0.0

    # --- the end ---

    def _all_done(self) -> bool:
        return not self.flux.active_jobs() and not self.flux.records and not self._ours_standing()

    def _ours_standing(self) -> list[ProviderId]:
        return [node.provider_id for node in self.provider.nodes() if node.identity is not None]

    def _what_is_left(self) -> str:
        waiting = [job for job in self.flux.active_jobs() if self.flux.job_state(job) is JobState.SCHED]
        parts = [
            f"jobs {list(self.flux.active_jobs())[:5]} ({len(waiting)} waiting)",
            f"nodes {self._ours_standing()}",
            f"leases {sorted(self.flux.records)}",
        ]
        if self.published is not None:
            made = self.published.plan
            parts += [f"stands still: {made.stands_still}"]
            parts += [f"job {job}: {made.jobs.get(job)}" for job in waiting[:3]]
            parts += [f"node {id_}: {reason}" for id_, reason in made.nodes.items()]
        return "; ".join(parts)


class _Process:
    """One life of the service: its actors in a pump, its claim, its watch."""

    def __init__(self, scenario: Scenario, token: str) -> None:
        self._scenario = scenario
        self._token = token
        world = scenario.world
        self._watch = scenario.flux.watch()
        self._pump = Pump(world, token)
        clock = world.clock()
        join = scenario.join_port()
        outside = Outside(
            clock=clock,
            flux=lambda: WatchedFlux(scenario.flux, world, token, scenario.rules),
            cloud=lambda: WatchedCloud(scenario.provider.port(CLUSTER, CLUSTER_UUID), scenario.rules),
            watch=self._watch,
            close=lambda: None,
            join=(lambda: join) if join is not None else None,
        )
        manager: Mailbox[ManagerMessage] = wire(
            outside,
            as_promised(scenario.policy, scenario.flux.promises),
            acts=True,
            publish=scenario.publish,
            fate=Fate(),
            spawn=self._pump.spawn,
        )
        self._pump.tick(manager, clock)
        self._watch.start(manager.tell, lambda why: manager.tell(FluxUnreachable(clock.monotonic_s(), why)))

    def kill(self, on_the_wire: Callable[[], bool]) -> None:
        self._watch.stop()
        self._pump.kill(on_the_wire)
        self._scenario.flux.drop_claim(self._token)
