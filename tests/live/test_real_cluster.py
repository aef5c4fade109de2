"""A pod of a real cluster: ``KUBECONFIG=FILE FNM_MINICLUSTER=NAMESPACE/NAME pytest`` with this file.

It adds one pod to the MiniCluster by the port, waits until Kubernetes runs it, and removes it again. It submits no
job, because Flux's socket is in the lead broker's pod. Without the variables it is skipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemanager.cloud.minicluster.access import from_kubeconfig
from nodemanager.cloud.minicluster.client import Client
from nodemanager.cloud.minicluster.objects import Owner, Scope
from nodemanager.cloud.minicluster.port import MiniClusterCloud
from nodemanager.core.nodes import CloudState
from nodemanager.core.slots import TypeName
from tests.cloud.minicluster.setting import SystemClock, launch_of
from tests.contract.cloud_subjects import a_type

WITHIN_S = 900.0
EVERY_S = 2.0
UUID = "44444444-4444-4444-8444-444444444444"


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {WITHIN_S:g} s: {what}")
        time.sleep(EVERY_S)


@pytest.mark.skipif(
    not ("KUBECONFIG" in os.environ and "FNM_MINICLUSTER" in os.environ),
    reason="no cluster: give KUBECONFIG and FNM_MINICLUSTER=NAMESPACE/NAME",
)
@pytest.mark.timeout(2 * WITHIN_S)
def test_a_pod_comes_and_leaves() -> None:
    namespace, _, name = os.environ["FNM_MINICLUSTER"].partition("/")
    access = from_kubeconfig(Path(os.environ["KUBECONFIG"]), time.time)
    scope = Scope("real-cluster-test", UUID, TypeName("small"), Owner.SHARED)
    client = Client(access, SystemClock(), timeout_s=30.0)
    port = MiniClusterCloud(client, namespace, name, scope, SystemClock())
    before = [node for node in port.list_nodes() if node.state is not CloudState.TERMINATED]
    launch = launch_of(len(before) + 1, name, number=int(time.time()))
    made = port.create(launch, a_type())

    def state() -> CloudState:
        return next(node.state for node in port.list_nodes() if node.provider_id == made.provider_id)

    try:
        eventually("the pod runs", lambda: state() is CloudState.RUNNING)
    finally:
        port.destroy(made.provider_id)
    eventually("the pod is gone", lambda: state() is CloudState.TERMINATED)
    after = [node for node in port.list_nodes() if node.state is not CloudState.TERMINATED]
    assert [node.provider_id for node in after] == [node.provider_id for node in before]
