from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """The verb sets the log up for its process, which here is that of all tests."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
