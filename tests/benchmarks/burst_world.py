"""Many jobs at once, one for each node, on a provider that limits creates as EC2 does. In virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.actors.flux import FluxWorker
from nodemanager.actors.join import JoinClerk
from nodemanager.actors.manager import Manager, Publication
from nodemanager.core.facts import FluxUnreachable
from nodemanager.core.jobs import Shape
from nodemanager.core.nodes import USABLE, CloudNode, FailureKind, Identity, Launch, ProviderId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import DEFAULT_CLOUD, Billing, NodeType, Rank, Slot, SlotName, TypeName
from nodemanager.planner.policy import Calls, Limits, Policy, Timing
from nodemanager.service.assembly.ports import SitePorts
from nodemanager.service.assembly.wiring import wire
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.pump import Pump
from nodemanager.simulation.time.world import World
from tests.cloud.ec2.moto_faults import InstanceBucket

CLUSTER, CLUSTER_UUID = "burst", "11111111-1111-4111-8111-111111111111"
TRAVEL_S: dict[type[CrashOnlyActor], tuple[float, float]] = {
    Manager: (0.0, 0.01),
    FluxWorker: (0.001, 0.05),
    CloudWatcher: (0.1, 0.5),
    CloudWorker: (0.5, 1.5),  # how long a create takes to be sent and answered
    JoinClerk: (0.0, 0.01),
}


class LimitedProvider(SimulatedProvider):
    """A simulated provider with EC2's two buckets. ``ordered``: the time and size of each create call."""

    def __init__(self, world: World, faults: CloudFaults, bucket: InstanceBucket) -> None:
        super().__init__(world, faults)
        self.bucket = bucket
        self.ordered: list[tuple[float, int]] = []
        self.destroy_calls = 0

    def create(self, launch: Launch, node_type: NodeType, identity: Identity) -> CloudNode:
        self._take(1)
        return super().create(launch, node_type, identity)

    def create_many(
        self, launches: Sequence[Launch], node_type: NodeType, identities: Sequence[Identity]
    ) -> list[CloudNode | CloudError]:
        self._take(len(launches))
        return super().create_many(launches, node_type, identities)

    def destroy(self, provider_id: ProviderId) -> None:
        self.destroy_calls += 1
        super().destroy(provider_id)

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> None:
        self.destroy_calls += 1
        super().destroy_many(provider_ids)

    def _take(self, count: int) -> None:
        if not self.bucket.take(count):
            raise CloudError(FailureKind.THROTTLED, "Request limit exceeded.", 2.0)
        self.ordered.append((self._world.now_s, count))


@dataclass
class Burst:
    """A manager, and ``nodes`` jobs that need a node each."""

    nodes: int
    calls: Calls
    bucket: Callable[[World], InstanceBucket] = lambda world: InstanceBucket(lambda: world.now_s)
    run_s: float = 600.0
    published: list[Publication] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = world = World(1)
        slots = tuple(SlotName(f"cloud{number}") for number in range(1, self.nodes + 1))
        node_type = NodeType(
            TypeName("cloud"), "c7i.large", 2, 0, 2**32, Decimal("0.1"), Billing(60.0), slots, image="ami-1"
        )
        self.flux = SimulatedFlux(
            world, [node_type], [Slot(slot, Rank(rank), node_type.name) for rank, slot in enumerate(slots, 1)]
        )
        faults = CloudFaults(boot_delay_s=(0.0, 0.0), stop_delay_s=(1.0, 2.0), terminated_listed_s=60.0)
        self.provider = LimitedProvider(world, faults, self.bucket(world))
        self.provider.on_boot, self.provider.on_end = self.flux.on_node_booted, self.flux.on_node_ended
        self.policy = Policy(
            cluster=CLUSTER,
            cluster_uuid=CLUSTER_UUID,
            node_types=(node_type,),
            limits=Limits(nodes_max=self.nodes, price_per_hour_max=Decimal(10_000)),
            timing=Timing(),
            calls=self.calls,
        )
        self._pump = Pump(world, travel_s=TRAVEL_S)
        watch, clock = SimulatedFluxWatch(self.flux), world.clock()
        outside = SitePorts(
            clock=clock,
            flux=lambda: SimulatedFluxPort(self.flux, "burst", CLUSTER_UUID),
            clouds={DEFAULT_CLOUD: lambda: self.provider.port(CLUSTER, CLUSTER_UUID)},
            watch=watch,
            close=lambda: None,
        )
        self.manager = wire(
            outside, self.policy, acts=True, publish=self._publish, fate=Fate(), spawn=self._pump.spawn
        )
        self._pump.start_ticks(self.manager, clock)
        watch.start(self.manager.tell, lambda why: self.manager.tell(FluxUnreachable(clock.monotonic_s(), why)))
        world.advance_by(10.0)

    def _publish(self, published: Publication) -> None:
        self.published[:] = [published]

    def submit(self) -> float:
        """Submit the jobs. Return the time."""
        for _ in range(self.nodes):
            self.flux.submit(Shape(slots=1, cores_per_slot=2), 3600.0, run_s=self.run_s)
        return self.world.now_s

    def until(self, reached: Callable[[], bool], within_s: float, step_s: float = 0.05) -> float:
        """Let time pass until the condition is true. Return the time; raise ``TimeoutError`` if it takes longer."""
        end_s = self.world.now_s + within_s
        while not reached():
            if self.world.now_s > end_s:
                raise TimeoutError
            self.world.advance_by(step_s)
        return self.world.now_s

    def count_ordered(self) -> int:
        return sum(count for _, count in self.provider.ordered)

    def count_joined(self) -> int:
        """Count the nodes that the manager knows to be up."""
        return sum(node.state in USABLE for node in self.published[-1].snapshot.nodes.values())

    def count_standing(self) -> int:
        return len(self.provider.nodes())
