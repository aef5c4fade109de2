"""Jobs that the manager holds: those that limits or a budget keep from being served for long, and copies.

The former have urgency 0. In the snapshot such a job has the urgency and priority that it had before, and
``held_by_us``. So the planner treats it as a waiting job, and finds out when it can be served. The copy of a job is
held until it is known how the job ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from nodemanager.core.facts import CopySettled, JobsHeld, JobsReleased, ResultRead
from nodemanager.core.jobs import Job, JobId, JobResult
from nodemanager.planner.state.queue_index import queue_index_of, updated_queue_index
from nodemanager.planner.state.snapshot import CopyCall, Snapshot, Source

HOLD_AGAIN_S = 5.0
COPY_ORDERS = frozenset({"ReadResult", "StartCopy", "CancelCopy"})
_COPY_AGAIN_S = 1.0


def as_waiting(job: Job, snapshot: Snapshot) -> Job:
    """The job as the planner sees it: with its former urgency if we hold it."""
    held = snapshot.queues.held_jobs.get(job.id) if job.urgency == 0 else None
    if held is None:
        return job
    return replace(job, urgency=held.urgency, priority=held.priority, held_by_us=True)


def apply_held(snapshot: Snapshot, fact: JobsHeld | JobsReleased) -> Snapshot:
    """The snapshot after jobs were held or released."""
    if isinstance(fact, JobsHeld):
        held = {**snapshot.queues.held_jobs, **fact.jobs}
    else:
        held = {id_: it for id_, it in snapshot.queues.held_jobs.items() if id_ not in fact.jobs}
    return with_held_jobs(
        replace(snapshot, queues=replace(snapshot.queues, held_jobs=held, hold_write=Source())), fact.jobs
    )


def with_held_jobs(snapshot: Snapshot, ids: Iterable[JobId]) -> Snapshot:
    """The snapshot with these jobs seen as waiting if they are held on record."""
    known = snapshot.jobs
    seen = {id_: as_waiting(known[id_], snapshot) for id_ in ids if id_ in known}
    come = [job for id_, job in seen.items() if job is not known[id_]]
    if not come:
        return snapshot
    jobs = {**known, **{job.id: job for job in come}}
    gone = [known[job.id] for job in come]
    return replace(
        snapshot,
        jobs=jobs,
        indexes=replace(
            snapshot.indexes,
            queue=updated_queue_index(queue_index_of(known, snapshot.indexes.queue), jobs, gone, come),
        ),
    )


def apply_hold_failed(snapshot: Snapshot, why: str) -> Snapshot:
    """The snapshot after a hold or release failed: it is tried again soon."""
    failed = replace(
        snapshot.queues.hold_write, answer_due_s=None, failure=why, retry_s=snapshot.now_s + HOLD_AGAIN_S
    )
    return replace(snapshot, queues=replace(snapshot.queues, hold_write=failed))


# --- copies -----------------------------------------------------------------------------------------------


def commit_copy_order(snapshot: Snapshot, copy: JobId, answer_s: float) -> Snapshot:
    """The snapshot after the order. It is repeated if nothing has answered within ``answer_s`` seconds."""
    return _with_call(snapshot, copy, retry_s=snapshot.now_s + answer_s)


def apply_copy_answer(snapshot: Snapshot, fact: ResultRead | CopySettled) -> Snapshot:
    """The snapshot after an answer. A settled copy is left alone: if it still waits, it is not ours."""
    if isinstance(fact, CopySettled):
        return _with_call(snapshot, fact.job, retry_s=inf)
    if fact.result is None:
        return retry_copy_order(snapshot, fact.job)
    return _with_call(snapshot, fact.job, retry_s=snapshot.now_s, result=fact.result)


def retry_copy_order(snapshot: Snapshot, copy: JobId) -> Snapshot:
    """The snapshot after an order failed or lapsed. All of them can be repeated."""
    return _with_call(snapshot, copy, retry_s=snapshot.now_s + _COPY_AGAIN_S)


def _with_call(snapshot: Snapshot, copy: JobId, *, retry_s: float, result: JobResult | None = None) -> Snapshot:
    known = snapshot.queues.copy_calls.get(copy, CopyCall())
    call = CopyCall(retry_s, result or known.result)
    calls = {id_: it for id_, it in snapshot.queues.copy_calls.items() if id_ in snapshot.jobs}
    return replace(snapshot, queues=replace(snapshot.queues, copy_calls={**calls, copy: call}))
