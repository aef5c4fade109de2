"""The jobs that have ended: what each asked for, when it came, when it ran. What a replay of them needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, Shape


@dataclass(frozen=True, slots=True)
class EndedJob:
    """Moments are wall-clock. ``ended_at`` is when we heard of it, a moment after the end."""

    id: JobId
    submitted_at: float
    began_at: float | None
    ended_at: float
    duration_s: float
    userid: int
    queue: str
    shape: Shape


class EndedJobTracker:
    """Follows the publications; it remembers the active jobs only.

    The facts tell of a job that came and ended from one publication to the next, the snapshot of what was missed
    where publications were left out. A job that ended while no manager ran is told of by neither.
    """

    def __init__(self) -> None:
        self._jobs: Mapping[JobId, Job] = {}  # of the newest snapshot

    def update(self, publications: Sequence[Publication]) -> tuple[EndedJob, ...]:
        """Those that ended since the last publication before these: at least one, in their order."""
        ended: dict[JobId, EndedJob] = {}
        between: dict[JobId, Job] = {}  # known by the facts alone
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
