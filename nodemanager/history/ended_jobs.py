"""The jobs that have ended, with what a replay needs: their shape and the times of submission, start and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, Shape


@dataclass(frozen=True, slots=True)
class EndedJob:
    """Times are wall-clock. ``ended_at`` is when the service noticed the end, shortly after it."""

    id: JobId
    submitted_at: float
    began_at: float | None
    ended_at: float
    duration_s: float
    userid: int
    queue: str
    shape: Shape


class EndedJobTracker:
    """Finds the jobs that ended between publications. It remembers the active jobs only.

    A job submitted and ended between two publications is found in the facts. If publications were dropped, the
    newest snapshot shows which jobs are gone. A job that ended while no manager ran is never found.
    """

    def __init__(self) -> None:
        self._jobs: Mapping[JobId, Job] = {}  # of the newest snapshot

    def update(self, publications: Sequence[Publication]) -> tuple[EndedJob, ...]:
        """Return the jobs that ended since the last call. Takes at least one publication, the newest last."""
        ended: dict[JobId, EndedJob] = {}
        between: dict[JobId, Job] = {}  # known from facts only
        for it in publications:
            for fact in it.facts:
                if isinstance(fact, QueueSeen):
                    between |= {job.id: job for job in fact.jobs}
                    for id_ in fact.ended:
                        job = between.pop(id_, None) or self._jobs.get(id_)
                        if job is not None:
                            ended[id_] = _ended_job(job, it.snapshot.wall_at)
        newest = publications[-1].snapshot
        before, self._jobs = self._jobs, newest.jobs
        if before is not newest.jobs:
            missed = (job for id_, job in before.items() if id_ not in newest.jobs and id_ not in ended)
            ended |= {job.id: _ended_job(between.get(job.id, job), newest.wall_at) for job in missed}
        return tuple(ended.values())


def _ended_job(job: Job, ended_at: float) -> EndedJob:
    ran = job.state in (JobState.RUN, JobState.CLEANUP)
    began_at = job.began_at if ran else None
    return EndedJob(job.id, job.submitted_at, began_at, ended_at, job.duration_s, job.userid, job.queue, job.shape)
