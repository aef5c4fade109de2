"""Why each waiting job waits, where users look for it: a text on the job, set only when it has become another.

The first jobs of the queue come first, so many a second. What a text says stays true while it stands there: it
names clock times, never how long something still takes.
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
TEXTS_PER_UPDATE_MAX = 20  # a turn
JOBS_WITH_MEMO_MAX = 1000  # that are told; those behind them wait for those before

STARTED_STATES = (JobState.RUN, JobState.CLEANUP)


class JobMemos:
    """What was shown on which job."""

    def __init__(self) -> None:
        self._shown: dict[JobId, str] = {}
        self._next_s = float("-inf")

    def changes(self, snapshot: Snapshot, made: Plan) -> Mapping[JobId, str | None]:
        """What is to be shown otherwise; None is to be taken away. At most once in ``EVERY_S``, and bounded."""
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
            said = _text_without_numbers(reason)
            if self._shown.get(job_id) != said:
                self._shown[job_id] = said
                texts[job_id] = _memo_text(reason, snapshot)
        return texts


def _text_without_numbers(reason: Reason) -> str:
    """The reason without its numbers, which change all the time."""
    words = [str(value) for value in reason.figures.values() if isinstance(value, str | tuple)]
    return " ".join([reason.code, *words])


def _memo_text(reason: Reason, snapshot: Snapshot) -> str:
    edge = ClockReading(snapshot.now_s, snapshot.wall_at)
    text = to_sentence(reason.code, edge.figures(reason))
    up_s = _expected_up_s(reason, snapshot) if reason.code == "node_coming" else None
    return f"{text}: up about {format_wall_time(edge.to_wall(up_s))[11:]}" if up_s is not None else text


def _expected_up_s(reason: Reason, snapshot: Snapshot) -> float | None:
    """When the last of the nodes that come will be up, by how long others of their types took; None: not known."""
    slots = reason.figures.get("nodes", ())
    coming = [node for node in snapshot.nodes.values() if isinstance(slots, tuple) and node.launch.slot in slots]
    up = [
        node.requested_s + boot_s
        for node in coming
        if (boot_s := timings.boot_s(snapshot, node.launch.type_name)) is not None
    ]
    return max(snapshot.now_s, *up) if up and len(up) == len(coming) else None
