"""The contract of every ``FluxPort``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from decimal import Decimal

import pytest

from nodemanager.core.jobs import JobId, JobResult
from nodemanager.core.nodes import FluxRank, Launch, LaunchId
from nodemanager.core.ports import FluxError, FluxPort, NotTheActor, SlotsUnchanged
from nodemanager.core.records import HeldJob, Mark, Spend, Steering
from nodemanager.core.slots import Promise, Rank, SlotName, SlotsWish, TypeName
from tests.contract.flux_subjects import (
    CLUSTER_UUID,
    RANKS,
    SMALL,
    FluxSubject,
    a_bridged_instance,
    a_real_instance,
)
from tests.contract.simulated_flux import a_simulated_instance

SUBJECTS: dict[str, Callable[[], AbstractContextManager[FluxSubject]]] = {
    "real": a_real_instance,
    "bridged": a_bridged_instance,
    "simulated": a_simulated_instance,
}
BY_FLUX = "prolog failed for job ƒ2YXZLLFZPj"
OURS = "flux-node-manager:launch-7"


@pytest.fixture(scope="module", params=SUBJECTS)
def one_for_all(request: pytest.FixtureRequest) -> Iterator[FluxSubject]:
    with SUBJECTS[request.param]() as subject:
        yield subject


@pytest.fixture
def subject(one_for_all: FluxSubject) -> FluxSubject:
    one_for_all.reset()
    return one_for_all


@pytest.fixture
def actor(subject: FluxSubject) -> FluxPort:
    """Return the port of the manager that holds the name."""
    port = subject.manager().port
    port.claim()
    return port


@pytest.fixture
def leased(actor: FluxPort) -> Launch:
    """Return a lease on record that began before every job."""
    launch = replace(a_launch(1, 1), requested_at=1.0)
    actor.record([launch])
    return launch


def a_launch(number: int, rank: int) -> Launch:
    return Launch(
        id=LaunchId(f"launch-{number}"),
        slot=SlotName(f"slot{rank}"),
        rank=Rank(rank),
        type_name=TypeName("small"),
        client_token=f"token-{number}",
        requested_at=1_790_000_000.25,
    )


def look(port: FluxPort, rank: int) -> FluxRank:
    return next(seen for seen in port.ranks() if seen.rank == rank)


def on_record(port: FluxPort) -> set[Launch]:
    return set(port.launches())


# --- the record -------------------------------------------------------------------------------------------


def test_what_is_recorded_is_read_whole_by_the_next_manager(subject: FluxSubject, actor: FluxPort) -> None:
    assert actor.launches() == ()
    actor.record([a_launch(1, 1), a_launch(2, 2)])
    assert on_record(subject.manager().port) == {a_launch(1, 1), a_launch(2, 2)}


def test_a_slot_that_another_launch_holds_is_refused_with_all_that_came_with_it(actor: FluxPort) -> None:
    actor.record([a_launch(1, 1)])
    with pytest.raises(FluxError, match="slot1"):
        actor.record([a_launch(2, 2), a_launch(3, 1)])
    assert on_record(actor) == {a_launch(1, 1)}


def test_two_launches_of_one_order_do_not_share_a_slot(actor: FluxPort) -> None:
    with pytest.raises(FluxError, match="slot1"):
        actor.record([a_launch(1, 1), a_launch(2, 1)])
    assert on_record(actor) == set()


def test_recording_again_changes_nothing(actor: FluxPort) -> None:
    actor.record([a_launch(1, 1)])
    actor.record([a_launch(1, 1), a_launch(2, 2)])
    assert on_record(actor) == {a_launch(1, 1), a_launch(2, 2)}


def test_recording_nothing_is_no_error(actor: FluxPort) -> None:
    actor.record([])
    assert on_record(actor) == set()


def test_forgetting_twice_is_no_error(actor: FluxPort) -> None:
    actor.record([a_launch(1, 1), a_launch(2, 2)])
    actor.forget(a_launch(1, 1))
    actor.forget(a_launch(1, 1))
    assert on_record(actor) == {a_launch(2, 2)}


def test_forgetting_a_launch_leaves_its_slots_next_one_alone(actor: FluxPort) -> None:
    actor.record([a_launch(2, 1)])
    actor.forget(a_launch(1, 1))
    assert on_record(actor) == {a_launch(2, 1)}


def test_slot_names_may_hold_what_separates_keys(actor: FluxPort) -> None:
    dotted = replace(a_launch(1, 1), slot=SlotName("slot-1.example.org/a%b"))
    actor.record([dotted])
    assert on_record(actor) == {dotted}
    actor.forget(dotted)
    assert on_record(actor) == set()


def test_recording_clears_what_drains_of_ours_the_slot_still_carries(subject: FluxSubject, actor: FluxPort) -> None:
    actor.drain(Rank(1), OURS)
    actor.drain(Rank(2), OURS)
    subject.drain(Rank(3), "bad fan")
    actor.record([a_launch(8, 1), a_launch(9, 3)])
    assert [rank.drain_reason for rank in actor.ranks()] == [None, OURS, "bad fan"]


def test_recording_clears_what_drain_of_flux_itself_the_slot_still_carries(
    subject: FluxSubject, actor: FluxPort
) -> None:
    subject.drain(Rank(1), BY_FLUX)
    actor.undrain(Rank(1))
    assert look(actor, 1).drain_reason == BY_FLUX, "the end of a lease does not clear it"
    actor.record([a_launch(8, 1)])
    assert look(actor, 1).drain_reason is None


# --- what operators set -----------------------------------------------------------------------------------

STEERING = Steering(
    holds={LaunchId("slot.1-7f"): Mark("ada", 1_790_000_000.5)},
    retirements={LaunchId("slot2-80"): Mark("grace", 1_790_000_001.0)},
    paused=Mark("ada", 1_790_000_002.0, "the image is being replaced", 1_790_007_200.5),
)


def test_nothing_is_set_where_nothing_was_kept(actor: FluxPort) -> None:
    assert actor.steering() == Steering()


def test_what_operators_set_is_read_whole_by_the_next_manager(subject: FluxSubject, actor: FluxPort) -> None:
    actor.keep_steering(STEERING)
    assert subject.manager().port.steering() == STEERING
    actor.keep_steering(Steering())
    assert subject.manager().port.steering() == Steering()


# --- jobs that the manager holds --------------------------------------------------------------------------


def test_which_jobs_are_held_is_read_by_the_next_manager(subject: FluxSubject, actor: FluxPort) -> None:
    assert actor.held_jobs() == {}
    ended = {JobId(1): HeldJob(16, 16), JobId(2**62): HeldJob(31, 2**32 - 1)}
    actor.hold_jobs(ended)  # jobs that have ended are no error
    assert subject.manager().port.held_jobs() == ended
    actor.release_jobs({JobId(1): HeldJob(16, 16)})
    assert subject.manager().port.held_jobs() == {JobId(2**62): HeldJob(31, 2**32 - 1)}
    actor.release_jobs({JobId(2**62): HeldJob(31, 2**32 - 1)})
    assert actor.held_jobs() == {}


def test_a_job_that_has_started_meanwhile_runs_on(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    job, end = subject.job_on(Rank(1))
    actor.hold_jobs({job: HeldJob(16, 16)})
    assert look(actor, 1).allocated
    actor.release_jobs({job: HeldJob(16, 16)})
    end()


# --- what was spent ---------------------------------------------------------------------------------------

SPEND = Spend(
    {
        ("day", 1_790_000_000, ""): Decimal("12.3400000000000000000000000001"),
        ("month", 1_789_000_000, "queue a.b c"): Decimal(0),
        ("month", 1_789_000_000, "user 1000"): Decimal("1E+2"),
    },
    frozenset({LaunchId("slot.1-7f"), LaunchId("slot2-80")}),
)


def test_nothing_is_spent_where_nothing_was_kept(actor: FluxPort) -> None:
    assert actor.spend() == Spend()


def test_what_was_spent_is_read_whole_and_to_the_last_digit_by_the_next_manager(
    subject: FluxSubject, actor: FluxPort
) -> None:
    actor.keep_spend(SPEND)
    assert subject.manager().port.spend() == SPEND
    actor.keep_spend(Spend())
    assert subject.manager().port.spend() == Spend()


# --- jobs -------------------------------------------------------------------------------------------------


def test_the_jobs_that_have_ended_are_counted(subject: FluxSubject, actor: FluxPort) -> None:
    before = actor.jobs_ended()
    subject.bring_online(Rank(1))
    subject.occupy(Rank(1))()
    subject.until("its end is counted", lambda: actor.jobs_ended() == before + 1)


def test_a_text_is_shown_on_a_job_until_it_is_taken_away(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    job, _ = subject.job_on(Rank(1))
    actor.show_on_jobs({job: "booting slot2"})
    subject.until("it is shown", lambda: subject.shown_on(job) == "booting slot2")
    actor.show_on_jobs({job: None})
    subject.until("it is taken away", lambda: subject.shown_on(job) == "")


def test_a_text_for_a_job_that_has_ended_is_no_error(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    job, end = subject.job_on(Rank(1))
    end()
    # It must not raise.
    actor.show_on_jobs({job: "too late"})


# --- ranks ------------------------------------------------------------------------------------------------


def test_every_rank_but_the_leader_is_shown(actor: FluxPort) -> None:
    ranks = actor.ranks()
    assert [rank.rank for rank in ranks] == list(RANKS)
    assert [rank.host for rank in ranks] == ["slot1", "slot2", "slot3"]
    assert [rank.cores for rank in ranks] == [2, 2, 2]
    assert not any(rank.online or rank.allocated for rank in ranks)


def test_a_rank_is_seen_to_come_to_work_and_to_rest(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(2))
    subject.until("its cores are free", lambda: look(actor, 2).cores_free == 2)
    seen = look(actor, 2)
    assert (seen.online, seen.allocated, seen.last_job_ended_at) == (True, False, None)
    end = subject.occupy(Rank(2))
    assert (look(actor, 2).allocated, look(actor, 2).idle, look(actor, 2).cores_free) == (True, False, 1)
    end()
    subject.until("it is idle", lambda: look(actor, 2).idle)
    subject.until("the end of its job is known", lambda: look(actor, 2).last_job_ended_at is not None)
    assert look(actor, 1).last_job_ended_at is None


def test_the_end_of_a_rank_s_last_job_is_known_to_a_new_manager(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    subject.occupy(Rank(1))()
    subject.until("the end of its job is known", lambda: look(actor, 1).last_job_ended_at is not None)
    assert look(subject.manager().port, 1).last_job_ended_at == look(actor, 1).last_job_ended_at


def test_the_data_of_a_job_is_not_safe_until_somebody_says_so(
    subject: FluxSubject, actor: FluxPort, leased: Launch
) -> None:
    rank = leased.rank
    subject.bring_online(rank)
    job, end = subject.job_on(rank)
    assert look(actor, rank).unsafe == ()  # it has not ended
    end()
    subject.until("its end is known", lambda: [it.job for it in look(actor, rank).unsafe] == [job])
    ended_at = look(actor, rank).unsafe[0].ended_at
    assert look(subject.manager().port, rank).unsafe[0].ended_at == ended_at  # the next manager knows it too
    subject.say_data_safe(job, rank)
    subject.until("its data is safe", lambda: look(actor, rank).unsafe == ())
    assert look(subject.manager().port, rank).unsafe == ()


def test_what_is_safe_before_the_end_of_the_job_stays_so(
    subject: FluxSubject, actor: FluxPort, leased: Launch
) -> None:
    subject.bring_online(leased.rank)
    job, end = subject.job_on(leased.rank)
    subject.say_data_safe(job, leased.rank)
    end()
    subject.until("its end is known", lambda: look(actor, leased.rank).last_job_ended_at is not None)
    assert look(actor, leased.rank).unsafe == ()


def test_the_data_of_a_node_that_is_gone_is_not_awaited(
    subject: FluxSubject, actor: FluxPort, leased: Launch
) -> None:
    subject.bring_online(leased.rank)
    subject.job_on(leased.rank)[1]()
    subject.until("its end is known", lambda: bool(look(actor, leased.rank).unsafe))
    actor.forget(leased)
    assert look(actor, leased.rank).unsafe == ()
    again = replace(leased, id=LaunchId("launch-again"), requested_at=2_000_000_000.0)
    actor.record([again])
    assert look(subject.manager().port, leased.rank).unsafe == ()


def test_a_rank_that_an_instance_gave_back_is_at_rest_until_its_job_ends(
    subject: FluxSubject, actor: FluxPort
) -> None:
    for rank in RANKS:
        subject.bring_online(rank)
    subject.until("all are up", lambda: all(it.cores_free == 2 for it in actor.ranks()))
    job, end = subject.instance_on(RANKS)
    assert all(it.allocated and it.given_back is None for it in actor.ranks())
    subject.give_back(job, [Rank(2)])
    subject.until("it is seen", lambda: look(actor, 2).given_back == job)
    seen = look(actor, 2)
    assert (seen.allocated, seen.cores_free, seen.gpus_free) == (False, 0, 0)
    subject.give_back(job, [Rank(1), Rank(2), Rank(3)])  # the first one cannot be given back
    subject.until("the third is too", lambda: look(actor, 3).given_back == job)
    assert (look(actor, 1).allocated, look(actor, 1).given_back) == (True, None)
    assert look(subject.manager().port, 2).given_back == job  # the next manager sees it too
    end()
    subject.until("they are free again", lambda: all(it.cores_free == 2 for it in actor.ranks()))
    assert not any(it.given_back for it in actor.ranks())


def test_a_rank_that_other_jobs_may_share_is_not_given_back(subject: FluxSubject, actor: FluxPort) -> None:
    for rank in RANKS[:2]:
        subject.bring_online(rank)
    subject.until("both are up", lambda: look(actor, 1).cores_free == look(actor, 2).cores_free == 2)
    job, _ = subject.instance_on(RANKS[:2], whole=False)
    subject.give_back(job, [Rank(2)])
    assert (look(actor, 2).allocated, look(actor, 2).given_back) == (True, None)


# --- drains -----------------------------------------------------------------------------------------------


def test_a_drained_rank_takes_no_job_until_it_is_undrained(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    subject.until("its cores are free", lambda: look(actor, 1).cores_free == 2)
    actor.drain(Rank(1), OURS)
    assert (look(actor, 1).drain_reason, look(actor, 1).cores_free) == (OURS, 0)
    actor.undrain(Rank(1))
    assert look(actor, 1).drain_reason is None
    subject.until("its cores are free again", lambda: look(actor, 1).cores_free == 2)


def test_a_rank_that_is_offline_can_be_drained(actor: FluxPort) -> None:
    actor.drain(Rank(3), OURS)
    assert look(actor, 3).drain_reason == OURS


@pytest.mark.parametrize("reason", ["bad fan", None])
def test_a_drain_of_others_keeps_its_reason(subject: FluxSubject, actor: FluxPort, reason: str | None) -> None:
    subject.drain(Rank(1), reason)
    actor.drain(Rank(1), OURS)
    assert look(actor, 1).drain_reason == (reason or "")


def test_exactly_the_drain_that_is_named_gets_our_reason(subject: FluxSubject, actor: FluxPort) -> None:
    subject.drain(Rank(1), BY_FLUX)
    assert look(actor, 1).drained_at is not None
    actor.drain(Rank(1), OURS, "epilog failed for job ƒ2YXZLLFZPj")
    assert look(actor, 1).drain_reason == BY_FLUX
    actor.drain(Rank(1), f"{OURS} {BY_FLUX}", BY_FLUX)
    assert look(actor, 1).drain_reason == OURS


def test_a_drain_may_be_undone_before_it_is_replaced(actor: FluxPort) -> None:
    actor.drain(Rank(1), OURS, BY_FLUX)
    assert look(actor, 1).drain_reason == OURS


def test_draining_twice_keeps_the_first_reason(actor: FluxPort) -> None:
    actor.drain(Rank(1), OURS)
    actor.drain(Rank(1), "flux-node-manager:launch-8")
    assert look(actor, 1).drain_reason == OURS


def test_undraining_twice_is_no_error(actor: FluxPort) -> None:
    actor.drain(Rank(1), OURS)
    actor.undrain(Rank(1))
    actor.undrain(Rank(1))
    assert look(actor, 1).drain_reason is None


@pytest.mark.parametrize("reason", ["bad fan", None])
@pytest.mark.parametrize("online", [True, False])
def test_a_drain_of_others_is_never_undone(
    subject: FluxSubject, actor: FluxPort, reason: str | None, *, online: bool
) -> None:
    if online:
        subject.bring_online(Rank(1))
        subject.until("it is online", lambda: look(actor, 1).online)
    subject.drain(Rank(1), reason)
    actor.undrain(Rank(1))
    assert look(actor, 1).drain_reason == (reason or "")


# --- brokers ----------------------------------------------------------------------------------------------


def test_a_stopped_broker_s_rank_goes_offline_and_may_come_again(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    subject.until("it is online", lambda: look(actor, 1).online)
    actor.stop_broker(Rank(1))
    subject.until("it is offline", lambda: not look(actor, 1).online)
    actor.stop_broker(Rank(1))
    subject.bring_online(Rank(1))
    subject.until("it is online again", lambda: look(actor, 1).online)


def test_a_broker_that_was_never_there_is_stopped_already(actor: FluxPort) -> None:
    # It must not raise.
    actor.stop_broker(Rank(3))


def test_a_broker_that_hangs_is_put_out(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    subject.until("it is online", lambda: look(actor, 1).online)
    subject.hang(Rank(1))
    actor.stop_broker(Rank(1))
    subject.until("it is offline", lambda: not look(actor, 1).online)


# --- the division of the slots ----------------------------------------------------------------------------

WISH = SlotsWish("wish-1", {TypeName("small"): 2, TypeName("large"): 1})
MOVES = {SlotName("slot3"): TypeName("large")}


def test_a_slot_changes_its_type_while_a_job_runs(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    subject.until("its cores are free", lambda: look(actor, 1).cores_free == 2)
    end = subject.occupy(Rank(1))
    subject.wish(WISH)
    assert actor.slots_wish() == WISH

    actor.change_slots(WISH, MOVES)

    seen = look(actor, 3)
    assert (seen.cores, seen.gpus, seen.type_name, seen.drain_reason) == (4, 1, "large", None)
    assert [look(actor, rank).type_name for rank in (1, 2)] == ["small", "small"]
    assert (look(actor, 1).allocated, look(actor, 1).cores_free) == (True, 1)
    assert actor.slots_wish() is None
    assert actor.repair() is False
    end()
    subject.until("the job's rank is idle", lambda: look(actor, 1).idle)
    # It comes, goes and comes again as what it is now.
    for _ in range(2):
        subject.bring_online(Rank(3))
        subject.until("it takes jobs", lambda: look(actor, 3).cores_free == 4)
        actor.stop_broker(Rank(3))
        subject.until("it is offline", lambda: not look(actor, 3).online)


@pytest.mark.parametrize("cores", [4, 1], ids=["more", "less"])
def test_a_type_declares_what_its_nodes_have(subject: FluxSubject, actor: FluxPort, cores: int) -> None:
    promise = Promise(cores, SMALL.gpus, SMALL.memory_bytes)
    wish = SlotsWish("hardware-small-1", {}, {SMALL.name: promise})
    actor.change_slots(wish, dict.fromkeys(SMALL.slots, SMALL.name))
    assert {look(actor, rank).cores for rank in (1, 2, 3)} == {cores}
    subject.bring_online(Rank(1))
    subject.until("all of its cores take jobs", lambda: look(actor, 1).cores_free == cores)
    actor.stop_broker(Rank(1))
    subject.until("it is offline", lambda: not look(actor, 1).online)


def test_a_slot_that_somebody_stands_on_keeps_its_type(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(3))
    subject.until("it is online", lambda: look(actor, 3).online)
    subject.wish(WISH)
    with pytest.raises(SlotsUnchanged, match="slot3"):
        actor.change_slots(WISH, MOVES)
    assert (look(actor, 3).cores, look(actor, 3).drain_reason) == (2, None)
    assert actor.slots_wish() == WISH


def test_a_slot_that_is_leased_keeps_its_type(subject: FluxSubject, actor: FluxPort) -> None:
    actor.record([a_launch(1, 3)])
    subject.wish(WISH)
    with pytest.raises(SlotsUnchanged, match="slot3"):
        actor.change_slots(WISH, MOVES)
    assert (look(actor, 3).cores, look(actor, 3).drain_reason) == (2, None)


def test_a_wish_that_is_so_already_is_answered(subject: FluxSubject, actor: FluxPort) -> None:
    subject.wish(WISH)
    actor.change_slots(WISH, {})
    assert actor.slots_wish() is None


def test_a_wish_is_refused_once_and_the_next_one_stands(subject: FluxSubject, actor: FluxPort) -> None:
    subject.wish(WISH)
    actor.refuse_slots(WISH, "not now")
    assert actor.slots_wish() is None
    later = SlotsWish("wish-2", WISH.counts)
    subject.wish(later)
    actor.refuse_slots(WISH, "not now")
    assert actor.slots_wish() == later


def test_there_is_nothing_to_repair(actor: FluxPort) -> None:
    assert actor.repair() is False


# --- copies of jobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [JobResult.COMPLETED, JobResult.TIMEOUT, JobResult.CANCELED])
def test_a_copy_waits_until_it_is_started_or_cancelled_however_its_original_ended(
    subject: FluxSubject, actor: FluxPort, result: JobResult
) -> None:
    subject.bring_online(Rank(1))
    subject.until("it takes jobs", lambda: look(actor, 1).cores_free > 0)
    job = subject.job_that_ends(Rank(1), result)
    copies = [actor.requeue(job), actor.requeue(job)]
    subject.until("the first one has ended", lambda: actor.result(job) is not None)
    assert actor.result(job) is result
    assert [actor.result(copy) for copy in copies] == [None, None], "both wait"
    actor.cancel_copy(copies[0], "not needed")
    subject.until("its copy is cancelled", lambda: actor.result(copies[0]) is JobResult.CANCELED)
    actor.start_copy(copies[1])
    subject.until("the other one runs", lambda: look(actor, 1).allocated)
    actor.cancel_copy(copies[1], "too late: this no longer waits")
    if result is JobResult.CANCELED:
        assert actor.result(copies[1]) is None
    else:
        subject.until("it ends as the first one did", lambda: actor.result(copies[1]) is result)
    actor.start_copy(copies[1])  # it has started already: no error
    actor.cancel_copy(copies[0], "it has ended: no error")


def test_only_copies_of_ours_are_cancelled(subject: FluxSubject, actor: FluxPort) -> None:
    subject.bring_online(Rank(1))
    subject.until("it takes jobs", lambda: look(actor, 1).cores_free > 0)
    job, _ = subject.job_on(Rank(1))
    actor.start_copy(job)
    actor.cancel_copy(job, "not ours")
    assert actor.result(job) is None
    assert look(actor, 1).allocated


def test_the_result_of_a_job_that_flux_does_not_know_is_unknown(actor: FluxPort) -> None:
    assert actor.result(JobId(12345)) is JobResult.UNKNOWN
    actor.cancel_copy(JobId(12345), "no error")
    actor.start_copy(JobId(12345))


# --- who acts ---------------------------------------------------------------------------------------------


def test_claiming_twice_is_no_error(actor: FluxPort) -> None:
    actor.claim()
    # It must not raise.
    actor.record([a_launch(1, 1)])


def test_a_second_manager_waits_until_the_first_has_ended(subject: FluxSubject) -> None:
    first, second = subject.manager(), subject.manager()
    first.port.claim()
    with pytest.raises(NotTheActor):
        second.port.claim()
    first.end()
    second.port.claim()
    second.port.record([a_launch(1, 1)])


def _ignored(_answer: object) -> None:
    return


CHANGES: dict[str, Callable[[FluxPort], None]] = {
    "record": lambda port: port.record([a_launch(1, 1)]),
    "record nothing": lambda port: port.record([]),
    "forget": lambda port: port.forget(a_launch(1, 1)),
    "drain": lambda port: port.drain(Rank(1), OURS),
    "undrain": lambda port: port.undrain(Rank(1)),
    "stop_broker": lambda port: port.stop_broker(Rank(1)),
    "kill_housekeeping": lambda port: port.kill_housekeeping(Rank(1), 15),
    "must_act": lambda port: port.ensure_actor(),
    "keep_steering": lambda port: port.keep_steering(STEERING),
    "hold_jobs": lambda port: port.hold_jobs({JobId(1): HeldJob(16, 16)}),
    "release_jobs": lambda port: port.release_jobs({JobId(1): HeldJob(16, 16)}),
    "start_copy": lambda port: port.start_copy(JobId(1)),
    "cancel_copy": lambda port: port.cancel_copy(JobId(1), "text"),
    "keep_spend": lambda port: port.keep_spend(SPEND),
    "show_on_jobs": lambda port: port.show_on_jobs({JobId(1): "text"}),
    "repair": lambda port: _ignored(port.repair()),
    "change_slots": lambda port: port.change_slots(WISH, MOVES),
    "refuse_slots": lambda port: port.refuse_slots(WISH, "not now"),
}


def test_nothing_is_changed_by_a_manager_that_does_not_hold_the_name(subject: FluxSubject, actor: FluxPort) -> None:
    other = subject.manager().port
    for change in CHANGES.values():
        with pytest.raises(NotTheActor):
            change(other)
    assert (on_record(actor), look(actor, 1).drain_reason) == (set(), None)


@pytest.mark.parametrize("taken", [False, True])
def test_nothing_is_changed_by_a_manager_that_lost_the_name(subject: FluxSubject, taken: bool) -> None:
    first, second = subject.manager(), subject.manager()
    first.port.claim()
    first.port.drain(Rank(2), OURS)
    first.lose_name()
    if taken:
        second.port.claim()
    for change in CHANGES.values():
        with pytest.raises(NotTheActor):
            change(first.port)
    assert on_record(second.port) == set()


def test_a_name_that_was_lost_can_be_claimed_again(subject: FluxSubject) -> None:
    manager = subject.manager()
    manager.port.claim()
    manager.lose_name()
    manager.port.claim()
    manager.port.record([a_launch(1, 1)])
    assert on_record(manager.port) == {a_launch(1, 1)}


def test_the_instance_of_another_cluster_is_refused_and_both_are_named(subject: FluxSubject) -> None:
    first = subject.manager()
    first.port.claim()
    first.end()
    stranger = subject.manager(cluster_uuid="5f0e-another")
    with pytest.raises(FluxError, match=f"{CLUSTER_UUID}.*5f0e-another") as refused:
        stranger.port.claim()
    assert not isinstance(refused.value, NotTheActor)
    subject.manager().port.claim()
