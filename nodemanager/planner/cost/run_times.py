"""How long jobs run, learned from those that ended, for jobs that have no time limit or end long before theirs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf

from nodemanager.core.jobs import Job, JobState
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.snapshot import Snapshot

SAMPLES_MAX = 10
SAMPLES_MIN = 3
KINDS_MAX = 1000  # users with a shape of job


def with_runs(snapshot: Snapshot, gone: Iterable[Job]) -> Snapshot:
    """The snapshot with the run times of jobs that have just ended. Kinds seen longest ago are forgotten."""
    ended = [
        (job.userid, job.shape, snapshot.wall_at - job.began_at)
        for job in gone
        if job.state in (JobState.RUN, JobState.CLEANUP)
        and job.began_at is not None
        and job.id not in snapshot.jobs
    ]
    if not ended:
        return snapshot
    runs = dict(snapshot.learned.runs_s)
    for userid, shape, ran_s in ended:
        samples = (*runs.pop((userid, shape), ()), max(0.0, ran_s))[-SAMPLES_MAX:]
        runs[userid, shape] = samples
    runs = dict(islice(runs.items(), max(0, len(runs) - KINDS_MAX), None))
    return replace(snapshot, learned=replace(snapshot.learned, runs_s=runs))


def ends_in_s(job: Job, snapshot: Snapshot) -> float:
    """In how many seconds a running job probably ends; infinity if nothing is known about it.

    By the longest of the latest runs of that user's jobs of that shape, or by its time limit if it has run longer.
    """
    limit_s = job.ends_at - snapshot.wall_at if job.ends_at is not None else inf
    samples = snapshot.learned.runs_s.get((job.userid, job.shape), ())
    if job.began_at is not None and len(samples) >= SAMPLES_MIN:
        left_s = max(samples) - (snapshot.wall_at - job.began_at)
        if left_s > 0.0:
            return min(left_s, max(0.0, limit_s))
    return max(0.0, limit_s)
