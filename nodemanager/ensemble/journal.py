"""Read the job manager's journal (``job-manager.events-journal``, ``full``): the events of one run's own jobs.

The journal begins with all events of each job that the instance remembers, job by job in no order, and marks the
end of that backlog with the id -1. Then each event arrives as it is posted. The backlog lacks what Flux does not
store: annotations, which are left out here, and volatile memos, which is why memos are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nodemanager.ensemble.inputs import JobEvent
from nodemanager.ensemble.jobspec import GROUP, KEY, RUN

CAUGHT_UP = -1
_NEVER_STORED = "annotations"
UNCOUNTED = "memo"

Taken = tuple[int, float]  # of one job: the events taken, without memos, and the time of the last


class RunJournal:
    """The journal as one run sees it. Jobs of others are skipped, and so are records that cannot be read."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._own: set[int] = set()
        self._backlog: list[list[JobEvent]] = []

    def live(self, record: Mapping[str, Any]) -> list[JobEvent]:
        """Return the events of a record."""
        return list(self._events(record))

    def collect(self, record: Mapping[str, Any]) -> None:
        """Keep a record of the backlog."""
        if events := list(self._events(record)):
            self._backlog.append(events)

    def backlog(self, taken: Callable[[int], Taken | None]) -> list[JobEvent]:
        """Return the backlog's events, in the order of their times; each job's events stay in their order.

        ``taken``: what was taken of a job's events before; None for all of them.
        """
        fresh: list[tuple[float, int, JobEvent]] = []
        for events in self._backlog:
            before = taken(events[0].job)
            latest = 0.0
            for event in () if before is None else _after(events, before):
                latest = max(latest, event.at)
                fresh.append((latest, len(fresh), event))
        self._backlog.clear()
        return [event for _, _, event in sorted(fresh)]

    def _events(self, record: Mapping[str, Any]) -> Iterator[JobEvent]:
        job = record["id"]
        user = _user_attributes(record.get("jobspec"))
        if user.get(RUN) == self._run:
            self._own.add(job)
        if job not in self._own:
            return
        for event in record["events"]:
            if event["name"] != _NEVER_STORED:
                yield _read_event(job, event, user)
            if event["name"] in {"clean", "invalidate"}:
                self._own.discard(job)


def _after(events: Iterable[JobEvent], taken: Taken) -> Iterator[JobEvent]:
    count, last_at = taken
    for event in events:
        if event.name == UNCOUNTED:
            if event.at > last_at:
                yield event
        elif count:
            count -= 1
        else:
            yield event


def _user_attributes(jobspec: Any) -> Mapping[str, Any]:
    try:
        user = jobspec["attributes"]["user"]
    except (KeyError, TypeError):
        return {}
    return user if isinstance(user, Mapping) else {}


def _read_event(job: int, event: Mapping[str, Any], user: Mapping[str, Any]) -> JobEvent:
    name, at, context = event["name"], event["timestamp"], event.get("context", {})
    match name:
        case "submit":
            return JobEvent(job, name, at, group=str(user.get(GROUP, "")), key=str(user.get(KEY, "")))
        case "finish":
            return JobEvent(job, name, at, status=context["status"])
        case "exception":
            kind, severity, note = context["type"], context["severity"], str(context.get("note", ""))
            return JobEvent(job, name, at, kind=kind, severity=severity, note=note)
    return JobEvent(job, name, at)
