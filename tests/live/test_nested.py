"""An instance that is a job of another: it grows by jobs of that one, by hand and by itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.core.notation import parse_idset
from nodemanager.flux import bindings
from tests.live.instance import SLOT_NAME, LiveInstance, eventually, free_port, why_no_flux
from tests.live.manager_process import ManagerProcess
from tests.live.processes import run_flux, start, without_flux
from tests.paths import ROOT

WITHIN_S = 60.0
BOOT_TIMEOUT_S = 15.0
SITE = """
[Site]
cluster = inner
state_dir = state
mode = act
[Flux]
uri = local://{folder}/i/run/local-0
head_address = 127.0.0.1
bootstrap_dir = i
port = {port}
[Cloud]
provider = flux
outer_uri = {outer}
[Limits]
nodes_max = 2
price_per_hour_max = 1
[Timing]
settle = 500ms
probe = 1s
relist = 3s
create_grace = 3s
absences = 2
stale_after = 30s
boot_timeout = {boot_timeout_s:g}s
[Policy]
idle_timeout = 1s
[Node outer]
cores = 2
memory = 1GiB
price_per_hour = 0
billing = free
slots = n[1-2]
"""


class Nested:
    """An outer instance of three nodes, and rank 0 of an inner one as a job on one core of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "o").mkdir()
        self.outer = LiveInstance(folder / "o")
        self._file = folder / "site.ini"
        self._file.write_text(
            SITE.format(folder=folder, port=free_port(), outer=self.outer.uri, boot_timeout_s=BOOT_TIMEOUT_S)
        )
        self._folder = folder

    def start(self) -> None:
        self.outer.start_head()
        for rank in (1, 2, 3):
            self.outer.start_slot(rank)
        said = self.verb("init", "--nested", "--output", str(self._folder / "i"))
        command = shlex.split(next(line for line in said.splitlines() if line.startswith("  ")))
        self.job = self.outer.run(*command[1:])
        self.site = load_site(self._file)
        eventually("the inner rank 0 runs", lambda: " run " in self.inner("uptime", check=False), WITHIN_S)

    def verb(self, *arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "nodemanager.cli.main", *arguments, "--config", str(self._file)],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=without_flux() | {"FLUX_URI": self.outer.uri},
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def inner(self, *command: str, check: bool = True) -> str:
        return run_flux(self.site.flux.uri, *command, check=check)

    def online(self) -> list[int]:
        with bindings.connection(self.site.flux.uri) as handle:
            return sorted(parse_idset(bindings.ask(handle, "resource.status", timeout_s=10.0)["online"]))

    def outer_jobs(self) -> list[str]:
        return self.outer.run("jobs", "-no", "{name}").split()

    def queued_s(self) -> dict[str, float]:
        """How long each node has waited in the outer queue, by the id of its job."""
        lines = self.outer.run("jobs", "--filter=pending", "-no", "{id} {name} {t_submit}").splitlines()
        jobs = [line.split() for line in lines]
        return {id_: time.time() - float(at) for id_, name, at in jobs if name == "node-of-inner"}

    def start_manager(self) -> ManagerProcess:
        log = self._folder / "manager.log"
        command = [sys.executable, "-m", "nodemanager.cli.main", "--config", str(self._file)]
        return ManagerProcess(start(command, log), log)

    def reap(self) -> None:
        self.outer.run("cancel", "--all")
        eventually("no job is active", lambda: not self.outer_jobs(), WITHIN_S)
        self.outer.reap()


@pytest.fixture
def nested() -> Iterator[Nested]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        nested = Nested(Path(folder))
        try:
            nested.start()
            yield nested
        finally:
            nested.reap()


def test_the_outer_instance_knows_where_the_inner_one_listens(nested: Nested) -> None:
    assert nested.outer.run("uri", "--local", nested.job) == nested.site.flux.uri


def test_expand_brings_nodes_and_its_cancel_takes_them_away(nested: Nested) -> None:
    said = nested.verb("expand", nested.job, "-N", "2")
    assert "provides n1, n2" in said
    eventually("both have joined", lambda: nested.online() == [0, 1, 2], WITHIN_S)
    assert sorted(nested.inner("run", "-N2", "-n2", "-c2", *SLOT_NAME).split()) == ["n1", "n2"]

    nested.outer.run("cancel", said.split()[1])
    eventually("both have left", lambda: nested.online() == [0], WITHIN_S)
    eventually("only the inner instance runs there", lambda: nested.outer_jobs() == ["inner"], WITHIN_S)


def test_with_provider_flux_it_grows_and_shrinks_by_itself(nested: Nested) -> None:
    manager = nested.start_manager()
    try:
        job = nested.inner("submit", "-N2", "-n2", "-c2", "true")
        eventually("the job has run", lambda: _result(nested, job) == "COMPLETED", WITHIN_S)
        eventually("its nodes have gone", lambda: nested.outer_jobs() == ["inner"], WITHIN_S)
    finally:
        manager.kill()


def test_a_node_waits_in_the_outer_queue_as_long_as_it_must_and_no_longer_than_a_job_needs_it(
    nested: Nested,
) -> None:
    filler = nested.outer.run("submit", "-N2", "--exclusive", "sleep", "600")
    manager = nested.start_manager()
    try:
        job = nested.inner("submit", "-N1", "-n1", "-c2", "true")
        eventually("a node is in the queue", lambda: len(nested.queued_s()) == 1, WITHIN_S)
        (node,) = nested.queued_s()
        eventually("it waits for long", lambda: nested.queued_s()[node] > 1.3 * BOOT_TIMEOUT_S, WITHIN_S)
        nested.inner("cancel", job)
        eventually("it has left the queue", lambda: not nested.queued_s(), WITHIN_S)

        again = nested.inner("submit", "-N1", "-n1", "-c2", "true")
        eventually("another node is in the queue", lambda: len(nested.queued_s()) == 1, WITHIN_S)
        nested.outer.run("cancel", filler)
        eventually("the job has run", lambda: _result(nested, again) == "COMPLETED", WITHIN_S)
        eventually("its node has gone", lambda: nested.outer_jobs() == ["inner"], WITHIN_S)
    finally:
        manager.kill()


def _result(nested: Nested, job: str) -> str:
    return nested.inner("jobs", "-ano", "{result}", job)
