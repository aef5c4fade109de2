"""The whole loop on EC2: a simulated Flux, the production actors in threads, and HTTP to moto.

Simulated time runs faster than real time. Only HTTP takes real time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch

pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")

from nodemanager.actors.manager import Publication
from nodemanager.cli.cloud_test import USER_DATA, CloudTest, make_test_site
from nodemanager.cloud.common.request import identity_from_tags
from nodemanager.cloud.providers import cloud_factory
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.jobs import HasProperty, Shape
from nodemanager.core.nodes import CloudNode, CloudState, NodeState, ProviderId
from nodemanager.core.slots import DEFAULT_CLOUD, Rank, Slot
from nodemanager.service.assembly.ports import SitePorts
from nodemanager.service.service import Service
from nodemanager.simulation.embedded import ScaledClock
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World
from tests.cloud.ec2.moto_faults import Fault
from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront
from tests.contract.cloud_subjects import SystemClock, a_script

TIME_SCALE = 20.0
WAIT_S = 60.0  # of real time; a loop takes some seconds

SITE = """
[Site]
cluster = lab
cluster_uuid = 33333333-3333-4333-8333-333333333333
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = ec2
region = {region}
endpoint = {endpoint}
image = {image}
call_timeout = 2m
[Cloud Credentials]
access_key_id = ${{KEY}}
secret_access_key = ${{SECRET}}
[Limits]
nodes_max = 6
price_per_hour_max = 20
[Timing]
probe = 2s
relist = 10s
sweep = 10s
boot_timeout = 10m
[Policy]
idle_timeout = 10s
stop_lead = 5s
[Node small]
size = t3.micro
cores = 4
memory = 1GiB
price_per_hour = 0.10
billing = 20s
slots = small[1-4]
[Node gpu]
size = g4dn.xlarge
cores = 4
gpus = 1
memory = 16GiB
price_per_hour = 1.00
billing = 20s
market = spot
properties = gpu
slots = gpu[1-2]
"""


def a_site(folder: Path, front: MotoFront) -> Site:
    key, secret = next(iter(SECRETS.items()))
    (folder / "site.ini").write_text(SITE.format(region=REGION, endpoint=front.url, image=IMAGE))
    return load_site(folder / "site.ini", {"KEY": key, "SECRET": secret})


def tags_of(thing: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in thing.get_tags()}


@dataclass
class Loop:
    """An instance without nodes, an account without instances, and the service that connects them."""

    site: Site
    front: MotoFront
    world: World = field(default_factory=lambda: World(seed=1, start_at=time.time()))
    published: Publication | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        places = [(slot, node_type) for node_type in self.site.node_types for slot in node_type.slots]
        slots = [Slot(slot, Rank(rank), node_type.name) for rank, (slot, node_type) in enumerate(places, start=1)]
        self.flux = SimulatedFlux(self.world, self.site.node_types, slots)
        clock = ScaledClock(self.world, TIME_SCALE)
        self.front.wall_at = clock.wall_at
        self.front.on_running = lambda made: self.flux.on_node_booted(self._as_node(made))
        self.front.on_end = lambda made: self.flux.on_node_ended(self._as_node(made))
        outside = SitePorts(
            clock=clock,
            flux=lambda: SimulatedFluxPort(self.flux, "loop"),
            clouds={DEFAULT_CLOUD: cloud_factory(self.site, a_script, clock)},
            watch=SimulatedFluxWatch(self.flux),
            close=self.stopped.set,
        )
        self.service = Service(self.site, outside, self._publish)
        self._movers = [
            threading.Thread(target=self._move, args=(lambda: self.world.advance_to(clock.monotonic_s()),)),
            threading.Thread(target=self._move, args=(self.front.move,)),
        ]
        for mover in self._movers:
            mover.start()
        self.service.start()

    def close(self) -> None:
        self.service.stop()
        for mover in self._movers:
            mover.join()

    def until(self, reached: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not reached():
            if self.service.fate.crashed is not None:
                raise self.service.fate.crashed
            if time.monotonic() > deadline_s:
                pytest.fail(f"waited {WAIT_S:g} s in vain for {what}: {self.published}")
            self.stopped.wait(0.02)

    def all_went(self) -> bool:
        return not (self.flux.active_jobs() or self.flux.leases or self.front.standing())

    def none_is_busy(self) -> bool:
        nodes = self.published.snapshot.nodes.values() if self.published is not None else ()
        return all(node.state is not NodeState.BUSY for node in nodes)

    def _move(self, step: Callable[[], None]) -> None:
        while not self.stopped.wait(0.01):
            step()

    def _publish(self, published: Publication) -> None:
        self.published = published

    def _as_node(self, made: Any) -> CloudNode:
        return CloudNode(ProviderId(made.id), CloudState.RUNNING, identity_from_tags(tags_of(made)))


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    front = MotoFront()
    front.boot_delay_s = 0.1
    front.stop_delay_s = 0.1
    loop = Loop(a_site(tmp_path, front), front)
    yield loop
    loop.close()
    front.close()


def test_jobs_bring_instances_that_run_them_and_leave_nothing_behind(loop: Loop) -> None:
    loop.flux.submit(Shape(nodes=3, slots=1, cores_per_slot=1, exclusive=True), run_s=5.0)
    loop.flux.submit(Shape(slots=2, cores_per_slot=2), run_s=3.0)
    loop.flux.submit(Shape(slots=1, cores_per_slot=1, gpus_per_slot=1, constraint=HasProperty("gpu")), run_s=5.0)
    loop.until(lambda: not loop.flux.active_jobs(), "every job to have run")
    loop.until(loop.all_went, "every instance to go")

    made = loop.front.instances().values()
    identities = [identity_from_tags(tags_of(instance)) for instance in made]
    assert all(identity is not None and identity.cluster_uuid == loop.site.cluster_uuid for identity in identities)
    slots = {str(identity.slot) for identity in identities if identity is not None}
    assert {"small1", "small2", "small3", "gpu1"} <= slots
    assert {instance.lifecycle for instance in made if instance.instance_type == "g4dn.xlarge"} == {"spot"}
    assert loop.front.calls["RunInstances"] == len(made)
    assert not loop.front.backend.volumes
    assert not loop.front.backend.enis


def test_a_create_whose_reply_is_lost_makes_one_instance_that_is_found_and_used(loop: Loop) -> None:
    loop.front.faults.append(Fault("RunInstances", lost=True))
    loop.flux.submit(Shape(nodes=1, slots=1, cores_per_slot=1, exclusive=True), run_s=5.0)
    loop.until(lambda: not loop.flux.active_jobs(), "the job to have run")
    loop.until(loop.all_went, "every instance to go")
    assert len(loop.front.instances()) == 1


def test_an_instance_that_is_taken_away_under_its_job_is_replaced_and_swept_up_after(loop: Loop) -> None:
    volume = loop.front.backend.create_volume(size=8, zone_name=f"{REGION}a")
    volume.add_tags({"fnm:cluster": "lab", "fnm:cluster-uuid": loop.site.cluster_uuid, "fnm:launch": "of-yore"})
    loop.flux.submit(Shape(nodes=1, slots=1, cores_per_slot=1, exclusive=True), run_s=10_000.0)
    loop.until(lambda: any(True for _ in loop.flux.held_grants()), "the job to run")
    (instance,) = loop.front.standing()
    loop.front.end(instance.id, "Server.SpotInstanceTermination", "Spot instance termination")
    loop.until(lambda: not loop.flux.active_jobs(), "the job to die with its node")
    loop.until(loop.none_is_busy, "the rank to be seen offline: until then Flux may give it to the next job")
    loop.flux.submit(Shape(nodes=1, slots=1, cores_per_slot=1, exclusive=True), run_s=5.0)
    loop.until(lambda: not loop.flux.active_jobs(), "another job to run")
    loop.until(loop.all_went, "every instance to go")
    assert len(loop.front.instances()) == 2
    loop.until(lambda: not loop.front.backend.volumes, "the volume that was left to be swept up")


def test_the_test_of_an_account_passes_on_ec2_and_leaves_nothing(tmp_path: Path) -> None:
    front = MotoFront()
    site = make_test_site(a_site(tmp_path, front))
    port = cloud_factory(site, lambda *_: USER_DATA, SystemClock())()
    said: list[str] = []
    try:
        CloudTest(site, port, SystemClock(), pause=lambda _: None, say=said.append).run()
        assert len(front.instances()) == 1
        assert not front.standing()
    finally:
        front.close()
