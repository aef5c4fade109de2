"""The request to our instance, or to a peer, that carries out a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.delegation import steps
from nodemanager.delegation.home_port import (
    HoldJob,
    HomeRequest,
    PostEvent,
    RaiseOnJob,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowRunning,
    Validate,
)
from nodemanager.delegation.jobs import (
    EXEC,
    HOLD,
    HOLD_UNTIL_AT,
    PROXY_R,
    REFUSED,
    RETURNED,
    STARTED,
    SUBMITTED,
    EventlogEntry,
    Failure,
    PeerName,
)
from nodemanager.delegation.peer_port import ChangeDuration, ChangeUrgency, EndCopy, PeerRequest, ReadCopy

# As the frobnicator plugin does for a job with the dependency: job-exec waits for our word, and starts nothing.
INERT: Mapping[str, Any] = {"test": {"override": 1, "run_duration": "3650d"}}


def to_home(step: steps.Step, job: JobId, now_at: float, uri: str) -> HomeRequest | None:  # noqa: C901, PLR0912 - one arm a step
    """Return the request to our instance, if the step is one for it. ``uri``: of the step's peer."""
    match step:
        case steps.RecordCopy(peer=peer, remote=remote):
            context: dict[str, Any] = {"peer": peer, "jobid": remote, "uri": uri}
            return PostEvent(job, EventlogEntry(SUBMITTED, now_at, context))
        case steps.RecordRefusal(peer=peer, why=why):
            return PostEvent(job, EventlogEntry(REFUSED, now_at, {"peer": peer, "why": why}))
        case steps.RecordStart(at=at):
            return PostEvent(job, EventlogEntry(STARTED, now_at, {"timestamp": at}))
        case steps.NameNodes(nodelist=nodelist):
            context = {PROXY_R: pretended_resources(nodelist)}
            return PostEvent(job, EventlogEntry("jobspec-update", now_at, context))
        case steps.Revalidate(duration_s=duration_s):
            return Validate(job, duration_s)
        case steps.RemoveHold():
            return RemoveDependency(job, HOLD)
        case steps.StartProxy():
            return ShowRunning(job)
        case steps.HoldHere():
            return HoldJob(job)
        case steps.ReleaseHere(urgency=urgency):
            return ReleaseJob(job, urgency)
        case steps.MakeInert(undo=undo):
            return PostEvent(job, EventlogEntry("jobspec-update", now_at, {EXEC: {} if undo else INERT}))
        case steps.GiveBack(why=why, for_good=for_good):
            return PostEvent(job, EventlogEntry(RETURNED, now_at, {"why": why, "for_good": for_good}))
        case steps.FinishProxy(status=status):
            return ShowFinished(job, status)
        case steps.RaiseFailure(type=type_, note=note, status=status):
            return RaiseOnJob(job, Failure(type_, note), status)
        case _:
            return None


def to_peer(step: steps.Step) -> tuple[PeerName, PeerRequest] | None:
    """Return the peer and the request to it, if the step is one for a peer."""
    match step:
        case steps.LookUpCopy(peer=peer, remote=remote):
            return peer, ReadCopy(remote)
        case steps.SetUrgency(peer=peer, remote=remote, urgency=urgency):
            return peer, ChangeUrgency(remote, urgency)
        case steps.SetDuration(peer=peer, remote=remote, duration_s=duration_s):
            return peer, ChangeDuration(remote, duration_s)
        case steps.CancelCopy(peer=peer, remote=remote, note=note):
            return peer, EndCopy(remote, note)
        case _:
            return None


def pretended_resources(nodelist: str) -> dict[str, Any]:
    """The resources that a proxy seems to hold (RFC 20): one core of a node with the peer's name."""
    execution = {
        "R_lite": [{"rank": "0", "children": {"core": "0"}}],
        "nodelist": [nodelist],
        "starttime": HOLD_UNTIL_AT,
        "expiration": 0,
    }
    return {"version": 1, "execution": execution}
