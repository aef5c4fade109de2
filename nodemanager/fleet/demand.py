"""Which pending jobs want nodes; and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodemanager.fleet.snapshot import Snapshot
from nodemanager.model import Job, JobId, JobState, Reason, because


@dataclass(frozen=True, slots=True)
class Demand:
    """Jobs in the order in which Flux would start them, and the waiting jobs that no node would help."""

    jobs: tuple[Job, ...]
    withheld: Mapping[JobId, Reason]


def demand(snapshot: Snapshot) -> Demand:
    """Read the demand off the queue: only what the scheduler would start if there were room."""
    withheld: dict[JobId, Reason] = {
        bad.id: because("unreadable", why=bad.why) for bad in snapshot.unreadable.values()
    }
    wanting: list[Job] = []
    for job in sorted(_waiting(snapshot), key=queue_order):
        obstacle = _not_for_want_of_nodes(job, snapshot.queues_stopped)
        if obstacle is None:
            wanting.append(job)
        else:
            withheld[job.id] = obstacle
    return Demand(tuple(wanting), withheld)


def queue_order(job: Job) -> tuple[int, JobId]:
    """The order in which Flux considers jobs: by priority, then as they came (an id holds its time)."""
    return -job.priority, job.id


def _waiting(snapshot: Snapshot) -> list[Job]:
    under_way = (JobState.RUN, JobState.CLEANUP)
    return [job for job in snapshot.jobs.values() if job.state not in under_way]


def _not_for_want_of_nodes(job: Job, queues_stopped: frozenset[str]) -> Reason | None:
    if job.urgency == 0 or job.priority == 0:
        return because("held", urgency=job.urgency, priority=job.priority)
    if job.state is JobState.DEPEND:
        return because("dependency")
    if job.state is not JobState.SCHED:
        return because("not_yet_scheduled", state=str(job.state))
    if job.queue in queues_stopped:
        return because("queue_stopped", queue=job.queue)
    return None
