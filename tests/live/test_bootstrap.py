"""What ``init`` writes, started on a real Flux: rank 0 by the printed command, a node by its user-data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.slots import SlotName
from nodemanager.flux.setup.bootstrap import Bootstrap, write_bootstrap
from nodemanager.flux.setup.node_script import user_data
from tests.live.instance import SLOT_NAME, eventually, free_port
from tests.live.processes import END_WITHIN_S

pytestmark = pytest.mark.skipif(shutil.which("flux") is None, reason="no flux on PATH")

SLOT = SlotName("cloud2")
SLOT_RANK = "2"
SITE = """
[Site]
cluster = live
state_dir = state
[Flux]
head_address = 127.0.0.1
port = {port}
[Cloud]
provider = local
[Timing]
boot_timeout = {boot_timeout}
[Limits]
nodes_max = 3
price_per_hour_max = 1
[Node cloud]
cores = 2
memory = 1GiB
price_per_hour = 0.1
slots = cloud[1-2]
[Node gpu]
cores = 4
gpus = 1
memory = 1GiB
price_per_hour = 0.5
properties = gpu
slots = gpu1
"""


@dataclass
class Instance:
    """Processes started from one bootstrap, in a folder with a short path (sockets)."""

    folder: Path
    site: Site
    bootstrap: Bootstrap
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        self.started.append(process)
        return process

    def start_rank_0(self) -> subprocess.Popen[bytes]:
        rank_0 = self.start(*self.bootstrap.start_command)
        self.eventually("rank 0 runs", lambda: " run " in self.flux("uptime"))
        return rank_0

    def start_node(self) -> subprocess.Popen[bytes]:
        script = self.folder / "user-data"
        script.write_text(user_data(self.site, SLOT), encoding="utf-8")
        script.chmod(0o700)
        return self.start(str(script), environment={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)})

    def broker_of(self, node: subprocess.Popen[bytes]) -> psutil.Process:
        found: list[psutil.Process] = []

        def looked() -> bool:
            for child in psutil.Process(node.pid).children():
                with suppress(psutil.NoSuchProcess):  # the script has short-lived children too
                    if "broker" in child.cmdline() or "flux-broker" in child.name():
                        found.append(child)
            return bool(found)

        self.eventually("the node has a broker", looked)
        return found[0]

    def free(self) -> str:
        return self.flux("resource", "list", "-no", "{ranks}", "--states=free")

    def flux(self, *command: str) -> str:
        """What the command says, on either stream."""
        ran = subprocess.run(
            ["flux", *command],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=20,
            env=os.environ | {"FLUX_URI": self.bootstrap.uri},
        )
        return ran.stdout.strip()

    def eventually(self, what: str, holds: Callable[[], object]) -> None:
        try:
            eventually(what, holds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self.folder / 'log').read_text()}") from error

    def reap(self) -> None:
        """Leave nothing behind: nodes first, for they end in good order while rank 0 is there."""
        for process in reversed(self.started):
            if process.poll() is None:
                self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(END_WITHIN_S)
        finally:
            for left in children:
                with suppress(psutil.NoSuchProcess):
                    left.kill()
            process.kill()
            process.wait(END_WITHIN_S)


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> Iterator[Instance]:
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        (folder / "site.ini").write_text(
            SITE.format(port=free_port(), boot_timeout=getattr(request, "param", "900s")), encoding="utf-8"
        )
        bootstrap = write_bootstrap(load_site(folder / "site.ini"), folder / "state" / "flux")
        running = Instance(folder, load_site(folder / "site.ini"), bootstrap)
        try:
            yield running
        finally:
            running.reap()


def test_a_node_joins_by_its_user_data_comes_back_and_leaves_at_sigterm(instance: Instance) -> None:
    instance.start_rank_0()
    offer = instance.flux("resource", "list", "-no", "{state} {nnodes} {ncores} {ngpus} {nodelist} {properties}")
    assert "down 2 4 0 cloud[1-2]" in offer
    assert "down 1 4 1 gpu1 gpu" in offer
    if "sched-simple" in instance.flux("module", "list"):  # by Fluxion's policies for elastic instances it waits
        assert "unsatisfiable request" in instance.flux("run", "-N4", "true")

    node = instance.start_node()
    assert instance.flux("run", "-N1", *SLOT_NAME) == SLOT

    first = instance.broker_of(node)
    first.kill()
    instance.eventually("another broker", lambda: instance.broker_of(node) != first)
    instance.eventually("the slot is free again", lambda: instance.free() == SLOT_RANK)

    broker = instance.broker_of(node)
    node.terminate()
    assert node.wait(20) == 0
    assert not broker.is_running()


def test_nodes_and_queue_survive_a_restart_of_rank_0_but_no_node_outlives_its_sigterm(instance: Instance) -> None:
    rank_0 = instance.start_rank_0()
    job = instance.flux("submit", "-N1", "--requires=gpu", "true")
    node = instance.start_node()
    instance.eventually("the slot is free", lambda: instance.free() == SLOT_RANK)
    rank_0.terminate()
    rank_0.wait(20)

    rank_0 = instance.start_rank_0()
    instance.eventually("the slot is free again", lambda: instance.free() == SLOT_RANK)
    assert instance.flux("jobs", "-no", "{id}").split() == [job]

    broker = instance.broker_of(node)
    rank_0.kill()  # without a word: now the broker does not heed SIGTERM
    rank_0.wait(20)
    node.terminate()
    assert node.wait(20) == 0
    assert not broker.is_running()


@pytest.mark.parametrize("instance", ["3s"], indirect=True)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_local_node_ends_itself_once_rank_0_is_gone_for_good_and_its_last_task_has_ended(
    instance: Instance, end: signal.Signals
) -> None:
    rank_0 = instance.start_rank_0()
    node = instance.start_node()
    instance.eventually("the slot is free", lambda: instance.free() == SLOT_RANK)
    ends = instance.folder / "ends"
    instance.flux("submit", "-N1", "sh", "-c", f"echo $$ >{ends}.new; mv {ends}.new {ends}; exec sleep 600")
    instance.eventually("the job runs", ends.exists)
    task = psutil.Process(int(ends.read_text()))
    rank_0.send_signal(end)
    rank_0.wait(20)
    if end == signal.SIGKILL:
        # Rank 0 has not ended the job. The node has looked and spared it, and looks again.
        instance.eventually("it is spared", lambda: "a job keeps it" in (instance.folder / "log").read_text())
        assert node.poll() is None
        assert task.is_running()
        task.kill()
    assert node.wait(60) == 0
    assert "rank 0 has been away for" in (instance.folder / "log").read_text()
