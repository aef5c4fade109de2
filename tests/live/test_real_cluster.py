"""A MiniCluster of a real cluster: ``KUBECONFIG=FILE FNM_MINICLUSTER=NAMESPACE/NAME pytest`` with this file.

Without the variables it is skipped. The first test adds one pod by the port, waits until Kubernetes runs it, and
removes it again: for a MiniCluster without a node manager. The second is for one whose lead broker's pod runs a
node manager with ``mode = act``, as in doc/kubernetes.md. It submits a job there, by kubectl, for one pod more than
there are, and waits until the job has run and the size is back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemanager.cloud.minicluster.access import from_kubeconfig
from nodemanager.cloud.minicluster.client import Client
from nodemanager.cloud.minicluster.objects import ANNOTATION, MiniCluster, Owner, Scope, read_minicluster
from nodemanager.cloud.minicluster.port import MiniClusterCloud, Paths
from nodemanager.core.nodes import CloudState
from nodemanager.core.slots import TypeName
from nodemanager.ensemble.file.kubernetes import SOCKET
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


class Cluster:
    """The MiniCluster that the variables name."""

    def __init__(self) -> None:
        self.namespace, _, self.name = os.environ["FNM_MINICLUSTER"].partition("/")
        access = from_kubeconfig(Path(os.environ["KUBECONFIG"]), time.time)
        self.client = Client(access, SystemClock(), timeout_s=30.0)
        self.paths = Paths(self.namespace, self.name)

    def read(self) -> MiniCluster:
        return read_minicluster(self.client.get(self.paths.minicluster))

    def forget_us(self) -> None:
        """Remove our annotations: they would keep a node manager from this MiniCluster."""
        found = self.client.get(self.paths.minicluster)
        keys = (key for key in found["metadata"].get("annotations", {}) if key.startswith(f"{ANNOTATION}/"))
        self.client.patch(self.paths.minicluster, {"metadata": {"annotations": dict.fromkeys(keys)}})

    def flux(self, *command: str) -> str:
        """Run a command of Flux in the lead broker's pod."""
        pods = self.client.list(self.paths.pods, labelSelector=f"job-name={self.name}")
        (lead,) = (it["metadata"]["name"] for it in pods if it["metadata"]["labels"]["job-index"] == "0")
        ran = ["kubectl", "--namespace", self.namespace, "exec", lead, "--", "flux", "proxy", SOCKET]
        return subprocess.run([*ran, "flux", *command], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def cluster() -> Cluster:
    if not ("KUBECONFIG" in os.environ and "FNM_MINICLUSTER" in os.environ):
        pytest.skip("no cluster: give KUBECONFIG and FNM_MINICLUSTER=NAMESPACE/NAME")
    return Cluster()


@pytest.mark.timeout(2 * WITHIN_S)
def test_a_pod_comes_and_leaves(cluster: Cluster) -> None:
    if owner := cluster.read().cluster:
        pytest.skip(f"it belongs to the node manager of cluster {owner}")
    name = cluster.name
    scope = Scope("real-cluster-test", UUID, TypeName("small"), Owner.SHARED)
    port = MiniClusterCloud(cluster.client, cluster.namespace, name, scope, SystemClock())
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
    cluster.forget_us()


@pytest.mark.timeout(3 * WITHIN_S)
def test_a_job_brings_a_pod_and_its_end_takes_it_away(cluster: Cluster) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH")
    before = cluster.read()
    if not before.cluster:
        pytest.skip("no node manager has changed this MiniCluster: see doc/kubernetes.md")
    job = cluster.flux("submit", f"-N{before.size + 1}", "sleep", "5")
    eventually("the size grows", lambda: cluster.read().size > before.size)
    eventually("the job has run", lambda: cluster.flux("jobs", "-no", "{result}", job) == "COMPLETED")
    eventually("the size is back", lambda: cluster.read().size <= before.size)
