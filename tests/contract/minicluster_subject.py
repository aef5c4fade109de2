"""A MiniCluster as a subject of the contract: the adapter over HTTP to an API server with a simulated operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nodemanager.cloud.minicluster.port import MiniClusterCloud
from nodemanager.core.nodes import Launch
from tests.cloud.minicluster.setting import Setting, launch_of
from tests.contract.cloud_subjects import CloudSubject

_WAIT_S = 20.0


class MiniClusterSubject(CloudSubject):
    """The MiniCluster ``node``. Each launch has the next index, because a slot is an index."""

    port: MiniClusterCloud
    tells_sizes = False
    only_the_last_leaves = True
    one_node_per_slot = "an index is one node, and only the next one can be added"

    def __init__(self) -> None:
        self.setting = Setting("node", maxSize=100)
        self.setting.steps()
        self.port = self.another_port()
        self._indexes: dict[str, int] = {}

    def another_port(self) -> MiniClusterCloud:
        return self.setting.port()

    def launch(self, name: str = "1", slot: str = "node-1", type_name: str = "small") -> Launch:
        return launch_of(self._indexes.setdefault(name, len(self._indexes) + 1), "node")

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _WAIT_S
        while not reached():
            self.setting.operator.step()
            if time.monotonic() > deadline_s:
                pytest.fail(f"waited in vain for {what}")

    def close(self) -> None:
        self.setting.close()

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        self.setting.api.faults.lose_replies = True
        yield
        self.setting.api.faults.lose_replies = False

    @contextmanager
    def at_quota(self) -> Iterator[None]:
        self.setting.edit(maxSize=self.setting.size)
        yield
        self.setting.edit(maxSize=100)

    @contextmanager
    def throttling(self) -> Iterator[None]:
        self.setting.api.faults.throttle = True
        yield
        self.setting.api.faults.throttle = False
