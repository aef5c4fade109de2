"""The events that a request causes in an eventlog, so that the next step need not wait for the journal."""

from __future__ import annotations

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
from nodemanager.delegation.jobs import DURATION, EventlogEntry
from nodemanager.delegation.peer_port import ChangeDuration, ChangeUrgency, EndCopy, PeerRequest


def caused_at_home(request: HomeRequest, at: float) -> list[EventlogEntry]:
    """Return the event that a request to our instance causes."""
    match request:
        case PostEvent(event=event):
            return [event]
        case RemoveDependency(description=description):
            return [EventlogEntry("dependency-remove", at, {"description": description})]
        case Validate():
            return [EventlogEntry("set-flags", at, {"flags": ["alloc-bypass"]})]
        case HoldJob():
            return [EventlogEntry("urgency", at, {"urgency": 0})]
        case ReleaseJob(urgency=urgency):
            return [EventlogEntry("urgency", at, {"urgency": urgency})]
        case ShowRunning():
            return [EventlogEntry("start", at)]
        case ShowFinished(status=status):
            return [EventlogEntry("finish", at, {"status": status})]
        case RaiseOnJob(failure=failure):
            return [EventlogEntry("exception", at, {"type": failure.type, "severity": 0, "note": failure.note})]
        case _:
            return []


def caused_at_peer(request: PeerRequest, at: float) -> list[EventlogEntry]:
    """Return the event that a request to a peer causes."""
    match request:
        case ChangeUrgency(urgency=urgency):
            return [EventlogEntry("urgency", at, {"urgency": urgency})]
        case ChangeDuration(duration_s=duration_s):
            return [EventlogEntry("jobspec-update", at, {DURATION: duration_s})]
        case EndCopy(note=note):
            return [EventlogEntry("exception", at, {"type": "cancel", "severity": 0, "note": note})]
        case _:
            return []
