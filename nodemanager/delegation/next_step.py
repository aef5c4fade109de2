"""The next step for one delegated job, decided from both eventlogs. This is the whole logic of delegation.

One rule makes a copy run exactly once: a copy is submitted with urgency 0, and gets the job's own urgency only
after the eventlog of *our* instance names it (``delegate::submit``). The first such event counts. So a copy that
was submitted before a crash, or by a second manager, waits at the peer until it is adopted or cancelled. A job
whose copy may have started is never given to another peer. If our instance lost what was on record, the copy is
found by its marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.delegation.jobs import (
    EXEC,
    HOLD,
    HOLD_UNTIL_AT,
    PROXY_R,
    REFUSED,
    RETURNED,
    STARTED,
    SUBMITTED,
    Copy,
    EventlogEntry,
    Failure,
    PeerName,
    Phase,
    Proxy,
)
from nodemanager.delegation.ports import (
    ChangeDuration,
    ChangeUrgency,
    EndCopy,
    FindCopies,
    HoldJob,
    HomeRequest,
    PeerRequest,
    PostEvent,
    RaiseOnJob,
    ReadCopy,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowRunning,
    Validate,
)

LOST = "delegate"  # the type of our own exceptions
HELD_URGENCY = 0
# As the frobnicator plugin does for a job with the dependency: job-exec waits for our word, and starts nothing.
INERT: Mapping[str, Any] = {"test": {"override": 1, "run_duration": "3650d"}}


class OutputState(Enum):
    """How far the output of a copy has been passed on to our job."""

    IDLE = "idle"
    FLOWING = "flowing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PeerView:
    """The facts at one peer about one job.

    ``synced``: every active copy of the peer is known. ``missing``: the peer says that it does not know these ids.
    ``why``: why the peer cannot be reached. ``refused``: the peer's words if it refused the submission.
    ``searched``: the copies that had ended before are known too.
    """

    name: PeerName
    synced: bool = False
    copies: Sequence[Copy] = ()
    missing: frozenset[JobId] = frozenset()
    why: str = ""
    refused: str = ""
    searched: bool = False
    uri: str = ""

    def copy(self, remote: JobId) -> Copy | None:
        """Return one copy."""
        return next((copy for copy in self.copies if copy.remote == remote), None)


@dataclass(frozen=True, slots=True)
class Sides:
    """Everything that the next step depends on.

    ``peers`` holds the peers at which the job has a copy or may get one; of a job that waited when our instance
    started, every peer that it may go to. ``chosen``: the peer chosen for a job that is not on record anywhere.
    ``home_started_at``: when our instance started. ``now_at``: the time of the events to post.
    """

    proxy: Proxy
    peers: Mapping[PeerName, PeerView] = field(default_factory=dict)
    chosen: PeerName | None = None
    home_started_at: float = 0.0
    now_at: float = 0.0
    output: OutputState = OutputState.IDLE
    no_peer: str = ""  # why no peer takes a job that we took
    never: bool = False  # nor ever will


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until an event arrives."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose a peer."""


@dataclass(frozen=True, slots=True)
class SubmitTo:
    """Submit a copy to the chosen peer. It is held until our job's eventlog names it."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """Begin to pass on the copy's output."""

    peer: PeerName
    remote: JobId


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Send a request to a peer."""

    peer: PeerName
    request: PeerRequest


@dataclass(frozen=True, slots=True)
class Done:
    """Both jobs have ended: forget them."""


NextStep = Wait | Choose | SubmitTo | StreamOutput | AskPeer | Done | HomeRequest


# --- what our job's eventlog keeps, so that every restart knows it ----------------------------------------


def record_copy(job: JobId, at: float, view: PeerView, remote: JobId) -> PostEvent:
    """Record which copy it is. From then on this copy may run."""
    return _post(job, at, SUBMITTED, peer=view.name, jobid=remote, uri=view.uri)


def record_refusal(job: JobId, at: float, peer: PeerName, why: str) -> PostEvent:
    """Record that a peer refused it, so that no restart asks that peer again."""
    return _post(job, at, REFUSED, peer=peer, why=why)


def record_start(job: JobId, at: float, started_at: float) -> PostEvent:
    """Record when its copy started."""
    return _post(job, at, STARTED, timestamp=started_at)


def name_nodes(job: JobId, at: float, peer: PeerName) -> PostEvent:
    """Show the peer's name as the node that it runs on."""
    return _post(job, at, "jobspec-update", **{PROXY_R: pretended_resources(peer)})


def make_inert(job: JobId, at: float, *, undo: bool = False) -> PostEvent:
    """Have job-exec start nothing for a job that we took, whatever its scheduler does. ``undo``: not any more."""
    return _post(job, at, "jobspec-update", **{EXEC: {} if undo else INERT})


def give_back(job: JobId, at: float, why: str, *, for_good: bool = False) -> PostEvent:
    """Record that a job that we took runs here after all. ``for_good``: the peer will never take it."""
    return _post(job, at, RETURNED, why=why, for_good=for_good)


def _post(job: JobId, at: float, name: str, **context: object) -> PostEvent:
    return PostEvent(job, EventlogEntry(name, at, context))


def pretended_resources(nodelist: str) -> dict[str, Any]:
    """The resources that a proxy seems to hold (RFC 20): one core of a node with the peer's name."""
    execution = {
        "R_lite": [{"rank": "0", "children": {"core": "0"}}],
        "nodelist": [nodelist],
        "starttime": HOLD_UNTIL_AT,
        "expiration": 0,
    }
    return {"version": 1, "execution": execution}


# --- the decision -----------------------------------------------------------------------------------------


class _LeftCopy(NamedTuple):
    remote: JobId
    peer: PeerName
    started: bool


def next_step(sides: Sides) -> NextStep:
    """Decide the next step for one delegated job."""
    proxy = sides.proxy
    if (stray := _stray_copy(sides)) is not None:
        return stray
    if proxy.phase is Phase.ENDED:
        return _after_the_end(sides)
    if proxy.phase is Phase.ENDING:
        return Wait(because(Code.DELEGATED_ENDING))
    if proxy.phase is Phase.NEW or proxy.waits_for - {HOLD}:
        return Wait(because(Code.DELEGATED_DEPENDENCY))
    if proxy.returned:
        return _let_run_here(sides)
    if proxy.taken and (waits := _keep_from_running_here(sides)) is not None:
        return waits
    if proxy.placed is None:
        return _place(sides)
    view = sides.peers.get(proxy.placed.peer)
    if view is None or not view.synced:
        return _unreachable(proxy.placed.peer, view)
    remote = proxy.placed.remote
    copy = view.copy(remote)
    if copy is None:
        return _look_up_or_give_up(proxy.id, view, remote)
    return _follow(sides, view, copy)


def _keep_from_running_here(sides: Sides) -> NextStep | None:
    """Make sure that a job that we took never runs here too; only then may a copy be submitted.

    What its eventlog says first, counts: an ``alloc`` by our scheduler, or the update that makes it inert.
    """
    proxy = sides.proxy
    if proxy.runs_here:
        return give_back(proxy.id, sides.now_at, "it got nodes here first")
    if proxy.urgency and proxy.phase is Phase.QUEUED:
        return HoldJob(proxy.id)
    if not proxy.inert:
        return make_inert(proxy.id, sides.now_at)
    if proxy.placed is None and sides.no_peer and not proxy.stranded:
        return give_back(proxy.id, sides.now_at, sides.no_peer, for_good=sides.never)
    return None


def _let_run_here(sides: Sides) -> NextStep:
    """Undo what kept a job from running here."""
    proxy = sides.proxy
    if proxy.inert:
        return make_inert(proxy.id, sides.now_at, undo=True)
    if proxy.phase is Phase.QUEUED and not proxy.urgency and proxy.urgency_wanted:
        return ReleaseJob(proxy.id, proxy.urgency_wanted)
    return Wait(because(Code.GIVEN_BACK))


def _unreachable(peer: PeerName, view: PeerView | None) -> Wait:
    return Wait(because(Code.PEER_UNREACHABLE, peer=peer, detail=view.why if view else "not connected yet"))


def _stray_copy(sides: Sides) -> NextStep | None:
    """Cancel the copies that are not on record, once another one is, or once our job has ended."""
    placed, over = sides.proxy.placed, sides.proxy.phase.value >= Phase.ENDING.value
    for view in sides.peers.values():
        for copy in view.copies:
            on_record = placed is not None and (placed.peer, placed.remote) == (view.name, copy.remote)
            if copy.phase.value >= Phase.ENDING.value or not view.synced:
                continue
            if on_record and over:
                why = sides.proxy.failure
                note = f"ended at home: {why.type}: {why.note}" if why else "ended at home"
                return AskPeer(view.name, EndCopy(copy.remote, note))
            if not on_record and (over or placed is not None):
                return AskPeer(view.name, EndCopy(copy.remote, "another copy of this job is on record at home"))
            if sides.proxy.returned or sides.proxy.runs_here:
                return AskPeer(view.name, EndCopy(copy.remote, "the job runs at home"))
    return None


def _after_the_end(sides: Sides) -> NextStep:
    """Forget a job that has ended, unless a copy may still run at a peer that cannot be reached."""
    placed = sides.proxy.placed
    if placed is not None:
        view = sides.peers.get(placed.peer)
        copy = view.copy(placed.remote) if view else None
        if copy is not None and copy.phase.value >= Phase.ENDING.value:
            return Done()
        if view is None or not view.synced:
            return _unreachable(placed.peer, view)
    return Done()


def _place(sides: Sides) -> NextStep:
    """Find a copy that an earlier attempt left, or submit one to the chosen peer.

    An instance that is killed may come back without its latest events. So a job that waited when it started may
    have a copy that runs, or has run, although nothing is on record: that copy is adopted, at whichever peer it is.
    """
    found = _left_copies(sides)
    started = [copy for copy in found if copy.started]
    if started:
        return _record_left(sides, started[0])
    if sides.proxy.submitted_at < sides.home_started_at and (search := _search(sides)) is not None:
        return search
    if found:
        return _record_left(sides, found[0])
    if sides.chosen is None or sides.chosen in sides.proxy.refusals:
        return Choose()
    view_of_chosen = sides.peers.get(sides.chosen)
    if view_of_chosen is None or not view_of_chosen.synced:
        return Choose()
    if view_of_chosen.refused:
        return record_refusal(sides.proxy.id, sides.now_at, sides.chosen, view_of_chosen.refused)
    return SubmitTo(sides.chosen)


def _left_copies(sides: Sides) -> list[_LeftCopy]:
    """List the copies that may be put on record, lowest id first: they wait or run, or they have run."""
    return sorted(
        (
            _LeftCopy(copy.remote, view.name, copy.started_at is not None)
            for view in sides.peers.values()
            if view.synced and view.name not in sides.proxy.refusals
            for copy in view.copies
            if copy.phase.value < Phase.ENDING.value or copy.started_at is not None
        ),
    )


def _record_left(sides: Sides, copy: _LeftCopy) -> NextStep:
    return record_copy(sides.proxy.id, sides.now_at, sides.peers[copy.peer], copy.remote)


def _search(sides: Sides) -> NextStep | None:
    """Ask every peer that may have a copy, before one is submitted."""
    for view in sides.peers.values():
        if view.name in sides.proxy.refusals:
            continue
        if not view.synced:
            may_have = "it may have this job already, so no other peer gets it"
            return Wait(because(Code.PEER_UNREACHABLE, peer=view.name, detail=f"{view.why}; {may_have}"))
        if not view.searched:
            return AskPeer(view.name, FindCopies())
    return None


def _look_up_or_give_up(job: JobId, view: PeerView, remote: JobId) -> NextStep:
    if remote not in view.missing:
        return AskPeer(view.name, ReadCopy(remote))
    why = (
        f"{view.name} does not know job {format_job_id(remote)} any more, so it has lost its state."
        " The job may have run: it is not started again"
    )
    return RaiseOnJob(job, Failure(LOST, why))


def _follow(sides: Sides, view: PeerView, copy: Copy) -> NextStep:
    proxy = sides.proxy
    if copy.was_refused and copy.failure is not None:
        return record_refusal(proxy.id, sides.now_at, view.name, copy.failure.note)
    if copy.started_at is None:
        return _not_started(sides, view, copy)
    if not proxy.start_recorded:
        return record_start(proxy.id, sides.now_at, copy.started_at)
    if (catching_up := _catch_up(sides, view)) is not None:
        return catching_up
    if sides.output is OutputState.IDLE:
        return StreamOutput(view.name, copy.remote)
    if copy.status is not None or copy.ended:
        if sides.output is OutputState.FLOWING:
            return Wait(because(Code.DELEGATED_ENDING))
        return _end_as(proxy.id, view, copy)
    return _mirror(proxy, view, copy) or Wait(_running_reason(view, copy))


def _end_as(job: JobId, view: PeerView, copy: Copy) -> NextStep:
    if copy.failure is None and copy.status is not None:
        return ShowFinished(job, copy.status)
    failure = copy.failure or Failure(LOST, "the job ended without a status")
    return RaiseOnJob(job, _remote(view, failure), copy.status)


def _not_started(sides: Sides, view: PeerView, copy: Copy) -> NextStep:
    if copy.failure is not None:
        return RaiseOnJob(sides.proxy.id, _remote(view, copy.failure))
    if copy.ended:
        return RaiseOnJob(sides.proxy.id, Failure(LOST, f"{view.name}: the job ended before it started"))
    return _mirror(sides.proxy, view, copy) or Wait(_pending_reason(view, copy))


def _mirror(proxy: Proxy, view: PeerView, copy: Copy) -> NextStep | None:
    if copy.started_at is None and copy.urgency != proxy.copy_urgency:
        return AskPeer(view.name, ChangeUrgency(copy.remote, proxy.copy_urgency))
    if proxy.duration_wanted_s is not None and proxy.duration_wanted_s != copy.duration_s:
        return AskPeer(view.name, ChangeDuration(copy.remote, proxy.duration_wanted_s))
    return None


def _catch_up(sides: Sides, view: PeerView) -> NextStep | None:
    """Bring our job to RUN, as its copy is."""
    proxy = sides.proxy
    # alloc-bypass keeps its notes in memory, so it forgets them when our instance restarts.
    forgotten = proxy.bypass_at <= sides.home_started_at
    waits = Phase.QUEUED if proxy.taken else Phase.WAITING
    if proxy.phase is waits and proxy.nodelist != view.name:
        return name_nodes(proxy.id, sides.now_at, view.name)
    if proxy.phase.value <= Phase.QUEUED.value and forgotten:
        duration_s = proxy.duration_s if proxy.duration_wanted_s is None else proxy.duration_wanted_s
        return Validate(proxy.id, duration_s)
    if proxy.held:
        return RemoveDependency(proxy.id, HOLD)
    if proxy.phase.value < Phase.ALLOCATED.value:
        return Wait(because(Code.DELEGATED_STARTING, peer=view.name))
    if proxy.phase is Phase.ALLOCATED:
        return ShowRunning(proxy.id)
    return None


def _remote(view: PeerView, failure: Failure) -> Failure:
    note = f"remote: {view.name}: {failure.note}" if failure.note else f"remote: {view.name}"
    return Failure(failure.type, note)


def _pending_reason(view: PeerView, copy: Copy) -> Reason:
    if copy.urgency == HELD_URGENCY:
        return because(Code.DELEGATED_HELD, peer=view.name, remote=format_job_id(copy.remote))
    reason = because(Code.DELEGATED_PENDING, peer=view.name, remote=format_job_id(copy.remote))
    return reason if copy.expected_at is None else reason.with_figures(expected_at=copy.expected_at)


def _running_reason(view: PeerView, copy: Copy) -> Reason:
    return because(Code.DELEGATED_RUNNING, peer=view.name, remote=format_job_id(copy.remote))
