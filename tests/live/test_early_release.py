"""A batch job gives nodes back before it ends, on a real Flux: they are terminated, and the job ends by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.processes import without_flux
from tests.live.test_operate import UNTIL
from tests.paths import ROOT

NODES = 4
EXIT_CODE = 7
WITHIN_S = 90.0

# What the batch script does: it gives back what is idle when it is told to, and ends when it is told to.
SCRIPT = """\
#!/bin/sh
cd {folder}
flux getattr broker.critical-ranks > critical
flux getattr local-uri > uri.tmp && mv uri.tmp uri
until [ -e give ]; do sleep 0.1; done
(cd {root} && {python} -m nodemanager release-idle {options}) > told 2>&1; echo $? > status
until [ -e end ]; do sleep 0.1; done
flux run -N{left} hostname > ran 2>&1 || exit 99
exit {exit_code}
"""


# A batch script whose nodes are given back by themselves. A run that is killed is followed by another.
FOLLOWING = """\
#!/bin/sh
cd {folder}
export PYTHONPATH={root}
flux getattr broker.critical-ranks > critical
flux getattr local-uri > uri.tmp && mv uri.tmp uri
if [ -n "{killed_at}" ]; then
    {python} -m tests.live.killed_release {killed_at} {options} > killed 2>&1; echo $? > killed-status
fi
{python} -m nodemanager release-idle --follow {options} > told 2>&1 &
until [ -e work ]; do sleep 0.1; done
flux run -N{left} hostname > ran 2>&1 || exit 99
until [ -e end ]; do sleep 0.1; done
exit {exit_code}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Elastic]:
    with an_elastic_site([Offer("cpu", "0.4", "cpu[1-4]")], policy="early_release = yes\n") as elastic:
        yield elastic


@pytest.fixture
def elastic(site: Elastic) -> Iterator[Elastic]:
    site.clear()
    yield site
    site.clear()


class Batch:
    """A batch job of four nodes that gives ``4 - left`` back."""

    def __init__(self, elastic: Elastic, folder: Path, *, left: int, options: str = "", exit_code: int = EXIT_CODE,
                 broker_options: str = "", text: str = SCRIPT, killed_at: str = "") -> None:  # fmt: skip
        self._elastic, self._folder = elastic, folder
        script = folder / "batch.sh"
        script.write_text(
            text.format(
                folder=folder,
                root=ROOT,
                python=sys.executable,
                options=options,
                left=left,
                exit_code=exit_code,
                killed_at=killed_at,
            )
        )
        script.chmod(0o755)
        command = ["flux", "batch", f"-N{NODES}", "--exclusive", f"--output={folder / 'out'}"]
        command += [f"--broker-opts={broker_options}"] if broker_options else []
        ran = subprocess.run(
            [*command, str(script)],
            env=without_flux() | {"FLUX_URI": elastic.site.flux.uri, "PYTHONPATH": str(ROOT)},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        self.job = int(elastic.flux("job", "id", "--to=dec", ran.stdout.strip()))
        elastic.eventually("the instance is up", (folder / "uri").exists, WITHIN_S)

    def give(self) -> str:
        """Let it run the verb, and return what that said."""
        (self._folder / "give").touch()
        self._elastic.eventually("it has given back", (self._folder / "status").exists, WITHIN_S)
        told = (self._folder / "told").read_text()
        assert (self._folder / "status").read_text().strip() == "0", told
        return told

    def end(self) -> None:
        (self._folder / "end").touch()
        self._elastic.eventually("it ends", lambda: self._elastic.result(self.job) != "", WITHIN_S)
        self._elastic.flux("job", "wait-event", str(self.job), "clean")  # the KVS has the last events a bit later

    def read(self, name: str) -> str:
        return (self._folder / name).read_text()

    def eventlog(self) -> str:
        return self._elastic.flux("job", "eventlog", str(self.job))


def nodes(elastic: Elastic) -> int:
    return len(elastic.witness.living())


def exit_status(batch: Batch) -> int:
    (finish,) = (line for line in batch.eventlog().splitlines() if " finish " in line)
    return os.waitstatus_to_exitcode(int(finish.split("status=")[1]))


def use_all_again(elastic: Elastic, folder: Path) -> None:
    """The slots of the nodes that were given back are used by the next job of four nodes."""
    end = folder / "end-again"
    again = elastic.submit("sh", "-c", UNTIL, "sh", str(end), nodes=NODES)
    elastic.eventually("all four run a job again", lambda: elastic.jobs()[again].began_at is not None, WITHIN_S)
    assert nodes(elastic) == NODES
    end.touch()
    elastic.eventually("it has run", lambda: elastic.result(again) == "COMPLETED")
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left(), WITHIN_S)


@pytest.mark.parametrize("exit_code", [EXIT_CODE, 0])
def test_two_of_four_nodes_go_and_the_job_ends_by_itself(elastic: Elastic, tmp_path: Path, exit_code: int) -> None:
    elastic.start_manager().until_said("claimed")
    batch = Batch(elastic, tmp_path, left=2, options="--most 2", exit_code=exit_code)
    assert nodes(elastic) == NODES
    assert "given back: rank 3-4" in batch.give()
    elastic.eventually("two are terminated", lambda: nodes(elastic) == NODES - 2, WITHIN_S)
    elastic.eventually("and no longer paid", lambda: len(elastic.launches()) == NODES - 2, WITHIN_S)
    assert elastic.result(batch.job) == ""
    batch.end()
    assert exit_status(batch) == exit_code
    assert "exception" not in batch.eventlog()
    assert batch.read("ran").count("\n") == 2
    use_all_again(elastic, tmp_path)


def test_of_a_tree_only_leaves_go(elastic: Elastic, tmp_path: Path) -> None:
    """With a fan-out of 2, rank 1 has a child, so the job would die with it."""
    elastic.start_manager().until_said("claimed")
    batch = Batch(elastic, tmp_path, left=2, broker_options="-Stbon.topo=kary:2")
    assert batch.read("critical").strip() == "0-1"
    assert "given back: rank 3-4" in batch.give()
    elastic.eventually("the leaves are terminated", lambda: nodes(elastic) == 2, WITHIN_S)
    batch.end()
    assert exit_status(batch) == EXIT_CODE
    use_all_again(elastic, tmp_path)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["drain", "stop_broker", "destroy", "forget"])
def test_a_manager_killed_on_the_way_is_followed_by_one_that_ends_it_well(
    elastic: Elastic, tmp_path: Path, call: str, when: str
) -> None:
    first = elastic.start_manager()
    first.until_said("claimed")
    batch = Batch(elastic, tmp_path, left=1)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    assert "given back: rank 2-4" in batch.give()  # no manager is needed for that
    doomed = elastic.start_manager(call, when, "2", module="tests.live.killed")
    elastic.eventually(f"it dies {when} {call}", lambda: doomed.status is not None, WITHIN_S)
    assert elastic.result(batch.job) == ""
    elastic.start_manager().until_said("claimed")
    elastic.eventually("three are terminated", lambda: nodes(elastic) == 1, WITHIN_S)
    batch.end()
    assert exit_status(batch) == EXIT_CODE
    use_all_again(elastic, tmp_path)


@pytest.mark.parametrize("killed_at", ["", "after-drain", "after-stop"])
def test_idle_nodes_are_given_back_by_themselves(elastic: Elastic, tmp_path: Path, killed_at: str) -> None:
    """Two of four stay. A run that is killed between two steps is followed by one that ends it."""
    elastic.start_manager().until_said("claimed")
    options = "--idle-timeout 1s --nodes-min 2"
    batch = Batch(elastic, tmp_path, left=2, options=options, text=FOLLOWING, killed_at=killed_at)
    elastic.eventually("two are terminated", lambda: nodes(elastic) == NODES - 2, WITHIN_S)
    elastic.eventually("and no longer paid", lambda: len(elastic.launches()) == NODES - 2, WITHIN_S)
    assert "given back: rank 3-4" in batch.read("told") or killed_at
    if killed_at:
        assert batch.read("killed-status").strip() == "137"
    (tmp_path / "work").touch()
    elastic.eventually("the rest still runs jobs", lambda: "\n" in _text(tmp_path / "ran"), WITHIN_S)
    batch.end()
    assert exit_status(batch) == EXIT_CODE
    assert "exception" not in batch.eventlog()
    assert batch.read("ran").count("\n") == 2
    use_all_again(elastic, tmp_path)


@pytest.mark.parametrize("killed_at", ["after-drain", "after-stop"])
def test_both_managers_killed_together_are_followed_by_ones_that_end_it_well(
    elastic: Elastic, tmp_path: Path, killed_at: str
) -> None:
    first = elastic.start_manager()
    first.until_said("claimed")
    (tmp_path / "manager-pid").write_text(str(first.process.pid))
    options = "--idle-timeout 1s --nodes-min 2"
    batch = Batch(elastic, tmp_path, left=2, options=options, text=FOLLOWING, killed_at=killed_at)
    elastic.eventually(
        "both are dead", lambda: first.status is not None and _text(tmp_path / "killed-status"), WITHIN_S
    )
    assert batch.read("killed-status").strip() == "137"
    elastic.eventually("the next run has told", lambda: "rank 3-4" in _text(tmp_path / "told"), WITHIN_S)
    assert nodes(elastic) == NODES, "only a manager terminates nodes"
    elastic.start_manager().until_said("claimed")
    elastic.eventually("two are terminated", lambda: nodes(elastic) == NODES - 2, WITHIN_S)
    elastic.eventually("and no longer paid", lambda: len(elastic.launches()) == NODES - 2, WITHIN_S)
    (tmp_path / "work").touch()
    elastic.eventually("the rest still runs jobs", lambda: "\n" in _text(tmp_path / "ran"), WITHIN_S)
    batch.end()
    assert exit_status(batch) == EXIT_CODE
    assert "exception" not in batch.eventlog()
    use_all_again(elastic, tmp_path)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_an_instance_that_is_no_job_has_nothing_to_give(elastic: Elastic) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "nodemanager", "release-idle", "--uri", elastic.site.flux.uri],
        env=without_flux(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "no job of another instance" in textwrap.fill(ran.stderr, 500)
