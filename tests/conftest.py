"""Settings and fixtures for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from tests.live.instance import flux_version, why_no_flux

# No deadlines: no test asserts how long something took. By default every run draws the same examples, so that only
# a change can break main. `bin/test --hypothesis-profile explore` draws new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


# A shell starts background commands with SIGINT ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests on a real Flux to one worker: they must not compete for processors."""
    for item in items:
        if item.nodeid.startswith("tests/live/"):
            item.add_marker(pytest.mark.xdist_group("live"))


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
    terminalreporter.write_line(f"live: {counted}")


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A test that runs a verb configures the log on a stream that is closed with the test."""
    yield
    structlog.reset_defaults()
