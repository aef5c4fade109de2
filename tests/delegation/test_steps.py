"""What happens next to a delegated job, for every pair of eventlogs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import (
    COPY_EVENTS,
    EXEC,
    HOLD,
    PROXY_EVENTS,
    PROXY_R,
    REFUSED,
    RETURNED,
    STARTED,
    SUBMITTED,
    TAKEN,
    Copy,
    EventlogEntry,
    Failure,
    PeerName,
    Placed,
    Proxy,
)
from nodemanager.delegation.next_step import (
    LOST,
    AskPeer,
    Choose,
    Done,
    NextStep,
    OutputState,
    PeerView,
    Sides,
    StreamOutput,
    SubmitTo,
    Wait,
    give_back,
    make_inert,
    name_nodes,
    next_step,
    record_copy,
    record_refusal,
    record_start,
)  # fmt: skip
from nodemanager.delegation.ports import (
    ChangeDuration,
    ChangeUrgency,
    EndCopy,
    HoldJob,
    RaiseOnJob,
    ReadCopy,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowRunning,
    Validate,
)  # fmt: skip

# Of RFC 21 and of flux-core's job manager.
EVENT_NAMES = (
    "submit", "validate", "invalidate", "set-flags", "jobspec-update", "resource-update", "dependency-add",
    "dependency-remove", "depend", "priority", "urgency", "alloc", "free", "prolog-start", "prolog-finish",
    "epilog-start", "epilog-finish", "start", "release", "finish", "clean", "exception", "annotations", "memo",
    "debug.alloc-request", "flux-restart", SUBMITTED, STARTED, REFUSED, TAKEN, RETURNED,
)  # fmt: skip
B, C = PeerName("b"), PeerName("c")
JOB, REMOTE = JobId(7), JobId(70)
NOW = 20.0


def an_event(name: str, at: float, **context: object) -> EventlogEntry:
    return EventlogEntry(name, at, context)


SUBMIT = an_event("submit", 1.0, urgency=16, userid=1000, flags=0)
BYPASS = an_event("set-flags", 2.0, flags=["alloc-bypass"])
ADD_HOLD = an_event("dependency-add", 2.0, description=HOLD)
VALIDATE = an_event("validate", 3.0)
HELD = (SUBMIT, BYPASS, ADD_HOLD, VALIDATE)
ON_RECORD = an_event(SUBMITTED, 4.0, peer="b", jobid=70)
B_STARTED = an_event(STARTED, 5.0, timestamp=5.0)
FREED = an_event("dependency-remove", 6.0, description=HOLD)
QUEUED = (FREED, an_event("depend", 6.0), an_event("priority", 6.0, priority=16))
ALLOCATED = (*QUEUED, an_event("alloc", 7.0, bypass=True))
RUNNING = (*ALLOCATED, an_event("start", 8.0))
FINISHED = an_event("finish", 12.0, status=768)
CANCELLED = an_event("exception", 9.0, type="cancel", severity=0, note="no longer needed")
TIMED_OUT = an_event("exception", 9.0, type="timeout", severity=0, note="resource allocation expired")
CLEAN = an_event("clean", 13.0)

COPY_HELD = (an_event("submit", 3.5, urgency=0, userid=1000, flags=0), VALIDATE)
RELEASED = an_event("urgency", 4.5, urgency=16, userid=1000)
COPY_STARTED = (an_event("depend", 4.6), an_event("alloc", 4.7), an_event("start", 5.0))
COPY_RUNS = (*COPY_HELD, RELEASED, *COPY_STARTED)


def a_proxy(*events: EventlogEntry, nodelist: str = "b") -> Proxy:
    return Proxy(JOB, target="b", nodelist=nodelist).after(events)


def a_view(*copies: Copy, missing: Sequence[JobId] = (), synced: bool = True, refused: str = "") -> PeerView:
    why = "" if synced else "connection refused"
    return PeerView(B, synced, copies, frozenset(missing), why, refused, uri="local:///b")


def a_copy(*events: EventlogEntry, remote: JobId = REMOTE) -> Copy:
    return Copy(remote).after(events)


def the_step(
    proxy: Proxy, *views: PeerView, chosen: PeerName | None = None, output: OutputState = OutputState.IDLE
) -> NextStep:
    return next_step(
        Sides(proxy, {view.name: view for view in views}, chosen, home_started_at=0.5, now_at=NOW, output=output)
    )


def waits(step: NextStep, code: str) -> bool:
    return isinstance(step, Wait) and step.reason.code == code


ON_RECORD_AT_B = record_copy(JOB, NOW, a_view(), REMOTE)
PLACED = (*HELD, ON_RECORD)
STARTED_THERE = (*PLACED, B_STARTED)

# (our eventlog, the copy's eventlog or None, the output) -> the step
TABLE = [
    ("no peer yet", HELD, None, OutputState.IDLE, Choose()),
    ("a copy from before a crash is adopted", HELD, COPY_HELD, OutputState.IDLE, ON_RECORD_AT_B),
    ("on record: it may run", PLACED, COPY_HELD, OutputState.IDLE, AskPeer(B, ChangeUrgency(REMOTE, 16))),
    (
        "the user's urgency goes along",
        (*PLACED, an_event("urgency", 4.2, urgency=31)),
        COPY_HELD,
        OutputState.IDLE,
        AskPeer(B, ChangeUrgency(REMOTE, 31)),
    ),
    (
        "and the user's hold",
        (*PLACED, an_event("urgency", 4.8, urgency=0)),
        (*COPY_HELD, RELEASED),
        OutputState.IDLE,
        AskPeer(B, ChangeUrgency(REMOTE, 0)),
    ),
    ("not among the active copies", PLACED, None, OutputState.IDLE, AskPeer(B, ReadCopy(REMOTE))),
    ("it started", PLACED, COPY_RUNS, OutputState.IDLE, record_start(JOB, NOW, 5.0)),
    ("the hold goes", STARTED_THERE, COPY_RUNS, OutputState.IDLE, RemoveDependency(JOB, HOLD)),
    ("allocated", (*STARTED_THERE, *ALLOCATED), COPY_RUNS, OutputState.IDLE, ShowRunning(JOB)),
    ("running: its output", (*STARTED_THERE, *RUNNING), COPY_RUNS, OutputState.IDLE, StreamOutput(B, REMOTE)),
    (
        "finished and all output passed on",
        (*STARTED_THERE, *RUNNING),
        (*COPY_RUNS, FINISHED),
        OutputState.DONE,
        ShowFinished(JOB, 768),
    ),
    (
        "finished by an exception",
        (*STARTED_THERE, *RUNNING),
        (*COPY_RUNS, TIMED_OUT, replace(FINISHED, context={"status": 36352}), CLEAN),
        OutputState.DONE,
        RaiseOnJob(JOB, Failure("timeout", "remote: b: resource allocation expired"), 36352),
    ),
    (
        "ended without a status",
        (*STARTED_THERE, *RUNNING),
        (*COPY_RUNS, an_event("exception", 9.0, type="exec", severity=0, note="lost"), CLEAN),
        OutputState.DONE,
        RaiseOnJob(JOB, Failure("exec", "remote: b: lost")),
    ),
    (
        "cancelled there while it waited",
        PLACED,
        (*COPY_HELD, RELEASED, CANCELLED, CLEAN),
        OutputState.IDLE,
        RaiseOnJob(JOB, Failure("cancel", "remote: b: no longer needed")),
    ),
    (
        "refused there",
        PLACED,
        (*COPY_HELD, RELEASED, an_event("exception", 9.0, type="alloc", severity=0, note="unsatisfiable"), CLEAN),
        OutputState.IDLE,
        record_refusal(JOB, NOW, B, "unsatisfiable"),
    ),
    (
        "cancelled at home",
        (*STARTED_THERE, *RUNNING, CANCELLED),
        COPY_RUNS,
        OutputState.FLOWING,
        AskPeer(B, EndCopy(REMOTE, "ended at home: cancel: no longer needed")),
    ),
    (
        "cancelled at home while it waited",
        (*PLACED, CANCELLED, CLEAN),
        (*COPY_HELD, RELEASED),
        OutputState.IDLE,
        AskPeer(B, EndCopy(REMOTE, "ended at home: cancel: no longer needed")),
    ),
    (
        "a shorter time limit",
        (*STARTED_THERE, *RUNNING, an_event("jobspec-update", 9.0, **{"attributes.system.duration": 60.0})),
        COPY_RUNS,
        OutputState.FLOWING,
        AskPeer(B, ChangeDuration(REMOTE, 60.0)),
    ),
    (
        "both ended",
        (*STARTED_THERE, *RUNNING, FINISHED, CLEAN),
        (*COPY_RUNS, FINISHED, CLEAN),
        OutputState.DONE,
        Done(),
    ),
    ("ended at home before there was a copy", (*HELD, CANCELLED, CLEAN), None, OutputState.IDLE, Done()),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "output", "step"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_next_step(
    ours: Sequence[EventlogEntry], theirs: Sequence[EventlogEntry] | None, output: OutputState, step: NextStep
) -> None:
    view = a_view(a_copy(*theirs)) if theirs is not None else a_view()
    assert the_step(a_proxy(*ours), view, output=output) == step


WAITS = [
    ("not validated yet", (SUBMIT, ADD_HOLD), None, OutputState.IDLE, "delegated_dependency"),
    (
        "another dependency first",
        (*HELD, an_event("dependency-add", 2.5, description="after-success=5")),
        None,
        OutputState.IDLE,
        "delegated_dependency",
    ),
    ("pending there", PLACED, (*COPY_HELD, RELEASED), OutputState.IDLE, "delegated_pending"),
    (
        "held by its user",
        (*PLACED, an_event("urgency", 4.8, urgency=0)),
        COPY_HELD,
        OutputState.IDLE,
        "delegated_held",
    ),
    ("queued at home", (*STARTED_THERE, *QUEUED), COPY_RUNS, OutputState.IDLE, "delegated_starting"),
    ("running there", (*STARTED_THERE, *RUNNING), COPY_RUNS, OutputState.FLOWING, "delegated_running"),
    (
        "output still flows",
        (*STARTED_THERE, *RUNNING),
        (*COPY_RUNS, FINISHED),
        OutputState.FLOWING,
        "delegated_ending",
    ),
    (
        "the copy is ending too",
        (*STARTED_THERE, *RUNNING, CANCELLED),
        (*COPY_RUNS, CANCELLED),
        OutputState.FLOWING,
        "delegated_ending",
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "output", "code"), [row[1:] for row in WAITS], ids=[row[0] for row in WAITS]
)
def test_it_waits(
    ours: Sequence[EventlogEntry], theirs: Sequence[EventlogEntry] | None, output: OutputState, code: str
) -> None:
    view = a_view(a_copy(*theirs)) if theirs is not None else a_view()
    assert waits(the_step(a_proxy(*ours), view, output=output), code)


def test_a_chosen_peer_gets_a_copy() -> None:
    assert the_step(a_proxy(*HELD), a_view(), chosen=B) == SubmitTo(B)


def test_a_chosen_peer_that_is_lost_is_chosen_again() -> None:
    assert the_step(a_proxy(*HELD), a_view(synced=False), chosen=B) == Choose()


def test_a_refused_submission_is_recorded() -> None:
    assert the_step(a_proxy(*HELD), a_view(refused="no such queue"), chosen=B) == record_refusal(
        JOB, NOW, B, "no such queue"
    )


def test_a_refusal_makes_way_for_the_next_peer() -> None:
    proxy = a_proxy(*PLACED, an_event(REFUSED, 5.0, peer="b", why="unsatisfiable"))
    ended = a_copy(*COPY_HELD, an_event("exception", 4.9, type="alloc", severity=0, note="unsatisfiable"), CLEAN)
    assert the_step(proxy, a_view(ended), chosen=B) == Choose()
    assert the_step(proxy, a_view(ended), PeerView(C, synced=True), chosen=C) == SubmitTo(C)
    assert proxy.after([an_event(SUBMITTED, 6.0, peer="c", jobid=80)]).placed == Placed(C, JobId(80))


def test_a_second_manager_s_copy_is_cancelled_before_it_runs() -> None:
    """Both managers submitted; the first record counts."""
    proxy = a_proxy(*PLACED, an_event(SUBMITTED, 4.1, peer="b", jobid=71))
    other = a_copy(*COPY_HELD, remote=JobId(71))
    step = the_step(proxy, a_view(a_copy(*COPY_HELD), other))
    assert step == AskPeer(B, EndCopy(JobId(71), "another copy of this job is on record at home"))


def test_a_copy_at_another_peer_is_cancelled() -> None:
    elsewhere = PeerView(C, synced=True, copies=(a_copy(*COPY_HELD, remote=JobId(80)),))
    step = the_step(a_proxy(*PLACED), a_view(a_copy(*COPY_HELD)), elsewhere)
    assert step == AskPeer(C, EndCopy(JobId(80), "another copy of this job is on record at home"))


def test_a_peer_that_lost_its_state_ends_the_job_and_starts_nothing() -> None:
    step = the_step(a_proxy(*PLACED), a_view(missing=[REMOTE]))
    assert isinstance(step, RaiseOnJob)
    assert step.failure.type == LOST
    assert "lost its state" in step.failure.note


@pytest.mark.parametrize("events", [PLACED, (*STARTED_THERE, *RUNNING)], ids=["pending", "running"])
def test_an_unreachable_peer_is_waited_for(events: Sequence[EventlogEntry]) -> None:
    step = the_step(a_proxy(*events), a_view(a_copy(*COPY_RUNS), synced=False))
    assert waits(step, "peer_unreachable")


def test_a_copy_at_an_unreachable_peer_is_not_forgotten() -> None:
    """Our job was cancelled meanwhile: the copy is cancelled once the peer is back."""
    proxy = a_proxy(*STARTED_THERE, *RUNNING, CANCELLED, CLEAN)
    copy = a_copy(*COPY_RUNS)
    assert waits(the_step(proxy, a_view(copy, synced=False)), "peer_unreachable")
    assert the_step(proxy, a_view(copy)) == AskPeer(B, EndCopy(REMOTE, "ended at home: cancel: no longer needed"))


def restarted(*events: EventlogEntry, nodelist: str = "b") -> NextStep:
    sides = Sides(
        a_proxy(*events, nodelist=nodelist), {B: a_view(a_copy(*COPY_RUNS))}, home_started_at=5.5, now_at=NOW
    )
    return next_step(sides)


def test_after_a_restart_at_home_the_plugin_is_reminded() -> None:
    again = an_event("set-flags", 5.7, flags=["alloc-bypass"])
    assert restarted(*STARTED_THERE) == Validate(JOB, 0.0)
    assert restarted(*STARTED_THERE, again) == RemoveDependency(JOB, HOLD)
    assert restarted(*STARTED_THERE, *QUEUED) == Validate(JOB, 0.0)
    assert restarted(*STARTED_THERE, *ALLOCATED) == ShowRunning(JOB)


def test_the_nodes_column_names_the_peer() -> None:
    named = an_event("jobspec-update", 5.2, **{PROXY_R: {"execution": {"nodelist": ["b"]}}})
    view = a_view(a_copy(*COPY_RUNS))
    proxy = a_proxy(*STARTED_THERE, nodelist="any")
    assert the_step(proxy, view) == name_nodes(JOB, NOW, B)
    assert the_step(proxy.after([named]), view) == Validate(JOB, 0.0)


def test_a_manager_whose_clock_is_ahead_keeps_no_job_waiting() -> None:
    """It names the nodes with a time that our instance reaches half an hour later."""
    named = an_event("jobspec-update", 1800.0, **{PROXY_R: {"execution": {"nodelist": ["b"]}}})
    noted = an_event("set-flags", 5.3, flags=["alloc-bypass"])
    proxy = a_proxy(*STARTED_THERE, nodelist="any").after([named, noted])
    assert the_step(proxy, a_view(a_copy(*COPY_RUNS))) == RemoveDependency(JOB, HOLD)


def test_nodes_that_are_named_again_count_although_the_clock_was_set_back() -> None:
    first = an_event("jobspec-update", 1800.0, **{PROXY_R: {"execution": {"nodelist": ["any"]}}})
    again = an_event("jobspec-update", 5.2, **{PROXY_R: {"execution": {"nodelist": ["b"]}}})
    assert a_proxy(*STARTED_THERE, nodelist="").after([first, again]).nodelist == "b"


def test_a_log_that_is_read_twice_changes_nothing() -> None:
    events = (*STARTED_THERE, *RUNNING)
    once = a_proxy(*events)
    assert once.after(events[4:]) == once
    copy = a_copy(*COPY_RUNS, FINISHED)
    assert copy.after([*COPY_STARTED, FINISHED]) == copy


# --- a job whose user did not ask for a peer: [Policy] burst = peers ---

WAITS_HERE = (SUBMIT, VALIDATE, an_event("depend", 3.0), an_event("priority", 3.0, priority=16))
TAKE = an_event(TAKEN, 4.0, target="b", urgency=16)
UNHELD = an_event("urgency", 4.5, urgency=0)
IS_INERT = an_event("jobspec-update", 4.6, **{EXEC: {"test": {"override": 1}}})
NOT_INERT = an_event("jobspec-update", 6.0, **{EXEC: {}})
GIVEN_BACK = an_event(RETURNED, 5.0, why="it cannot be reached now")
SAFE = (*WAITS_HERE, TAKE, UNHELD, IS_INERT)
SCHEDULED = an_event("alloc", 4.7)  # by our own scheduler

BURST_TABLE = [
    ("our scheduler must not start it", (*WAITS_HERE, TAKE), None, HoldJob(JOB)),
    ("nor job-exec", (*WAITS_HERE, TAKE, UNHELD), None, make_inert(JOB, NOW)),
    ("only then a peer gets it", SAFE, None, Choose()),
    ("a copy from before a crash is adopted", SAFE, COPY_HELD, ON_RECORD_AT_B),
    ("the copy gets the urgency of before", (*SAFE, ON_RECORD), COPY_HELD, AskPeer(B, ChangeUrgency(REMOTE, 16))),
    ("its user raises it: held again", (*SAFE, an_event("urgency", 5.0, urgency=31)), None, HoldJob(JOB)),
    ("it started there", (*SAFE, ON_RECORD), COPY_RUNS, record_start(JOB, NOW, 5.0)),
    ("the node's name", (*SAFE, ON_RECORD, B_STARTED), COPY_RUNS, name_nodes(JOB, NOW, B)),
    (
        "it got nodes here before",
        (*WAITS_HERE, SCHEDULED, TAKE),
        None,
        give_back(JOB, NOW, "it got nodes here first"),
    ),
    ("or meanwhile", (*WAITS_HERE, TAKE, UNHELD, SCHEDULED), None, give_back(JOB, NOW, "it got nodes here first")),
    (
        "a copy of a job that runs here is cancelled",
        (*WAITS_HERE, TAKE, UNHELD, SCHEDULED),
        COPY_HELD,
        AskPeer(B, EndCopy(REMOTE, "the job runs at home")),
    ),
    ("given back: it may run here", (*SAFE, GIVEN_BACK), None, make_inert(JOB, NOW, undo=True)),
    ("and has its urgency again", (*SAFE, GIVEN_BACK, NOT_INERT), None, ReleaseJob(JOB, 16)),
    ("inert with nodes of ours: only a peer can run it", (*SAFE, SCHEDULED), None, Choose()),
    ("which cannot be given back", (*SAFE, SCHEDULED, GIVEN_BACK), None, Choose()),
    (
        "whose copy gets the urgency that its user set after it was given back",
        (*SAFE, GIVEN_BACK, an_event("urgency", 5.5, urgency=7), an_event("alloc", 5.6), ON_RECORD),
        COPY_HELD,
        AskPeer(B, ChangeUrgency(REMOTE, 7)),
    ),
    ("taken again", (*SAFE, GIVEN_BACK, NOT_INERT, TAKE, UNHELD), None, make_inert(JOB, NOW)),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"), [row[1:] for row in BURST_TABLE], ids=[row[0] for row in BURST_TABLE]
)
def test_a_job_that_was_taken(
    ours: Sequence[EventlogEntry], theirs: Sequence[EventlogEntry] | None, expected: NextStep
) -> None:
    view = a_view(a_copy(*theirs)) if theirs is not None else a_view()
    assert the_step(a_proxy(*ours, nodelist=""), view) == expected


def test_a_job_that_no_peer_takes_is_given_back_unless_it_can_no_longer_run_here() -> None:
    def step_of(*ours: EventlogEntry) -> NextStep:
        return next_step(Sides(a_proxy(*ours), {B: a_view()}, no_peer="full", now_at=NOW))

    assert step_of(*SAFE) == give_back(JOB, NOW, "full")
    for_good = an_event(RETURNED, 5.0, why="too large", for_good=True)
    assert a_proxy(*SAFE, for_good).refusals == {B: "too large"}
    assert not a_proxy(*SAFE, GIVEN_BACK).refusals
    assert step_of(*SAFE, SCHEDULED) == Choose()
    assert waits(step_of(*SAFE, GIVEN_BACK, NOT_INERT, an_event("urgency", 7.0, urgency=16)), "given_back")


def test_a_job_that_its_user_holds_after_it_was_given_back_stays_held() -> None:
    runs_here = (*SAFE, GIVEN_BACK, NOT_INERT, an_event("urgency", 7.0, urgency=16))
    held = (*runs_here, an_event("urgency", 8.0, urgency=0))
    assert waits(the_step(a_proxy(*held), a_view()), "given_back")
    by_user = (
        *SAFE,
        GIVEN_BACK,
        an_event("urgency", 5.5, urgency=7),
        an_event("urgency", 5.6, urgency=0),
        NOT_INERT,
    )
    assert waits(the_step(a_proxy(*by_user), a_view()), "given_back")
    again = (*held, an_event(TAKEN, 9.0, target="b", urgency=9))
    assert a_proxy(*again).copy_urgency == 9


@pytest.mark.parametrize("name", EVENT_NAMES)
def test_an_event_that_is_not_asked_for_would_change_nothing(name: str) -> None:
    context = {"severity": 0, "status": 1, "description": "x", "urgency": 1, "flags": ["alloc-bypass"], "userid": 1}
    event = an_event(name, 9.0, **context, peer="c", jobid=9)
    taken = a_proxy(*HELD, an_event(TAKEN, 4.0, target="b", urgency=16))
    for before in (a_proxy(), a_proxy(*HELD), a_proxy(*PLACED), taken):
        assert name in PROXY_EVENTS or before.after([event]) == before
    for copy in (a_copy(), a_copy(*COPY_HELD), a_copy(*COPY_RUNS)):
        assert name in COPY_EVENTS or copy.after([event]) == copy


def test_every_event_that_is_asked_for_is_an_event() -> None:
    assert {*EVENT_NAMES} >= PROXY_EVENTS | COPY_EVENTS


def test_a_job_counts_as_failed_as_soon_as_we_raise_an_exception_on_it() -> None:
    """The next step does not wait for the journal: what a request causes is known before."""
    failure = Failure("delegate", "no peer takes it")
    raised = RaiseOnJob(JOB, failure).events(9.0)
    assert Proxy(JOB).after((*RUNNING, *raised)) == Proxy(JOB).after(
        (*RUNNING, an_event("exception", 9.0, type="delegate", severity=0, note="no peer takes it"))
    )
    assert Proxy(JOB).after((*RUNNING, *raised)).failure == failure
    cancelled = EndCopy(REMOTE, "no longer needed").events(9.0)
    assert Copy(REMOTE).after((SUBMIT, *cancelled)).failure == Failure("cancel", "no longer needed")
