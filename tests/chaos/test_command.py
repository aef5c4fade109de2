"""``bin/chaos``: which runs it tries, how it reports a seed that breaks a rule, and its exit status."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.planner import plan
from tests.chaos.command import find_shortest, main, run_seed
from tests.chaos.run.script import Script


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_the_shortest_story_has_all_that_is_needed_and_nothing_else(numbers: set[int], data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.sampled_from(sorted(numbers))))
    found = find_shortest(sorted(numbers), lambda part: needed <= set(part), runs_max=10_000)
    assert found == tuple(sorted(needed))


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 5))
def test_it_is_looked_for_so_often_and_no_more(numbers: set[int], runs_max: int) -> None:
    tried: list[tuple[int, ...]] = []

    def fails(part: tuple[int, ...]) -> bool:
        tried.append(part)
        return len(part) > 3

    assert set(find_shortest(sorted(numbers), fails, runs_max)) <= numbers
    assert len(tried) <= runs_max


def test_seeds_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0-1"]) == 0
    assert "2 seeds" in capsys.readouterr().out


def test_seeds_on_several_processors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0-1", "--jobs", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seeds"] == [0, 1]
    assert report["failed"] == []


def test_a_seed_that_breaks_a_rule_is_told_as_a_command_with_the_shortest_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "stray_orders", lambda *_: [])
    assert main(["--seeds", "2", "--json"]) == 1
    (failed,) = json.loads(capsys.readouterr().out)["failed"]
    assert "has had no owner" in failed["rule"]
    script = Script.from_data(failed["script"])
    assert len(script.acts) == len(failed["only"]) < failed["acts"]
    assert "cloud.forgotten" in {act.kind for act in script.acts}
    assert failed["trace"]

    again = failed["command"].split()[1:]
    assert main(again) == 1
    said = capsys.readouterr().out
    assert failed["rule"] in said
    assert failed["command"] in said


def test_a_bug_of_the_service_is_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("slot")

    monkeypatch.setattr(plan, "stray_orders", broken)
    found = run_seed(0)
    assert found is not None
    assert "KeyError" in found.rule


@pytest.mark.parametrize("wrong", [["--seeds", "9-1"], ["--seeds", "a"], ["--seeds", "0-1", "--only", "3"]])
def test_wrong_use(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
