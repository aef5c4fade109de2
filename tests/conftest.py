"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

# No test asserts how long something took, least of all on a machine that does other things too.
# What main is held to is the same at every run: a change breaks it, never luck. New examples are for who looks for
# them: `bin/test --hypothesis-profile explore`.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


# A shell starts what it runs in the background deaf to SIGINT, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A test that runs a verb sets the log up, on a stream that is closed with it."""
    yield
    structlog.reset_defaults()
