"""The simulated Flux and cloud for a real service process: actors run in threads, and time runs faster.

One thread advances the world along with this machine's clock. Every port takes the world's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from nodemanager.config.site import Site
from nodemanager.core.jobs import JobId
from nodemanager.core.ports import CloudPort, FluxPort
from nodemanager.core.slots import CloudName, Rank, Slot, TypeName, types_by_cloud
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.world import World, WorldClock
from nodemanager.simulation.workload import Submission, builtin_submissions

STEP_S = 0.01  # of this machine's time, between two steps of the world


class ScaledClock:
    """The world's clock, which threads may read between two steps of the world."""

    def __init__(self, world: World, scale: float) -> None:
        self._clock = WorldClock(world)
        self._scale = scale
        self._began_s = time.monotonic()
        self._world = world

    def monotonic_s(self) -> float:
        return (time.monotonic() - self._began_s) * self._scale

    def wall_at(self) -> float:
        return self._world.start_at + self.monotonic_s()


@dataclass
class EmbeddedWorld:
    """A running world: its Flux, its provider, and the jobs of each submission by name."""

    world: World
    flux: SimulatedFlux
    provider: SimulatedProvider
    clock: ScaledClock
    cluster: str
    cluster_uuid: str
    submissions: Iterator[tuple[float, Submission]]
    types: Mapping[CloudName, Sequence[TypeName]]  # the node types of each cloud
    submitted: dict[str, list[JobId]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    workload_done: bool = False

    def flux_port(self) -> FluxPort:
        return SimulatedFluxPort(self.flux, "embedded")

    @property
    def clouds(self) -> Mapping[CloudName, Callable[[], CloudPort]]:
        """The port of each cloud. Each shows the nodes of its own types."""
        port = self.provider.port_for
        return {name: partial(port, types, self.cluster, self.cluster_uuid) for name, types in self.types.items()}

    @property
    def watch(self) -> SimulatedFluxWatch:
        return SimulatedFluxWatch(self.flux)

    def start(self) -> None:
        self._schedule_next()
        threading.Thread(target=self._advance, name="world", daemon=True).start()

    def close(self) -> None:
        self.stopped.set()

    def _advance(self) -> None:
        while not self.stopped.wait(STEP_S):
            self.world.advance_to(self.clock.monotonic_s())

    def _schedule_next(self) -> None:
        following = next(self.submissions, None)
        if following is None:
            self.workload_done = True
            return
        at_s, submission = following
        self.world.after(max(0.0, at_s - self.world.now_s), lambda: self._submit(submission))

    def _submit(self, submission: Submission) -> None:
        after = self.submitted[submission.after][:1] if submission.after else ()
        self.submitted[submission.name] = [
            self.flux.submit(
                submission.shape,
                submission.duration_s,
                run_s=submission.run_s,
                urgency=submission.urgency,
                after=after,
            )
            for _ in range(submission.count)
        ]
        self._schedule_next()


def start_embedded_world(site: Site, *, rounds: int | None = None) -> EmbeddedWorld:
    """Start the world that a site with ``uri = simulated`` describes.

    ``rounds``: how often the built-in workload repeats; None is for ever.
    """
    simulation = site.simulation
    world = World(simulation.seed, start_at=time.time())
    slots = [
        Slot(slot, Rank(rank), node_type.name)
        for rank, (slot, node_type) in enumerate(
            ((slot, node_type) for node_type in site.node_types for slot in node_type.slots), start=1
        )
    ]
    flux = SimulatedFlux(world, site.node_types, slots)
    provider = SimulatedProvider(
        world,
        CloudFaults(
            boot_delay_s=(0.8 * simulation.boot_delay_s, 1.2 * simulation.boot_delay_s),
            stop_delay_s=(0.8 * simulation.stop_delay_s, 1.2 * simulation.stop_delay_s),
        ),
        on_boot=flux.on_node_booted,
        on_end=flux.on_node_ended,
    )
    made = EmbeddedWorld(
        world=world,
        flux=flux,
        provider=provider,
        clock=ScaledClock(world, simulation.time_scale),
        cluster=site.cluster,
        cluster_uuid=site.cluster_uuid,
        submissions=builtin_submissions(rounds),
        types=types_by_cloud(site.node_types),
    )
    made.start()
    return made
