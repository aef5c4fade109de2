"""Equal jobspecs are kept once, as long as a job has them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from nodemanager.core.jobs import Shape
from nodemanager.flux.parse.job_journal import JobQueue, JobspecPool, KeptJobspec
from nodemanager.flux.parse.jobspec import DroppedJobspec


def _jobspec(cores: int, **more: object) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}
    return {"version": 1, "resources": [slot], "attributes": {"system": {"duration": 60, **more}}}


def _shapes(queue: JobQueue) -> list[Shape]:
    return [job.shape for job in queue.complete(0.0).jobs]


def test_jobspecs_that_differ_only_in_what_is_never_read_are_kept_once() -> None:
    pool = JobspecPool()
    first, second = pool.keep(_jobspec(2, cwd="/a")), pool.keep(_jobspec(2, cwd="/b"))
    assert first is second
    assert isinstance(first, KeptJobspec)
    assert first.parse() == _jobspec(2)
    assert pool.keep(_jobspec(3)) is not first


def test_a_jobspec_is_forgotten_with_the_last_job_that_has_it() -> None:
    queue = JobQueue()
    for number in (1, 2):
        queue.apply(number, "submit", 1.0, {"userid": 7, "urgency": 16}, _jobspec(2))
    (kept,) = (it for it in gc.get_objects() if isinstance(it, KeptJobspec) and it.parse() == _jobspec(2))
    alive = weakref.ref(kept)
    del kept
    queue.apply(1, "clean", 2.0, {})
    assert alive() is not None
    queue.apply(2, "clean", 2.0, {})
    gc.collect()
    assert alive() is None


def test_equal_jobs_share_their_shape_and_an_update_changes_only_one() -> None:
    queue = JobQueue()
    for number in (1, 2):
        queue.apply(number, "submit", 1.0, {"userid": 7, "urgency": 16}, _jobspec(2))
    first, second = _shapes(queue)
    assert first is second
    queue.apply(1, "jobspec-update", 2.0, {"resources": _jobspec(5)["resources"]})
    assert _shapes(queue) == [Shape(1, 5), Shape(1, 2)]


def test_a_jobspec_that_nests_too_deeply_to_be_written_is_dropped() -> None:
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    assert isinstance(JobspecPool().keep({"version": 1, "resources": deep}), DroppedJobspec)
