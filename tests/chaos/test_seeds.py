"""The production actors under the pump, with faults from seeds: the invariants hold, and every run finishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.command import build_scenario, run_seed, scenario_for_seed, silence_logs
from tests.chaos.join_network import JoinScenario
from tests.chaos.run.script import JOIN_KINDS, JOIN_KNOBS, KINDS, KNOBS, SIZE_KINDS, Script, draw_script
from tests.chaos.scenario import Scenario

SEEDS = 500
AT_ONCE = 10  # seeds in each test
FAILED_ONCE = json.loads((Path(__file__).parent / "failed_once.json").read_text())


@pytest.fixture(autouse=True)
def _quiet() -> None:
    silence_logs()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_seeds(first: int) -> None:
    broken = [run_seed(seed) for seed in range(first, first + AT_ONCE)]
    assert not [f"{it.command}: {it.rule}" for it in broken if it is not None]


@pytest.mark.parametrize("once", FAILED_ONCE, ids=[once["what"] for once in FAILED_ONCE])
def test_what_failed_once(once: dict[str, Any]) -> None:
    # It must not raise.
    build_scenario(Script.from_data(once["script"])).run()


def test_a_script_is_kept_whole() -> None:
    script = draw_script(9, joins=True)
    assert Script.from_data(json.loads(json.dumps(script.as_data()))) == script


@pytest.mark.parametrize("seed", [7, 8])
def test_a_run_without_faults(seed: int) -> None:
    outcome = Scenario(draw_script(seed).without_faults()).run()
    assert outcome.jobs > 0
    # Without faults no node dies by itself: each is destroyed, some twice if the list was slow to show the end.
    assert 0 < outcome.creates <= outcome.destroys
    assert outcome.kills == 0


def test_the_same_seed_gives_the_same_run() -> None:
    assert scenario_for_seed(11).run() == scenario_for_seed(11).run()


def test_every_kind_of_fault_happens() -> None:
    scripts = [draw_script(seed, joins=True) for seed in range(30)]
    drawn = {act.kind for script in scripts for act in script.acts}
    assert drawn >= {*KINDS, *KNOBS, *JOIN_KINDS, *JOIN_KNOBS, *SIZE_KINDS}


def test_in_every_fifth_seed_nodes_join_by_ticket() -> None:
    assert [isinstance(scenario_for_seed(seed), JoinScenario) for seed in range(5)] == [False] * 4 + [True]
