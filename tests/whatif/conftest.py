from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """Restore logging: the verb configures it for its process, which here runs all tests."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
