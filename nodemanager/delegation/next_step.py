"""The next step for one delegated job, decided from both eventlogs. This is the whole logic of delegation.

One rule makes a copy run exactly once: a copy is submitted with urgency 0, and gets the job's own urgency only
after the eventlog of *our* instance names it (``delegate::submit``). The first such event counts. So a copy that
was submitted before a crash, or by a second manager, waits at the peer until it is adopted or cancelled. A job
whose copy may have started is never given to another peer. If our instance lost what was on record, the copy is
found by its marker.
"""

from __future__ import annotations

from typing import NamedTuple

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.delegation.jobs import HOLD, Copy, Failure, PeerName, Phase, Proxy
from nodemanager.delegation.steps import (
    HELD_URGENCY,
    LOST,
    CancelCopy,
    Choose,
    Done,
    FinishProxy,
    GiveBack,
    HoldHere,
    LookUpCopy,
    MakeInert,
    NameNodes,
    PeerView,
    RaiseFailure,
    RecordCopy,
    RecordRefusal,
    RecordStart,
    Relay,
    RelayOutput,
    ReleaseHere,
    RemoveHold,
    Revalidate,
    SearchCopies,
    SetDuration,
    SetUrgency,
    Sides,
    StartProxy,
    Step,
    SubmitCopy,
    Wait,
)


class _LeftCopy(NamedTuple):
    remote: JobId
    peer: PeerName
    started: bool


def next_step(sides: Sides) -> Step:
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
        return _let_run_here(proxy)
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
        return _look_up_or_give_up(view, remote)
    return _follow(sides, view, copy)


def _keep_from_running_here(sides: Sides) -> Step | None:
    """Make sure that a job that we took never runs here too; only then may a copy be submitted.

    What its eventlog says first, counts: an ``alloc`` by our scheduler, or the update that makes it inert.
    """
    proxy = sides.proxy
    if proxy.runs_here:
        return GiveBack("it got nodes here first")
    if proxy.urgency and proxy.phase is Phase.QUEUED:
        return HoldHere()
    if not proxy.inert:
        return MakeInert()
    if proxy.placed is None and sides.no_peer and not proxy.stranded:
        return GiveBack(sides.no_peer, for_good=sides.never)
    return None


def _let_run_here(proxy: Proxy) -> Step:
    """Undo what kept a job from running here."""
    if proxy.inert:
        return MakeInert(undo=True)
    if proxy.phase is Phase.QUEUED and not proxy.urgency and proxy.urgency_wanted:
        return ReleaseHere(proxy.urgency_wanted)
    return Wait(because(Code.GIVEN_BACK))


def _unreachable(peer: PeerName, view: PeerView | None) -> Wait:
    return Wait(because(Code.PEER_UNREACHABLE, peer=peer, detail=view.why if view else "not connected yet"))


def _stray_copy(sides: Sides) -> Step | None:
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
                return CancelCopy(view.name, copy.remote, note)
            if not on_record and (over or placed is not None):
                return CancelCopy(view.name, copy.remote, "another copy of this job is on record at home")
            if sides.proxy.returned or sides.proxy.runs_here:
                return CancelCopy(view.name, copy.remote, "the job runs at home")
    return None


def _after_the_end(sides: Sides) -> Step:
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


def _place(sides: Sides) -> Step:
    """Find a copy that an earlier attempt left, or submit one to the chosen peer.

    An instance that is killed may come back without its latest events. So a job that waited when it started may
    have a copy that runs, or has run, although nothing is on record: that copy is adopted, at whichever peer it is.
    """
    found = _left_copies(sides)
    started = [copy for copy in found if copy.started]
    if started:
        return RecordCopy(started[0].peer, started[0].remote)
    if sides.proxy.submitted_at < sides.home_started_at and (search := _search(sides)) is not None:
        return search
    if found:
        return RecordCopy(found[0].peer, found[0].remote)
    if sides.chosen is None or sides.chosen in sides.proxy.refusals:
        return Choose()
    view_of_chosen = sides.peers.get(sides.chosen)
    if view_of_chosen is None or not view_of_chosen.synced:
        return Choose()
    if view_of_chosen.refused:
        return RecordRefusal(sides.chosen, view_of_chosen.refused)
    return SubmitCopy(sides.chosen)


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


def _search(sides: Sides) -> Step | None:
    """Ask every peer that may have a copy, before one is submitted."""
    for view in sides.peers.values():
        if view.name in sides.proxy.refusals:
            continue
        if not view.synced:
            may_have = "it may have this job already, so no other peer gets it"
            return Wait(because(Code.PEER_UNREACHABLE, peer=view.name, detail=f"{view.why}; {may_have}"))
        if not view.searched:
            return SearchCopies(view.name)
    return None


def _look_up_or_give_up(view: PeerView, remote: JobId) -> Step:
    if remote not in view.missing:
        return LookUpCopy(view.name, remote)
    return RaiseFailure(
        LOST,
        f"{view.name} does not know job {format_job_id(remote)} any more, so it has lost its state."
        " The job may have run: it is not started again",
    )


def _follow(sides: Sides, view: PeerView, copy: Copy) -> Step:
    proxy = sides.proxy
    if copy.was_refused and copy.failure is not None:
        return RecordRefusal(view.name, copy.failure.note)
    if copy.started_at is None:
        return _not_started(sides, view, copy)
    if not proxy.start_recorded:
        return RecordStart(copy.started_at)
    if (catching_up := _catch_up(sides, view)) is not None:
        return catching_up
    if sides.relay is Relay.IDLE:
        return RelayOutput(view.name, copy.remote)
    if copy.status is not None or copy.ended:
        if sides.relay is Relay.FLOWING:
            return Wait(because(Code.DELEGATED_ENDING))
        return _end_as(view, copy)
    return _mirror(proxy, view, copy) or Wait(_running_reason(view, copy))


def _end_as(view: PeerView, copy: Copy) -> Step:
    if copy.failure is None and copy.status is not None:
        return FinishProxy(copy.status)
    failure = copy.failure or Failure(LOST, "the job ended without a status")
    return RaiseFailure(failure.type, _remote_note(view, failure), copy.status)


def _not_started(sides: Sides, view: PeerView, copy: Copy) -> Step:
    if copy.failure is not None:
        return RaiseFailure(copy.failure.type, _remote_note(view, copy.failure))
    if copy.ended:
        return RaiseFailure(LOST, f"{view.name}: the job ended before it started")
    return _mirror(sides.proxy, view, copy) or Wait(_pending_reason(view, copy))


def _mirror(proxy: Proxy, view: PeerView, copy: Copy) -> Step | None:
    if copy.started_at is None and copy.urgency != proxy.copy_urgency:
        return SetUrgency(view.name, copy.remote, proxy.copy_urgency)
    if proxy.duration_wanted_s is not None and proxy.duration_wanted_s != copy.duration_s:
        return SetDuration(view.name, copy.remote, proxy.duration_wanted_s)
    return None


def _catch_up(sides: Sides, view: PeerView) -> Step | None:
    """Bring our job to RUN, as its copy is."""
    proxy = sides.proxy
    # alloc-bypass keeps its notes in memory, so it forgets them when our instance restarts.
    forgotten = proxy.bypass_at <= sides.home_started_at
    waits = Phase.QUEUED if proxy.taken else Phase.WAITING
    if proxy.phase is waits and proxy.nodelist != view.name:
        return NameNodes(view.name)
    if proxy.phase.value <= Phase.QUEUED.value and forgotten:
        return Revalidate(proxy.duration_s if proxy.duration_wanted_s is None else proxy.duration_wanted_s)
    if proxy.held:
        return RemoveHold()
    if proxy.phase.value < Phase.ALLOCATED.value:
        return Wait(because(Code.DELEGATED_STARTING, peer=view.name))
    if proxy.phase is Phase.ALLOCATED:
        return StartProxy()
    return None


def _remote_note(view: PeerView, failure: Failure) -> str:
    return f"remote: {view.name}: {failure.note}" if failure.note else f"remote: {view.name}"


def _pending_reason(view: PeerView, copy: Copy) -> Reason:
    if copy.urgency == HELD_URGENCY:
        return because(Code.DELEGATED_HELD, peer=view.name, remote=format_job_id(copy.remote))
    reason = because(Code.DELEGATED_PENDING, peer=view.name, remote=format_job_id(copy.remote))
    return reason if copy.expected_at is None else reason.with_figures(expected_at=copy.expected_at)


def _running_reason(view: PeerView, copy: Copy) -> Reason:
    return because(Code.DELEGATED_RUNNING, peer=view.name, remote=format_job_id(copy.remote))
