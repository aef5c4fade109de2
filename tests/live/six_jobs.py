"""Six jobs of different shapes on a site that has no node yet, and what must have become of them in the end."""

from __future__ import annotations

from dataclasses import dataclass

from tests.live.elastic import Elastic, Offer
from tests.live.instance import schedules_gpus
from tests.live.witness import types_of

OFFERS = (
    Offer("cpu", price="0.1", slots="cpu[1-4]"),
    Offer("fast", price="0.2", slots="fast[1-2]"),
    Offer("gpu", price="1", slots="gpu[1-2]", gpus=1),
    Offer("large", price="5", slots="large1"),
)
# What they need at first: one for each job that asks for a type, four for the gang of three and the single one.
SLOTS_WANTED = ("cpu1", "cpu2", "cpu3", "cpu4", "fast1", "gpu1")


@dataclass(frozen=True, slots=True)
class SixJobs:
    to_run: tuple[int, ...]
    held: int


def submit_six_jobs(elastic: Elastic) -> SixJobs:
    """The picky ones first: Flux goes by the order, and the first that starts would else take any node."""
    gpu = elastic.submit("sleep", "0.5", gpus=int(schedules_gpus()), requires={"properties": ["gpu"]})
    fast = elastic.submit("sleep", "0.5", requires={"properties": ["fast"]})
    gang = elastic.submit("sleep", "0.5", nodes=3)
    single = elastic.submit("true")
    dependent = elastic.submit("true", requires={"properties": ["fast"]}, after=fast)
    held = elastic.submit("true", requires={"properties": ["large"]}, held=True)
    return SixJobs((gpu, fast, gang, single, dependent), held)


def run_to_the_end(elastic: Elastic, jobs: SixJobs) -> None:
    """Wait for the one end there is: five have run, the sixth waits, and nothing is left of any node."""
    elastic.eventually("five jobs have run", lambda: all(elastic.result(job) for job in jobs.to_run))
    assert {elastic.result(job) for job in jobs.to_run} == {"COMPLETED"}
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    assert elastic.jobs()[jobs.held].began_at is None
    assert "large" not in types_of(elastic.witness.look().values()), elastic.said()
    assert elastic.witness.doubles() == []
