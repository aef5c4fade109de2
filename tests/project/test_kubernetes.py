"""The manifests and the chart of ``config/kubernetes``: they fit together, and to what the manager calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodemanager.cli.main import main
from nodemanager.config.load import load_site
from tests.cloud.minicluster.api_server import MANAGER_ROLE
from tests.ensemble.file.test_kubernetes import HELLO
from tests.paths import ROOT

FOLDER = ROOT / "config" / "kubernetes"
NEEDS_HELM = pytest.mark.skipif(shutil.which("helm") is None, reason="no helm on PATH: see bin/kubernetes-tools")

Object = dict[str, Any]


def manifests() -> dict[str, Object]:
    """The objects by kind: there is one of each."""
    files = sorted((FOLDER / "manifests").glob("*.yaml"))
    objects = [it for file in files for it in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    found = {it["kind"]: it for it in objects}
    assert len(found) == len(objects)
    return found


def test_there_is_one_object_of_each_kind() -> None:
    assert manifests().keys() == {
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ConfigMap",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "MiniCluster",
    }


def test_the_role_allows_exactly_what_the_manager_calls() -> None:
    """The server of the tests refuses everything else, so the tests of the port show that this is enough."""
    allowed = {
        (group, resource, verb)
        for rule in manifests()["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == MANAGER_ROLE


def test_names_and_labels_fit_together() -> None:
    found = manifests()
    assert {it["metadata"]["namespace"] for it in found.values()} == {"flux"}
    mini, account = found["MiniCluster"], found["ServiceAccount"]["metadata"]["name"]
    assert mini["spec"]["pod"] == {"serviceAccountName": account, "automountServiceAccountToken": True}
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert [it["name"] for it in found["RoleBinding"]["subjects"]] == [account]
    pods = {"job-name": mini["metadata"]["name"]}
    assert found["Service"]["spec"]["selector"] == {**pods, "job-index": "0"}
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == pods
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == pods
    # A Job has no scale subresource, so Kubernetes can use neither maxUnavailable nor a percentage.
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] == mini["spec"]["maxSize"]
    assert "maxUnavailable" not in found["PodDisruptionBudget"]["spec"]
    assert mini["spec"]["flux"]["scheduler"] == {"queuePolicy": "easy"}  # with fcfs Fluxion denies larger jobs
    (container,) = mini["spec"]["containers"]
    (volume,) = container["volumes"].values()
    assert volume["configMapName"] == found["ConfigMap"]["metadata"]["name"]
    assert volume["items"].keys() == found["ConfigMap"]["data"].keys()


def test_the_site_of_the_config_map_is_the_example_and_fits_the_minicluster(tmp_path: Path) -> None:
    found = manifests()
    text = found["ConfigMap"]["data"]["site.ini"]
    assert text == (FOLDER / "site.ini").read_text(encoding="utf-8")
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    site, mini = load_site(tmp_path / "site.ini"), found["MiniCluster"]
    assert (site.cloud.name, site.cloud.namespace) == (mini["metadata"]["name"], mini["metadata"]["namespace"])
    assert len(site.slots) == mini["spec"]["maxSize"] - 1
    resources = mini["spec"]["containers"][0]["resources"]
    (pod,) = site.node_types
    assert resources["requests"] == resources["limits"]
    assert (str(pod.cores), f"{pod.memory_bytes >> 30}Gi") == (
        resources["limits"]["cpu"],
        resources["limits"]["memory"],
    )


def test_the_chart_has_a_template_for_each_manifest() -> None:
    names = [{file.name for file in (FOLDER / part).glob("*.yaml")} for part in ("manifests", "chart/templates")]
    assert names[0] == names[1]


@NEEDS_HELM
def test_helm_finds_no_fault_in_the_chart() -> None:
    subprocess.run(["helm", "lint", "--strict", FOLDER / "chart"], check=True, capture_output=True)


CHOSEN = ("name=big", "maxSize=100", "cpu=16", "memoryGiB=64", "mode=act", "owner=shared")


def rendered(namespace: str, chosen: tuple[str, ...] = ()) -> dict[str, Object]:
    """What helm makes of the chart, by kind."""
    command = ["helm", "template", "mini", str(FOLDER / "chart"), "--namespace", namespace]
    command += ["--set", ",".join(chosen)] if chosen else []
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return {it["kind"]: it for it in yaml.safe_load_all(ran.stdout)}


@NEEDS_HELM
def test_the_chart_renders_the_manifests() -> None:
    assert rendered("flux") == manifests()


@NEEDS_HELM
def test_other_values_give_a_good_site(tmp_path: Path) -> None:
    found = rendered("hpc", CHOSEN)
    (tmp_path / "site.ini").write_text(found["ConfigMap"]["data"]["site.ini"], encoding="utf-8")
    site = load_site(tmp_path / "site.ini")
    assert (len(site.slots), site.cloud.namespace, site.acts) == (99, "hpc", True)
    assert found["Service"]["spec"]["selector"]["job-name"] == "big"


@NEEDS_HELM
@pytest.mark.parametrize("chosen", [(), CHOSEN])
def test_what_the_chart_renders_has_the_published_schema(chosen: tuple[str, ...]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    known = [it for kind, it in rendered("hpc", chosen).items() if kind != "MiniCluster"]
    for found in known:
        validator.validate(found, "1.33", strict=True)
    assert len(known) == len(manifests()) - 1


def test_each_object_has_the_published_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kubernetes' own OpenAPI, strictly: an unknown field is a fault. It knows no MiniCluster."""
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    file = tmp_path / "ensemble.yaml"
    file.write_text(HELLO, encoding="utf-8")
    assert main(["ensemble", "manifests", str(file), "--material", str(tmp_path / "material")]) == 0
    printed = [*yaml.safe_load_all(capsys.readouterr().out), *manifests().values()]
    known = [it for it in printed if not it["apiVersion"].startswith("flux-framework.org")]
    for found in known:
        validator.validate(found, "1.33", strict=True)
    assert len(known) == 19
    with pytest.raises(validator.ValidationError):
        validator.validate({**known[0], "spce": {}}, "1.33", strict=True)
