"""The simulated Flux in cases that the recording does not contain, compared with observations of flux-core 0.88."""

from __future__ import annotations

import pytest

from nodemanager.core.jobs import All, AnyOf, HasProperty, JobId, JobResult, JobState, Not, OnHosts, OnRanks, Shape
from nodemanager.core.nodes import CloudNode, CloudState, Identity, LaunchId, ProviderId
from nodemanager.core.ports import FluxError
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.simulation.flux.brokers import ResourceEvent
from nodemanager.simulation.flux.housekeeping import HousekeepingTime
from nodemanager.simulation.flux.instance import JournalFollower
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.flux.jobid import format_f58, parse_f58
from nodemanager.simulation.flux.jobspec import write_jobspec
from nodemanager.simulation.time.world import World
from tests.simulation.fleets import small_instance, up

CORE = Shape(1, 1)
NODE = Shape(1, 1, nodes=1, exclusive=True)
BEFORE_RESOURCES = ["submit", "validate", "depend", "priority"]
ENDS = ["finish", "release", "free", "clean"]
FOR_EVER = 1e9


class Instance:
    """A small instance whose journals are read from the start."""

    def __init__(self, *online: str, housekeeping_s: HousekeepingTime = 0.0, partial_release: bool = True) -> None:
        self.world = World(seed=1)
        self.flux = small_instance(self.world)
        self.events: list[JobEvent] = []
        self.resources: list[ResourceEvent] = []
        self.lost: list[str] = []
        self.flux.follow(JournalFollower(self.events.append, self.resources.append, self.lost.append))
        self.flux.set_housekeeping(housekeeping_s, partial_release=partial_release)
        up(self.flux, *online)
        self.world.advance_by(1.0)

    def submit(self, shape: Shape = CORE, run_s: float = FOR_EVER, *, urgency: int = 16) -> JobId:
        job_id = self.flux.submit(shape, run_s=run_s, urgency=urgency)
        self.world.advance_by(1.0)
        return job_id

    def names(self, job_id: JobId) -> list[str]:
        return [event.name for event in self.events if event.job_id == job_id]

    def last(self, job_id: JobId, name: str) -> JobEvent:
        return [event for event in self.events if event.job_id == job_id and event.name == name][-1]

    def on(self, job_id: JobId) -> list[int]:
        """The ranks that the job, or its housekeeping, holds."""
        return sorted(grant.rank for holder, grant in self.flux.held_grants() if holder == job_id)

    def runs(self, *job_ids: JobId) -> list[bool]:
        return [self.flux.job_state(job_id) is JobState.RUN for job_id in job_ids]


# --- who goes first, and where ----------------------------------------------------------------------------


def test_a_job_at_the_head_that_must_wait_blocks_those_behind_it() -> None:
    instance = Instance("cloud1")
    gang, small = instance.submit(Shape(1, 1, nodes=2)), instance.submit()
    assert instance.runs(gang, small) == [False, False]
    up(instance.flux, "cloud2")
    instance.world.advance_by(1.0)
    assert instance.runs(gang, small) == [True, True]


def test_a_cancelled_head_lets_the_next_one_go() -> None:
    instance = Instance("cloud1")
    gang, small = instance.submit(Shape(1, 1, nodes=2)), instance.submit()
    instance.flux.cancel(gang)
    instance.world.advance_by(1.0)
    assert instance.names(gang) == [*BEFORE_RESOURCES, "exception", "clean"]
    assert instance.runs(small) == [True]


def test_a_higher_urgency_goes_first_and_31_before_all() -> None:
    instance = Instance()
    low, high, first = instance.submit(NODE), instance.submit(NODE, urgency=20), instance.submit(NODE, urgency=31)
    assert instance.last(first, "priority").context == {"priority": 2**32 - 1}
    up(instance.flux, "cloud1")
    instance.world.advance_by(1.0)
    assert instance.runs(low, high, first) == [False, False, True]


def test_the_rank_with_most_free_cores_is_taken_the_lowest_among_equals() -> None:
    instance = Instance("cloud1", "cloud2", "gpu1")
    jobs = [instance.submit(Shape(1, 3)) for _ in range(4)]
    assert [instance.on(job_id) for job_id in jobs] == [[5], [5], [1], [2]]


def test_slots_without_nodes_are_spread_over_what_is_free() -> None:
    instance = Instance("cloud1", "gpu1")
    job_id = instance.submit(Shape(5, 2))
    assert instance.on(job_id) == [1, 5]
    assert instance.last(job_id, "alloc").context == {
        "annotations": {"sched": {"resource_summary": "rank1/core[0-1] rank5/core[0-7]"}}
    }


def test_a_range_gets_what_there_is() -> None:
    instance = Instance("cloud1", "cloud2", "cloud3")
    jobspec = dict(write_jobspec(Shape(1, 1, nodes=2)))
    jobspec["resources"] = [{**jobspec["resources"][0], "count": {"min": 2, "max": 4}}]
    job_id = instance.flux.submit(jobspec, run_s=FOR_EVER)
    instance.world.advance_by(1.0)
    assert instance.on(job_id) == [1, 2, 3]


@pytest.mark.parametrize(
    ("constraint", "ranks"),
    [
        (HasProperty("gpu"), [5]),
        (Not(HasProperty("gpu")), [1]),
        (OnHosts(("cloud2,gpu1",)), [5]),
        (OnRanks(("2,3",)), [2]),
        (All((HasProperty("small"), Not(OnRanks(("1",))))), [2]),
        (AnyOf((OnRanks(("3",)), OnHosts(("cloud4",)))), [3]),
    ],
)
def test_constraints_choose_among_ranks(constraint: HasProperty, ranks: list[int]) -> None:
    instance = Instance("cloud1", "cloud2", "cloud3", "cloud4", "gpu1")
    assert instance.on(instance.submit(Shape(1, 1, constraint=constraint))) == ranks


# --- what can never run -----------------------------------------------------------------------------------


def test_what_no_rank_could_ever_serve_is_refused_once_it_is_at_the_head() -> None:
    # The scheduler looks only at the head of its queue: behind a job that waits for nodes, no job is rejected.
    instance = Instance()
    waits = instance.submit()
    never = instance.submit(Shape(1, 9))
    assert instance.names(never) == BEFORE_RESOURCES
    instance.flux.cancel(waits)
    instance.world.advance_by(1.0)
    assert instance.names(never) == [*BEFORE_RESOURCES, "exception", "clean"]
    assert instance.last(never, "exception").context == {
        "type": "alloc",
        "severity": 0,
        "note": "unsatisfiable request: need 1 slot(s) of 9 core(s), "
        "only 0 such slot(s) available (total cores: 32)",
        "userid": 0,
    }


def test_what_the_ingest_would_refuse_never_becomes_a_job() -> None:
    instance = Instance()
    with pytest.raises(ValueError, match="slot"):
        instance.flux.submit({"resources": [], "attributes": {"system": {"duration": 0}}})
    with pytest.raises(ValueError, match="a jobspec contains its duration"):
        instance.flux.submit(write_jobspec(CORE), 60.0)
    assert instance.flux.active_jobs() == ()


# --- how jobs end -----------------------------------------------------------------------------------------


def test_a_job_that_runs_over_its_time_is_ended() -> None:
    instance = Instance("cloud1")
    job_id = instance.flux.submit(CORE, 60.0, run_s=FOR_EVER)
    instance.world.advance_by(60.5)
    assert instance.names(job_id) == [
        *BEFORE_RESOURCES,
        *["annotations", "alloc", "start", "exception"],
        *ENDS,
    ]
    assert instance.last(job_id, "exception").context["type"] == "timeout"
    alloc = instance.last(job_id, "alloc")
    assert alloc.R is not None
    assert alloc.R["execution"]["expiration"] == alloc.R["execution"]["starttime"] + 60.0
    assert instance.last(job_id, "finish").timestamp == pytest.approx(alloc.R["execution"]["expiration"])


def test_a_running_job_that_is_cancelled_gives_its_rank_back() -> None:
    instance = Instance("cloud1")
    job_id, waiting = instance.submit(NODE), instance.submit(NODE)
    instance.flux.cancel(job_id)
    instance.flux.cancel(job_id)
    instance.world.advance_by(1.0)
    assert instance.names(job_id)[-5:] == ["exception", *ENDS]
    assert instance.runs(waiting) == [True]


def test_a_node_that_dies_takes_its_jobs_with_it_and_they_do_not_come_back() -> None:
    instance = Instance("cloud1", "cloud2")
    gang, other = instance.submit(Shape(1, 1, nodes=2)), instance.submit()
    assert instance.on(other) == [1]
    instance.flux.broker_down(SlotName("cloud2"))
    instance.world.advance_by(1.0)
    assert instance.last(gang, "exception").context["note"] == "node failure on cloud2 (rank 2)"
    assert instance.runs(gang, other) == [False, True]
    assert instance.flux.job_state(gang) is None


def test_a_job_sent_to_a_node_that_has_just_gone_dies_there() -> None:
    instance = Instance("cloud1")
    instance.flux.broker_down(SlotName("cloud1"))
    job_id = instance.flux.submit(CORE)  # the scheduler learns of the loss 0.1 s later
    instance.world.advance_by(1.0)
    assert instance.names(job_id)[-6:] == ["start", "exception", *ENDS]


# --- held, dependent, stopped -----------------------------------------------------------------------------


def test_a_held_job_starts_when_it_is_released_and_not_before() -> None:
    instance = Instance("cloud1")
    job_id = instance.submit(urgency=0)
    assert instance.names(job_id) == BEFORE_RESOURCES
    instance.flux.set_urgency(job_id, 20)
    instance.world.advance_by(1.0)
    assert instance.names(job_id) == [*BEFORE_RESOURCES, *["urgency", "priority", "annotations", "alloc", "start"]]
    with pytest.raises(ValueError, match="not pending"):
        instance.flux.set_urgency(job_id, 1)


def test_a_pending_job_can_be_held() -> None:
    instance = Instance()
    job_id, next_one = instance.submit(NODE), instance.submit(NODE)
    instance.flux.set_urgency(job_id, 0)
    up(instance.flux, "cloud1")
    instance.world.advance_by(1.0)
    assert instance.runs(job_id, next_one) == [False, True]


@pytest.mark.parametrize("fate", ["ends", "cancelled"])
def test_a_dependent_job_goes_on_when_the_other_has_ended_anyhow(fate: str) -> None:
    instance = Instance("cloud1")
    first = instance.submit(run_s=10.0)
    then = instance.flux.submit(CORE, run_s=FOR_EVER, after=(first,))
    assert instance.names(then) == ["submit", "dependency-add", "validate"]
    assert instance.flux.job_state(then) is JobState.DEPEND
    if fate == "cancelled":
        instance.flux.cancel(first)
    instance.world.advance_by(11.0)
    assert instance.names(then)[3:6] == ["dependency-remove", "depend", "priority"]
    assert instance.runs(then) == [True]


def test_a_dependency_on_a_job_that_has_ended_is_none() -> None:
    instance = Instance("cloud1")
    first = instance.submit(run_s=0.1)
    then = instance.flux.submit(CORE, run_s=FOR_EVER, after=(first,))
    instance.world.advance_by(1.0)
    assert instance.names(then)[:4] == BEFORE_RESOURCES
    assert instance.runs(then) == [True]


def test_a_dependent_job_can_be_cancelled_before_the_other_ends() -> None:
    instance = Instance("cloud1")
    first = instance.submit(run_s=10.0)
    then = instance.flux.submit(CORE, after=(first,))
    instance.flux.cancel(then)
    instance.world.advance_by(20.0)
    assert instance.names(then) == ["submit", "dependency-add", "validate", "exception", "clean"]


def test_a_stopped_queue_starts_nothing_until_it_is_started() -> None:
    instance = Instance("cloud1")
    instance.flux.stop_queue()
    job_id = instance.submit()
    assert (instance.runs(job_id), instance.flux.queues_stopped()) == ([False], frozenset({""}))
    instance.flux.start_queue()
    instance.world.advance_by(1.0)
    assert (instance.runs(job_id), instance.flux.queues_stopped()) == ([True], frozenset())


def test_a_stopped_queue_does_not_block_another_one() -> None:
    instance = Instance("cloud1")
    instance.flux.stop_queue("night")
    night = instance.flux.submit(CORE, queue="night")
    day = instance.flux.submit(CORE, run_s=FOR_EVER, queue="day")
    instance.world.advance_by(1.0)
    assert instance.runs(night, day) == [False, True]


# --- drains, housekeeping ---------------------------------------------------------------------------------


def test_a_drained_rank_takes_no_new_job_and_keeps_the_one_it_has() -> None:
    instance = Instance("cloud1")
    running = instance.submit()
    instance.flux.drain(Rank(1), "why")
    waiting = instance.submit()
    assert instance.runs(running, waiting) == [True, False]
    instance.flux.undrain(Rank(1))
    instance.world.advance_by(1.0)
    assert instance.runs(running, waiting) == [True, True]
    assert [event.name for event in instance.resources] == ["online", "drain", "undrain"]


def test_a_drain_outlives_the_broker_and_holds_for_the_next_one() -> None:
    instance = Instance("cloud1")
    instance.flux.drain(Rank(1), "first")
    instance.flux.drain(Rank(1), "second")
    instance.flux.broker_down(SlotName("cloud1"), lost=False)
    instance.world.advance_by(1.0)
    up(instance.flux, "cloud1")
    assert instance.runs(instance.submit()) == [False]
    assert instance.flux.drain_reason(Rank(1)) == "first"


def test_a_rank_in_housekeeping_stays_allocated_when_the_others_are_free() -> None:
    instance = Instance("cloud1", "cloud2", housekeeping_s={Rank(1): 30.0})
    gang = instance.submit(Shape(1, 4, nodes=2), run_s=10.0)
    instance.world.advance_by(10.0)
    assert (instance.names(gang)[-1], instance.on(gang)) == ("clean", [1])
    next_one = instance.submit(NODE)
    assert instance.on(next_one) == [2]
    instance.world.advance_by(30.0)
    assert instance.on(gang) == []


def test_without_partial_release_the_ranks_of_a_job_are_freed_together() -> None:
    instance = Instance("cloud1", "cloud2", housekeeping_s={Rank(1): 30.0}, partial_release=False)
    gang = instance.submit(Shape(1, 4, nodes=2), run_s=10.0)
    instance.world.advance_by(35.0)
    assert instance.on(gang) == [1, 2]
    instance.world.advance_by(10.0)
    assert instance.on(gang) == []


def test_housekeeping_ends_with_its_rank() -> None:
    instance = Instance("cloud1", housekeeping_s=1000.0)
    job_id = instance.submit(run_s=0.1)
    assert instance.on(job_id) == [1]
    instance.flux.broker_down(SlotName("cloud1"))
    assert instance.on(job_id) == []


# --- brokers and machines ---------------------------------------------------------------------------------


def a_node(number: int, slot: str = "cloud1") -> CloudNode:
    identity = Identity("ada", "uuid-1", LaunchId(f"launch-{number}"), SlotName(slot), TypeName("cloud"))
    return CloudNode(ProviderId(f"sim-{number}"), CloudState.RUNNING, identity)


def test_a_second_machine_that_claims_a_slot_puts_the_first_out_for_good() -> None:
    instance = Instance()
    instance.flux.on_node_booted(a_node(1))
    instance.world.advance_by(1.0)
    job_id = instance.submit()
    instance.flux.on_node_booted(a_node(2))
    assert instance.flux.job_state(job_id) is None
    instance.flux.on_node_ended(a_node(1))
    instance.world.advance_by(1.0)
    assert instance.flux.resource_status()["online"] == "0-1"
    instance.flux.on_node_ended(a_node(2))
    instance.world.advance_by(1.0)
    assert instance.flux.resource_status()["online"] == "0"


def test_machines_that_are_not_of_this_instance_are_left_alone() -> None:
    instance = Instance()
    for node in (a_node(1, slot="elsewhere"), CloudNode(ProviderId("x"), CloudState.RUNNING, None)):
        instance.flux.on_node_booted(node)
        instance.flux.on_node_ended(node)
    with pytest.raises(FluxError, match="rank 9"):
        instance.flux.drain(Rank(9), "why")


def test_brokers_that_come_within_a_moment_are_told_of_together() -> None:
    instance = Instance("cloud3", "cloud1", "cloud2")
    instance.flux.broker_down(SlotName("cloud1"))
    up(instance.flux, "gpu1")
    instance.world.advance_by(1.0)
    told = [(event.name, event.context["idset"]) for event in instance.resources]
    assert told == [("online", "1-3"), ("offline", "1"), ("online", "5")]


# --- rank 0 restarts --------------------------------------------------------------------------------------


def test_a_restart_keeps_what_is_pending_and_drained_and_ends_what_runs() -> None:
    instance = Instance("cloud1")
    running, pending, held = instance.submit(NODE), instance.submit(NODE), instance.submit(NODE, urgency=0)
    instance.flux.drain(Rank(2), "why")
    instance.flux.restart(down_s=5.0, rejoin_s=10.0)
    assert instance.lost == ["rank 0 has stopped"]
    assert instance.last(running, "exception").context["note"] == "node failure on cloud1 (rank 1)"
    with pytest.raises(FluxError, match="down"):
        instance.flux.submit(CORE)
    instance.world.advance_by(5.0)
    instance.flux.follow(JournalFollower(instance.events.append, instance.resources.append, instance.lost.append))
    assert instance.flux.active_jobs() == (pending, held)
    assert (instance.flux.resource_status()["online"], instance.flux.drain_reason(Rank(2))) == ("0", "why")
    instance.world.advance_by(16.0)
    assert instance.flux.resource_status()["online"] == "0-1"
    assert instance.runs(pending, held) == [True, False]


def test_a_pending_job_gets_its_priority_anew_after_a_restart() -> None:
    instance = Instance()
    job_id = instance.submit()
    instance.flux.restart(down_s=1.0)
    instance.world.advance_by(1.0)
    names = [event.name for event in instance.flux.active_events() if event.job_id == job_id]
    assert names == [*BEFORE_RESOURCES, "flux-restart", "priority"]


def test_a_machine_that_ends_while_rank_0_is_away_does_not_join_again() -> None:
    instance = Instance()
    for node in (a_node(1), a_node(2, slot="cloud2")):
        instance.flux.on_node_booted(node)
    instance.world.advance_by(1.0)
    instance.flux.restart(down_s=5.0)
    instance.flux.on_node_ended(a_node(1))
    instance.flux.on_node_booted(a_node(3, slot="cloud3"))
    instance.world.advance_by(60.0)
    assert instance.flux.resource_status()["online"] == "0,2-3"


# --- ids --------------------------------------------------------------------------------------------------


def test_job_ids_rise_and_read_back_as_flux_writes_them() -> None:
    instance = Instance()
    ids = [instance.submit(), *(instance.flux.submit(CORE) for _ in range(3))]
    assert ids == sorted(set(ids))
    assert [parse_f58(format_f58(job_id)) for job_id in ids] == ids
    assert parse_f58("ƒLqTPgb") == parse_f58("fLqTPgb") == 13019119616
    with pytest.raises(ValueError, match="F58"):
        parse_f58("13019119616")


# --- jobs that are submitted once more --------------------------------------------------------------------


def test_a_job_that_asked_for_it_runs_once_more_when_its_node_is_lost() -> None:
    instance = Instance("cloud1", "cloud2")
    job = instance.flux.submit(NODE, run_s=50.0, requeue=True)
    instance.world.advance_by(1.0)
    again = instance.flux.requeue(job)
    instance.world.advance_by(1.0)
    assert instance.flux.job_state(again) is JobState.DEPEND
    instance.flux.drain(
        Rank(1), "taken back"
    )  # without the drain, the job would get that node at the moment of its loss
    instance.world.advance_by(1.0)
    instance.flux.broker_down(SlotName("cloud1"))
    instance.world.advance_by(1.0)
    assert (instance.flux.result(job), instance.flux.job_state(again)) == (JobResult.FAILED, JobState.DEPEND)
    instance.flux.start_copy(again)
    instance.world.advance_by(1.0)
    assert (instance.flux.job_state(job), instance.flux.job_state(again)) == (None, JobState.RUN)
    (submitted,) = [event for event in instance.events if event.job_id == again and event.name == "submit"]
    assert submitted.jobspec is not None
    assert submitted.jobspec["attributes"]["system"]["node-manager"] == {
        "requeue": 1,
        "requeued-from": format_f58(job),
    }


def test_one_that_ends_well_does_not_run_again() -> None:
    instance = Instance("cloud1")
    job = instance.flux.submit(CORE, run_s=5.0, requeue=True)
    instance.world.advance_by(1.0)
    again = instance.flux.requeue(job)
    instance.world.advance_by(10.0)
    assert instance.flux.result(job) is JobResult.COMPLETED
    assert instance.flux.active_jobs() == (again,)
    instance.flux.cancel_copy(again, "not needed")
    assert instance.flux.active_jobs() == ()
    assert [event.context["note"] for event in instance.events if event.name == "exception"] == ["not needed"]
    assert not any(event.name == "alloc" for event in instance.events if event.job_id == again)


def test_one_that_has_ended_meanwhile_can_be_submitted_again_and_one_that_did_not_ask_is_refused() -> None:
    instance = Instance("cloud1", "cloud2")
    lost = instance.flux.submit(NODE, run_s=50.0, requeue=True)
    other = instance.flux.submit(NODE, run_s=1.0)
    instance.world.advance_by(5.0)
    instance.flux.broker_down(SlotName("cloud1"))
    instance.world.advance_by(1.0)
    again = instance.flux.requeue(lost)
    instance.flux.start_copy(again)
    instance.world.advance_by(1.0)
    assert instance.flux.job_state(again) is JobState.RUN
    with pytest.raises(FluxError, match="does not ask for it"):
        instance.flux.requeue(other)


def test_housekeeping_may_survive_sigkill() -> None:
    instance = Instance("cloud1")
    instance.flux.set_housekeeping(FOR_EVER, ignores=(9, 15))
    instance.flux.submit(CORE, run_s=1.0)
    instance.world.advance_by(5.0)
    instance.flux.kill_housekeeping(Rank(1), 9)
    assert len(instance.flux.held_grants()) == 1
    instance.flux.end_housekeeping()
    assert instance.flux.held_grants() == ()
