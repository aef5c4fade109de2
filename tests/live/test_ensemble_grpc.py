"""Ensembles of one instance that ask the manager of another one for nodes, by gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.flux.handles import direct
from tests.live.elastic import Elastic, an_elastic_site
from tests.live.ensemble_runs import COMMAND, DATA, WITHIN_S, EnsembleProcess, two_nodes
from tests.live.instance import LiveInstance, free_port
from tests.live.processes import END_WITHIN_S, kill_all, start, without_flux
from tests.live.six_jobs import OFFERS
from tests.live.test_ensemble_nodes import GROWS

pytest.importorskip("grpc", reason="the extra ensemble is not installed")


@pytest.fixture
def member() -> Iterator[LiveInstance]:
    """Another instance: two nodes of two cores, and no manager."""
    with two_nodes() as live:
        yield live


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def elastic(request: pytest.FixtureRequest, port: int) -> Iterator[Elastic]:
    """A site whose service answers members; the test says whether it needs plaintext."""
    plaintext = "grpc_plaintext = yes\n" if getattr(request, "param", "") == "plaintext" else ""
    policy = f"[Web]\ngrpc_listen = 127.0.0.1:{port}\n{plaintext}[Ensemble mini]\nfile = none.yaml\nnodes_max = 3\n"
    with an_elastic_site(OFFERS, policy=policy) as elastic:
        yield elastic


def test_a_member_grows_and_shrinks_although_the_manager_is_killed(
    elastic: Elastic, member: LiveInstance, port: int
) -> None:
    manager = elastic.start_manager()
    manager.until_said("ensemble_service")
    elastic.eventually("the manager acts", elastic.owner)
    file = member.directory / "grows.yaml"
    file.write_text(GROWS.replace("sleep 1, count", "sleep 5, count"))
    options = ("--service", f"127.0.0.1:{port}", "--material", str(elastic.site.web.grpc_material))
    run = EnsembleProcess(member.uri, member.directory, file, *options)
    elastic.eventually("three nodes", lambda: len(elastic.launches()) >= 3)
    manager.kill()
    elastic.start_manager()
    elastic.eventually("the jobs have run", lambda: (4, 1) in run.fired())
    notes = [event["text"] for event in run.events if event["event"] == "note"]
    why = "it asks for 93 nodes, and [Limits] nodes_max = 24"
    assert notes == [f"resize was not carried out: the ensemble service denies it: {why}"]
    elastic.eventually("one node is kept", lambda: len(elastic.launches()) == 1)
    run.stop("grows")
    elastic.eventually("no node is kept", lambda: not elastic.launches())
    kept = elastic.keys()
    assert "asked" not in kept


@pytest.mark.parametrize("elastic", ["plaintext"], indirect=True)
def test_the_published_ensemble_python_grows_and_shrinks_within_its_limit(
    elastic: Elastic, member: LiveInstance, port: int
) -> None:
    program = Path(sys.executable).with_name("ensemble")
    if not program.exists():
        pytest.skip("ensemble-python is not installed")
    pytest.importorskip("ply", reason="flux.job, which ensemble-python imports, needs it")
    manager = elastic.start_manager()
    manager.until_said("ensemble_service")
    elastic.eventually("the manager acts", elastic.owner)
    direct.load()
    ran = subprocess.run(
        [program, "run", "--executor", "minicluster", "--name", "default/mini", "--host", "127.0.0.1",
         "--port", str(port), DATA / "t3.yaml"],
        cwd=member.directory,
        env=without_flux() | {"FLUX_URI": member.uri, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    asked = [(line["action"], line["status"]) for line in manager.said("ensemble_member_asked", ensemble="mini")]
    assert asked == [("grow", "SUCCESS"), ("grow", "DENIED"), ("shrink", "SUCCESS")]
    assert "[Ensemble mini] nodes_max = 3" in manager.said("ensemble_member_asked", status="DENIED")[0]["why"]
    elastic.eventually("one node is kept", lambda: len(elastic.launches()) == 1)


def test_a_member_of_ours_runs_with_the_published_service(member: LiveInstance, port: int) -> None:
    program = Path(sys.executable).with_name("ensemble-server")
    if not program.exists():
        pytest.skip("ensemble-python is not installed")
    log = member.directory / "published.log"
    server = start([sys.executable, "-u", str(program), "start", "--host", "127.0.0.1", "--port", str(port)], log)
    try:
        service = ("--service", f"127.0.0.1:{port}", "--plaintext")
        run = EnsembleProcess(member.uri, member.directory, DATA / "t3.yaml", *service)
        assert run.wait() == 0, run.errors
    finally:
        kill_all([server])
        server.wait(END_WITHIN_S)
    actions = [line for line in log.read_text().splitlines() if line.startswith("Received")]
    grow, shrink = "Received request to grow", "Received request to shrink"
    assert actions == [grow, grow, shrink, shrink], "the last lets the nodes go at the end"


def test_serve_ends_by_sigterm_and_an_instance_without_a_manager_denies(member: LiveInstance, port: int) -> None:
    log, listen = member.directory / "serve.log", f"127.0.0.1:{port}"
    material = ("--material", str(member.directory / "material"))
    server = start([*COMMAND, "serve", "--uri", member.uri, "--listen", listen, *material], log)
    try:
        service = ("--service", listen, *material, "--until-done")
        deadline = EnsembleProcess(member.uri, member.directory, DATA / "t4.yaml", "--until-done")
        assert deadline.wait() == 0
        run = EnsembleProcess(member.uri, member.directory, DATA / "t3.yaml", *service)
        assert run.wait() == 0, run.errors
        notes = {event["text"] for event in run.events if event["event"] == "note"}
        assert any("the ensemble service denies it: no node manager acts on this instance" in it for it in notes)
        server.terminate()
        assert server.wait(END_WITHIN_S) == 0, log.read_text()
    finally:
        kill_all([server])
