"""The memo on each waiting job that tells its user why it waits. It is set only when the reason changes.

The first jobs of the queue are served first, a limited number a second. A text must stay true until it is replaced,
so it names clock times and never a remaining duration.

Flux refuses to change the memo of a job that has ended (job-manager, ENOENT). A memo must therefore go as soon as
its job starts: :meth:`JobMemos.removals` works it out from the news itself, before any plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import ClockReading, format_wall_time, to_sentence
from nodemanager.core.reasons import Reason
from nodemanager.planner import timings
from nodemanager.planner.plan import Plan
from nodemanager.planner.snapshot import Snapshot

UPDATE_EVERY_S = 1.0
TEXTS_PER_UPDATE_MAX = 20
JOBS_WITH_MEMO_MAX = 1000  # jobs further back get a memo once they move up

STARTED_STATES = (JobState.RUN, JobState.CLEANUP)
UNKNOWN_TEXT = ""  # no reason has it
HELD_TEXT = "; held (urgency 0) until then"


class JobMemos:
    """Remembers the memo of each job, and works out which memos must change."""

    def __init__(self) -> None:
        self._shown: dict[JobId, str] = {}
        self._started: list[JobId] = []  # started jobs that may still have a memo; the latest start last
        self._trusted = False
        self._next_s = float("-inf")

    def distrust(self) -> None:
        """Forget the memos shown: another manager may have written memos, or Flux may have lost them."""
        self._trusted = False

    def removals(self, fact: QueueSeen) -> Mapping[JobId, None]:
        """Return the memos to remove at once: those of jobs that have just started."""
        started = [job.id for job in fact.jobs if job.state in STARTED_STATES]
        started += [bad.id for bad in fact.unreadable if bad.has_started]
        removed = {job_id: None for job_id in started if self._shown.pop(job_id, None) is not None}
        for job_id in fact.ended:
            self._shown.pop(job_id, None)
        return removed

    def changes(self, snapshot: Snapshot, made: Plan) -> Mapping[JobId, str | None]:
        """Return the memos to change, by job; None means: remove the memo.

        Changes are returned at most once every ``UPDATE_EVERY_S``, and about ``TEXTS_PER_UPDATE_MAX`` at a time.
        """
        if made.stands_still is not None or snapshot.now_s < self._next_s:
            return {}
        self._next_s = snapshot.now_s + UPDATE_EVERY_S
        if not self._trusted:
            self._inherit(snapshot, made)
        self._forget_started(snapshot)
        texts: dict[JobId, str | None] = {}
        while self._started and len(texts) < TEXTS_PER_UPDATE_MAX:
            if (job_id := self._started.pop()) in snapshot.jobs or job_id in snapshot.queues.unreadable:
                texts[job_id] = None
        for job_id, reason in islice(made.jobs.items(), JOBS_WITH_MEMO_MAX):
            if len(texts) >= TEXTS_PER_UPDATE_MAX:
                break
            job = snapshot.jobs.get(job_id)  # None if its jobspec cannot be read
            held = HELD_TEXT if job is not None and job.held_by_us else ""
            words = _text_without_times(reason) + held
            if self._shown.get(job_id) != words:
                self._shown[job_id] = words
                texts[job_id] = _memo_text(reason, snapshot) + held
        return texts

    def _inherit(self, snapshot: Snapshot, made: Plan) -> None:
        """Assume that every job has an unknown memo. Those of waiting jobs are replaced, the others removed."""
        self._trusted = True
        self._shown = dict.fromkeys(islice(made.jobs, JOBS_WITH_MEMO_MAX), UNKNOWN_TEXT)
        unreadable = [bad.id for bad in snapshot.queues.unreadable.values() if bad.has_started]
        started = [job for job in snapshot.jobs.values() if job.state in STARTED_STATES]
        self._started = [*unreadable, *(job.id for job in sorted(started, key=_start_order))]

    def _forget_started(self, snapshot: Snapshot) -> None:
        for job_id in list(self._shown):
            job, bad = snapshot.jobs.get(job_id), snapshot.queues.unreadable.get(job_id)
            has_started = job.state in STARTED_STATES if job is not None else bad is not None and bad.has_started
            if has_started or (job is None and bad is None):
                del self._shown[job_id]
            if has_started:
                self._started.append(job_id)


def _start_order(job: Job) -> tuple[float, JobId]:
    return job.began_at or 0.0, job.id


def _text_without_times(reason: Reason) -> str:
    """Write a reason without its times and amounts, which change all the time. Other words or counts are news."""
    words = [str(value) for value in reason.figures.values() if isinstance(value, str | tuple | int)]
    return " ".join([reason.code, *words])


def _memo_text(reason: Reason, snapshot: Snapshot) -> str:
    clock = ClockReading(snapshot.now_s, snapshot.wall_at)
    text = to_sentence(reason.code, clock.figures(reason))
    up_s = _expected_up_s(reason, snapshot) if reason.code is Code.NODE_COMING else None
    return f"{text}: up about {format_wall_time(clock.to_wall(up_s))[11:]}" if up_s is not None else text


def _expected_up_s(reason: Reason, snapshot: Snapshot) -> float | None:
    """When the last of the booting nodes should be up, judged by earlier boots of their types; None if unknown."""
    slots = reason.figures.get("nodes", ())
    booting = [node for node in snapshot.nodes.values() if isinstance(slots, tuple) and node.launch.slot in slots]
    up = [
        node.create.boots_from_s + boot_s
        for node in booting
        if (boot_s := timings.boot_s(snapshot, node.launch.type_name)) is not None
    ]
    return max(snapshot.now_s, *up) if up and len(up) == len(booting) else None
