"""Operated on a real Flux: why a job waits stands on it, Flux answers for us, what operators set holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from nodemanager.flux import bindings
from tests.live.elastic import RPC_WITHIN_S, Elastic
from tests.live.processes import without_flux
from tests.paths import ROOT

LARGE = {"properties": ["large"]}  # a type of one slot
UNTIL = 'until [ -e "$1" ]; do sleep 0.1; done'  # a job that ends when it is told to


def verb(elastic: Elastic, *arguments: str) -> Any:
    """What a verb answers, as JSON."""
    command = [
        sys.executable,
        "-m",
        "nodemanager",
        "--config",
        str(elastic.site.path),
        *arguments,
        "--json",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=without_flux())
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def memo(elastic: Elastic, job: int) -> str:
    return elastic.flux("jobs", "-no", "{user.nodes}", str(job)).strip()


def drain_reason(elastic: Elastic, slot: str) -> str | None:
    return elastic.ranks()[slot].drain_reason


def test_a_waiting_job_says_why_where_users_look_and_no_longer_once_it_runs(
    elastic: Elastic, tmp_path: Path
) -> None:
    elastic.start_manager().until_said("claimed")
    runs = elastic.submit("sleep", "600", requires=LARGE)
    elastic.eventually("it runs", lambda: elastic.jobs()[runs].began_at is not None)
    end = tmp_path / "end"
    waits = elastic.submit("sh", "-c", UNTIL, "sh", str(end), requires=LARGE)
    elastic.eventually("the memo says why", lambda: "short of large" in memo(elastic, waits))
    elastic.eventually("a running job has none", lambda: memo(elastic, runs) == "")
    elastic.flux("cancel", str(runs))
    elastic.eventually("the other runs", lambda: elastic.jobs()[waits].began_at is not None)
    # Flux does not change the memo of an ended job.
    elastic.eventually("it has none either", lambda: memo(elastic, waits) == "")
    end.touch()
    elastic.eventually("the other has run", lambda: elastic.result(waits) == "COMPLETED")
    assert memo(elastic, waits) == ""


def test_a_memo_of_an_earlier_manager_goes_too(elastic: Elastic, tmp_path: Path) -> None:
    """The job starts while no manager runs; the next one clears what the last one wrote."""
    first = elastic.start_manager()
    first.until_said("claimed")
    end = tmp_path / "end"
    runs = elastic.submit("sh", "-c", UNTIL, "sh", str(end), requires=LARGE)
    elastic.eventually("it runs", lambda: elastic.jobs()[runs].began_at is not None)
    waits = elastic.submit("sleep", "600", requires=LARGE)
    elastic.eventually("the memo says why", lambda: memo(elastic, waits))
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    end.touch()
    elastic.eventually("the other one starts", lambda: elastic.jobs()[waits].began_at is not None)
    assert memo(elastic, waits)
    elastic.start_manager().until_said("claimed")
    elastic.eventually("its memo is gone", lambda: memo(elastic, waits) == "")
    elastic.flux("cancel", str(waits))


def test_flux_answers_how_the_fleet_stands(elastic: Elastic) -> None:
    elastic.start_manager().until_said("claimed")

    def status() -> Any:
        with bindings.connection(elastic.site.flux.uri) as handle:
            return bindings.ask(handle, "node-manager-info.status", timeout_s=RPC_WITHIN_S)

    elastic.eventually("it acts", lambda: status()["acts"])
    assert (status()["cluster"], status()["nodes"]["total"]) == (elastic.site.cluster, 0)


def test_a_held_node_gets_no_work_outlives_a_restart_and_goes_once_released(
    elastic: Elastic, tmp_path: Path
) -> None:
    first = elastic.start_manager()
    end = tmp_path / "end"
    job = elastic.submit("sh", "-c", UNTIL, "sh", str(end), requires=LARGE)
    elastic.eventually("it runs", lambda: elastic.jobs()[job].began_at is not None)
    assert verb(elastic, "hold", "large1")["on_record"]
    elastic.eventually(
        "it is drained", lambda: "flux-node-manager:hold:" in (drain_reason(elastic, "large1") or "")
    )
    end.touch()
    elastic.eventually("its job ends in peace", lambda: elastic.result(job) == "COMPLETED")

    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    elastic.start_manager().until_said("claimed")

    waits = elastic.submit("true", requires=LARGE)
    elastic.eventually("it waits for another", lambda: memo(elastic, waits))
    explained = verb(elastic, "explain", "node", "large1")
    assert explained["reason"]["code"] == "held_by_operator"
    assert elastic.ranks()["large1"].online

    verb(elastic, "release", "large1")
    elastic.eventually("the job has run on it", lambda: elastic.result(waits) == "COMPLETED")
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())


def test_a_busy_node_is_retired_when_its_job_has_ended(elastic: Elastic, tmp_path: Path) -> None:
    elastic.start_manager()
    end = tmp_path / "end"
    job = elastic.submit("sh", "-c", UNTIL, "sh", str(end), requires=LARGE)
    elastic.eventually("it runs", lambda: elastic.jobs()[job].began_at is not None)
    verb(elastic, "retire", "large1")
    elastic.eventually("it takes no more", lambda: drain_reason(elastic, "large1") is not None)
    end.touch()
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    assert elastic.result(job) == "COMPLETED"


def test_while_paused_nothing_is_bought_and_the_journal_tells_of_it(elastic: Elastic) -> None:
    manager = elastic.start_manager()
    manager.until_said("claimed")
    verb(elastic, "pause")
    job = elastic.submit("true", requires=LARGE)
    elastic.eventually("the job is seen", lambda: verb(elastic, "status")["jobs"].get("sched"))
    assert manager.orders() == []
    verb(elastic, "resume")
    elastic.eventually("the job has run", lambda: elastic.result(job) == "COMPLETED")
    elastic.eventually("the report has its cost", lambda: verb(elastic, "report", "--since", "1h")["cost"] > 0)
    told = [(event["kind"], event["what"]) for event in _events(elastic)]
    story = [("operator", "pause"), ("operator", "resume"), ("decided", "BootNode")]
    assert sorted(story, key=told.index) == story


def _events(elastic: Elastic) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "nodemanager", "--config", str(elastic.site.path), "events", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return [json.loads(line) for line in ran.stdout.splitlines()]
