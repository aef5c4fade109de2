"""The production actors under the pump, faults drawn from seeds: the rules hold, and in peace all ends well."""

import pytest
import structlog

from nodemanager.simulation.scenario import Scenario

SEEDS = range(50)
FAILED_ONCE: tuple[int, ...] = ()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


@pytest.mark.parametrize("seed", [*SEEDS, *FAILED_ONCE])
def test_seed(seed: int) -> None:
    Scenario(seed).run()


def test_a_run_without_faults() -> None:
    outcome = Scenario(7, faults=False).run()
    assert outcome.jobs > 0
    # Without faults no node dies by itself: each is destroyed, some twice, where the list was slow to show it.
    assert outcome.creates <= outcome.destroys


def test_the_same_seed_gives_the_same_run() -> None:
    assert Scenario(11).run() == Scenario(11).run()
