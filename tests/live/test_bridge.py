"""A manager whose Python has no bindings: a process of flux-core's own Python makes every call, and may die."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodemanager.flux import bindings
from nodemanager.flux.bindings import Bridge
from tests.live.elastic import Elastic, an_elastic_site
from tests.live.instance import LiveInstance
from tests.live.six_jobs import OFFERS, SLOTS_WANTED, run_to_the_end, submit_six_jobs
from tests.live.witness import slot_of

CALLS = 500
WITHIN_S = 20.0
SSH = """#!/bin/sh
# ssh -o BatchMode=yes -p PORT -- HOST COMMAND, as the login shell of HOST runs it
echo "$1 $2 $3 $4 $5 $6" >"$0.host"
shift 6
PATH=PATH_THERE exec /bin/sh -c "$*"
"""
ENOUGH = 4  # a port, the watch, and both services


@pytest.fixture
def bridged() -> Iterator[Elastic]:
    with an_elastic_site(OFFERS, flux="bridge = always") as elastic:
        yield elastic


def _far_sides(manager: psutil.Process) -> list[psutil.Process]:
    return [process for process in manager.children() if "flux-bridge" in " ".join(process.cmdline())]


def test_the_right_nodes_come_for_six_jobs_while_bridges_are_killed(bridged: Elastic) -> None:
    manager = bridged.start_manager()
    manager.until_said("started")
    jobs = submit_six_jobs(bridged)
    bridged.eventually("far sides run", lambda: len(_far_sides(manager.process)) >= ENOUGH)
    for far_side in _far_sides(manager.process):
        far_side.kill()
    run_to_the_end(bridged, jobs)
    assert sorted(map(slot_of, bridged.witness.look().values())) == list(SLOTS_WANTED)
    far_sides = _far_sides(manager.process)
    print(f"far sides: {len(far_sides)}, {sum(it.memory_info().rss for it in far_sides) / 1e6:.0f} MB")
    assert far_sides
    assert manager.terminate(within_s=5.0) == 0, manager.tail()
    psutil.wait_procs(far_sides, timeout=5.0)
    assert not any(far_side.is_running() for far_side in far_sides)


def test_no_far_side_outlives_a_manager_that_is_killed(bridged: Elastic) -> None:
    manager = bridged.start_manager()
    manager.until_said("started")
    bridged.eventually("far sides run", lambda: len(_far_sides(manager.process)) >= ENOUGH)
    far_sides = _far_sides(manager.process)
    manager.kill()
    _, alive = psutil.wait_procs(far_sides, timeout=10.0)
    assert not alive
    assert bridged.owner() is None  # the name is free


def test_without_a_flux_here_the_calls_are_made_on_the_instances_host(
    instance: LiveInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = os.environ["PATH"]
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.replace("PATH_THERE", there))
    ssh.chmod(0o755)
    monkeypatch.setenv("FLUX_SSH", str(ssh))
    monkeypatch.setattr(bindings, "_bridge", Bridge.ALWAYS)
    without = [folder for folder in there.split(":") if not (Path(folder) / "flux").exists()]
    monkeypatch.setenv("PATH", ":".join(without))
    with bindings.connection(f"ssh://head:2222{instance.uri.removeprefix('local://')}") as handle:
        version = bindings.ask(handle, "attr.get", {"name": "version"}, timeout_s=WITHIN_S)["value"]
    assert version in subprocess.check_output(["flux", "--version"], text=True, env={"PATH": there})
    assert ssh.with_suffix(".host").read_text() == "-o BatchMode=yes -p 2222 -- head\n"


def test_what_a_call_costs(instance: LiveInstance) -> None:
    figures = {}
    for bridge in (Bridge.NEVER, Bridge.ALWAYS):
        bindings.use_bridge(bridge)
        try:
            with bindings.connection(instance.uri) as handle:
                figures[bridge] = sorted(_call_s(handle) for _ in range(CALLS))
        finally:
            bindings.use_bridge(Bridge.AUTO)
    for bridge, times_s in figures.items():
        p99 = times_s[int(0.99 * CALLS)]
        print(f"bridge = {bridge}: median {statistics.median(times_s) * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms a call")
    assert len(figures[Bridge.ALWAYS]) == CALLS


def _call_s(handle: bindings.Handle) -> float:
    start_s = time.perf_counter()
    bindings.ask(handle, "attr.get", {"name": "rank"}, timeout_s=WITHIN_S)
    return time.perf_counter() - start_s
