"""An ``Ensemble`` resource becomes Kubernetes objects that fit together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodemanager.cli.main import main
from nodemanager.config.site import load_site
from nodemanager.ensemble.file.kubernetes import Choices, ResourceError, objects_of
from tests.cloud.minicluster.api_server import MANAGER_ROLE

UUID = "55555555-5555-4555-8555-555555555555"
# In the form of the operator's two published examples, hello-world and grow-shrink.
HELLO = """
apiVersion: ensemble.flux-framework.org/v1alpha1
kind: Ensemble
metadata:
  name: hello
spec:
  sidecar:
    pullAlways: true
    image: example.org/sidecar:latest
  members:
  - minicluster:
      spec:
        size: 1
        minSize: 1
        maxSize: 16
        flux:
          completeWorkers: true
        containers:
        - image: example.org/app:latest
          workingDir: /opt/app
          resources:
            limits: {cpu: 3}
            requests: {cpu: 3}
    ensemble: |
      jobs:
        - {name: first, command: sleep 1, count: 5, nodes: 1}
        - {name: second, command: echo again, count: 2, nodes: 1}
      rules:
        - trigger: start
          action: {name: submit, label: first}
        - trigger: job-finish
          name: first
          action: {name: submit, label: second, repetitions: 5}
        - trigger: metric
          name: count.second.success
          when: 10
          action: {name: terminate}
"""
GROW = HELLO.replace("name: hello", "name: grow").replace(
    "action: {name: submit, label: second, repetitions: 5}", "action: {name: grow, value: 2, repetitions: 5}"
)


def made(text: str = HELLO, **choices: Any) -> dict[str, Any]:
    return {it["kind"]: it for it in objects_of(yaml.safe_load(text), Choices(**choices), lambda _: UUID)}


@pytest.mark.parametrize("text", [HELLO, GROW])
def test_each_member_gets_its_files_and_a_minicluster_that_runs_them(text: str, tmp_path: Path) -> None:
    found = made(text, namespace="hpc")
    mini, files = found["MiniCluster"], found["ConfigMap"]["data"]
    (container,) = mini["spec"]["containers"]
    assert files["ensemble.yaml"] == yaml.safe_load(text)["spec"]["members"][0]["ensemble"]
    assert container["command"].startswith("flux-node-manager ensemble run /etc/flux-node-manager/ensemble.yaml")
    assert (container["launcher"], container["workingDir"]) == (True, "/opt/app")
    volume = container["volumes"]["ensemble"]
    assert volume["configMapName"] == found["ConfigMap"]["metadata"]["name"]
    assert volume["items"].keys() == files.keys()
    (tmp_path / "site.ini").write_text(files["site.ini"], encoding="utf-8")
    site = load_site(tmp_path / "site.ini")
    assert (site.cloud.name, site.cloud.namespace) == (mini["metadata"]["name"], "hpc")
    assert (len(site.slots), site.node_types[0].cores, site.acts) == (15, 3, True)


def test_the_role_is_what_the_manager_calls() -> None:
    allowed = {
        (group, resource, verb)
        for rule in made()["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == MANAGER_ROLE
    assert (
        made()["MiniCluster"]["spec"]["pod"]["serviceAccountName"] == made()["ServiceAccount"]["metadata"]["name"]
    )


def test_a_member_that_cannot_grow_gets_no_manager() -> None:
    found = made(HELLO.replace("maxSize: 16", "maxSize: 1"))
    assert found["ConfigMap"]["data"].keys() == {"ensemble.yaml"}
    assert "brokerPre" not in found["MiniCluster"]["spec"]["containers"][0]["commands"]


def test_the_resource_itself_stays_as_it_was() -> None:
    resource = yaml.safe_load(HELLO)
    before = copy.deepcopy(resource)
    objects_of(resource, Choices(image="example.org/mine"), lambda _: UUID)
    assert resource == before


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("v1alpha1", "v2", "v1alpha1 and kind: Ensemble are needed"),
        ("name: hello", "name: Hello_", "metadata.name"),
        ("size: 1\n", "size: 0\n", "1 <= size"),
        ("size: 1\n", "size: many\n", "a whole number is needed"),
        ("minSize: 1", "minSize: 2", "minSize 2 <= size 1"),
        ("image: example.org/app:latest", "name: app", "an image is needed, or --image"),
        ("limits: {cpu: 3}", "limits: {cpu: 500m}", "or --cores"),
        ("trigger: start", "trigger: begin", r"spec.members\[0\].ensemble"),
    ],
)
def test_a_fault_says_where_it_is(old: str, new: str, problem: str) -> None:
    assert old in HELLO
    with pytest.raises(ResourceError, match=problem):
        made(HELLO.replace(old, new))


def test_the_verb_prints_yaml_that_is_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ensemble.yaml"
    file.write_text(HELLO, encoding="utf-8")
    printed = []
    for _ in range(2):
        assert main(["ensemble", "manifests", str(file), "--namespace", "flux"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    kinds = [it["kind"] for it in yaml.safe_load_all(printed[0])]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "MiniCluster"]


def test_the_verb_refuses_what_is_no_resource(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ensemble.yaml"
    file.write_text("jobs: []", encoding="utf-8")
    assert main(["ensemble", "manifests", str(file)]) == 78
    assert "kind: Ensemble are needed" in capsys.readouterr().err
