"""Data that must be copied off the nodes, on a real Flux: who says so, who waits, what is kept, across kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.flux.records.data_safe import key_of
from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.processes import without_flux
from tests.live.test_operate import UNTIL, verb
from tests.paths import ROOT

EVENT = "data-safe"


@pytest.fixture(scope="module")
def site() -> Iterator[Elastic]:
    policy = "wait_for_data = scratch\ndata_max = 3s\n"
    with an_elastic_site([Offer("scratch", "0.4", "scratch[1-4]")], policy=policy) as elastic:
        yield elastic


@pytest.fixture
def elastic(site: Elastic) -> Iterator[Elastic]:
    site.clear()
    yield site
    site.clear()


def say(elastic: Elastic, job: int, *ranks: str, on_rank: int = 0, status: int = 0) -> str:
    """Run the verb on a rank, as housekeeping or an operator does."""
    ran = subprocess.run(
        [
            *("flux", "exec", "-q", f"-r{on_rank}", f"--dir={ROOT}", "env", f"PYTHONPATH={ROOT}"),
            *(sys.executable, "-m", "nodemanager", "data-safe", format_job_id(job), *ranks),
        ],
        env=without_flux() | {"FLUX_URI": elastic.site.flux.uri},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == status, ran.stderr
    return ran.stdout + ran.stderr


def events(elastic: Elastic, job: int) -> list[str]:
    lines = elastic.flux("job", "eventlog", "--format=json", str(job)).splitlines()
    return [json.loads(line)["name"] for line in lines]


def why(elastic: Elastic) -> dict[str, str]:
    return {node["slot"]: node["reason"]["code"] for node in verb(elastic, "nodes")["nodes"]}


def test_each_rank_speaks_for_itself_and_the_last_one_posts_the_event(elastic: Elastic, tmp_path: Path) -> None:
    elastic.start_manager().until_said("claimed")
    end = tmp_path / "end"
    job = elastic.submit("sh", "-c", UNTIL, "sh", str(end), nodes=2)
    elastic.eventually("it runs", lambda: elastic.jobs()[job].began_at is not None)
    first, second = (elastic.ranks()[slot].rank for slot in elastic.jobs()[job].slots)
    assert "speaks for itself only" in say(elastic, job, str(second), on_rank=first, status=1)
    assert f"not yet that of rank {second}" in say(elastic, job, on_rank=first)
    assert EVENT not in events(elastic, job)
    assert f"event {EVENT} posted" in say(elastic, job, on_rank=second)
    assert "all of the job's" in say(elastic, job, on_rank=second)
    elastic.flux("job", "wait-event", "-t10", str(job), EVENT)
    assert events(elastic, job).count(EVENT) == 1
    end.touch()
    elastic.eventually("it ends by itself", lambda: elastic.result(job) == "COMPLETED")
    elastic.flux("job", "wait-event", "-t10", str(job), EVENT)  # also for those who ask later
    elastic.eventually("the nodes leave: their data is safe", lambda: not elastic.what_is_left(), 60.0)


def test_a_node_stays_for_its_data_across_a_kill_of_the_manager(elastic: Elastic) -> None:
    first = elastic.start_manager()
    first.until_said("claimed")
    job = elastic.submit("true")
    elastic.eventually("it has run", lambda: elastic.result(job) == "COMPLETED")
    (slot,) = elastic.jobs()[job].slots
    elastic.eventually("its node is held", lambda: why(elastic) == {slot: "held_for_data"})
    elastic.eventually("somebody is warned", lambda: "data_not_safe" in json.dumps(verb(elastic, "status")))
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    second = elastic.start_manager()
    second.until_said("claimed")
    elastic.eventually("it is held by the next one", lambda: why(elastic) == {slot: "held_for_data"})
    assert len(elastic.launches()) == 1
    second.process.send_signal(signal.SIGKILL)
    second.process.wait(10)
    # No manager runs while it is said, and the job has long ended.
    assert "appended to its eventlog" in say(elastic, job)
    assert events(elastic, job)[-1] == EVENT
    elastic.start_manager().until_said("claimed")
    elastic.eventually("the node leaves", lambda: not elastic.what_is_left(), 60.0)


def test_a_damaged_record_leaves_that_jobs_data_unsafe_and_hides_nothing_else(elastic: Elastic) -> None:
    elastic.start_manager().until_said("claimed")
    damaged, whole = elastic.submit("true"), elastic.submit("true")
    elastic.eventually("both have run", lambda: {elastic.result(damaged), elastic.result(whole)} == {"COMPLETED"})
    (slot,) = elastic.jobs()[damaged].slots
    elastic.flux("kvs", "put", "--append", f"{key_of(JobId(damaged))}=[" + "[" * 1_900)
    assert "appended to its eventlog" in say(elastic, whole)
    elastic.eventually("only its node is held", lambda: why(elastic).get(slot) == "held_for_data")
    other = elastic.submit("true")
    elastic.eventually("others still run", lambda: elastic.result(other) == "COMPLETED")
    elastic.flux("kvs", "unlink", key_of(JobId(damaged)))
    for job in (damaged, other):
        say(elastic, job)
    elastic.eventually("the nodes leave", lambda: not elastic.what_is_left(), 60.0)


def test_an_operator_may_give_the_data_up(elastic: Elastic) -> None:
    elastic.start_manager().until_said("claimed")
    job = elastic.submit("false")
    elastic.eventually("it has failed", lambda: elastic.result(job) == "FAILED")
    (slot,) = elastic.jobs()[job].slots
    elastic.eventually("its node is held", lambda: why(elastic) == {slot: "held_for_data"})
    verb(elastic, "retire", slot)
    elastic.eventually("the node leaves", lambda: not elastic.what_is_left(), 60.0)


def test_what_cannot_be_said_is_refused(elastic: Elastic) -> None:
    elastic.start_manager().until_said("claimed")
    job = elastic.submit("sleep", "600")
    elastic.eventually("it runs", lambda: elastic.jobs()[job].began_at is not None)
    assert "ran on rank" in say(elastic, job, "99", status=1)
    assert "no such job" in say(elastic, 12345, status=1)
    assert "RANKS" in say(elastic, job, "x-y", status=1)
