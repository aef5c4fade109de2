"""The objects that ``ensemble manifests`` prints run an ensemble of two members, to the last job.

The API server and the operator are simulated. The pods are real brokers, and the lead broker's container runs what
the printed MiniCluster says: ``brokerPre`` and then ``command``. The service runs what its Deployment says. Only
paths and the port differ: the files of ConfigMaps and Secrets lie in a folder of the test, the socket too, and the
access to the API server is by a kubeconfig.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from nodemanager.cli.main import main
from nodemanager.ensemble.file.kubernetes import FOLDER, SOCKET
from nodemanager.ensemble.file.kubernetes_service import PRIVATE, SECRETS
from tests.cloud.minicluster.api_server import MINICLUSTERS, ApiServer
from tests.cloud.minicluster.operator import NAMESPACE, Operator
from tests.live.instance import eventually, free_port, why_no_flux
from tests.live.minicluster import CORES, Pods
from tests.live.processes import kill_all, run_flux, start, without_flux
from tests.paths import ROOT

WITHIN_S = 120.0
SHARE_WITHIN_S = 300.0  # a member that was refused asks again at least every two minutes
TOTAL = 4  # pods that both members share


def resource() -> str:
    """Both examples as members of one ensemble."""
    hello, grow = (
        yaml.safe_load(
            (ROOT / "tests" / "data" / "ensembles" / f"operator-{name}.yaml").read_text(encoding="utf-8")
        )
        for name in ("hello-world", "grow-shrink")
    )
    hello["spec"]["members"] += grow["spec"]["members"]
    hello["spec"]["maxSize"] = TOTAL
    for member in hello["spec"]["members"]:
        member["minicluster"]["spec"]["maxSize"] = TOTAL
    return str(yaml.safe_dump(hello))


class Printed:
    """The printed objects, and where their files lie in the folder of the test."""

    def __init__(self, folder: Path, objects: list[Any]) -> None:
        self.folder = folder
        self.objects = objects
        self.port = free_port()
        self.service: psutil.Popen | None = None
        for secret in self.of_kind("Secret"):
            lies = folder / f"secret-{secret['metadata']['name']}"
            lies.mkdir()
            for name, text in secret["stringData"].items():
                (lies / name).write_text(text, encoding="utf-8")

    def of_kind(self, kind: str) -> list[Any]:
        return [it for it in self.objects if it["kind"] == kind]

    def here(self, text: str, name: str) -> str:
        """The text of a container, with the paths and the address of this test."""
        text = text.replace(SECRETS, f"{self.folder}/secret-{name}").replace(
            PRIVATE, f"{self.folder}/private-{name}"
        )
        for address in ("0.0.0.0:50051", f"ensemble-grpc.{NAMESPACE}.svc:50051"):
            text = text.replace(address, f"127.0.0.1:{self.port}")
        return text

    def role(self, name: str) -> frozenset[Any]:
        """What a printed role allows."""
        (role,) = (it for it in self.of_kind("Role") if it["metadata"]["name"] == name)
        return frozenset(
            (group, resource, verb, *which)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for which in ([(it,) for it in rule["resourceNames"]] if "resourceNames" in rule else [()])
        )

    def access(self, api: ApiServer, name: str) -> None:
        """Write the kubeconfig of an account."""
        api.tokens[f"token-{name}"] = (name, self.role(name))
        config = {
            "current-context": "live",
            "contexts": [{"name": "live", "context": {"cluster": "live", "user": "live"}}],
            "clusters": [{"name": "live", "cluster": {"server": api.url}}],
            "users": [{"name": "live", "user": {"token": f"token-{name}"}}],
        }
        (self.folder / f"kubeconfig-{name}").write_text(yaml.safe_dump(config))

    def start_service(self) -> None:
        (deployment,) = self.of_kind("Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        shell, option, text = container["command"]
        access = f"--kubeconfig {self.folder}/kubeconfig-ensemble-grpc"
        text = self.here(text, "ensemble-grpc").replace("ensemble serve", f"ensemble serve {access}")
        self.service = start([shell, option, text], self.folder / "service.log")

    def kill_service(self) -> None:
        if self.service is not None:
            kill_all([self.service])


class Member:
    """One printed MiniCluster, with its pods and what runs in the lead broker's container."""

    def __init__(self, printed: Printed, api: ApiServer, mini: Mapping[str, Any], files: Mapping[str, str]) -> None:
        self.name = mini["metadata"]["name"]
        self.printed = printed
        self._folder = printed.folder / self.name
        self._folder.mkdir()
        self.uri = f"local://{self._folder}/head.sock"
        self.api = api
        self.pods = Pods(self._folder, mini["spec"]["maxSize"], self.name)
        self.operator = Operator(api, self.name, self.pods, grace_s=0.5)
        (self._container,) = mini["spec"]["containers"]
        self.run: psutil.Popen | None = None
        self._before: psutil.Popen | None = None
        for name, text in files.items():
            changed = printed.here(text, self.name).replace(SOCKET, self.uri)
            changed = changed.replace("state_dir = /tmp/", f"state_dir = {self._folder}/")
            changed = changed.replace("[Limits]", "kubeconfig = ../kubeconfig-ensemble-node-manager\n[Limits]")
            (self._folder / name).write_text(changed.replace("idle_timeout = 1m", "idle_timeout = 2s"))

    def start(self, *, runs: bool = True) -> None:
        """Run the container as the operator's script does: ``brokerPre``, the broker, the command if ``runs``."""
        self._before = self._shell(self._container["commands"]["brokerPre"] + "\nwait", "before")
        self.operator.start()
        eventually("the lead broker runs", lambda: " run " in run_flux(self.uri, "uptime", check=False), WITHIN_S)
        if runs:
            self.run = self._shell(self._container["command"], "command")

    def _shell(self, text: str, log: str) -> psutil.Popen:
        text = self.printed.here(text, self.name).replace(FOLDER, str(self._folder))
        script = f"export FLUX_URI={self.uri}\n{text}\n"
        return start(["bash", "-c", script], self._folder / f"{log}.log")

    def sizes(self) -> list[int]:
        """The sizes that were asked for."""
        calls = (call for call in self.api.patches() if call.path.endswith(f"/{self.name}"))
        return [int(call.body["spec"]["size"]) for call in calls if "spec" in call.body]

    @property
    def size(self) -> int:
        return int(self.operator.shown()["spec"]["size"])

    def said(self) -> str:
        logs = (self._folder / f"{name}.log" for name in ("before", "command"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs if log.exists())

    def reap(self) -> None:
        for process in (self.run, self._before):
            if process is not None and process.is_running():
                kill_all([*process.children(recursive=True), process])
        self.operator.stop()
        self.pods.reap()


@pytest.fixture
def members(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Member]]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        program = folder / "bin" / "flux-node-manager"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m nodemanager "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        assert without_flux()["PATH"].startswith(str(program.parent))
        (folder / "ensemble.yaml").write_text(resource())
        asked = ["--namespace", NAMESPACE, "--cores", str(CORES), "--material", str(folder / "material")]
        assert main(["ensemble", "manifests", str(folder / "ensemble.yaml"), *asked]) == 0
        printed = Printed(folder, list(yaml.safe_load_all(capsys.readouterr().out)))
        api = ApiServer()
        for name in ("ensemble-grpc", "ensemble-node-manager"):
            printed.access(api, name)
        files = {it["metadata"]["name"]: it["data"] for it in printed.of_kind("ConfigMap")}
        made_members = []
        printed.start_service()
        try:
            for mini in printed.of_kind("MiniCluster"):
                api.store.put(MINICLUSTERS, NAMESPACE, mini)
                made_members.append(Member(printed, api, mini, files[mini["metadata"]["name"]]))
            yield made_members
        finally:
            for member in made_members:
                member.reap()
            printed.kill_service()
            api.stop()


def total(members: list[Member]) -> int:
    return sum(len(member.operator.pods()) for member in members)


def is_small(member: Member) -> bool:
    return member.size == 1


def test_two_members_run_to_their_end_and_share_the_pods(members: list[Member]) -> None:
    for member in members:
        member.start()
    hello, grow = members
    most = 0

    def ended(member: Member) -> bool:
        nonlocal most
        most = max(most, total(members))
        assert member.run is not None
        return member.run.poll() is not None

    for member in members:
        try:
            eventually(f"{member.name} ends", partial(ended, member), WITHIN_S)
        except AssertionError as late:
            raise AssertionError(f"{late}: {member.sizes()}\n{member.said()}") from late
        assert member.run is not None
        assert member.run.wait() == 0, member.said()

    def results(member: Member) -> dict[str, int]:
        return Counter(run_flux(member.uri, "jobs", "-ano", "{name}:{result}").split())

    assert results(hello) == {"sleep:COMPLETED": 1, "echo:COMPLETED": 15}
    assert results(grow)["echo:COMPLETED"] == 5
    assert results(grow)["sleep:COMPLETED"] == 11
    assert grow.sizes()[0] > 1
    assert most <= TOTAL
    for member in members:
        eventually("the lead broker is left alone", partial(is_small, member), WITHIN_S)
    assert {call.user for call in hello.api.patches()} == {"ensemble-grpc"}


def test_a_member_gives_back_what_is_above_its_share_although_the_service_was_killed(members: list[Member]) -> None:
    first, second = members
    for member in members:
        member.start(runs=False)
    low, top = (
        run_flux(first.uri, "submit", "-N1", "--exclusive", f"--requires=rank:{rank}", "sleep", for_s)
        for rank, for_s in ((1, "600"), (2, "30"))
    )
    eventually("the first has what is left", lambda: first.size == TOTAL - 1, WITHIN_S)
    first.printed.kill_service()
    eventually("its top is busy", lambda: run_flux(first.uri, "jobs", "-no", "{state}", top) == "RUN", WITHIN_S)
    waits = run_flux(second.uri, "submit", "-N3", "--exclusive", "true")
    eventually("its manager misses the service", lambda: "ensemble service" in second.said(), WITHIN_S)
    assert second.size == 1
    first.printed.start_service()  # as Kubernetes does
    eventually("the second has its share", lambda: second.size == TOTAL // 2, SHARE_WITHIN_S)
    assert first.size <= TOTAL // 2
    assert run_flux(first.uri, "jobs", "-no", "{result}", top) == "COMPLETED"
    assert run_flux(first.uri, "jobs", "-no", "{state}", low) == "RUN"
    assert total(members) <= TOTAL
    assert run_flux(second.uri, "jobs", "-no", "{state}", waits) == "SCHED", "three pods are more than its share"
