"""Instances of a real Flux for the tests of this folder, each in a directory of its own and reaped in the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.elastic import Elastic, an_elastic_site
from tests.live.instance import LiveInstance, why_no_flux
from tests.live.six_jobs import OFFERS


@pytest.fixture
def instance() -> Iterator[LiveInstance]:
    """A running rank 0 and three slots, none of them online."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        live = LiveInstance(Path(directory))
        try:
            live.start_head()
            yield live
        finally:
            live.reap()


@pytest.fixture(scope="module")
def elastic_site() -> Iterator[Elastic]:
    # A budget, so that what is spent is put on record too; none of the tests comes near it.
    with an_elastic_site(OFFERS, policy="[Budget]\nper_day = 1000000") as elastic:
        yield elastic


@pytest.fixture
def elastic(elastic_site: Elastic) -> Iterator[Elastic]:
    """A site with the offers of ``six_jobs``: rank 0 is up, and nothing else is there."""
    elastic_site.witness.begin_anew()
    yield elastic_site
    elastic_site.clear()
    assert elastic_site.witness.doubles() == []
