"""Put off the purchases of users whose jobs make Flux drain node after node.

Flux drains a node if a job's shell ends before the job has begun, if its prolog fails, and the like; any user can
cause that at will, and each time a node is lost. The jobs that drained a node are counted by user. As many as open
the breaker of a node type (``boot_failures_max``) put the user off for ``boot_retry``. Each further such job puts
the user off again, for twice as long. A user whose jobs drain nothing for ``FORGET_S`` begins again.

A drain names its job. If the job ended long ago, or while no manager ran, its user is unknown, and the drain does
not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from nodemanager.core.drains import job_of_drain
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import LaunchId
from nodemanager.core.notation import NotationError, parse_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.backoff.boot_failures import RETRY_S_MAX
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import DrainStreak, Snapshot

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
        pause_s = min(RETRY_S_MAX, 2.0 * known.pause_s) if known.pause_s else policy.timing.boot_retry_s
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
