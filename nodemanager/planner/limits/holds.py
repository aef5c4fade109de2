"""Hold jobs that limits or a budget keep from being served for long, and release them when they can be served.

In queue order such a job would keep every job behind it from starting. Flux's scheduler passes over a job of
urgency 0. Only jobs that the record names as held by us are released. See :class:`Unserved`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from nodemanager.core.jobs import JobId, Unserved
from nodemanager.core.orders import HoldJobs, ReleaseJobs
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.records import HeldJob
from nodemanager.planner.backoff.drain_breaker import users_put_off
from nodemanager.planner.placement.placement import Placement
from nodemanager.planner.state.obstacle import Hindrance
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import BatchKey
from nodemanager.planner.state.snapshot import Snapshot

JOBS_PER_ORDER_MAX = 100


def may_hold(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether any job may have to be held or released. If not, no placement is needed to know it."""
    may = policy.rules.unserved is Unserved.HOLD or policy.budgets or snapshot.learned.drain_streaks
    return bool(may or snapshot.queues.held_jobs)


def hold_orders(snapshot: Snapshot, policy: Policy, placement: Placement) -> tuple[HoldJobs | ReleaseJobs, ...]:
    """The order to hold jobs or to release some, if one is needed and none is in flight."""
    write = snapshot.queues.hold_write
    if write.answer_due_s is not None or snapshot.now_s < write.retry_s:
        return ()
    unserved = dict(_jobs_to_hold(snapshot, policy, placement))
    new = (id_ for id_ in unserved if not snapshot.jobs[id_].held_by_us)
    if first := tuple(islice(new, JOBS_PER_ORDER_MAX)):
        jobs = {id_: HeldJob(snapshot.jobs[id_].urgency, snapshot.jobs[id_].priority) for id_ in first}
        return (HoldJobs(jobs, because(Code.JOBS_HELD, job_count=len(jobs), job=str(first[0]))),)
    served = sorted(id_ for id_ in snapshot.queues.held_jobs if id_ not in unserved)[:JOBS_PER_ORDER_MAX]
    if not served:
        return ()
    back = {id_: snapshot.queues.held_jobs[id_] for id_ in served}
    return (ReleaseJobs(back, because(Code.JOBS_RELEASED, job_count=len(back), job=str(served[0]))),)


def _jobs_to_hold(snapshot: Snapshot, policy: Policy, placement: Placement) -> Iterator[tuple[JobId, Reason]]:
    off = users_put_off(snapshot)
    for key, ids in placement.demand.batches.items():
        if (held := _held_from(key, policy, placement, off)) is not None:
            begin, why = held
            yield from ((id_, why) for id_ in islice(ids, begin, None))


def _held_from(
    key: BatchKey, policy: Policy, placement: Placement, off: Mapping[int, Reason]
) -> tuple[int, Reason] | None:
    """From which job of a batch on the jobs are held, and why; None if none is."""
    if key.userid in off and policy.holds(of_user=True):
        return 0, off[key.userid]
    never = placement.refusals.infeasible.get((key.shape, key.span_s))
    if never is not None and never.kind is Hindrance.BEYOND_LIMITS and policy.holds(of_user=False):
        return 0, never.reason
    cut = placement.refusals.cuts.get(key)
    return (cut.count, cut.why) if cut is not None and policy.holds(of_user=cut.of_user) else None
