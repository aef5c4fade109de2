"""Nothing is lost: the manager, nodes and rank 0 die again and again under a stream of jobs, and every job runs.

``FNM_STREAM_JOBS=500 FNM_STREAM_KILLS=100 FNM_STREAM_DEATHS=50 FNM_STREAM_RESTARTS=2 FNM_STREAM_CRASHES=2 pytest
tests/live/test_stream.py`` for the whole of it. ``FNM_STREAM_SEED`` draws other moments.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.live.elastic import an_elastic_site
from tests.live.stream import BILLING, OFFERS, TIMING, Size, Stream

SIZE = Size(
    jobs=int(os.environ.get("FNM_STREAM_JOBS", "60")),
    kills=int(os.environ.get("FNM_STREAM_KILLS", "10")),
    deaths=int(os.environ.get("FNM_STREAM_DEATHS", "5")),
    restarts=int(os.environ.get("FNM_STREAM_RESTARTS", "1")),
    crashes=int(os.environ.get("FNM_STREAM_CRASHES", "1")),
    seed=int(os.environ.get("FNM_STREAM_SEED", "1")),
)
WITHIN_S = 600.0  # from the first job to the last
GONE_WITHIN_S = 60.0


@pytest.mark.timeout(WITHIN_S + 2 * GONE_WITHIN_S)
def test_nothing_is_lost_and_nothing_doubled_whatever_dies(capsys: pytest.CaptureFixture[str]) -> None:
    with an_elastic_site(OFFERS, billing=BILLING, timing=TIMING) as elastic:
        began_s = time.monotonic()
        stream = Stream(elastic, SIZE)
        stream.run()
        elastic.eventually("every job has run", stream.all_ran, WITHIN_S - (time.monotonic() - began_s))
        ran_s = time.monotonic() - began_s
        elastic.eventually("nothing is left", lambda: not elastic.what_is_left(), GONE_WITHIN_S)
        took_s = time.monotonic() - began_s

        tally = stream.tally
        figures = (
            f"seed {SIZE.seed}: {len(stream.works)} jobs had run after {ran_s:.0f} s, gone after {took_s:.0f} s",
            f"managers killed {tally.kills}, {tally.kills_in_office} while acting",
            f"rank 0 stopped {tally.restarts}, crashed {tally.crashes}",
            f"nodes died {tally.deaths}: {tally.whole_deaths} whole, {tally.broker_deaths} by their broker",
            f"jobs ended early and submitted again {len(tally.ended_early)}, forgotten {tally.forgotten}",
            f"nodes booted {len(elastic.witness.look())}",
        )
        with capsys.disabled():
            print("", *figures, sep="\n")
        assert len(stream.works) == SIZE.jobs
        assert (tally.kills, tally.deaths) == (SIZE.kills, SIZE.deaths)
        assert (tally.restarts, tally.crashes) == (SIZE.restarts, SIZE.crashes)
        assert tally.unexplained() == []
        assert tally.forgotten == 0 or tally.crashes, "rank 0 was stopped in good order"
        assert tally.ended_by_itself == []
        assert elastic.witness.doubles() == []
        assert not stream.processes_left()
