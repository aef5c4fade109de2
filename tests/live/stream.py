"""A stream of short jobs, and what befalls the site meanwhile: drawn from a seed, and all of it counted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nodemanager.cloud.local.process import marked_pids
from tests.live.elastic import Elastic, JobSeen, Offer, kill_broker, kill_node
from tests.live.witness import slot_of

OFFERS = (
    Offer("cpu", price="0.1", slots="cpu[1-5]"),
    Offer("fast", price="0.2", slots="fast[1-3]"),
)
# What a fault makes the manager wait for is short, since the whole stream is.
BILLING = "20s"
TIMING = "boot_retry = 2s\nsafe_mode_max = 20s"
REQUIRES = (None, {"properties": ["cpu"]}, {"properties": ["fast"]})
NODES = (1, 1, 1, 1, 1, 1, 1, 2, 2, 3)
RUN_S = (0.0, 0.1, 0.3, 0.6, 1.0)

PACE_S = 0.05
LOOK_EVERY_S = 0.5
HEAD_DOWN_MAX_S = 3.0
# A manager is killed so long after it began to act; one in three so long after its start, acting or not.
KILLED_AFTER_MAX_S = 2.0
CLAIM_WITHIN_S = 60.0
# How long before a job began its node, or rank 0, may have died: for a moment Flux gives a dead rank to the next
# job, and one that was about to begin as rank 0 went begins when that is back.
SEEN_DEAD_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it."""

    jobs: int
    kills: int
    deaths: int
    restarts: int
    crashes: int
    seed: int


@dataclass(slots=True)
class Work:
    """A command that must run to its end once. ``job`` is the last one that was submitted for it."""

    command: tuple[str, ...]
    nodes: int
    requires: dict[str, list[str]] | None
    job: int = 0
    completed: bool = False


@dataclass(frozen=True, slots=True)
class Blow:
    """What may end a job before its time. ``slot`` is "" for rank 0."""

    slot: str
    began_at: float
    ended_at: float

    def explains(self, job: JobSeen) -> bool:
        if job.began_at is None or job.ended_at is None:
            return False
        met = job.began_at - SEEN_DEAD_WITHIN_S <= self.ended_at and self.began_at <= job.ended_at
        return met and self.slot in ("", *job.slots)


@dataclass
class Tally:
    """What was done, and what came of it."""

    kills: int = 0
    kills_in_office: int = 0  # of those that acted
    whole_deaths: int = 0
    broker_deaths: int = 0
    restarts: int = 0
    crashes: int = 0
    blows: list[Blow] = field(default_factory=list)
    ended_early: list[JobSeen] = field(default_factory=list)
    forgotten: int = 0  # jobs of which Flux has no memory after a crash
    ended_by_itself: list[str] = field(default_factory=list)  # managers that nobody had killed

    @property
    def deaths(self) -> int:
        return self.whole_deaths + self.broker_deaths

    def unexplained(self) -> list[JobSeen]:
        """Jobs that ended early though no node of theirs died and rank 0 stood."""
        return [job for job in self.ended_early if not any(blow.explains(job) for blow in self.blows)]


class Stream:
    """All is drawn beforehand. The kills set the pace, however slow the machine; the rest is spread among them.

    What cannot be done at its moment is done at the next.
    """

    def __init__(self, elastic: Elastic, size: Size) -> None:
        self.elastic = elastic
        self.tally = Tally()
        self.works: list[Work] = []
        self._size = size
        self._draw = random.Random(size.seed)
        self._begun_s = self._looked_s = time.monotonic()
        self._head_down_at = 0.0
        self._head_up_s = 0.0
        self._acts = self._drawn()
        self._next_manager()

    def _drawn(self) -> list[tuple[float, Callable[[], bool]]]:
        """What is to be done when, from 0 (the first manager) to 1 (the last one is killed). It ends with a job."""
        acts: list[tuple[float, Callable[[], bool]]] = [(1.0, self._submit)]
        acts += [(self._draw.random(), self._submit) for _ in range(self._size.jobs - 1)]
        acts += [(self._draw.random(), self._kill_node) for _ in range(self._size.deaths)]
        ends = [self._stop_head] * self._size.restarts + [self._kill_head] * self._size.crashes
        self._draw.shuffle(ends)
        acts += [((nth + 1) / (len(ends) + 1), end) for nth, end in enumerate(ends)]
        return sorted(acts, key=lambda act: act[0])

    def run(self) -> None:
        """Until the last of it has come."""
        while self._acts or self._head_down_at or self.tally.kills < self._size.kills:
            threading.Event().wait(PACE_S)
            now_s = time.monotonic()
            if self.tally.kills < self._size.kills and self._dies_now(now_s):
                self._kill_manager()
            if self._head_down_at and now_s >= self._head_up_s:
                self._start_head()
            passed = self._passed(now_s)
            due = [act for act in self._acts if act[0] <= passed]
            self._acts = [act for act in self._acts if act[0] > passed]
            self._acts[:0] = [(at, do) for at, do in due if not do()]
            if now_s - self._looked_s >= LOOK_EVERY_S:
                self._looked_s = now_s
                self.look()

    def _passed(self, now_s: float) -> float:
        """The share of the stream that has passed: by the kills, and between two of them by time."""
        kills = self.tally.kills
        if kills == self._size.kills:
            return 1.0
        usual_s = (self._manager_begun_s - self._begun_s) / kills if kills else KILLED_AFTER_MAX_S
        return (kills + min(1.0, (now_s - self._manager_begun_s) / usual_s)) / self._size.kills

    def all_ran(self) -> bool:
        self.look()
        return all(work.completed for work in self.works)

    def look(self) -> None:
        """See what has ended; what ended early is submitted again."""
        if self._head_down_at:
            return
        seen = self.elastic.jobs()
        for work in self.works:
            if work.completed:
                continue
            job = seen.get(work.job)
            if job is None:
                self.tally.forgotten += 1
            elif job.result == "COMPLETED":
                work.completed = True
                continue
            elif not job.result:
                continue
            else:
                self.tally.ended_early.append(job)
            work.job = self.elastic.submit(*work.command, nodes=work.nodes, requires=work.requires)

    def processes_left(self) -> frozenset[int]:
        """Whatever carries the mark of a node that ever was."""
        return marked_pids(frozenset(self.elastic.witness.look()))

    # --- what comes; False: not now ---

    def _submit(self) -> bool:
        if self._head_down_at:
            return False
        # The folder in its arguments makes a process that stays behind known as ours.
        command = ("sh", "-c", f"sleep {self._draw.choice(RUN_S)}", str(self.elastic.site.state_dir))
        requires = self._draw.choice(REQUIRES)
        work = Work(command, self._draw.choice(NODES), dict(requires) if requires else None)
        work.job = self.elastic.submit(*command, nodes=work.nodes, requires=work.requires)
        self.works.append(work)
        return True

    def _next_manager(self) -> None:
        self._manager = self.elastic.start_manager()
        self._manager_begun_s = time.monotonic()
        self._lives_on_s = self._draw.uniform(0, KILLED_AFTER_MAX_S)
        counts_from_start = self._draw.random() < 1 / 3
        self._counted_from_s = self._manager_begun_s if counts_from_start else None

    def _dies_now(self, now_s: float) -> bool:
        if self._counted_from_s is None and self._manager.said("claimed"):
            self._counted_from_s = now_s
        if self._counted_from_s is None:
            return now_s - self._manager_begun_s >= CLAIM_WITHIN_S
        return now_s - self._counted_from_s >= self._lives_on_s

    def _kill_manager(self) -> None:
        if self._manager.status is not None:
            self.tally.ended_by_itself.append(self._manager.tail())
        self._manager.kill()
        self.tally.kills += 1
        self.tally.kills_in_office += bool(self._manager.said("claimed"))
        self._next_manager()

    def _kill_node(self) -> bool:
        living = self.elastic.witness.living()
        if not living:
            return False
        node = self._draw.choice(living)
        began_at = time.time()
        whole = self._draw.random() < 0.5
        if not (kill_node(node) if whole else kill_broker(node)):
            return False
        self.tally.blows.append(Blow(slot_of(node), began_at, time.time()))
        if whole:
            self.tally.whole_deaths += 1
        else:
            self.tally.broker_deaths += 1
        return True

    def _stop_head(self) -> bool:
        if self._head_down_at:
            return False
        self._head_goes(self.elastic.stop_head)
        self.tally.restarts += 1
        return True

    def _kill_head(self) -> bool:
        if self._head_down_at:
            return False
        self._head_goes(self.elastic.kill_head)
        self.tally.crashes += 1
        return True

    def _head_goes(self, by: Callable[[], None]) -> None:
        self._head_down_at = time.time()
        by()
        self._head_up_s = time.monotonic() + self._draw.uniform(0, HEAD_DOWN_MAX_S)

    def _start_head(self) -> None:
        self.elastic.start_head()
        self.tally.blows.append(Blow("", self._head_down_at, time.time()))
        self._head_down_at = 0.0
