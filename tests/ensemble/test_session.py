"""Whole runs on the simulated instance: their jobs, and what a killed process leaves to the next one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from nodemanager.core.jobs import Shape
from nodemanager.ensemble import session
from nodemanager.ensemble.deeds import Call, Noted
from nodemanager.ensemble.engine import Engine
from nodemanager.ensemble.inputs import Begun, JobEvent, Tick, read_inputs
from nodemanager.simulation.flux.ensemble_port import SimulatedEnsemblePort
from tests.ensemble.runs import DATA, SimulatedRun

T1_TIMES = {"work": 0.5, "bad": 1.0, "big": 1.0, "huge": 0.1}


def text(name: str) -> str:
    return (DATA / f"{name}.yaml").read_text()


# In the simulation a job fails if its time limit is shorter than it runs.
def t1() -> str:
    return text("t1").replace('command: "false", count: 2', 'command: "false", count: 2, duration: 0.2')


def test_t1_each_rule_hears_of_its_own_group() -> None:
    run = SimulatedRun(t1(), run_s=T1_TIMES)
    assert run.until_end() == "rule 6 ended it"
    assert run.submitted() == ["prep"] * 3 + ["work"] * 2 + ["bad"] * 2 + ["big"] * 3 + ["huge"]
    assert run.counts("huge") == {"refused": 1}
    assert run.counts("bad") == {"finished": 2, "failed": 2}


def test_t2_ends_with_what_its_custom_function_asked_for() -> None:
    calls: list[Call] = []

    def decide(call: Call) -> dict[str, str]:
        calls.append(call)
        return {"name": "submit", "label": "two"}

    run = SimulatedRun(text("t2"), functions={"decide": decide})
    assert run.until_end() == "rule 4 ended it"
    assert "two" in run.submitted()
    assert [call.event is None for call in calls] == [True, False, False], "a metric rule has no event"


def test_t3_grows_and_shrinks() -> None:
    run = SimulatedRun(text("t3"), run_s={"s": 2.0})
    assert run.until_end() == "rule 4 ended it"
    assert run.nodes.floors == [2, 4, 3]


def test_a_refused_change_of_nodes_is_shown_and_the_run_goes_on() -> None:
    run = SimulatedRun(text("t3"), run_s={"s": 2.0}, nodes_max=2)
    assert run.until_end() == "rule 4 ended it"
    assert any("at most 2 nodes" in deed.text for deed in run.deeds if isinstance(deed, Noted))


def test_t4_a_rule_for_no_group_never_runs() -> None:
    run = SimulatedRun(text("t4"))
    assert run.until_end() == "nothing more can happen"
    assert run.submitted() == ["envy"]


def test_without_until_done_a_run_goes_on_until_it_is_stopped() -> None:
    run = SimulatedRun(text("t4"), until_done=False)
    run.advance(60)
    assert not run.host.finished
    run.session.stop("stopped by its user")
    assert run.outcome == "stopped by its user"
    assert not run.host.logs


def test_jobs_of_others_change_nothing() -> None:
    run = SimulatedRun("jobs: [{name: a, command: x}]\nrules:\n- {trigger: job-finish, action: {name: notify}}\n")
    run.flux.submit(Shape(1, 1))
    run.advance(5)
    assert not run.fired()


def test_a_group_larger_than_what_is_submitted_at_one_time_is_submitted_whole() -> None:
    run = SimulatedRun(
        "jobs: [{name: a, command: x, count: 1000}]\nrules: [{trigger: start, action: {name: submit, label: a}}]\n",
        nodes=20,
        run_s={"a": 0.01},
    )
    assert run.until_end() == "nothing more can happen"
    assert run.counts("a") == {"finished": 1000, "success": 1000}
    assert len(set(run.keys())) == 1000


# --- restarts ---------------------------------------------------------------------------------------------


def test_start_does_not_run_again_in_a_new_process() -> None:
    run = SimulatedRun(text("hello"), run_s={"sleep": 3.0})
    run.advance(1)
    run.kill()
    run.start()
    run.until_end()
    assert run.submitted() == ["sleep"] * 5 + ["echo"] * 5


def test_what_happened_while_no_process_ran_is_made_up_for() -> None:
    run = SimulatedRun(text("hello"), run_s={"sleep": 1.0})
    run.advance(0.5)
    run.kill()
    run.advance(60)
    run.start()
    run.until_end()
    assert run.submitted() == ["sleep"] * 5 + ["echo"] * 5


def test_heartbeats_that_no_process_made_are_made_up_for() -> None:
    rule = '{trigger: metric, name: max.b-pending, when: "> 5", action: {name: submit, label: c}}'
    run = SimulatedRun(
        "logging: {heartbeat: 1}\n"
        "jobs: [{name: b, command: x, count: 2, nodes: 2, exclusive: true}, {name: c, command: y}]\n"
        f"rules:\n- {{trigger: start, action: {{name: submit, label: b}}}}\n- {rule}\n",
        run_s={"b": 10.0},
    )
    run.advance(1)
    run.kill()
    run.advance(8)
    run.start()
    run.advance(1)
    assert run.fired() == [(1, 1), (2, 1)], "the second job of b waited from the first second on"


def test_a_submission_under_way_when_its_process_dies_is_not_repeated() -> None:
    run = SimulatedRun(text("hello"), run_s={"sleep": 1.0})
    while not run.orders_to_submit():
        run.advance(0.001)
    run.kill()
    run.start()
    run.until_end()
    assert run.submitted() == ["sleep"] * 5 + ["echo"] * 5


WORKLOAD = """\
logging: {heartbeat: 0.7}
custom: "def pick(**k): pass"
jobs:
  - {name: a, command: x, count: 4}
  - {name: b, command: x, count: 3, duration: 0.2, retries: 1}
  - {name: c, command: x, count: 2, nodes: 2}
  - {name: d, command: x, after: [a]}
  - {name: never, command: x, nodes: 9}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-finish, name: a, action: {name: submit, label: b, repetitions: 2, backoff: 1}}
  - {trigger: metric, name: count.a.success, when: 2, action: {name: submit, label: d}}
  - {trigger: metric, name: count.b.failed, when: ">= 4", action: {name: custom, label: pick}}
  - {trigger: metric, name: mean.c-pending, when: "> 0.05", action: {name: grow, repetitions: 2, backoff: 1}}
  - {trigger: job-success, name: c, action: {name: submit, label: never}}
  - {trigger: metric, name: count.never.refused, when: 1, action: {name: notify, message: refused}}
"""


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_kills_at_any_step_change_nothing(first: int) -> None:
    """200 seeds: each step may kill the process. The rules are checked after every step."""
    run_all_with_kills(range(first, first + 20))


def run_all_with_kills(seeds: range) -> None:
    for seed in seeds:
        run_with_kills(seed)


def run_with_kills(seed: int) -> None:
    run = SimulatedRun(
        WORKLOAD,
        seed=seed,
        run_s={"a": 0.5, "b": 1.0, "c": 0.4},
        functions={"pick": lambda _: {"name": "submit", "label": "c"}},
    )
    chance = Random(seed)
    kills = 0
    while not run.outcome:
        assert run.world.now_s < 300, f"seed {seed}: it goes on: {run.session.summary()}"
        run.advance(chance.choice((0.001, 0.01, 0.1)))
        if kills < 40 and not run.outcome and chance.random() < 0.15:
            run.kill()
            run.advance(chance.choice((0.0, 0.005, 0.05, 1.5)))
            run.start()
            kills += 1
        check(run, seed)
    assert run.outcome == "nothing more can happen", seed
    assert kills, seed
    keys = run.keys()
    assert sorted(keys) == sorted(set(keys)), f"seed {seed}: a job was submitted twice"
    # 4 of a; b twice, each member twice; d; c, which the function asked for; never, after the first of c.
    groups = run.submitted()
    expected = {"a": 4, "b": 12, "c": 2, "d": 1, "never": 1}
    assert {group: groups.count(group) for group in expected} == expected, seed
    assert run.counts("b") == {"finished": 6, "failed": 6, "retried": 6}, seed
    assert run.counts("never") == {"refused": 1}, seed


def check(run: SimulatedRun, seed: int) -> None:
    """The rules: each match is accounted for once, the log begins once, no job is counted twice."""
    engine = run.session.engine
    for state in engine.rules:
        assert state.matches == state.runs + state.skipped, f"seed {seed}: {state}"
        assert state.runs <= state.rule.action.repetitions, f"seed {seed}: {state}"
    inputs = read_inputs(run.host.logs.get("run-1", ""))
    assert sum(isinstance(it, Begun) for it in inputs) <= 1, f"seed {seed}: it began twice"
    events = [
        (it.job, it.name) for it in inputs if isinstance(it, JobEvent) and it.name in {"submit", "start", "clean"}
    ]
    assert len(events) == len(set(events)), f"seed {seed}: an event was taken twice"
    ticks = [it.at for it in inputs if isinstance(it, Tick)]
    assert all(after - before > 0.3 for before, after in pairwise(ticks)), f"seed {seed}: {ticks}"
    counted = sum(sum(engine.metrics.counts(group)[name] for name in ENDS) for group in engine.ensemble.groups)
    ended = len(run.host.records) - len(run.flux.active_jobs())
    assert counted <= ended + 1, f"seed {seed}: more members than jobs have ended"


ENDS = ("success", "failed", "cancelled", "refused", "retried")


# --- mutations: each breaks one rule of the design, and some seed must notice it ---------------------------


def forget_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "taken", lambda *_: (0, 0.0))


def repeat_submissions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "IN_DOUBT_S", 0.0)


def let_the_dead_write_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedEnsemblePort, "owns_log", True)


@pytest.mark.parametrize(
    "mutation", [forget_what_was_taken, repeat_submissions_at_once, let_the_dead_write_into_the_log]
)
def test_a_broken_rule_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        run_all_with_kills(range(20))


def test_changes_of_nodes_in_doubt_are_asked_for_in_their_order() -> None:
    grow = "  - {trigger: start, action: {name: grow}}\n"
    run = SimulatedRun("jobs: [{name: a, command: x}]\nrules:\n" + 8 * grow, until_done=False)
    while not run.session.engine.outstanding:
        run.advance(0.001)
    run.kill()
    run.start()
    run.advance(10.0)
    assert run.nodes.floors == [1, 2, 3, 4, 5, 6, 7, 8]
