"""The subjects of the cloud port's contract: one for each provider, real or simulated.

A new provider adds a class here and its name to ``SUBJECTS``. If a provider cannot produce a fault, the test that
needs it is skipped, with the reason.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from libcloud.compute.base import NodeImage, NodeSize

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.local.port import LocalCloud, Store
from nodemanager.cloud.local.process import end_nodes, marked_pids
from nodemanager.core.nodes import CloudNode, CloudState, Identity, Launch, LaunchId, ProviderId
from nodemanager.core.ports import CloudPort
from nodemanager.core.slots import Billing, NodeType, Rank, SlotName, TypeName
from nodemanager.flux.setup.outer import OuterFlux, job_name
from tests.cloud.openstack.nova.process import FLAVORS, openstack_cloud, shared_nova
from tests.live.instance import LiveInstance, why_no_flux

if TYPE_CHECKING:
    from nodemanager.simulation.cloud.provider import SimulatedProvider
    from nodemanager.simulation.time.world import World

CLUSTER = "ada"
CLUSTER_UUID = "11111111-1111-4111-8111-111111111111"
_WAIT_S = 20.0
_POLL_S = 0.01

Built = Callable[[Path], "CloudSubject"]


SIZES = ("local.small", "local.large")


def a_type(name: str = "small") -> NodeType:
    return NodeType(
        name=TypeName(name),
        size="local.small",
        cores=2,
        gpus=0,
        memory_bytes=4 * 2**30,
        price_per_hour=Decimal("0.10"),
        billing=Billing(window_s=3600),
        slots=(SlotName("node-1"), SlotName("node-2")),
        image="ami-03cf127a",  # one of moto's; the other providers accept any
    )


def a_launch(name: str = "1", slot: str = "node-1", type_name: str = "small") -> Launch:
    return Launch(
        id=LaunchId(f"launch-{name}"),
        slot=SlotName(slot),
        rank=Rank(1),
        type_name=TypeName(type_name),
        client_token=f"token-{name}",
        requested_at=0.0,
    )


def a_script(launch: Launch, node_type: NodeType) -> str:
    return f"#!/bin/sh\n# {launch.id} {node_type.name}\nexec sleep 3600\n"


def a_node_of(theirs: CloudPort, identity: Identity) -> ProviderId:
    """Create a node of another manager, through that manager's port."""
    launch = a_launch("theirs", identity.slot, identity.type_name)
    return theirs.create(launch, a_type(identity.type_name)).provider_id


def size_and_image(cloud: LocalCloud) -> tuple[NodeSize, NodeImage]:
    """Return the size and the image that libcloud needs to create a node."""
    return (
        NodeSize("local.small", "local.small", 4096, 0, 0, 0.0, cloud.driver),
        NodeImage("image", "image", cloud.driver),
    )


def until(reached: Callable[[], bool], what: str) -> None:
    """Wait for real processes. Fail, naming ``what``, if the condition does not become true in time."""
    deadline_s = time.monotonic() + _WAIT_S
    while not reached():
        if time.monotonic() > deadline_s:
            pytest.fail(f"waited {_WAIT_S:g} s in vain for {what}")
        time.sleep(_POLL_S)


class CloudSubject(ABC):
    """A new account at a provider. ``port`` and every :meth:`another_port` see the same nodes."""

    port: CloudPort
    tells_sizes = True  # a list shows the size of each node
    only_the_last_leaves = False  # a node can be destroyed only if no later one stands
    one_node_per_slot = ""  # why a slot cannot have two nodes, "" if it can
    remembers_the_dead = True  # an ended node stays listed for a while, and its launch is not created again

    has_groups = False  # it has placement groups
    tells_groups = True  # a list shows the group of each node

    @abstractmethod
    def another_port(self) -> CloudPort:
        """Return a port like that of another thread or process."""

    def launch(self, name: str = "1", slot: str = "node-1", type_name: str = "small") -> Launch:
        """Return a launch that this provider can carry out."""
        return a_launch(name, slot, type_name)

    @abstractmethod
    def wait(self, reached: Callable[[], bool], what: str) -> None:
        """Let the provider's time pass until the condition is true. Fail if that takes too long."""

    def close(self) -> None:  # noqa: B027 - simulated subjects need no clean-up
        """Clean up."""

    def groups(self) -> Collection[str]:
        """Return the names of all placement groups at the provider."""
        raise NotImplementedError

    def port_of(self, cluster_uuid: str) -> CloudPort:
        """Return a port of another cluster that has the same name."""
        raise NotImplementedError

    def kill(self, provider_id: ProviderId) -> None:
        """Let a node die by itself, at once."""
        lacks(f"let {provider_id} die by itself")

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        """Add somebody else's node, untagged or with the tags of ``identity``."""
        lacks(f"show a node of others ({identity})")

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        """Meanwhile creates succeed but get no answer."""
        lacks("lose a reply")
        yield

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        lacks("run out of capacity")
        yield

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        """Meanwhile there is capacity for so many nodes."""
        lacks(f"have capacity for {count} nodes only")
        yield

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        lacks("run into a quota")
        yield

    @contextmanager
    def short_of(self, size: str) -> Iterator[None]:
        """Meanwhile there is no capacity for nodes of this size."""
        lacks(f"run out of capacity for {size} only")
        yield

    @contextmanager
    def short_of_spot(self) -> Iterator[None]:
        """Meanwhile there is no spot capacity for nodes of any size."""
        lacks("run out of spot capacity")
        yield

    @contextmanager
    def at_quota_of(self, size: str) -> Iterator[None]:
        """Meanwhile a quota refuses nodes of this size."""
        lacks(f"run into a quota for {size} only")
        yield

    @contextmanager
    def throttling(self) -> Iterator[None]:
        """Meanwhile every call is refused as too many."""
        lacks("throttle")
        yield

    def state(self, provider_id: ProviderId) -> CloudState | None:
        """Return a node's state, None if it is not listed."""
        node = self.node(provider_id)
        return node.state if node else None

    def node(self, provider_id: ProviderId) -> CloudNode | None:
        return next((node for node in self.port.list_nodes() if node.provider_id == provider_id), None)

    def standing(self) -> list[CloudNode]:
        return [node for node in self.port.list_nodes() if node.state is not CloudState.TERMINATED]


def lacks(what: str) -> NoReturn:
    pytest.skip(f"this provider cannot be made to {what}")


class LocalSubject(CloudSubject):
    port: LocalCloud

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = self.another_port()

    def another_port(self) -> LocalCloud:
        return LocalCloud(self.directory, PortSettings(CLUSTER, CLUSTER_UUID, a_script, SystemClock()))

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until(reached, what)

    def close(self) -> None:
        reap(self.directory)

    def kill(self, provider_id: ProviderId) -> None:
        end_nodes({provider_id: None})

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            node = self.port.driver.create_node("stranger", *size_and_image(self.port), ex_userdata="#!/bin/sh\n")
            return ProviderId(str(node.id))
        settings = PortSettings(identity.cluster, identity.cluster_uuid, a_script, SystemClock())
        theirs = LocalCloud(self.directory, settings)
        return a_node_of(theirs, identity)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        self.port.driver.faults.lost_reply = 1_000
        yield
        self.port.driver.faults.lost_reply = 0

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        self.port.driver.faults.nodes_max = 0
        yield
        self.port.driver.faults.nodes_max = None

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        self.port.driver.faults.quota_max = 0
        yield
        self.port.driver.faults.quota_max = None

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.port.driver.faults.throttle = 1_000
        yield
        self.port.driver.faults.throttle = 0


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_at(self) -> float:
        return time.time()


def reap(directory: Path) -> None:
    """Kill every process of every node that this directory ever had. It works even if the store is damaged."""
    folders = [folder for name in ("nodes", "making", "logs") for folder in (directory / name).glob("*")]
    if folders:
        store = Store(directory)
        with store.locked():
            left = end_nodes({folder.name: None for folder in folders})
            for folder in folders:
                store.clear_tmp(folder.name)
        assert not left, f"processes of {sorted(left)} could not be ended"
        assert not marked_pids(frozenset(folder.name for folder in folders))


class SimulatedSubject(CloudSubject):
    has_groups = True

    def __init__(self, world: World, provider: SimulatedProvider) -> None:
        self.world = world
        self.provider = provider
        self.port = self.another_port()

    def another_port(self) -> CloudPort:
        return self.provider.port(CLUSTER, CLUSTER_UUID)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        deadline_s = self.world.now_s + 3600
        while not reached():
            if self.world.now_s > deadline_s:
                pytest.fail(f"waited an hour of the world's in vain for {what}")
            self.world.advance_by(1.0)

    def groups(self) -> Collection[str]:
        return self.provider.groups()

    def port_of(self, cluster_uuid: str) -> CloudPort:
        return self.provider.port(CLUSTER, cluster_uuid)

    def kill(self, provider_id: ProviderId) -> None:
        self.provider.kill(provider_id)

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        return self.provider.add_foreign_node(identity)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        self.provider.faults.p_lost_reply = 1.0
        yield
        self.provider.faults.p_lost_reply = 0.0

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        self.provider.faults.capacity = count
        yield
        self.provider.faults.capacity = None

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        self.provider.faults.capacity = 0
        yield
        self.provider.faults.capacity = None

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        self.provider.faults.quota = 0
        yield
        self.provider.faults.quota = None

    @contextmanager
    def short_of(self, size: str) -> Iterator[None]:
        self.provider.faults.capacity_of_size[size] = 0
        yield
        del self.provider.faults.capacity_of_size[size]

    @contextmanager
    def short_of_spot(self) -> Iterator[None]:
        self.provider.faults.no_spot = True
        yield
        self.provider.faults.no_spot = False

    @contextmanager
    def at_quota_of(self, size: str) -> Iterator[None]:
        self.provider.faults.quota_of_size[size] = 0
        yield
        del self.provider.faults.quota_of_size[size]

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.provider.faults.p_throttle = 1.0
        yield
        self.provider.faults.p_throttle = 0.0


class OpenStackSubject(CloudSubject):
    """A real Nova (``bin/test --openstack`` installs one)."""

    remembers_the_dead = False
    has_groups = True
    tells_groups = False

    def __init__(self, _: Path) -> None:
        self.nova = shared_nova()
        self.port = self.another_port()

    def another_port(self) -> CloudPort:
        return openstack_cloud(self.nova, CLUSTER, CLUSTER_UUID, a_script)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        self.nova.until(reached, what)

    def close(self) -> None:
        self.nova.empty()
        for group in self._groups():
            self.nova.administer("DELETE", f"/os-server-groups/{group['id']}")

    def groups(self) -> Collection[str]:
        return [str(group["name"]) for group in self._groups()]

    def port_of(self, cluster_uuid: str) -> CloudPort:
        return openstack_cloud(self.nova, CLUSTER, cluster_uuid, a_script)

    def _groups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.nova.administer("GET", "/os-server-groups?all_projects=1")[
            "server_groups"
        ]
        return found

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            return self.nova.add_untagged()
        theirs = openstack_cloud(self.nova, identity.cluster, identity.cluster_uuid, a_script)
        return a_node_of(theirs, identity)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        self.nova.turn(lose=1_000)
        yield
        self.nova.turn(lose=0)

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        lacks("refuse a create for want of capacity: it takes it, and the node fails later")
        yield

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        self.nova.allow(0)
        try:
            yield
        finally:
            self.nova.allow(-1)

    @contextmanager
    def short_of(self, size: str) -> Iterator[None]:
        self.nova.ask_of_hosts(size, {"resources:VGPU": "1"})  # which no host has
        try:
            yield
        finally:
            self.nova.ask_of_hosts(size, {})

    @contextmanager
    def at_quota_of(self, size: str) -> Iterator[None]:
        """Nova's quotas count cores, so smaller sizes still fit."""
        self.nova.allow(-1, cores=next(it["vcpus"] for it in FLAVORS if it["name"] == size) - 1)
        try:
            yield
        finally:
            self.nova.allow(-1)

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.nova.turn(throttle=1_000)
        try:
            yield
        finally:
            self.nova.turn(throttle=0)


def a_simulated_subject(_: Path) -> CloudSubject:
    cloud = pytest.importorskip("nodemanager.simulation.cloud.provider")
    world = pytest.importorskip("nodemanager.simulation.time.world").World(seed=1)
    return SimulatedSubject(world, cloud.SimulatedProvider(world))


class OuterFluxSubject(CloudSubject):
    tells_sizes = False
    """Jobs of a real instance of three nodes."""

    port: OuterFlux

    def __init__(self, directory: Path) -> None:
        del directory  # its path is too long for sockets
        self._folder = tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True)
        self._outer = LiveInstance(Path(self._folder.name))
        self._outer.start_head()
        for rank in (1, 2, 3):
            self._outer.start_slot(rank)
        self.port = self.another_port()

    def another_port(self) -> OuterFlux:
        return OuterFlux(self._outer.uri, CLUSTER, CLUSTER_UUID, a_script, SystemClock())

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until(reached, what)

    def close(self) -> None:
        self._outer.reap()
        self._folder.cleanup()

    def kill(self, provider_id: ProviderId) -> None:
        self._outer.run("job", "kill", "--signal=KILL", provider_id)

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            name = f"--job-name={job_name(CLUSTER)}"
            return ProviderId(self._outer.run("job", "id", self._outer.run("submit", name, "sleep", "600")))
        theirs = OuterFlux(self._outer.uri, identity.cluster, identity.cluster_uuid, a_script, SystemClock())
        return a_node_of(theirs, identity)


def an_outer_flux(directory: Path) -> CloudSubject:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    return OuterFluxSubject(directory)


def an_ec2_subject(_: Path) -> CloudSubject:
    pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")
    from tests.contract.ec2_subject import Ec2Subject  # noqa: PLC0415 - moto takes its time to import

    return Ec2Subject()


def a_gce_subject(_: Path) -> CloudSubject:
    from tests.contract.gce_subject import GceSubject  # noqa: PLC0415 - it imports this module

    return GceSubject()


def an_azure_subject(_: Path) -> CloudSubject:
    from tests.contract.azure_subject import AzureSubject  # noqa: PLC0415

    return AzureSubject()


def a_minicluster_subject(_: Path) -> CloudSubject:
    from tests.contract.minicluster_subject import MiniClusterSubject  # noqa: PLC0415

    return MiniClusterSubject()


def a_static_subject(directory: Path) -> CloudSubject:
    from tests.contract.static_subject import StaticSubject  # noqa: PLC0415

    return StaticSubject(directory)


SUBJECTS: dict[str, Built] = {
    "local": LocalSubject,
    "simulated": a_simulated_subject,
    "ec2": an_ec2_subject,
    "gce": a_gce_subject,
    "azure": an_azure_subject,
    "openstack": OpenStackSubject,
    "flux": an_outer_flux,
    "minicluster": a_minicluster_subject,
    "static": a_static_subject,
}
