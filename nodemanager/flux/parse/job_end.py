"""How a job ended, folded from its eventlog (RFC 18 for the format, RFC 21 for the events)."""

from __future__ import annotations

import os

from nodemanager.core.jobs import JobEnd, JobException
from nodemanager.core.notation import escape_unprintable
from nodemanager.core.untrusted import TooDeep, read_lines, read_message
from nodemanager.flux.parse.json_fields import object_at, seconds_at, text_at, whole_at

NOTE_MAX = 1000  # characters
EXCEPTIONS_MAX = 10
_LAST_EVENTS = frozenset({"clean", "invalidate"})
# The exceptions that give a job a result of their own; any other one is a failure (flux-core, job-list).
_RESULTS = {"cancel": "CANCELED", "timeout": "TIMEOUT"}


def read_job_end(eventlog: str) -> JobEnd | None:
    """Fold a job's eventlog; None if the job has not ended. Raises ``ValueError``."""
    began_at = ended_at = status = None
    refused = False
    exceptions: list[JobException] = []
    for line in read_lines(eventlog):
        event = object_at(read_message(line), "event")
        name, at = text_at(event.get("name"), "event.name"), seconds_at(event.get("timestamp"), "event.timestamp")
        if isinstance(event.get("context"), TooDeep):
            continue  # a memo: Flux's own events are flat
        context = object_at(event.get("context") or {}, "event.context")
        if name == "start":
            began_at = at
        elif name == "finish":
            status = whole_at(context.get("status"), "finish.status")
        elif name == "exception":
            exceptions.append(
                JobException(
                    escape_unprintable(text_at(context.get("type"), "exception.type")[:NOTE_MAX]),
                    whole_at(context.get("severity"), "exception.severity"),
                    escape_unprintable(str(context.get("note") or "")[:NOTE_MAX]),
                )
            )
        elif name in _LAST_EVENTS:
            ended_at, refused = at, name == "invalidate"
    if ended_at is None:
        return None
    # The fatal ones first: they explain the end.
    exceptions.sort(key=lambda it: it.severity)
    result = "REFUSED" if refused else _result(status, exceptions)
    return JobEnd(ended_at, result, began_at, _how(status), tuple(exceptions[:EXCEPTIONS_MAX]))


def _result(status: int | None, exceptions: list[JobException]) -> str:
    """The result, as ``flux jobs`` shows it."""
    if status == 0:
        return "COMPLETED"
    fatal = next((it for it in exceptions if it.severity == 0), None)
    return _RESULTS.get(fatal.type, "FAILED") if fatal is not None else "FAILED"


def _how(status: int | None) -> str:
    """The wait status in words; "" if the job has none."""
    if status is None:
        return ""
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
