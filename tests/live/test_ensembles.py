"""Ensembles on a real instance: the published examples, the four test files, kills, signals."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nodemanager.ensemble.deeds import Call
from nodemanager.ensemble.file.schema import read_ensemble
from nodemanager.flux.bindings import connection
from nodemanager.flux.ensembles.client import EnsembleClient
from nodemanager.flux.ensembles.functions import WorkerFunctions
from nodemanager.flux.reactor import Reactor
from tests.live.ensemble_runs import DATA, WITHIN_S, EnsembleProcess, ask, groups_of_jobs, two_nodes
from tests.live.instance import LiveInstance, eventually
from tests.paths import CONFIG


@pytest.fixture
def instance() -> Iterator[LiveInstance]:
    """Two nodes of two cores that run jobs."""
    with two_nodes() as live:
        yield live


@pytest.mark.parametrize(
    ("name", "outcome", "jobs"),
    [
        ("hello", "nothing more can happen", {"sleep": 5, "echo": 5}),
        ("terminate", "rule 3 ended it", {"sleep": 5, "echo": 5}),
        ("backoff", "nothing more can happen", {"sleep": 5, "echo-repetition": 6, "echo-backoff": 2}),
        ("heartbeat", "nothing more can happen", {"sleep": 5, "echo": 10}),
        ("grow", "nothing more can happen", {"echo": 10, "sleep": 4}),
        ("t1", "rule 6 ended it", {"prep": 3, "work": 2, "bad": 2, "big": 3, "huge": 1}),
        ("t3", "rule 4 ended it", {"s": 4}),
        ("t4", "nothing more can happen", {"envy": 1}),
    ],
)
def test_a_file_for_ensemble_python_runs_unchanged(
    instance: LiveInstance, name: str, outcome: str, jobs: dict[str, int]
) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, DATA / f"{name}.yaml", "--until-done")
    assert run.wait() == 0, run.errors
    assert run.events[-1]["text"] == outcome
    groups = groups_of_jobs(instance)
    assert {group: groups.count(group) for group in set(groups)} == jobs


@pytest.mark.smoke
def test_t1_counts_what_became_of_each_job(instance: LiveInstance) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t1.yaml")
    assert run.wait() == 0, run.errors
    assert run.counts("bad") == {"finished": 2, "failed": 2}
    assert run.counts("huge") == {"refused": 1}
    assert run.fired() == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]


def test_t2_calls_a_function_in_another_process_and_does_what_it_returns(instance: LiveInstance) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t2.yaml")
    assert run.wait() == 0, run.errors
    assert run.events[-1]["text"] == "rule 4 ended it"
    assert groups_of_jobs(instance).count("two") == 3, "each of the three calls asked for one"


def test_a_custom_function_that_crashes_hangs_or_fails_harms_nothing(instance: LiveInstance) -> None:
    file = instance.directory / "bad.yaml"
    file.write_text("""\
custom: |
  import os
  calls = 0
  def crash(**k): os._exit(3)
  def fail(**k): return 1 / 0
  def nonsense(**k): return [1]
  def nan(**k): return {"name": "submit", "label": "b", "value": float("nan")}
  def half(**k): return {"name": chr(0xd800)}
  def see(metrics, event, rule, action, handle):
      global calls
      calls += 1
      assert metrics.models["count"]["a"]["success"].get() == 1
      assert (rule.trigger, action.label, event["events"][0]["name"]) == ("job-finish", "see", "finish")
      assert handle.attr_get("size") == "3" and calls == 1
      print("heard")
      return {"name": "submit", "label": "b"}
jobs:
  - {name: a, command: "true"}
  - {name: b, command: "true"}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-start, name: a, action: {name: custom, label: crash}}
  - {trigger: job-start, name: a, action: {name: custom, label: fail}}
  - {trigger: job-start, name: a, action: {name: custom, label: nonsense}}
  - {trigger: job-start, name: a, action: {name: custom, label: nan}}
  - {trigger: job-start, name: a, action: {name: custom, label: half}}
  - {trigger: job-finish, name: a, action: {name: custom, label: see}}
""")
    run = EnsembleProcess(instance.uri, instance.directory, file, "--until-done")
    assert run.wait() == 0, run.errors
    notes = " ".join(event["text"] for event in run.events if event["event"] == "note")
    for why in (
        "its process ended with status 3",
        "ZeroDivisionError",
        "it returned list",
        "NaN is no JSON number",
        "half of a",
    ):
        assert why in notes
    assert run.counts("b") == {"finished": 1, "success": 1}, run.errors
    assert "heard" in run.errors


def test_a_custom_function_that_takes_too_long_is_ended_and_the_next_one_is_called(instance: LiveInstance) -> None:
    ensemble, _ = read_ensemble("""\
custom: |
  def hang(**k):
      while True: pass
  def decide(**k): return {"name": "terminate"}
jobs: [{name: a, command: "true"}]
rules:
  - {trigger: start, action: {name: custom, label: hang}}
  - {trigger: start, action: {name: custom, label: decide}}
""")
    returned: list[tuple[Any, str]] = []
    with Reactor(instance.uri) as reactor:
        functions = WorkerFunctions(reactor, ensemble, instance.uri, limit_s=5.0)

        def then(action: Any, why: str) -> None:
            returned.append((action, why))
            if len(returned) == 2:
                reactor.stop()

        functions.call(Call("1.1", "hang", 1), then)
        functions.call(Call("2.1", "decide", 2), then)
        reactor.after(WITHIN_S, reactor.stop)
        try:
            reactor.run()
        finally:
            functions.close()
    assert returned == [(None, "it took longer than 5 s"), ({"name": "terminate"}, "")]


def test_the_optional_keys_reach_flux_and_each_refusal_shows_its_reason(
    instance: LiveInstance, tmp_path: Path
) -> None:
    file = tmp_path / "optional.yaml"
    file.write_text("""\
jobs:
  - {name: environment, command: "sh -c 'echo $COLOUR > colour'", environment: {COLOUR: "deep blue=x"}}
  - {name: whole, command: "true", nodes: 2, exclusive: true, urgency: 20}
  - {name: gpu, command: "true", gpus: 1}
  - {name: queue, command: "true", queue: nosuchqueue}
  - {name: property, command: "true", requires: nosuchproperty}
rules:
  - {trigger: start, action: {name: submit, label: environment}}
  - {trigger: start, action: {name: submit, label: whole}}
  - {trigger: start, action: {name: submit, label: gpu}}
  - {trigger: start, action: {name: submit, label: queue}}
  - {trigger: start, action: {name: submit, label: property}}
""")
    run = EnsembleProcess(instance.uri, instance.directory, file, "--until-done", cwd=tmp_path)
    assert run.wait() == 0, run.errors
    assert (tmp_path / "colour").read_text() == "deep blue=x\n"
    assert {group: run.counts(group) for group in ("whole", "gpu", "queue", "property")} == {
        "whole": {"finished": 1, "success": 1},
        "gpu": {"refused": 1},
        "queue": {"refused": 1},
        "property": {"refused": 1},
    }
    shown = instance.run("jobs", "-a", "-n", "-o", "{urgency} {nnodes} {ncores}").splitlines()
    assert "20 2 4" in shown, "an exclusive job has all cores of its nodes"
    notes = {
        event["text"].split(" was refused: ")[0]: event["text"] for event in run.events if event["event"] == "note"
    }
    assert "GPUs each" in notes["a job of group gpu"]
    assert "nosuchqueue" in notes["a job of group queue"]
    assert "unsatisfiable request" in notes["a job of group property"]


def test_the_example_simulates_until_its_estimate_is_precise(instance: LiveInstance, tmp_path: Path) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, CONFIG / "surrogate.yaml", cwd=tmp_path)
    assert run.wait(120) == 0, run.errors
    model = json.loads((tmp_path / "model.json").read_text())
    assert model["error"] < 0.03
    assert abs(model["mean"] - 3.14159) < 0.4
    counts = run.counts("simulate")
    assert counts["success"] % 4 == 0
    assert len(list((tmp_path / "results").iterdir())) == counts["success"] >= 4


# --- ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_process_and_the_next_one_goes_on(
    instance: LiveInstance, number: int, status: int
) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml")
    eventually("the first job has ended", lambda: "envy" in groups_of_jobs(instance), WITHIN_S)
    run.process.send_signal(number)
    assert run.wait(2) == status, run.errors
    assert "t4: waits for a process" in ask(instance, "list")
    again = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml", "--until-done")
    assert again.wait() == 0, again.errors
    assert again.events[0]["event"] == "resumed"
    assert groups_of_jobs(instance) == ["envy"]


def test_a_run_is_seen_and_stopped_by_its_name(instance: LiveInstance) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml", "--name", "mine")
    run.until("begun")
    assert "mine: runs" in ask(instance, "list")
    assert "start -> submit envy" in ask(instance, "status", "mine")
    second = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml", "--name", "mine")
    assert second.wait() == 1
    assert "another process runs" in second.events[-1]["text"]
    assert "is stopped" in ask(instance, "stop", "mine")
    assert run.wait(5) == 0
    assert "mine: stopped by its user" in ask(instance, "list")
    assert "has ended already" in ask(instance, "stop", "mine")


def test_a_process_that_begins_while_its_run_is_stopped_is_stopped_too(
    instance: LiveInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml")
    run.until("begun")
    ask_process = EnsembleClient._ask
    asked: list[str] = []

    def ask_too_early(client: EnsembleClient, name: str, method: str) -> Any:
        asked.append(method)
        return None if len(asked) == 1 else ask_process(client, name, method)

    monkeypatch.setattr(EnsembleClient, "_ask", ask_too_early)
    with connection(instance.uri) as handle:
        assert EnsembleClient(handle).stop("t4") == "t4 is stopped; its jobs go on"
    assert asked == ["stop", "stop"]
    assert run.wait(5) == 0
    assert run.events[-1]["text"] == "stopped by its user"


def test_while_flux_takes_no_jobs_the_reason_is_shown_once_and_the_jobs_are_submitted_later(
    instance: LiveInstance,
) -> None:
    instance.run("module", "remove", "job-ingest")
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml", "--until-done")
    eventually("it has tried again", lambda: [it["event"] for it in run.events].count("resumed") >= 3, WITHIN_S)
    lost = [event["text"] for event in run.events if event["event"] == "lost"]
    assert len(lost) == 1
    assert "job submission" in lost[0]
    instance.run("module", "load", "job-ingest")
    assert run.wait() == 0, run.errors
    assert groups_of_jobs(instance) == ["envy"]


def test_a_run_goes_on_only_from_the_same_jobs_and_rules(instance: LiveInstance) -> None:
    file = instance.directory / "changing.yaml"
    file.write_text((DATA / "t4.yaml").read_text())
    run = EnsembleProcess(instance.uri, instance.directory, file)
    run.until("begun")
    run.kill()
    file.write_text((DATA / "hello.yaml").read_text())
    second = EnsembleProcess(instance.uri, instance.directory, file)
    assert second.wait() == 1
    assert "with other jobs or rules" in second.events[-1]["text"]
    ask(instance, "stop", "changing")
    third = EnsembleProcess(instance.uri, instance.directory, file, "--until-done")
    assert third.wait() == 0, third.errors
    assert third.events[0]["event"] == "begun"


def test_a_lost_rank_0_is_found_again(instance: LiveInstance) -> None:
    file = instance.directory / "long.yaml"
    file.write_text("""\
jobs: [{name: a, command: "true"}, {name: b, command: sleep 600}]
rules:
  - {trigger: start, action: {name: submit, label: b}}
  - {trigger: job-exception, name: b, action: {name: submit, label: a}}
  - {trigger: metric, name: count.a.success, when: 1, action: {name: terminate}}
""")
    run = EnsembleProcess(instance.uri, instance.directory, file)
    run.until("submit")
    eventually("the job runs", lambda: "R" in instance.run("jobs", "-n", "-o", "{status_abbrev}").split(), WITHIN_S)
    instance.stop_head()
    run.until("lost")
    instance.start_head()
    for rank in (1, 2):
        instance.start_slot(rank)
    assert run.wait() == 0, run.errors
    assert [event["event"] for event in run.events].count("resumed") == 1
    assert groups_of_jobs(instance) == ["a", "b"]


def test_no_instance_is_an_error_with_its_status(instance: LiveInstance) -> None:
    instance.stop_head()
    run = EnsembleProcess(instance.uri, instance.directory, DATA / "t4.yaml")
    assert run.wait() == 69
    assert "cannot reach Flux" in run.errors


# --- kills ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_at_any_moment_changes_nothing(instance: LiveInstance, seed: int) -> None:
    """The process is killed again and again, until the run has ended."""
    chance = Random(seed)
    kills = 0
    while not kills or status_of(instance, "killed")["state"] == "waits for a process":
        run = EnsembleProcess(instance.uri, instance.directory, DATA / "killed.yaml", "--until-done")
        eventually("it is connected", lambda run=run: run.events, WITHIN_S)  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.4))  # the moment of the kill: nothing waits for it
        run.kill()
        kills += 1
    assert kills >= 3
    summary = status_of(instance, "killed")["summary"]
    groups = groups_of_jobs(instance)
    assert {group: groups.count(group) for group in set(groups)} == {"a": 6, "b": 3, "c": 2, "d": 1}
    assert summary["groups"]["a"]["success"] == 6
    assert summary["groups"]["b"]["failed"] == 3
    assert [state["runs"] for state in summary["rules"]] == [1, 3, 1, 1]


def status_of(instance: LiveInstance, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ask(instance, "status", name, "--json"))
    return document
