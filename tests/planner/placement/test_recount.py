"""Random fleets, recounted: the placement breaks no rule, and the next plan buys nothing more."""

from __future__ import annotations

from random import Random

import pytest

from tests.planner.placement.recount import bought_again, faults, random_fleet


@pytest.mark.parametrize("hundred", range(5))
def test_no_rule_is_broken_on_random_fleets(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        found = list(faults(*random_fleet(Random(seed))))
        assert not found, f"seed {seed}"


def test_the_plan_after_a_purchase_buys_nothing_more() -> None:
    for seed in range(1000, 1200):
        assert bought_again(*random_fleet(Random(seed))) == 0, f"seed {seed}"


@pytest.mark.parametrize(
    "seed",
    [
        1201,  # jobs that lack one, two and four pieces: booting nodes got the pieces of others
        39885,
        30956,
        20971,  # jobs that want one zone: nodes that boot for others drew them there
        39984,
    ],
)
def test_fleets_for_which_the_next_plan_once_bought_more(seed: int) -> None:
    assert bought_again(*random_fleet(Random(seed))) == 0
