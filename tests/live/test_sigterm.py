"""SIGTERM at any moment: out in time, and the next manager finds every call that was under way."""

from __future__ import annotations

import random
import threading

import pytest

from tests.live.elastic import Elastic
from tests.live.six_jobs import run_to_the_end, submit_six_jobs

EXIT_WITHIN_S = 5.0
LATEST_S = 4.0


@pytest.mark.parametrize("seed", range(3))
def test_a_manager_told_to_end_leaves_in_time_and_nothing_unrecorded(elastic: Elastic, seed: int) -> None:
    draw = random.Random(seed)
    jobs = submit_six_jobs(elastic)
    for _ in range(3):
        manager = elastic.start_manager()
        manager.until_said("started")
        # The moment is what is tested: any of them must do.
        threading.Event().wait(draw.uniform(0.0, LATEST_S))
        assert manager.terminate(within_s=EXIT_WITHIN_S) == 0, manager.tail()
        assert elastic.unrecorded() == []
    elastic.start_manager()
    run_to_the_end(elastic, jobs)
