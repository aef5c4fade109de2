"""The objects that ``ensemble manifests`` prints run an ensemble of two members, to the last job.

The API server and the operator are simulated. The pods are real brokers, and the lead broker's container runs what
the printed MiniCluster says: ``brokerPre`` and then ``command``. Only paths differ: the files of the ConfigMap lie
in a folder of the test, the socket too, and the access to the API server is by a kubeconfig.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from nodemanager.cli.main import main
from nodemanager.ensemble.file.kubernetes import FOLDER, SOCKET
from tests.cloud.minicluster.api_server import MINICLUSTERS, ApiServer
from tests.cloud.minicluster.operator import NAMESPACE, Operator
from tests.live.instance import eventually, why_no_flux
from tests.live.minicluster import Pods
from tests.live.processes import kill_all, run_flux, start, without_flux
from tests.paths import ROOT

WITHIN_S = 120.0
HEAD = """
apiVersion: ensemble.flux-framework.org/v1alpha1
kind: Ensemble
metadata: {name: both}
spec:
  members:"""
MEMBER = """
  - minicluster:
      spec:
        size: 1
        minSize: 1
        maxSize: 3
        containers:
        - image: example.org/app:latest
          resources:
            limits: {cpu: 2}
    ensemble: |
"""
# As the operator's published examples: one that only submits, one that grows and shrinks.
HELLO = """\
jobs:
  - {name: first, command: sleep 0.2, count: 2, nodes: 1}
  - {name: second, command: echo again, count: 1, nodes: 1}
rules:
  - trigger: start
    action: {name: submit, label: first}
  - trigger: job-finish
    name: first
    action: {name: submit, label: second, repetitions: 2}
  - trigger: metric
    name: count.second.success
    when: 2
    action: {name: terminate}
"""
GROW = """\
jobs:
  - {name: first, command: sleep 0.2, count: 1, nodes: 1}
  - {name: wide, command: sleep 0.2, count: 1, nodes: 3}
rules:
  - trigger: start
    action: {name: submit, label: first}
  - trigger: job-finish
    name: first
    action: {name: grow, value: 2}
  - trigger: metric
    name: count.first.success
    when: 1
    action: {name: submit, label: wide}
  - trigger: job-finish
    name: wide
    action: {name: shrink, value: 2}
  - trigger: metric
    name: count.wide.success
    when: 1
    action: {name: terminate}
"""


def resource() -> str:
    def indented(text: str) -> str:
        return "".join(f"      {line}\n" for line in text.splitlines())

    return HEAD + "".join(MEMBER + indented(text) for text in (HELLO, GROW))


class Member:
    """One printed MiniCluster, with its pods and what runs in the lead broker's container."""

    def __init__(self, folder: Path, api: ApiServer, mini: Mapping[str, Any], files: Mapping[str, str]) -> None:
        self.name = mini["metadata"]["name"]
        self._folder = folder / self.name
        self._folder.mkdir()
        self.uri = f"local://{self._folder}/head.sock"
        self._api = api
        self.pods = Pods(self._folder, mini["spec"]["maxSize"], self.name)
        self.operator = Operator(api, self.name, self.pods, grace_s=0.5)
        (self._container,) = mini["spec"]["containers"]
        self.run: psutil.Popen | None = None
        self._before: psutil.Popen | None = None
        for name, text in files.items():
            changed = text.replace(SOCKET, self.uri).replace("state_dir = /tmp/", f"state_dir = {self._folder}/")
            changed = changed.replace("[Limits]", "kubeconfig = ../kubeconfig\n[Limits]")
            (self._folder / name).write_text(changed.replace("idle_timeout = 1m", "idle_timeout = 2s"))

    def start(self) -> None:
        """Run the container as the operator's script does: ``brokerPre``, the broker, the command."""
        self._before = self._shell(self._container["commands"]["brokerPre"] + "\nwait", "before")
        self.operator.start()
        eventually("the lead broker runs", lambda: " run " in run_flux(self.uri, "uptime", check=False), WITHIN_S)
        self.run = self._shell(self._container["command"], "command")

    def _shell(self, text: str, log: str) -> psutil.Popen:
        script = f"export FLUX_URI={self.uri}\n{text.replace(FOLDER, str(self._folder))}\n"
        return start(["bash", "-c", script], self._folder / f"{log}.log")

    def sizes(self) -> list[int]:
        """The sizes that the manager of this member has asked for."""
        path = f"/{self.name}"
        return [int(call.body["spec"]["size"]) for call in self._api.patches() if call.path.endswith(path)]

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
        assert main(["ensemble", "manifests", str(folder / "ensemble.yaml"), "--namespace", NAMESPACE]) == 0
        objects = list(yaml.safe_load_all(capsys.readouterr().out))
        api = ApiServer()
        (folder / "token").write_text("token-1")
        api.tokens = {"token-1": ("manager", role_of(objects))}
        config = {
            "current-context": "live",
            "contexts": [{"name": "live", "context": {"cluster": "live", "user": "live"}}],
            "clusters": [{"name": "live", "cluster": {"server": api.url}}],
            "users": [{"name": "live", "user": {"tokenFile": "token"}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        files = {it["metadata"]["name"]: it["data"] for it in objects if it["kind"] == "ConfigMap"}
        made_members = []
        try:
            for mini in (it for it in objects if it["kind"] == "MiniCluster"):
                api.store.put(MINICLUSTERS, NAMESPACE, mini)
                made_members.append(Member(folder, api, mini, files[mini["metadata"]["name"]]))
            yield made_members
        finally:
            for member in made_members:
                member.reap()
            api.stop()


def role_of(objects: list[Any]) -> frozenset[tuple[str, str, str]]:
    """What the printed role allows."""
    (role,) = (it for it in objects if it["kind"] == "Role")
    return frozenset(
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def test_two_members_run_to_their_end_and_the_one_that_grows_is_small_again(members: list[Member]) -> None:
    for member in members:
        member.start()
    hello, grow = members
    for member in members:
        assert member.run is not None
        try:
            assert member.run.wait(WITHIN_S) == 0, member.said()
        except psutil.TimeoutExpired as late:
            raise AssertionError(f"{member.name} has not ended: {member.sizes()}\n{member.said()}") from late

    def results(member: Member) -> list[str]:
        return run_flux(member.uri, "jobs", "-ano", "{name}:{result}").split()

    assert sorted(results(hello)) == ["echo:COMPLETED"] * 2 + ["sleep:COMPLETED"] * 2
    assert results(grow) == ["sleep:COMPLETED"] * 2
    assert hello.sizes() == []
    assert grow.sizes()[0] == 3
    eventually("the lead broker is left alone", lambda: grow.sizes()[-1] == 1, WITHIN_S)
