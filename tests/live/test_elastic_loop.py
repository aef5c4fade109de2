"""The main job, live: no nodes, jobs come, the right nodes come, the jobs run, the nodes go."""

from __future__ import annotations

import pytest

from tests.live.elastic import Elastic
from tests.live.six_jobs import SLOTS_WANTED, run_to_the_end, submit_six_jobs
from tests.live.witness import slot_of


@pytest.mark.smoke
def test_the_right_nodes_come_for_six_jobs_and_all_go_at_their_window(elastic: Elastic) -> None:
    manager = elastic.start_manager()
    manager.until_said("started")
    jobs = submit_six_jobs(elastic)
    run_to_the_end(elastic, jobs)

    assert sorted(map(slot_of, elastic.witness.look().values())) == list(SLOTS_WANTED)
    assert manager.terminate(within_s=5.0) == 0, manager.tail()
