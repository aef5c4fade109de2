"""The memo on each waiting job that tells its user why it waits. It is set only when the reason changes.

The first jobs of the queue are served first, a limited number a second. A text must stay true until it is replaced,
so it names clock times and never a remaining duration.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.reason_text import ClockReading, format_wall_time, to_sentence
from nodemanager.core.reasons import Reason
from nodemanager.planner.cost import timings
from nodemanager.planner.plan import Plan
from nodemanager.planner.state.snapshot import Snapshot

UPDATE_EVERY_S = 1.0
TEXTS_PER_UPDATE_MAX = 20
JOBS_WITH_MEMO_MAX = 1000  # jobs further back get a memo once they move up

STARTED_STATES = (JobState.RUN, JobState.CLEANUP)


class JobMemos:
    """Remembers the memo of each job, and works out which memos must change."""

    def __init__(self) -> None:
        self._shown: dict[JobId, str] = {}
        self._next_s = float("-inf")

    def changes(self, snapshot: Snapshot, made: Plan) -> Mapping[JobId, str | None]:
        """Return the memos to change, by job; None means: remove the memo.

        Changes are returned at most once every ``UPDATE_EVERY_S``, and about ``TEXTS_PER_UPDATE_MAX`` at a time.
        """
        if made.stands_still is not None or snapshot.now_s < self._next_s:
            return {}
        self._next_s = snapshot.now_s + UPDATE_EVERY_S
        texts: dict[JobId, str | None] = {}
        for job_id in list(self._shown):
            job = snapshot.jobs.get(job_id)
            if job is None or job.state in STARTED_STATES:
                del self._shown[job_id]
            if job is not None and job.state in STARTED_STATES:
                texts[job_id] = None
        for job_id, reason in islice(made.jobs.items(), JOBS_WITH_MEMO_MAX):
            if len(texts) >= TEXTS_PER_UPDATE_MAX:
                break
            words = _text_without_numbers(reason)
            if self._shown.get(job_id) != words:
                self._shown[job_id] = words
                texts[job_id] = _memo_text(reason, snapshot)
        return texts


def _text_without_numbers(reason: Reason) -> str:
    """Write a reason without its numbers, which change all the time: only other words call for a new memo."""
    words = [str(value) for value in reason.figures.values() if isinstance(value, str | tuple)]
    return " ".join([reason.code, *words])


def _memo_text(reason: Reason, snapshot: Snapshot) -> str:
    clock = ClockReading(snapshot.now_s, snapshot.wall_at)
    text = to_sentence(reason.code, clock.figures(reason))
    up_s = _expected_up_s(reason, snapshot) if reason.code == "node_coming" else None
    return f"{text}: up about {format_wall_time(clock.to_wall(up_s))[11:]}" if up_s is not None else text


def _expected_up_s(reason: Reason, snapshot: Snapshot) -> float | None:
    """When the last of the booting nodes should be up, judged by earlier boots of their types; None if unknown."""
    slots = reason.figures.get("nodes", ())
    booting = [node for node in snapshot.nodes.values() if isinstance(slots, tuple) and node.launch.slot in slots]
    up = [
        node.requested_s + boot_s
        for node in booting
        if (boot_s := timings.boot_s(snapshot, node.launch.type_name)) is not None
    ]
    return max(snapshot.now_s, *up) if up and len(up) == len(booting) else None
