"""Why no node is bought now, whatever the jobs need: nobody can steer the manager, or leases cannot be recorded.

Everything else goes on. Running nodes serve jobs, and idle nodes end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from math import inf

from nodemanager.core.drains import job_of_drain
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.notation import NotationError, parse_job_id
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType
from nodemanager.planner.frozen import replace
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import DrainStreak, FailureStreak, Node, RecordFault, Snapshot

RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
FORGOTTEN_S = 300.0  # after the next try was due: nothing needs to be recorded any more


def count_record_fault(snapshot: Snapshot, why: str) -> Snapshot:
    """The snapshot after a lease could not be recorded. Each failure in a row doubles the wait, up to a minute."""
    known = snapshot.sources.record_fault
    failures = known.failures + 1 if known is not None else 1
    wait_s = min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(failures - 1, 10))
    fault = RecordFault(failures, snapshot.now_s + wait_s, why)
    return replace(snapshot, sources=replace(snapshot.sources, record_fault=fault))


def clear_record_fault(snapshot: Snapshot) -> Snapshot:
    """The snapshot after a lease was recorded, or after another manager took over the record."""
    if snapshot.sources.record_fault is None:
        return snapshot
    return replace(snapshot, sources=replace(snapshot.sources, record_fault=None))


def purchase_warnings(snapshot: Snapshot) -> Iterator[Reason]:
    """What keeps the manager from buying nodes, or did when it last tried."""
    if lost := snapshot.operator.steering_lost:
        yield because(Code.NOT_STEERABLE, why=lost)
    if (fault := current_record_fault(snapshot)) is not None:
        yield because(Code.RECORD_NOT_WRITTEN, failures=fault.failures, why=fault.why, retry_s=fault.retry_s)


def current_record_fault(snapshot: Snapshot) -> RecordFault | None:
    """Why the latest lease was not recorded; None if it was, or if nothing was tried for long."""
    fault = snapshot.sources.record_fault
    return fault if fault is not None and snapshot.now_s < fault.retry_s + FORGOTTEN_S else None


def may_record(snapshot: Snapshot) -> bool:
    """Whether new leases may be written now."""
    fault = snapshot.sources.record_fault
    return fault is None or snapshot.now_s >= fault.retry_s


def why_no_purchases(snapshot: Snapshot) -> Reason | None:
    """Why no node is bought now; None if the jobs, the limits and the clouds alone decide."""
    if snapshot.operator.steering_lost or not may_record(snapshot):
        return next(purchase_warnings(snapshot), None)
    return None


def record_retry_s(snapshot: Snapshot) -> float:
    """When leases may be written again; infinity if they may be now."""
    fault = snapshot.sources.record_fault
    return fault.retry_s if fault is not None and not may_record(snapshot) else inf


# --- stop buying a node type whose boots fail -------------------------------------------------------------
#
# Boots that fail in a row open the breaker of their node type and image: no more of it is bought until a trial
# boot. Only boots ordered by this process count: for others the image is unknown.


NOT_UP_YET = (NodeState.REQUESTED, NodeState.BOOTING)
TRIAL_PAUSE_S_MAX = 4 * 3600.0  # the longest pause before a trial boot while a breaker is open
DIED = "died_booting"


def count_ended_boots(
    before: Mapping[LaunchId, Node], changed: Mapping[LaunchId, Node], snapshot: Snapshot, policy: Policy
) -> Snapshot:
    """Count the boots that have just succeeded, and those whose node died although nobody stopped it."""
    for id_, node in changed.items():
        was = before.get(id_)
        if was is None or was.state is node.state or was.state not in NOT_UP_YET or node.state in NOT_UP_YET:
            continue
        if node.state in (NodeState.IDLE, NodeState.BUSY):
            snapshot = _forget_failures(snapshot, node)
        elif node.state is NodeState.GONE and node.cloud is not None and node.cloud.died_of is None:
            snapshot = count_failed_boot(snapshot, node, DIED, policy)
    return snapshot


def count_failed_boot(snapshot: Snapshot, node: Node, why: str, policy: Policy) -> Snapshot:
    """Count one more failed boot of the node's type and image."""
    if node.create.image is None:
        return snapshot
    key = (node.launch.type_name, node.create.image)
    known = snapshot.learned.streaks.get(key, FailureStreak(0, 0.0, 0.0, ""))
    failures = known.failures + 1
    retry_s, pause_s, since_s = known.retry_s, known.pause_s, known.since_s
    if failures == policy.rules.boot_failures_max:
        pause_s = policy.timing.boot_retry_s
        retry_s, since_s = snapshot.now_s + pause_s, snapshot.now_s
    elif failures > policy.rules.boot_failures_max and snapshot.now_s >= known.retry_s:
        pause_s = min(TRIAL_PAUSE_S_MAX, known.pause_s * 2.0)  # the trial boot has failed too
        retry_s = snapshot.now_s + pause_s
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned,
            streaks={**snapshot.learned.streaks, key: FailureStreak(failures, retry_s, pause_s, why, since_s)},
        ),
    )


def _forget_failures(snapshot: Snapshot, node: Node) -> Snapshot:
    key = (node.launch.type_name, node.create.image)
    if key not in snapshot.learned.streaks:
        return snapshot
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned, streaks={it: streak for it, streak in snapshot.learned.streaks.items() if it != key}
        ),
    )


def open_breaker(node_type: NodeType, snapshot: Snapshot, policy: Policy) -> FailureStreak | None:
    """The streak of failed boots that keeps the breaker of a type and its image open; None if it is closed."""
    streak = snapshot.learned.streaks.get((node_type.name, node_type.image))
    return streak if streak is not None and streak.failures >= policy.rules.boot_failures_max else None


def open_breakers(snapshot: Snapshot, policy: Policy) -> list[Reason]:
    """For each type whose boots failed in a row and that is not tried again yet: why, and until when."""
    streaks = ((it, open_breaker(it, snapshot, policy)) for it in policy.node_types if snapshot.learned.streaks)
    return [breaker_open(it, streak) for it, streak in streaks if streak and snapshot.now_s < streak.retry_s]


def breaker_open(node_type: NodeType, streak: FailureStreak) -> Reason:
    return because(Code.BREAKER_OPEN, **failed_boots(node_type, streak)).with_figures(retry_s=streak.retry_s)


def failed_boots(node_type: NodeType, streak: FailureStreak) -> Figures:
    return {
        "node_type": node_type.name,
        "image": node_type.image,
        "failures": streak.failures,
        "why": streak.why,
    }


# --- put off the purchases of users whose jobs make Flux drain node after node ----------------------------
#
# Flux drains a node if a job's shell ends before the job has begun, if its prolog fails, and the like; any user
# can cause that at will, and each time a node is lost. The jobs that drained a node are counted by user. As many
# as open the breaker of a node type (``boot_failures_max``) put the user off for ``boot_retry``. Each further
# such job puts the user off again, for twice as long. A user whose jobs drain nothing for ``FORGET_S`` begins
# again.
#
# A drain names its job. If the job ended long ago, or while no manager ran, its user is unknown, and the drain
# does not count.


FORGET_S = 4 * 3600.0  # since the latest drain, or the end of the time for which the user was put off
USERS_REMEMBERED = 1024  # of jobs that have ended: their drains are seen a moment later
STARTED_STATES = (JobState.RUN, JobState.CLEANUP)


def remember_users(snapshot: Snapshot, gone: Iterable[Job]) -> Snapshot:
    """Remember the users of jobs that ran and have just ended."""
    ended = {job.id: job.userid for job in gone if job.state in STARTED_STATES and job.id not in snapshot.jobs}
    if not ended:
        return snapshot
    known = {**snapshot.learned.ended_users, **ended}
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned, ended_users=dict(islice(known.items(), max(0, len(known) - USERS_REMEMBERED), None))
        ),
    )


def count_drains(
    before: Mapping[LaunchId, Node], changed: Mapping[LaunchId, Node], snapshot: Snapshot, policy: Policy
) -> Snapshot:
    """Count the jobs that have just made Flux drain a node. A job counts once, however many nodes it drained."""
    for id_, node in changed.items():
        was, rank = before.get(id_), node.rank
        if rank is None or rank.drain_reason is None or was is None or was.health.drained_by_flux_s is not None:
            continue
        if text := job_of_drain(rank.drain_reason):
            with suppress(NotationError):  # a reason that a person wrote may only look like Flux's
                snapshot = _count_drain(snapshot, JobId(parse_job_id(text)), policy)
    return snapshot


def _count_drain(snapshot: Snapshot, job_id: JobId, policy: Policy) -> Snapshot:
    job = snapshot.jobs.get(job_id)
    userid = job.userid if job is not None else snapshot.learned.ended_users.get(job_id)
    if userid is None:
        return snapshot
    now_s = snapshot.now_s
    known = snapshot.learned.drain_streaks.get(userid)
    if known is None or max(known.latest_s, known.until_s) + FORGET_S <= now_s:
        known = DrainStreak(frozenset(), 0.0, 0.0, now_s, job_id)
    if job_id in known.jobs:
        return snapshot
    streak = replace(known, jobs=known.jobs | {job_id}, latest_s=now_s, latest=job_id)
    if len(streak.jobs) >= policy.rules.boot_failures_max and now_s >= known.until_s:
        pause_s = min(TRIAL_PAUSE_S_MAX, 2.0 * known.pause_s) if known.pause_s else policy.timing.boot_retry_s
        streak = replace(streak, until_s=now_s + pause_s, pause_s=pause_s)
    return replace(
        snapshot,
        learned=replace(snapshot.learned, drain_streaks={**snapshot.learned.drain_streaks, userid: streak}),
    )


def users_put_off(snapshot: Snapshot) -> Mapping[int, Reason]:
    """The users for whose jobs no node is bought or kept now, each with the reason."""
    return {
        userid: because(
            Code.USER_DRAINS_NODES,
            account=f"user {userid}",
            job=str(streak.latest),
            failures=len(streak.jobs),
            retry_s=streak.until_s,
        )
        for userid, streak in snapshot.learned.drain_streaks.items()
        if snapshot.now_s < streak.until_s
    }
