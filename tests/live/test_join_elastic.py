"""The elastic loop where nodes join by ticket: manager, join service and rank 0 are processes of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.live.elastic import Elastic, an_elastic_site
from tests.live.six_jobs import OFFERS, SLOTS_WANTED, run_to_the_end, submit_six_jobs
from tests.live.witness import slot_of


@pytest.fixture(scope="module")
def site() -> Iterator[Elastic]:
    with an_elastic_site(OFFERS, by_tickets=True) as elastic:
        yield elastic


@pytest.fixture
def elastic(site: Elastic) -> Iterator[Elastic]:
    site.witness.begin_anew()
    yield site
    site.clear()
    assert site.witness.doubles() == []


@pytest.mark.smoke
def test_the_right_nodes_come_by_ticket_for_six_jobs_and_all_go_at_their_window(elastic: Elastic) -> None:
    service = elastic.start_join_service()
    manager = elastic.start_manager()
    manager.until_said("started")
    jobs = submit_six_jobs(elastic)
    run_to_the_end(elastic, jobs)

    assert sorted(map(slot_of, elastic.witness.look().values())) == list(SLOTS_WANTED)
    assert len(manager.said("node_reported", phase="started")) == len(SLOTS_WANTED)
    assert manager.terminate(within_s=5.0) == 0, manager.tail()
    assert service.terminate(within_s=10.0) == 0, service.tail()


def test_a_service_killed_at_any_time_is_followed_by_one_that_knows_every_ticket(elastic: Elastic) -> None:
    elastic.start_manager()
    job = elastic.submit("sleep", "3")
    first = elastic.start_join_service()
    first.until_said("granted", what="/v1/redeem")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(10)
    second = elastic.start_join_service()
    elastic.eventually("the job has run", lambda: elastic.result(job) == "COMPLETED")
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    assert second.said("ticket_replayed") == []
