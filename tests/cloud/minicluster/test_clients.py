"""The API server of these tests, as a real kubectl and a real client library see it.

``bin/kubernetes-tools`` gets kubectl. lightkube is an optional library. Without them these tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodemanager.cloud.minicluster.access import from_kubeconfig
from nodemanager.cloud.minicluster.client import Client
from tests.cloud.minicluster.setting import NAMESPACE, Setting, SystemClock, a_setting, launch_of
from tests.contract.cloud_subjects import a_type

NEEDS_KUBECTL = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="no kubectl on PATH: see bin/kubernetes-tools"
)
KUBECTL_WITHIN_S = 60.0


@pytest.fixture
def mini() -> Iterator[Setting]:
    with a_setting("mini", 1, maxSize=10) as setting:
        setting.steps()
        yield setting


def a_kubeconfig(folder: Path, mini: Setting) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "ours", "user": "admin", "namespace": NAMESPACE}}],
        "clusters": [{"name": "ours", "cluster": {"server": mini.api.url}}],
        "users": [{"name": "admin", "user": {"token": "admin"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


class Kubectl:
    def __init__(self, folder: Path, mini: Setting) -> None:
        mini.api.tokens[""] = ("kubectl", None)  # it sends no token without TLS
        self._options = [f"--kubeconfig={a_kubeconfig(folder, mini)}", f"--cache-dir={folder / 'cache'}"]

    def __call__(self, *command: str, fails: bool = False) -> str:
        ran = subprocess.run(
            ["kubectl", *self._options, *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=KUBECTL_WITHIN_S,
        )
        assert (ran.returncode != 0) is fails, ran.stderr
        return ran.stderr if fails else ran.stdout


@NEEDS_KUBECTL
class TestKubectl:
    def test_it_reads_and_lists_what_the_port_wrote(self, mini: Setting, tmp_path: Path) -> None:
        mini.port().create(launch_of(1), a_type())
        kubectl = Kubectl(tmp_path, mini)
        found = json.loads(kubectl("get", "miniclusters.flux-framework.org", "mini", "-o", "json"))
        assert found["spec"]["size"] == 2
        assert found["metadata"]["annotations"]["flux-node-manager/index-1"].startswith("mini-1-launch1 small ")
        assert "mini" in kubectl("get", "miniclusters")

    def test_it_scales_by_the_scale_subresource(self, mini: Setting, tmp_path: Path) -> None:
        kubectl = Kubectl(tmp_path, mini)
        kubectl("scale", "miniclusters/mini", "--replicas=3")
        assert mini.size == 3
        mini.steps()
        assert len(mini.port().list_nodes()) == 2

    def test_it_patches_by_merge_and_json_patch_and_is_refused_as_a_real_server_refuses(
        self, mini: Setting, tmp_path: Path
    ) -> None:
        kubectl = Kubectl(tmp_path, mini)
        kubectl("patch", "minicluster", "mini", "--type=merge", "-p", '{"spec":{"size":2}}')
        replaced = {"op": "replace", "path": "/spec/size", "value": 4}
        tested = {"op": "test", "path": "/spec/size", "value": 2}
        kubectl("patch", "minicluster", "mini", "--type=json", "-p", json.dumps([tested, replaced]))
        assert mini.size == 4
        assert "failed" in kubectl(
            "patch", "minicluster", "mini", "--type=json", "-p", json.dumps([tested, replaced]), fails=True
        )
        refused = kubectl("patch", "minicluster", "mini", "--type=strategic", "-p", "{}", fails=True)
        assert "is not supported by flux-framework.org" in refused
        stale = '{"metadata":{"resourceVersion":"1"},"spec":{"size":5}}'
        assert "the object has been modified" in kubectl(
            "patch", "minicluster", "mini", "--type=merge", "-p", stale, fails=True
        )

    def test_it_watches(self, mini: Setting, tmp_path: Path) -> None:
        kubectl = Kubectl(tmp_path, mini)
        waits = "--for=jsonpath={.status.size}=2"
        mini.operator.start()
        try:
            mini.port().create(launch_of(1), a_type())
            assert "condition met" in kubectl("wait", "miniclusters/mini", waits, "--timeout=20s")
        finally:
            mini.operator.stop()


def test_lightkube_reads_patches_and_watches(mini: Setting, tmp_path: Path) -> None:
    lightkube = pytest.importorskip("lightkube", reason="lightkube is not installed")
    generic: Any = pytest.importorskip("lightkube.generic_resource")
    kind = generic.create_namespaced_resource("flux-framework.org", "v1alpha2", "MiniCluster", "miniclusters")
    config = lightkube.KubeConfig.from_file(a_kubeconfig(tmp_path, mini))
    client = lightkube.Client(config=config, namespace=NAMESPACE)
    assert client.get(kind, "mini").spec["size"] == 1
    client.patch(kind, "mini", {"spec": {"size": 3}}, patch_type=lightkube.types.PatchType.MERGE)
    assert mini.size == 3
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"size": 5}}
    with pytest.raises(lightkube.ApiError) as failed:
        client.patch(kind, "mini", stale, patch_type=lightkube.types.PatchType.MERGE)
    assert failed.value.status.code == 409
    watched, _ = next(iter(client.watch(kind, server_timeout=5)))
    assert watched in ("ADDED", "MODIFIED")


def test_a_kubeconfig_leads_to_the_same_server(mini: Setting, tmp_path: Path) -> None:
    access = from_kubeconfig(a_kubeconfig(tmp_path, mini), SystemClock().wall_at)
    assert access.namespace == NAMESPACE
    client = Client(access, SystemClock(), timeout_s=5.0)
    assert client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")[0]["kind"] == "Pod"
