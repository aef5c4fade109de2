"""Events of the history, derived by comparing each of the manager's publications with the one before.

Pure. A reason that changes only in its figures makes no event. Nor does a decision of observe mode that is repeated
by the next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import (
    CloudCallFailed,
    DecisionsPaused,
    DecisionsResumed,
    Fact,
    FluxCallFailed,
    HoldPlaced,
    NodeReleased,
    ReplacementsRequested,
    RetirementRequested,
    SteeringNotKept,
)
from nodemanager.core.jobs import Job, JobId, JobState
from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.orders import (
    BootNode,
)
from nodemanager.core.reason_codes import Figure
from nodemanager.core.reason_text import ClockReading
from nodemanager.core.records import Mark
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName
from nodemanager.planner.backoff import refusal_reason
from nodemanager.planner.plan import Action, type_of_action
from nodemanager.planner.reasons import NodeReasons

# For this many jobs at the head of the queue, a new reason to wait is an event. The other jobs are only counted.
JOBS_FOLLOWED = 2000

NO_FIGURES: Mapping[str, Figure] = {}


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event. ``subject``: a launch, a job's id, "type NAME", "ensemble NAME", or "" for the whole service.

    ``kind`` is one of: decided; would (a decision of observe mode); node (``what``: its new state); because (a
    node, job or type has a new reason); job; failed (a call); operator; delegation (a job or a peer); ensemble;
    standstill; alarm; block. ``at`` and the times in ``figures`` are wall-clock. ``of_job``: it is about a job
    alone, so only those who may see jobs may see it. The history does not keep that.
    """

    at: float
    kind: str
    subject: str
    what: str
    code: str = ""
    figures: Mapping[str, Figure] = field(default_factory=lambda: NO_FIGURES)
    node_type: str = ""
    of_job: bool = field(default=False, compare=False)


class EventTracker:
    """Derives events from publications. It remembers the last one only."""

    def __init__(self) -> None:
        self._last: Publication | None = None
        self._waits: Mapping[JobId, str] = {}  # the code of each job's reason to wait
        self._would: frozenset[str] = frozenset()

    def update(self, publications: Sequence[Publication]) -> tuple[HistoryEvent, ...]:
        """Return the events since the last call. Takes at least one publication, the newest last.

        Decisions and facts are read from every publication, changes of nodes and jobs from the newest.
        """
        newest = publications[-1]
        last, self._last = self._last, newest
        events: list[HistoryEvent] = []
        for it in publications:
            clock = ClockReading(it.snapshot.now_s, it.snapshot.wall_at)
            events += (event for fact in it.facts for event in _fact_events(fact, clock))
            events += self._decision_events(it, clock)
        clock = ClockReading(newest.snapshot.now_s, newest.snapshot.wall_at)
        for changes in (_node_events, _reason_events, _job_events):
            events += changes(last, newest, clock)
        events += self._wait_events(last, newest, clock)
        events += _service_events(last, newest, clock)
        return tuple(events)

    def _wait_events(
        self, last: Publication | None, now: Publication, clock: ClockReading
    ) -> Iterator[HistoryEvent]:
        """Yield an event for each of the first jobs whose reason to wait has a new code."""
        known, self._waits = self._waits, {}
        if now.plan.stands_still is not None:
            return
        before = last.plan.jobs if last is not None else {}
        codes: dict[JobId, str] = {}
        for job_id, reason in islice(now.plan.jobs.items(), JOBS_FOLLOWED):
            codes[job_id] = reason.code
            code = known.get(job_id)
            if code is None and (earlier := before.get(job_id)) is not None:
                code = earlier.code  # the job was not yet among the first
            if code != reason.code:
                figures = clock.figures(reason)
                yield HistoryEvent(
                    clock.wall_at, "because", str(job_id), "waits", reason.code, figures, of_job=True
                )
        self._waits = codes

    def _decision_events(self, published: Publication, clock: ClockReading) -> Iterator[HistoryEvent]:
        lines: set[str] = set()
        observed = (("would", action) for action in published.plan.would)
        action_kind = "decided" if published.acts else "would"
        for kind, action in (*((action_kind, action) for action in published.plan.actions), *observed):
            subject = action.subject
            line = f"{action.name} {_slot_of(action) or subject}"
            lines.add(line)
            if kind == "would" and line in self._would:
                continue
            reason = action.why
            figures = dict(clock.figures(reason)) if reason is not None else {}
            if isinstance(action, BootNode):
                figures["serves"] = tuple(str(job) for job in action.serves)
            node_type = type_of_action(action, published.snapshot) or ""
            code = reason.code if reason is not None else ""
            of_job = action.only_job is not None
            yield HistoryEvent(clock.wall_at, kind, subject, action.name, code, figures, node_type, of_job)
        if not published.plan.settled:  # until the queue has settled, a plan has no decisions on buying
            lines |= {line for line in self._would if line.startswith(BootNode.__name__)}
        self._would = frozenset(lines)


def _slot_of(action: Action) -> str:
    """The slot of a planned launch, else "". In observe mode each plan makes a new launch id for the same slot."""
    return action.launch.slot if isinstance(action, BootNode) else ""


def _fact_events(fact: Fact, clock: ClockReading) -> Iterator[HistoryEvent]:
    match fact:
        case CloudCallFailed(operation=operation, launch=launch, kind=kind, detail=detail, cloud=cloud):
            figures: Mapping[str, Figure] = {"detail": detail, **_of_cloud(cloud)}
            yield HistoryEvent(clock.wall_at, "failed", launch or "", operation, str(kind), figures)
        case FluxCallFailed(launches=launches, order=order, why=why):
            yield HistoryEvent(clock.wall_at, "failed", ",".join(launches), order, "flux", {"detail": why})
        case SteeringNotKept(why=why):
            yield HistoryEvent(clock.wall_at, "failed", "", "KeepSteering", "flux", {"detail": why})
        case HoldPlaced(launch=launch, mark=mark):
            yield HistoryEvent(clock.wall_at, "operator", launch, "hold", figures=_words(mark))
        case RetirementRequested(launch=launch, mark=mark):
            yield HistoryEvent(clock.wall_at, "operator", launch, "retire", figures=_words(mark))
        case ReplacementsRequested(launches=launches, mark=mark):
            yield HistoryEvent(clock.wall_at, "operator", ",".join(launches), "replace", figures=_words(mark))
        case NodeReleased(launch=launch, by=by):
            yield HistoryEvent(clock.wall_at, "operator", launch, "release", figures={"by": by})
        case DecisionsPaused(mark=mark):
            yield HistoryEvent(clock.wall_at, "operator", "", "pause", figures=_words(mark))
        case DecisionsResumed(by=by):
            yield HistoryEvent(clock.wall_at, "operator", "", "resume", figures={"by": by})
        case _:
            pass


def _of_cloud(cloud: CloudName) -> Mapping[str, Figure]:
    """The cloud that an event is about, if it has a name."""
    return {"cloud": cloud} if cloud != DEFAULT_CLOUD else {}


def _words(mark: Mark) -> Mapping[str, Figure]:
    """The operator's name, and the reason and end that the operator gave."""
    figures: dict[str, Figure] = {"by": mark.by}
    if mark.why:
        figures["why"] = mark.why
    if mark.until_at is not None:
        figures["until_at"] = mark.until_at
    return figures


def _node_events(last: Publication | None, now: Publication, clock: ClockReading) -> Iterator[HistoryEvent]:
    before = last.snapshot.nodes if last is not None else {}
    after = now.snapshot.nodes
    if before is after:
        return
    for id_, node in after.items():
        known = before.get(id_)
        if known is node or (known is not None and known.state is node.state):
            continue
        figures: dict[str, Figure] = {"was": str(known.state) if known is not None else "unknown"}
        if node.moves:
            figures["story"] = clock.with_wall_time(node.moves[-1])
        yield HistoryEvent(clock.wall_at, "node", id_, str(node.state), "", figures, node.launch.type_name)
    for id_, node in before.items():
        if id_ not in after:
            yield HistoryEvent(
                clock.wall_at, "node", id_, "ended", "", _end_figures(node.launch), node.launch.type_name
            )


def _end_figures(launch: Launch) -> Mapping[str, Figure]:
    return {"slot": launch.slot, "requested_at": launch.requested_at}


def type_subject(name: str) -> str:
    """The subject of a node type's events. The space keeps it apart from slots and launches, which have none."""
    return f"type {name}"


def _reason_events(last: Publication | None, now: Publication, clock: ClockReading) -> Iterator[HistoryEvent]:
    """Yield an event for each node and each type whose reason has a new code."""
    if now.plan.stands_still is not None:
        return
    before = last.plan if last is not None else None
    for id_ in _nodes_with_other_reasons(last, now):
        reason = now.plan.nodes[id_]
        known = before.nodes.get(id_) if before is not None else None
        if known is reason or (known is not None and known.code == reason.code):
            continue
        node = now.snapshot.nodes.get(id_)
        if node is not None:
            figures, node_type = clock.figures(reason), node.launch.type_name
            yield HistoryEvent(clock.wall_at, "because", id_, str(node.state), reason.code, figures, node_type)
    for name, reason in now.plan.types.items():
        earlier = before.types.get(name) if before is not None else None
        if earlier is None or earlier.code != reason.code:
            figures = clock.figures(reason)
            yield HistoryEvent(clock.wall_at, "because", type_subject(name), "type", reason.code, figures, name)


def _nodes_with_other_reasons(last: Publication | None, now: Publication) -> Iterable[LaunchId]:
    """The nodes whose reason may have changed."""
    before, nodes = last.plan.nodes if last is not None else None, now.plan.nodes
    if isinstance(nodes, NodeReasons) and isinstance(before, NodeReasons):
        return nodes.changed_since(before)
    return nodes


def _job_events(last: Publication | None, now: Publication, clock: ClockReading) -> Iterator[HistoryEvent]:
    known = last.snapshot.jobs if last is not None else {}
    jobs = now.snapshot.jobs
    if jobs is known:
        return
    for id_, job in jobs.items():
        old = known.get(id_)
        if old is not job and job.state is JobState.RUN and (old is None or old.state is not JobState.RUN):
            yield HistoryEvent(clock.wall_at, "job", str(id_), "began", "", _job_figures(job, clock), of_job=True)
    for id_ in [id_ for id_ in known if id_ not in jobs]:
        figures = _job_figures(known[id_], clock)
        yield HistoryEvent(clock.wall_at, "job", str(id_), "ended", "", figures, of_job=True)


def _job_figures(job: Job, clock: ClockReading) -> Mapping[str, Figure]:
    return {
        "user": job.userid,
        "queue": job.queue,
        "submitted_at": job.submitted_at,
        "wait_s": max(0.0, clock.wall_at - job.submitted_at),
    }


def _service_events(last: Publication | None, now: Publication, clock: ClockReading) -> Iterator[HistoryEvent]:
    was = last.plan.stands_still if last is not None else None
    still = now.plan.stands_still
    if still is not None and (was is None or was.code != still.code):
        yield HistoryEvent(clock.wall_at, "standstill", "", "begins", still.code, clock.figures(still))
    elif still is None and was is not None:
        yield HistoryEvent(clock.wall_at, "standstill", "", "ends", was.code, clock.figures(was))
    known = last.snapshot.intruders if last is not None else []
    for intruder in now.snapshot.intruders:
        if intruder not in known:
            yield HistoryEvent(clock.wall_at, "alarm", intruder.provider_id, "foreign_cluster_uuid")
    blocks = last.snapshot.learned.blocks if last is not None else {}
    for scope, block in now.snapshot.learned.blocks.items():
        if blocks.get(scope) != block:
            refusal = refusal_reason(block)
            figures = {**clock.figures(refusal), "until_at": clock.to_wall(block.until_s), **_of_cloud(scope.cloud)}
            yield HistoryEvent(clock.wall_at, "block", str(scope), "begins", refusal.code, figures)
