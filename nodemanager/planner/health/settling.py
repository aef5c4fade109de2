"""Whether the queue has been quiet for long enough to buy nodes for it."""

from __future__ import annotations

from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


def settles_at_s(snapshot: Snapshot, policy: Policy) -> float:
    """When the queue will have been quiet long enough to buy nodes for it, if nothing else happens.

    Two waits apply. The longer one (``settle_s``) gives jobs that are submitted together time to arrive. The short
    one (``quiet_s``) follows any change. It keeps a job from being counted as both waiting and running: its start
    is reported by the ranks and by the queue, a moment apart. Neither wait exceeds ``settle_max_s``.
    """
    quiet_s = snapshot.news.changed_s + policy.fixed.quiet_s
    if snapshot.news.newest_job_s is not None:
        quiet_s = max(quiet_s, snapshot.news.newest_job_s + policy.timing.settle_s)
    if snapshot.news.unsettled_s is not None:
        quiet_s = min(quiet_s, snapshot.news.unsettled_s + policy.timing.settle_max_s)
    return quiet_s


def is_settled(snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it is time to buy: the queue is quiet, and the ranks were read since they last changed.

    The list of stopped queues must also be current. A queue may have been stopped while the instance was
    unreachable or had no scheduler, which hides it. So the list must be newer than that.
    """
    if (
        snapshot.sources.unreachable_s is not None
        and (snapshot.queues.asked_s or 0.0) < snapshot.sources.unreachable_s
    ):
        return False
    overdue = (
        snapshot.news.unsettled_s is not None
        and snapshot.now_s - snapshot.news.unsettled_s >= policy.timing.settle_max_s
    )
    looked = snapshot.news.look_due_since_s is None or overdue
    return looked and snapshot.now_s >= settles_at_s(snapshot, policy)
