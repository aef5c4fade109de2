"""An existing instance made elastic, whose rank 0 runs jobs: its cores count, and no node is bought for them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemanager.core.reason_codes import Code
from tests.live.elastic import Elastic, Offer
from tests.live.instance import why_no_flux

SLOTS = 2
# The limits of the site pay for no node of the second type, which Flux does not know.
OFFERS = (Offer("cpu", price="0.1", slots=f"cpu[1-{SLOTS}]"), Offer("dear", price="1000", slots="dear1"))
EXCLUDED = 'exclude = "0"\n'


@pytest.fixture(scope="module")
def running_site() -> Iterator[Elastic]:
    """A site with two slots, on whose rank 0 Flux runs jobs, and a manager that acts."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        elastic = Elastic(Path(folder), OFFERS)
        table = elastic.site.flux.bootstrap_dir / "conf.d" / "flux.toml"
        text = table.read_text(encoding="utf-8")
        assert EXCLUDED in text
        table.write_text(text.replace(EXCLUDED, ""), encoding="utf-8")
        try:
            elastic.start_head()
            elastic.start_manager().until_said("started")
            yield elastic
        finally:
            elastic.reap()


@pytest.fixture
def elastic(running_site: Elastic) -> Iterator[Elastic]:
    yield running_site
    running_site.flux("cancel", "--all", check=False)
    running_site.eventually("all nodes have ended", lambda: not running_site.witness.living())
    running_site.witness.begin_anew()


def waits_for(elastic: Elastic, job: int) -> dict[str, Any]:
    """Why a job waits, as ``explain`` tells."""
    told = json.loads(elastic.verb("explain", "job", str(job), "--json"))
    reason: dict[str, Any] = told["reason"] or {}
    return reason


def test_a_job_of_two_nodes_buys_one(elastic: Elastic) -> None:
    job = elastic.submit("sleep", "0.5", nodes=2)
    elastic.eventually("it has run", lambda: elastic.result(job))

    assert elastic.result(job) == "COMPLETED"
    assert len(elastic.jobs()[job].slots) == 2
    assert len(elastic.witness.look()) == 1, elastic.said()


def test_a_job_of_all_slots_and_one_node_more_is_served_with_rank_0(elastic: Elastic) -> None:
    job = elastic.submit("sleep", "0.5", nodes=SLOTS + 1, requires={"properties": ["^dear"]})
    elastic.eventually("it has run", lambda: elastic.result(job))

    assert elastic.result(job) == "COMPLETED"
    assert {"cpu1", "cpu2"} < {*elastic.jobs()[job].slots}
    assert len(elastic.witness.look()) == SLOTS, elastic.said()


def test_no_node_is_bought_behind_a_job_that_flux_keeps_and_no_node_can_serve(elastic: Elastic) -> None:
    """Flux finds the first job feasible, and in the order of its queue nothing starts before it."""
    first = elastic.submit("true", requires={"properties": ["dear"]})
    behind = elastic.submit("sleep", "0.5", nodes=2)
    elastic.eventually("it waits", lambda: waits_for(elastic, behind).get("code") == Code.BEHIND_A_STUCK_JOB)
    assert not elastic.witness.look(), elastic.said()

    elastic.flux("cancel", str(first))
    elastic.eventually("it has run", lambda: elastic.result(behind))
    assert elastic.result(behind) == "COMPLETED"
