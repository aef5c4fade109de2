"""Take in what Flux's queue reports: jobs that came, changed or ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodemanager.core.facts import QueueProbed, QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState, UnreadableJob
from nodemanager.planner.backoff import drain_breaker, zones
from nodemanager.planner.cost import run_times
from nodemanager.planner.observe import held_jobs
from nodemanager.planner.observe.sources import unsettled_since_s, with_answer
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of, updated_queue_index
from nodemanager.planner.state.snapshot import Snapshot


def apply_queue(snapshot: Snapshot, fact: QueueSeen, policy: Policy) -> Snapshot:
    """Take over the jobs that the queue reports."""
    fact = zones.gather_wide_jobs(fact, snapshot, policy)
    jobs, unreadable = _jobs_after(snapshot, fact)
    gone, come = _changed_jobs(snapshot.jobs, jobs, None if fact.complete else fact)
    stopped = snapshot.queues.stopped if fact.queues_stopped is None else fact.queues_stopped
    news = snapshot.news
    if any(_starts_waiting(job, snapshot.jobs) for job in come):
        news = replace(news, newest_job_s=snapshot.now_s, unsettled_s=unsettled_since_s(snapshot))
    if gone or come or stopped != snapshot.queues.stopped:
        news = replace(news, changed_s=snapshot.now_s)
    if gone or come:
        snapshot = _with_jobs(snapshot, jobs, gone, come)
    return replace(
        snapshot,
        news=news,
        queues=replace(
            snapshot.queues,
            unreadable=unreadable,
            stopped=stopped,
            asked_s=snapshot.queues.asked_s if fact.queues_stopped is None else fact.started_s,
        ),
        sources=replace(snapshot.sources, queue=with_answer(snapshot.sources.queue, fact.started_s)),
    )


def _jobs_after(snapshot: Snapshot, fact: QueueSeen) -> tuple[dict[JobId, Job], dict[JobId, UnreadableJob]]:
    """The jobs after the report, and those that cannot be read."""
    jobs: dict[JobId, Job] = {} if fact.complete else dict(snapshot.jobs)
    unreadable = {} if fact.complete else dict(snapshot.queues.unreadable)
    for job in fact.jobs:
        jobs[job.id] = held_jobs.as_waiting(job, snapshot) if snapshot.queues.held_jobs else job
        unreadable.pop(job.id, None)
    for job_id in fact.ended:
        jobs.pop(job_id, None)
        unreadable.pop(job_id, None)
    for bad in fact.unreadable:
        unreadable[bad.id] = bad
        jobs.pop(bad.id, None)
    return jobs, unreadable


def _with_jobs(snapshot: Snapshot, jobs: Mapping[JobId, Job], gone: list[Job], come: list[Job]) -> Snapshot:
    """The snapshot with other jobs. ``gone``: the changed jobs as they were; ``come``: as they are."""
    if gone and snapshot.queues.requeued:
        requeued = snapshot.queues.requeued & jobs.keys()
        snapshot = replace(snapshot, queues=replace(snapshot.queues, requeued=requeued))
    known = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    queue_index = updated_queue_index(known, jobs, gone, come)
    snapshot = replace(snapshot, jobs=jobs, indexes=replace(snapshot.indexes, queue=queue_index))
    return run_times.with_runs(drain_breaker.remember_users(snapshot, gone), gone)


def _changed_jobs(
    before: Mapping[JobId, Job], after: Mapping[JobId, Job], fact: QueueSeen | None
) -> tuple[list[Job], list[Job]]:
    """The changed jobs as they were, and as they are. ``fact``: compare only the jobs it names; None: all."""
    if fact is None:
        named: Iterable[JobId] = {**before, **after}
    else:
        named = dict.fromkeys([*(job.id for job in fact.jobs), *fact.ended, *(bad.id for bad in fact.unreadable)])
    gone: list[Job] = []
    come: list[Job] = []
    for id_ in named:
        was, is_ = before.get(id_), after.get(id_)
        if was is not is_ and was != is_:
            gone += [was] if was is not None else []
            come += [is_] if is_ is not None else []
    return gone, come


def _starts_waiting(job: Job, known: Mapping[JobId, Job]) -> bool:
    before = known.get(job.id)
    return job.state is JobState.SCHED and (
        before is None or before.state is not JobState.SCHED or before.shape != job.shape
    )


def apply_probe(snapshot: Snapshot, fact: QueueProbed) -> Snapshot:
    """Note that the queue was asked, and reported nothing new."""
    answered = with_answer(snapshot.sources.queue, fact.started_s)
    return replace(
        snapshot,
        sources=replace(snapshot.sources, queue=answered),
        queues=replace(snapshot.queues, asked_s=fact.started_s),
    )
