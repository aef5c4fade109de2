"""An ``Ensemble`` resource becomes Kubernetes objects that fit together."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodemanager.cli.main import main
from nodemanager.cloud.minicluster.members import WISH_S
from nodemanager.config.load import load_site
from nodemanager.core.nodes import FailureKind
from nodemanager.ensemble.file.kubernetes import Choices, ResourceError, objects_of
from nodemanager.ensemble.file.kubernetes_service import Secrets
from nodemanager.planner.policy import BLOCK_S
from nodemanager.service.assembly.policy import policy_of
from nodemanager.web.grpc.material import token_of_member
from tests.cloud.minicluster.api_server import MANAGER_ROLE
from tests.paths import ROOT

UUID = "55555555-5555-4555-8555-555555555555"
SECRETS = Secrets("the token", "the certificate", "the key", lambda name: f"token of {name}")
READS = MANAGER_ROLE - {("flux-framework.org", "miniclusters", "patch")}
FOLDER = ROOT / "tests" / "data" / "ensembles"
HELLO = (FOLDER / "operator-hello-world.yaml").read_text(encoding="utf-8")
GROW = (FOLDER / "operator-grow-shrink.yaml").read_text(encoding="utf-8")


def both(**spec: Any) -> dict[str, Any]:
    """One resource with the members of both."""
    hello: dict[str, Any]
    hello, grow = (yaml.safe_load(text) for text in (HELLO, GROW))
    hello["spec"]["members"] += grow["spec"]["members"]
    hello["spec"] |= spec
    return hello


def objects(resource: Any, **choices: Any) -> list[dict[str, Any]]:
    return objects_of(resource, Choices(**choices), lambda _: UUID, lambda _: SECRETS)


def named(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (one,) = (it for it in found if (it["kind"], it["metadata"]["name"]) == (kind, name))
    return one


def allowed(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("text", [HELLO, GROW])
def test_each_member_gets_its_files_and_a_minicluster_that_runs_them(text: str, tmp_path: Path) -> None:
    found = objects(yaml.safe_load(text), namespace="hpc")
    mini = named(found, "MiniCluster", "ensemble-0")
    files = named(found, "ConfigMap", "ensemble-0")["data"]
    (container,) = mini["spec"]["containers"]
    assert files["ensemble.yaml"] == yaml.safe_load(text)["spec"]["members"][0]["ensemble"]
    assert container["command"].startswith("flux-node-manager ensemble run /etc/flux-node-manager/ensemble.yaml")
    assert (container["launcher"], container["workingDir"]) == (True, "/tmp")  # noqa: S108
    assert mini["spec"]["flux"] == {"completeWorkers": True}
    volume = container["volumes"]["ensemble"]
    assert volume["configMapName"] == "ensemble-0"
    assert volume["items"].keys() == files.keys()
    (tmp_path / "site.ini").write_text(files["site.ini"], encoding="utf-8")
    site = load_site(tmp_path / "site.ini")
    assert (site.cloud.name, site.cloud.namespace) == ("ensemble-0", "hpc")
    assert (len(site.slots), site.node_types[0].cores, site.acts) == (15, 3, True)


def test_the_members_of_one_resource_have_one_service_and_a_token_each() -> None:
    found = objects(both(maxSize=6), namespace="hpc")
    deployment, service = named(found, "Deployment", "ensemble-grpc"), named(found, "Service", "ensemble-grpc")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    _, _, command = container["command"]
    assert "--miniclusters ensemble-0,ensemble-1 --pods-max 6" in command
    assert "--listen 0.0.0.0:50051" in command
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert named(found, "Secret", "ensemble-grpc")["stringData"] == {
        "token": "the token",
        "tls.crt": "the certificate",
        "tls.key": "the key",
    }
    for name in ("ensemble-0", "ensemble-1"):
        member = {"token": f"token of {name}", "tls.crt": "the certificate"}
        assert named(found, "Secret", name)["stringData"] == member
        (container,) = named(found, "MiniCluster", name)["spec"]["containers"]
        assert container["volumes"]["service"]["secretName"] == name
        site = named(found, "ConfigMap", name)["data"]["site.ini"]
        assert "service = ensemble-grpc.hpc.svc:50051\n" in site


def test_only_the_pods_of_members_that_grow_reach_the_service() -> None:
    resource = both()
    resource["spec"]["sidecar"] = {"port": "50060"}
    for section in ("maxSize", "minSize"):
        resource["spec"]["members"][1]["minicluster"]["spec"].pop(section, None)
    resource["spec"]["members"][1]["minicluster"]["spec"]["size"] = 1
    found = objects(resource, namespace="hpc")
    policy = named(found, "NetworkPolicy", "ensemble-grpc")
    deployment = named(found, "Deployment", "ensemble-grpc")["spec"]["template"]
    (port,) = deployment["spec"]["containers"][0]["ports"]
    assert policy["metadata"]["namespace"] == "hpc"
    assert policy["spec"]["podSelector"]["matchLabels"] == deployment["metadata"]["labels"]
    (rule,) = policy["spec"]["ingress"]
    assert [it["port"] for it in rule["ports"]] == [port["name"]]
    (pods,) = rule["from"]
    assert pods == {
        "podSelector": {"matchExpressions": [{"key": "job-name", "operator": "In", "values": ["ensemble-0"]}]}
    }


def test_a_refused_member_asks_again_before_the_service_forgets_its_wish(tmp_path: Path) -> None:
    text = named(objects(both(maxSize=6)), "ConfigMap", "ensemble-0")["data"]["site.ini"]
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    fixed = policy_of(load_site(tmp_path / "site.ini")).fixed
    assert fixed.block_s[FailureKind.QUOTA] <= fixed.probe_s_max < WISH_S
    assert fixed.block_s.keys() == BLOCK_S.keys()


def test_only_the_service_may_change_sizes_and_only_those_of_its_members() -> None:
    found = objects(both())
    assert allowed(named(found, "Role", "ensemble-node-manager")) == READS
    role = named(found, "Role", "ensemble-grpc")
    assert allowed(role) == {("flux-framework.org", "miniclusters", verb) for verb in ("get", "patch")}
    (rule,) = role["rules"]
    assert rule["resourceNames"] == ["ensemble-0", "ensemble-1"]
    accounts = {it["metadata"]["name"] for it in found if it["kind"] == "ServiceAccount"}
    pod = named(found, "Deployment", "ensemble-grpc")["spec"]["template"]["spec"]
    mini = named(found, "MiniCluster", "ensemble-0")["spec"]["pod"]
    assert {pod["serviceAccountName"], mini["serviceAccountName"]} == accounts
    bound = {it["subjects"][0]["name"]: it["roleRef"]["name"] for it in found if it["kind"] == "RoleBinding"}
    assert bound == {name: name for name in accounts}


def test_the_sidecar_s_port_and_pull_policy_are_the_service_s() -> None:
    resource = both()
    resource["spec"]["sidecar"] = {"port": "50060", "imagePullPolicy": "Never", "workers": 4}
    found = objects(resource)
    (container,) = named(found, "Deployment", "ensemble-grpc")["spec"]["template"]["spec"]["containers"]
    assert (container["imagePullPolicy"], container["image"]) == ("Never", "example.org/app:latest")
    assert named(found, "Service", "ensemble-grpc")["spec"]["ports"][0]["port"] == 50060
    assert "ensemble-grpc.default.svc:50060" in named(found, "ConfigMap", "ensemble-1")["data"]["site.ini"]


def test_members_that_cannot_grow_need_no_service() -> None:
    text = HELLO.replace("maxSize: 16", "maxSize: 1")
    found = objects_of(
        yaml.safe_load(text), Choices(), lambda _: UUID, lambda _: pytest.fail("no secret is needed")
    )
    assert [it["kind"] for it in found] == ["ConfigMap", "MiniCluster"]
    assert found[0]["data"].keys() == {"ensemble.yaml"}
    assert "brokerPre" not in found[1]["spec"]["containers"][0]["commands"]


def test_the_resource_itself_stays_as_it_was() -> None:
    resource = yaml.safe_load(HELLO)
    before = copy.deepcopy(resource)
    objects(resource, image="example.org/mine")
    assert resource == before


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("v1alpha1", "v2", "v1alpha1 and kind: Ensemble are needed"),
        ("name: ensemble}", "name: Hello_}", "metadata.name"),
        ("size: 1\n", "size: 0\n", "1 <= size"),
        ("size: 1\n", "size: many\n", "a whole number is needed"),
        ("minSize: 1", "minSize: 2", "minSize 2 <= size 1"),
        ("image: example.org/app:latest", "name: app", "an image is needed, or --image"),
        ("limits: {cpu: 3}", "limits: {cpu: 500m}", "or --cores"),
        ("trigger: start", "trigger: begin", r"spec.members\[0\].ensemble"),
        ("sidecar: {", "sidecar: {port: 0, ", r"spec.sidecar.port"),
        ("  sidecar:", "  maxSize: 0\n  sidecar:", "less than the 1 pods"),
        ("  sidecar:", "  maxSize: all\n  sidecar:", "a whole number of pods"),
    ],
)
def test_a_fault_says_where_it_is(old: str, new: str, problem: str) -> None:
    assert old in HELLO
    with pytest.raises(ResourceError, match=problem):
        objects(yaml.safe_load(HELLO.replace(old, new)))


def test_the_verb_prints_yaml_that_is_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ensemble.yaml"
    file.write_text(HELLO, encoding="utf-8")
    printed = []
    material = ["--material", str(tmp_path / "material")]
    for _ in range(2):
        assert main(["ensemble", "manifests", str(file), "--namespace", "flux", *material]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    found = list(yaml.safe_load_all(printed[0]))
    assert Counter(it["kind"] for it in found) == {
        **dict.fromkeys(("ServiceAccount", "Role", "RoleBinding", "Secret"), 2),
        **dict.fromkeys(("Deployment", "Service", "NetworkPolicy", "ConfigMap", "MiniCluster"), 1),
    }
    service, member = (named(found, "Secret", name)["stringData"] for name in ("ensemble-grpc", "ensemble-0"))
    assert service["token"] == (tmp_path / "material" / "token").read_text(encoding="ascii").strip()
    assert member["token"] == token_of_member(service["token"], "ensemble-0")
    assert member["tls.crt"] == service["tls.crt"]


def test_the_verb_refuses_what_is_no_resource(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ensemble.yaml"
    file.write_text("jobs: []", encoding="utf-8")
    assert main(["ensemble", "manifests", str(file)]) == 78
    assert "kind: Ensemble are needed" in capsys.readouterr().err
