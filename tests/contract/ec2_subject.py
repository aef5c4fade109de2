"""EC2 as a subject of the contract: the adapter over HTTP to moto behind its front."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.ec2.credentials import Keys
from nodemanager.cloud.ec2.driver import Action, Ec2Driver, endpoint_of
from nodemanager.cloud.ec2.port import Ec2Cloud
from nodemanager.core.nodes import Identity, ProviderId
from tests.cloud.ec2.moto_faults import Fault
from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront
from tests.contract.cloud_subjects import (
    CLUSTER,
    CLUSTER_UUID,
    CloudSubject,
    SystemClock,
    a_node_of,
    a_script,
    until,
)


def a_driver(front: MotoFront) -> Ec2Driver:
    """A port to the front that does not wait between the tries of a read."""
    keys = Keys(*next(iter(SECRETS.items())))
    return Ec2Driver(endpoint_of(REGION, front.url), lambda: keys, sleep=lambda _: None)


def a_cloud(front: MotoFront, cluster: str = CLUSTER, cluster_uuid: str = CLUSTER_UUID) -> Ec2Cloud:
    driver, clock = a_driver(front), SystemClock()
    return Ec2Cloud(driver, PortSettings(cluster, cluster_uuid, a_script, clock, batch_script=a_batch_script))


def a_batch_script(stamp: str) -> str:
    return f"#!/bin/sh\n# {stamp}\nexec sleep 3600\n"


class Ec2Subject(CloudSubject):
    has_groups = True

    def __init__(self) -> None:
        self.front = MotoFront()
        self.port = self.another_port()

    def another_port(self) -> Ec2Cloud:
        return a_cloud(self.front)

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until(reached, what)

    def close(self) -> None:
        self.front.close()

    def groups(self) -> Collection[str]:
        return self.front.groups.tags

    def port_of(self, cluster_uuid: str) -> Ec2Cloud:
        return a_cloud(self.front, cluster_uuid=cluster_uuid)

    def kill(self, provider_id: ProviderId) -> None:
        self.front.end(provider_id, "Server.SpotInstanceTermination", "Spot instance termination")

    def add_stranger(self, identity: Identity | None) -> ProviderId:
        if identity is None:
            asked = {"ImageId": IMAGE, "InstanceType": "t3.micro", "MinCount": "1", "MaxCount": "1"}
            made = a_driver(self.front).call(Action.RUN_INSTANCES, asked)
            return ProviderId(next(node.text or "" for node in made.iter() if node.tag.endswith("}instanceId")))
        theirs = a_cloud(self.front, identity.cluster, identity.cluster_uuid)
        return a_node_of(theirs, identity)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        with self._with_fault(Fault("RunInstances", lost=True, times=1_000)):
            yield

    @contextmanager
    def short_of(self, size: str) -> Iterator[None]:
        code = "InsufficientInstanceCapacity"
        with self._with_fault(Fault("RunInstances", code, status=500, size=size, times=1_000)):
            yield

    @contextmanager
    def short_of_spot(self) -> Iterator[None]:
        code, where = "InsufficientInstanceCapacity", {"InstanceMarketOptions.MarketType": "spot"}
        with self._with_fault(Fault("RunInstances", code, status=500, where=where, times=1_000)):
            yield

    @contextmanager
    def at_quota_of(self, size: str) -> Iterator[None]:
        with self._with_fault(Fault("RunInstances", "VcpuLimitExceeded", size=size, times=1_000)):
            yield

    @contextmanager
    def room_for(self, count: int) -> Iterator[None]:
        self.front.capacity = count
        yield
        self.front.capacity = None

    @contextmanager
    def out_of_capacity(self) -> Iterator[None]:
        self.front.capacity = 0
        yield
        self.front.capacity = None

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        self.front.quota = 0
        yield
        self.front.quota = None

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.front.throttling = True
        yield
        self.front.throttling = False

    @contextmanager
    def _with_fault(self, fault: Fault) -> Iterator[None]:
        self.front.faults.append(fault)
        yield
        self.front.faults.remove(fault)
