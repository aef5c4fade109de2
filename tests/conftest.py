"""Settings and fixtures for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, cast

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.live.instance import flux_version, why_no_flux

# No deadlines: no test asserts how long something took. By default every run draws the same examples, so that only
# a change can break main. `bin/test --hypothesis-profile explore` draws new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.register_profile("many", deadline=None, max_examples=5000, suppress_health_check=list(HealthCheck))
settings.load_profile("same")


# A shell starts background commands with SIGINT ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--live", action="store_true", help="run all of tests/live, not only its smoke selection")


def _runs_all_of_live(config: pytest.Config) -> bool:
    """Whether all tests on a real Flux were asked for: by the option, or by naming one of their files."""
    named = (Path(argument.partition("::")[0]).parts for argument in config.args)
    return config.getoption("--live") or any("live" in parts for parts in named)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give all tests on a real Flux to one worker: they must not compete for processors.

    All of them take most of an hour. So a run of every check takes those that are marked ``smoke``.
    """
    live = [item for item in items if item.nodeid.startswith("tests/live/")]
    for item in live:
        item.add_marker(pytest.mark.xdist_group("live"))
    if not _runs_all_of_live(config):
        left_out = {item for item in live if item.get_closest_marker("smoke") is None}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on a real Flux: a run without one is no proof."""
    ran = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
        if report.when == "call" and report.nodeid.startswith("tests/live/")
    ]
    why_not = why_no_flux()
    counted = f"none ran, {why_not}" if why_not else f"{len(ran)} ran on {flux_version()}"
    if not why_not and not _runs_all_of_live(terminalreporter.config):
        counted += ", the smoke selection; --live runs all"
    terminalreporter.write_line(f"live: {counted}")


@pytest.fixture(autouse=True)
def _faults_of_the_planner_are_raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service sets a job aside if the planner fails on it. In a test that is a failure, unless it is tested."""
    if request.node.get_closest_marker("sets_aside") is None:

        def refuse(*arguments: object) -> NoReturn:
            raise cast("Exception", arguments[2])

        monkeypatch.setattr("nodemanager.planner.brain.without_culprits", refuse)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A test that runs a verb configures the log on a stream that is closed with the test."""
    yield
    structlog.reset_defaults()
