"""A MiniCluster at an API server of our own, and a port to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nodemanager.cloud.minicluster.access import Access
from nodemanager.cloud.minicluster.client import Client
from nodemanager.cloud.minicluster.objects import Owner, Scope
from nodemanager.cloud.minicluster.port import MiniClusterCloud
from nodemanager.core.nodes import CloudNode, CloudState, Launch, LaunchId
from nodemanager.core.orders import CloudEffect, CreateNode, DestroyNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import Rank, SlotName, TypeName
from tests.cloud.minicluster.api_server import MANAGER_ROLE, MINICLUSTERS, ApiServer
from tests.cloud.minicluster.operator import NAMESPACE, Kubelet, Memory, Operator, a_minicluster
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_type

TOKEN = "a-token"


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_at(self) -> float:
        return time.time()


class Setting:
    """An API server, an operator that works when it is told to, and one MiniCluster."""

    def __init__(self, name: str = "mini", size: int = 1, kubelet: Kubelet | None = None, **spec: Any) -> None:
        self.api = ApiServer()
        self.api.tokens[TOKEN] = ("manager", MANAGER_ROLE)
        self.name = name
        self.operator = Operator(self.api, name, kubelet or Memory())
        self.api.store.put(MINICLUSTERS, NAMESPACE, a_minicluster(name, size, **spec))

    def client(self, token: str = TOKEN) -> Client:
        return Client(Access(self.api.url, token=lambda: token), SystemClock(), timeout_s=10.0)

    def port(
        self, owner: Owner = Owner.US, *, cluster: str = CLUSTER, uuid: str = CLUSTER_UUID, token: str = TOKEN
    ) -> MiniClusterCloud:
        scope = Scope(cluster, uuid, TypeName("small"), owner)
        return MiniClusterCloud(self.client(token), NAMESPACE, self.name, scope, SystemClock())

    def steps(self, count: int = 4) -> None:
        """Let the operator, the Job controller and the kubelet do what is due."""
        for _ in range(count):
            self.operator.step()

    def edit(self, **spec: Any) -> None:
        """Change the MiniCluster as somebody else does."""
        self.api.store.change(MINICLUSTERS, NAMESPACE, self.name, lambda it: it["spec"].update(spec))

    @property
    def size(self) -> int:
        return int(self.operator.shown()["spec"]["size"])

    def close(self) -> None:
        self.api.stop()


@contextmanager
def a_setting(name: str = "mini", size: int = 1, **spec: Any) -> Iterator[Setting]:
    setting = Setting(name, size, **spec)
    try:
        yield setting
    finally:
        setting.close()


def launch_of(index: int, name: str = "mini", number: int = 1) -> Launch:
    slot = SlotName(f"{name}-{index}")
    return Launch(
        LaunchId(f"{slot}-launch{number}"),
        slot,
        Rank(index),
        TypeName("small"),
        client_token=f"token-{slot}-{number}",
        requested_at=1_700_000_000.0,
    )


def creates(*indexes: int) -> list[CloudEffect]:
    return [CreateNode(launch_of(index), a_type()) for index in indexes]


def destroys(nodes: Sequence[CloudNode]) -> list[CloudEffect]:
    return [DestroyNode(None, node.provider_id, because(Code.GONE)) for node in nodes]


def states(nodes: Sequence[CloudNode]) -> list[CloudState]:
    return [node.state for node in nodes]


__all__ = ["NAMESPACE", "Setting", "a_launch", "a_setting", "creates", "destroys", "launch_of", "states"]
