"""Take in what Flux's queue reports: jobs that came, changed or ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodemanager.core.facts import QueueProbed, QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState
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
    known = snapshot.jobs
    jobs: dict[JobId, Job] = {} if fact.complete else dict(known)
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
    gone, come = _changed_jobs(known, jobs, None if fact.complete else fact)
    now_s = snapshot.now_s
    if any(_starts_waiting(job, known) for job in come):
        snapshot = replace(
            snapshot,
            news=replace(snapshot.news, newest_job_s=now_s, unsettled_s=unsettled_since_s(snapshot)),
        )
    stopped = snapshot.queues.stopped if fact.queues_stopped is None else fact.queues_stopped
    if gone or come or stopped != snapshot.queues.stopped:
        snapshot = replace(snapshot, news=replace(snapshot.news, changed_s=now_s))
    if gone and snapshot.queues.requeued:
        snapshot = replace(
            snapshot, queues=replace(snapshot.queues, requeued=snapshot.queues.requeued & jobs.keys())
        )
    if gone or come:
        queue_index = updated_queue_index(queue_index_of(known, snapshot.indexes.queue), jobs, gone, come)
        snapshot = replace(snapshot, jobs=jobs, indexes=replace(snapshot.indexes, queue=queue_index))
        snapshot = run_times.with_runs(drain_breaker.remember_users(snapshot, gone), gone)
    return replace(
        snapshot,
        queues=replace(
            snapshot.queues,
            unreadable=unreadable,
            stopped=stopped,
            asked_s=snapshot.queues.asked_s if fact.queues_stopped is None else fact.started_s,
        ),
        sources=replace(snapshot.sources, queue=with_answer(snapshot.sources.queue, fact.started_s)),
    )


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
