"""The drain reasons by which the manager tells its own drains, Flux's own and a person's, also after a restart.

This is a safety rule. A drain that is neither the manager's nor Flux's belongs to a person, and the manager leaves
that node alone.
"""

from __future__ import annotations

import re

from nodemanager.core.nodes import FluxRank, LaunchId

DRAIN_MARK = "flux-node-manager:"

_JOB = r"[\u0192f][1-9A-HJ-NP-Za-km-z]+"
# The reasons with which flux-core 0.88 drains a node itself. Most of them name the job that was to run there.
_BY_FLUX = tuple(
    re.compile(pattern)
    for pattern in (
        # modules/job-exec: barrier.c, job-exec.c, bulkexec.c. Flux documents that these texts do not change.
        rf"(?P<job>{_JOB}) terminated before first barrier",
        rf"job (?P<job>{_JOB}) start timeout: .*",
        rf"unkillable user processes for job (?P<job>{_JOB})",
        rf"sdexec reports .* for job (?P<job>{_JOB})",
        rf"sdexec constraint check failed on \S+ for job (?P<job>{_JOB}): .*",
        # modules/job-manager/plugins/perilog.c
        rf"(?:prolog|epilog) (?:failed|timed out|canceled then timed out) for job (?P<job>{_JOB})",
        # etc/flux-housekeeping@.service
        rf"housekeeping@(?P<job>{_JOB}) [a-z-]+(?:: .*)?",
        # modules/resource/topo.c with common/librlist/rlist.c: the broker found other hardware than R declares
        r"rank \d+ not found in expected ranks",
        r"rank \d+ got hostname '.*', expected '.*'",
        r"rank \d+ \(.*\) (?:missing|has extra) resources: .*",
    )
)


def drain_text(launch: LaunchId) -> str:
    """The drain reason of a node that the manager retires."""
    return f"{DRAIN_MARK}{launch}"


def emptying_text(launch: LaunchId) -> str:
    """The drain reason of a node that takes no new job so that it empties, and is undrained if a job needs it.

    It is one word, because of our own reasons only the first word counts: a note for people may follow it.
    """
    return f"{DRAIN_MARK}emptying:{launch}"


def hold_text(launch: LaunchId) -> str:
    """The drain reason of a node that an operator holds. It is unambiguous: no launch id contains a colon."""
    return f"{DRAIN_MARK}hold:{launch}"


def is_our_drain(drain_reason: str | None) -> bool:
    """Whether a rank is drained by the manager."""
    return drain_reason is not None and drain_reason.startswith(DRAIN_MARK)


def is_drain_by_flux(drain_reason: str | None) -> bool:
    """Whether Flux itself drained a rank, because a job could not run there or the hardware differs."""
    if drain_reason is None or is_our_drain(drain_reason):
        return False
    return any(pattern.fullmatch(drain_reason) for pattern in _BY_FLUX)


def job_of_drain(drain_reason: str) -> str:
    """The job on account of which Flux drained a rank, as Flux wrote it; "" if it named none."""
    for pattern in _BY_FLUX:
        if (found := pattern.fullmatch(drain_reason)) is not None:
            return found.groupdict().get("job") or ""
    return ""


def drained_by_others(rank: FluxRank) -> bool:
    """Whether a rank is drained by Flux itself or by a person."""
    return rank.drain_reason is not None and not is_our_drain(rank.drain_reason)
