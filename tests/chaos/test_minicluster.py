"""Runs with the pods of a MiniCluster: ``flux-node-manager chaos --provider minicluster``."""

from __future__ import annotations

import pytest

from tests.chaos.command import run_seed, scenario_for_seed, silence_logs
from tests.chaos.run.script import NOT_STACKED, draw_script

SEEDS = range(4)  # more: flux-node-manager chaos --provider minicluster --seeds 0-499


@pytest.mark.parametrize("seed", SEEDS)
def test_no_seed_breaks_a_rule(seed: int) -> None:
    silence_logs()
    assert run_seed(seed, stacked=True) is None


def test_runs_add_and_remove_pods_by_one_call_for_many() -> None:
    silence_logs()
    summary = scenario_for_seed(1, stacked=True).run()
    assert summary.creates > 0
    assert summary.destroys > 0


def test_a_script_has_no_fault_that_a_minicluster_cannot_have() -> None:
    for seed in range(50):
        assert not {act.kind for act in draw_script(seed, stacked=True).acts} & {*NOT_STACKED}
