"""The jobs of a work, by number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.jobs import JobId, Shape
from nodemanager.planner.ranks_and_queue import BatchKey
from nodemanager.planner.work import Work, unplaced_work


@st.composite
def works(draw: st.DrawFn) -> Work:
    runs = []
    for number in range(draw(st.integers(1, 4))):
        ids = [JobId(100 * number + place) for place in range(draw(st.integers(0, 8)))]
        begin = draw(st.integers(0, len(ids)))
        runs.append((BatchKey(0, Shape(1, 1), 60.0, 1, ""), ids, begin, draw(st.integers(begin, len(ids)))))
    return unplaced_work(Shape(1, 1), 60.0, runs)


@given(works(), st.data())
def test_jobs_between_two_numbers_are_the_jobs_of_these_numbers(work: Work, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, work.jobs))
    end = data.draw(st.integers(first, work.jobs))

    assert work.jobs_between(first, end) == [work.job(number) for number in range(first, end)]
