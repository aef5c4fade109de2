"""An ``ensemble.yaml`` is read whole, or all its faults are shown at once, with their places."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.ensemble.file.model import Action, ActionKind, Condition, Ensemble
from nodemanager.ensemble.file.schema import EnsembleError, Severity, read_action, read_ensemble
from tests.ensemble.runs import DATA

START = "rules: [{trigger: start, action: {name: submit, label: a}}]\n"


def faults_of(text: str) -> list[str]:
    try:
        return [str(fault) for fault in read_ensemble(text)[1]]
    except EnsembleError as error:
        return [str(fault) for fault in error.faults]


def read(
    jobs: str = "{name: a, command: x}", rules: str = "{trigger: start, action: {name: submit, label: a}}"
) -> Ensemble:
    ensemble, faults = read_ensemble(f"jobs: [{jobs}]\nrules: [{rules}]\n")
    assert not faults
    return ensemble


@pytest.mark.parametrize("name", ["t1", "t2", "t3", "hello", "terminate", "backoff", "heartbeat", "grow"])
def test_a_file_for_ensemble_python_is_read_without_a_fault(name: str) -> None:
    _, faults = read_ensemble((DATA / f"{name}.yaml").read_text())
    assert not faults


def test_a_rule_for_a_group_that_does_not_exist_is_a_warning() -> None:
    _, faults = read_ensemble((DATA / "t4.yaml").read_text())
    assert [fault.severity for fault in faults] == [Severity.WARNING]
    assert "never matches" in faults[0].text


def test_every_fault_is_shown_at_once_at_its_place() -> None:
    text = """\
loging: {debug: 1}
logging: {debug: 1, heartbeat: -3}
jobs:
  - {name: a, comand: x, count: 1.5, nodes: -1, command: true}
  - {name: b, command: "echo 'x", after: [c, b]}
  - name: b
    command: [x]
rules:
  - {trigger: job-finsh, action: {name: submit, label: bb, repetitons: 3}}
  - {trigger: metric, name: count.a.sucess, when: "mean > 5", action: {name: submt}}
  - {trigger: metric, name: count.b.success, when: "> 5", action: {name: custom, label: g, backoff: 30x}}
  - 5
"""
    shown = faults_of(text)
    for expected in (
        '1:1: unknown key: loging: this key is not known; did you mean "logging"?',
        "2:18: error: logging.debug:",
        "2:32: error: logging.heartbeat:",
        '4:15: unknown key: jobs[0].comand: this key is not known; did you mean "command"?',
        "4:33: error: jobs[0].count:",
        "4:45: error: jobs[0].nodes:",
        "4:58: error: jobs[0].command: use one text",
        "5:24: error: jobs[1].command: the quotes",
        "7:14: error: jobs[2].command: use one text",
        '9:15: error: "job-finsh" is not a trigger; did you mean "job-finish"?',
        ': error: no group is called "bb"; did you mean "b"?',
        '9:60: unknown key: rules[0].action.repetitons: this key is not known; did you mean "repetitions"?',
        '10:51: error: rules[1].when: "mean > 5" is not a comparison',
        '10:78: error: rules[1].action.name: "submt" is not known',
        ': error: custom: defines no function "g"',
        ": error: backoff:",
        "12:5: error: rules[3]: a mapping is needed",
    ):
        assert any(expected in fault for fault in shown), (expected, shown)
    assert len(shown) == 17


def test_unknown_keys_do_not_keep_a_file_from_running() -> None:
    ensemble, faults = read_ensemble("jobs: [{name: a, command: x, labels: {b: c}}]\n" + START)
    assert [fault.severity for fault in faults] == [Severity.UNKNOWN]
    assert ensemble.groups == ("a",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: error: the file must have the keys jobs and rules"),
        ("- 1\n", "1:1: error: the file must have the keys jobs and rules"),
        ("jobs: []\n", "1:1: error: rules: this key is missing"),
        ("jobs: [\n", "2:1: error: expected the node content"),
        ("jobs: []\njobs: []\nrules: []\n", '2:1: error: the key "jobs" is there twice'),
        ("jobs: &a [*a]\nrules: []\n", "1:7: error: this value contains itself"),
        ("jobs: []\nrules: []\ncustom: 'def f('\n", "3:9: error: custom: its line 1 is not Python"),
        ("jobs: []\nrules: []\nlogging: 2026-13-01\n", "3:10: error: month must be in 1..12"),
        ("a\x00b", "1:2: error: the character U+0000 is not allowed in YAML"),
        ("jobs: !!python/object:os.system {}\nrules: []\n", "1:7: error: "),
    ],
)
def test_what_is_no_ensemble_is_refused_with_its_place(text: str, expected: str) -> None:
    assert any(fault.startswith(expected) for fault in faults_of(text)), faults_of(text)


def test_aliases_cannot_make_a_small_file_large() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert any("more than 100000 values" in fault for fault in faults_of("\n".join(lines)))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    faults_of(text)


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["jobs", "rules", "name", "command", "trigger", "action", "when", "label", "backoff"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    faults_of(json.dumps({"jobs": value, "rules": value, "logging": value, "custom": value}))


# --- values -----------------------------------------------------------------------------------------------


def test_jobs_have_the_defaults_of_ensemble_python() -> None:
    (jobs,) = read("{name: a, command: sleep 10}").sets
    assert (jobs.command, jobs.count, jobs.nodes, jobs.tasks, jobs.duration_s) == (("sleep", "10"), 1, 1, 1, 0)


def test_tasks_are_at_least_one_for_each_node() -> None:
    assert read("{name: a, command: x, nodes: 3}").sets[0].tasks == 3


def test_a_group_may_have_several_sets() -> None:
    ensemble = read("{name: a, command: x}, {name: a, command: y, count: 2}")
    assert ensemble.groups == ("a",)
    assert [jobs.count for jobs in ensemble.sets] == [1, 2]


def test_backoff_counts_matches_or_seconds() -> None:
    rule = "{{trigger: start, action: {{name: submit, label: a, backoff: {}}}}}"
    assert read(rules=rule.format(2)).rules[0].action == Action(ActionKind.SUBMIT, "a", backoff=2)
    assert read(rules=rule.format("1m30s")).rules[0].action == Action(ActionKind.SUBMIT, "a", backoff_s=90)


def test_when_is_read_once() -> None:
    rules = (
        '{trigger: start, action: {name: submit, label: a}}, {trigger: metric, name: count.a.success, when: "> 1",'
        " action: {name: terminate}}"
    )
    assert read(rules=rules).rules[1].condition == Condition(((">", 1.0),))


def test_growing_needs_a_heartbeat() -> None:
    rules = "{trigger: start, action: {name: submit, label: a}}, {trigger: job-run, action: {name: grow}}"
    assert read(rules=rules).heartbeat_s == 60
    assert read().heartbeat_s == 0


def test_groups_that_wait_for_each_other_are_refused() -> None:
    text = "jobs: [{name: a, command: x, after: b}, {name: b, command: x, after: [a]}]\n" + START
    assert "1:37: error: the group a waits for itself" in " ".join(faults_of(text))


def test_a_custom_function_returns_an_action_of_the_file() -> None:
    assert read_action({"name": "submit", "label": "a"}, ["a"]) == Action(ActionKind.SUBMIT, "a")
    for value in ({"name": "submit", "label": "b"}, {"name": "custom", "label": "f"}, {"name": "x"}, {}, 5):
        with pytest.raises(ValueError, match=r"\w"):
            read_action(value, ["a"])


def test_what_ensemble_python_reads_as_a_default_is_one_here_too() -> None:
    jobs = read(jobs="{name: a, command: x, nodes: 0, tasks: 0}").sets[0]
    assert (jobs.nodes, jobs.tasks) == (1, 1)
    start = "{trigger: start, action: {name: submit, label: a}}"
    rule = "{{trigger: job-run, action: {{name: {}, value: {}, label: null, backoff: null}}}}"
    sizes = [("grow", "0", 1), ("grow", "null", 1), ("grow", "3", 3), ("shrink", "-2", 2), ("shrink", "0", 1)]
    for name, value, nodes in sizes:
        action = read(rules=f"{start}, {rule.format(name, value)}").rules[1].action
        assert (action.kind, action.value, action.label) == (name, nodes, "")
    for bad in ("-2", "1.5", "true", '"2"'):
        assert "value" in " ".join(faults_of(f"jobs: []\nrules: [{rule.format('grow', bad)}]"))


def test_a_faulty_start_rule_is_one_fault() -> None:
    text = (
        "jobs: [{name: a, command: x}]\nrules: [{trigger: start, action: {name: submit, label: a, backoff: x}}]\n"
    )
    assert len(faults_of(text)) == 1
