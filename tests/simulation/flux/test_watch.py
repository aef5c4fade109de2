"""The watch of the simulated Flux, with the production parser, and the faults of its port."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodemanager.core.facts import QueueProbed, QueueSeen, RanksChanged
from nodemanager.core.jobs import Job, JobId, JobState, Shape
from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.ports import FluxError, FluxPort, NotTheActor
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.simulation.flux.port import SimulatedFluxPort
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.world import World
from tests.simulation.fleets import small_instance, up

CORE = Shape(1, 1)

Heard = QueueSeen | QueueProbed | RanksChanged


class Listener:
    """Notes each message and its time, and keeps the queue as a node manager does."""

    def __init__(self) -> None:
        self.world = World(seed=1)
        self.flux = small_instance(self.world)
        self.heard: list[tuple[float, Heard]] = []
        self.lost: list[str] = []
        self.jobs: dict[JobId, Job] = {}
        self.watch = SimulatedFluxWatch(self.flux)

    def start(self) -> None:
        self.watch.start(self._hear, self.lost.append)
        self.world.advance_by(0.1)

    def _hear(self, seen: Heard) -> None:
        self.heard.append((self.world.now_s, seen))
        if isinstance(seen, QueueSeen):
            if seen.complete:
                self.jobs.clear()
            self.jobs.update((job.id, job) for job in seen.jobs)
            for job_id in seen.ended:
                self.jobs.pop(job_id, None)

    def moments(self, wanted: Callable[[Heard], bool]) -> list[int]:
        return [round(at_s) for at_s, seen in self.heard if wanted(seen)]

    def forget(self) -> None:
        self.heard.clear()


@pytest.fixture
def listener() -> Listener:
    return Listener()


def is_complete(seen: Heard) -> bool:
    return isinstance(seen, QueueSeen) and seen.complete


def test_the_complete_queue_comes_first(listener: Listener) -> None:
    job_id = listener.flux.submit(CORE)
    listener.start()
    (_, first), *_ = listener.heard
    assert isinstance(first, QueueSeen)
    assert (first.complete, first.queues_stopped) == (True, frozenset())
    assert [(job.id, job.state, job.shape) for job in first.jobs] == [(job_id, JobState.SCHED, CORE)]


def test_every_change_follows_in_one_piece(listener: Listener) -> None:
    listener.start()
    listener.forget()
    job_id = listener.flux.submit(CORE, run_s=5.0)
    listener.world.advance_by(1.0)
    assert [(job.id, job.state) for job in listener.jobs.values()] == [(job_id, JobState.SCHED)]
    up(listener.flux, "cloud1")
    listener.world.advance_by(1.0)
    assert listener.jobs[job_id].state is JobState.RUN
    listener.world.advance_by(5.0)
    assert listener.jobs == {}
    assert not any(is_complete(seen) for _, seen in listener.heard)


def test_what_concerns_ranks_is_told_as_it_happens(listener: Listener) -> None:
    listener.start()

    def stirred(act: Callable[[], object]) -> bool:
        listener.forget()
        act()
        listener.world.advance_by(0.2)
        return any(isinstance(seen, RanksChanged) for _, seen in listener.heard)

    flux = listener.flux
    assert not stirred(lambda: flux.submit(CORE, run_s=0.1))
    assert stirred(lambda: up(flux, "cloud1"))
    assert stirred(lambda: None)  # the job has started meanwhile, and ended
    assert stirred(lambda: flux.drain(Rank(1), "why"))
    assert stirred(lambda: flux.broker_down(SlotName("cloud1")))
    assert not stirred(lambda: None)


def test_probes_and_listings_come_in_their_time(listener: Listener) -> None:
    listener.start()
    listener.world.advance_to(125.0)
    assert listener.moments(is_complete) == [0, 60, 120]
    assert listener.moments(lambda seen: isinstance(seen, QueueProbed)) == list(range(10, 125, 10))


def test_a_stopped_queue_is_told_at_the_next_probe(listener: Listener) -> None:
    listener.start()
    listener.flux.stop_queue()
    listener.forget()
    listener.world.advance_to(10.5)
    assert [seen for _, seen in listener.heard] == [QueueSeen(10.0, queues_stopped=frozenset({""}))]


def test_while_the_scheduler_is_away_which_queues_are_stopped_is_hidden_and_asked_for_every_second(
    listener: Listener,
) -> None:
    listener.start()
    listener.world.advance_to(9.0)
    listener.flux.stop_queue()
    listener.flux.reload_scheduler(down_s=3.5)
    listener.forget()
    listener.world.advance_to(14.0)
    hidden = [(at_s, QueueSeen(at_s)) for at_s in (10.0, 11.0, 12.0)]
    told = [heard for heard in listener.heard if isinstance(heard[1], QueueSeen)]
    assert told == [*hidden, (13.0, QueueSeen(13.0, queues_stopped=frozenset({""})))]


def test_a_lost_connection_is_told_until_the_complete_queue_comes_again(listener: Listener) -> None:
    listener.start()
    listener.flux.unreachable = True
    job_id = listener.flux.submit(CORE)
    listener.forget()
    listener.world.advance_by(3.5)
    assert listener.heard == []
    assert len(listener.lost) == 1 + 3  # the loss, then each attempt
    listener.flux.unreachable = False
    listener.world.advance_by(1.0)
    assert is_complete(listener.heard[0][1])
    assert list(listener.jobs) == [job_id]


def test_a_restart_is_a_lost_connection_and_what_is_pending_comes_again(listener: Listener) -> None:
    job_id = listener.flux.submit(CORE, urgency=0)
    listener.start()
    listener.flux.restart(down_s=2.5)
    listener.forget()
    listener.world.advance_by(10.0)
    assert listener.lost == ["rank 0 has stopped", "rank 0 is down", "rank 0 is down"]
    assert is_complete(listener.heard[0][1])
    assert [(job.id, job.state, job.priority) for job in listener.jobs.values()] == [(job_id, JobState.SCHED, 0)]


def test_a_stopped_watch_says_nothing_more(listener: Listener) -> None:
    listener.start()
    listener.watch.stop()
    listener.watch.stop()
    listener.forget()
    listener.flux.submit(CORE)
    listener.flux.restart()
    listener.world.advance_by(100.0)
    assert (listener.heard, listener.lost) == ([], [])


# --- the port ---------------------------------------------------------------------------------------------

LAUNCH = Launch(LaunchId("launch-1"), SlotName("cloud1"), Rank(1), TypeName("cloud"), "token-1", 0.0)
CALLS: list[Callable[[FluxPort], object]] = [
    lambda port: port.claim(),
    lambda port: port.launches(),
    lambda port: port.ranks(),
    lambda port: port.record([LAUNCH]),
    lambda port: port.forget(LAUNCH),
    lambda port: port.drain(Rank(1), "why"),
    lambda port: port.undrain(Rank(1)),
    lambda port: port.stop_broker(Rank(1)),
]


def test_every_call_fails_while_the_instance_is_out_of_reach() -> None:
    flux = small_instance(World(seed=1))
    port = SimulatedFluxPort(flux, "first")
    port.claim()
    flux.unreachable = True
    for call in CALLS:
        with pytest.raises(FluxError, match="does not answer") as failed:
            call(port)
        assert not isinstance(failed.value, NotTheActor)


def test_a_call_that_fails_does_nothing_and_one_whose_reply_is_lost_does_it() -> None:
    flux = small_instance(World(seed=1))
    port = SimulatedFluxPort(flux, "first")
    port.claim()
    flux.faults.p_fail = 1.0
    with pytest.raises(FluxError):
        port.record([LAUNCH])
    assert flux.leases == {}
    flux.faults.p_fail, flux.faults.p_lost_reply = 0.0, 1.0
    with pytest.raises(FluxError):
        port.record([LAUNCH])
    assert flux.leases == {LAUNCH.slot: LAUNCH}


def test_a_restart_frees_the_name_and_keeps_the_record() -> None:
    world = World(seed=1)
    flux = small_instance(world)
    port = SimulatedFluxPort(flux, "first")
    port.claim()
    port.record([LAUNCH])
    flux.restart(down_s=2.0)
    with pytest.raises(FluxError, match="down"):
        port.launches()
    world.advance_by(2.0)
    with pytest.raises(NotTheActor):
        port.forget(LAUNCH)
    port.claim()
    assert port.launches() == (LAUNCH,)


def test_a_look_shows_what_is_free_and_what_is_not() -> None:
    world = World(seed=1)
    flux = small_instance(world)
    up(flux, "cloud1", "cloud2", "gpu1")
    world.advance_by(1.0)
    flux.submit(Shape(1, 3, gpus_per_slot=1), run_s=100.0)
    flux.drain(Rank(2), "why")
    flux.set_torpid(SlotName("cloud1"), torpid=True)
    world.advance_by(1.0)
    seen = {rank.host: rank for rank in SimulatedFluxPort(flux, "anybody").ranks()}
    assert list(seen) == ["cloud1", "cloud2", "cloud3", "cloud4", "gpu1", "gpu2"]
    gpu = seen[SlotName("gpu1")]
    assert (gpu.allocated, gpu.cores_free, gpu.gpus_free) == (True, 5, 1)
    assert (seen[SlotName("cloud2")].drain_reason, seen[SlotName("cloud2")].idle) == ("why", True)
    assert seen[SlotName("cloud1")].torpid
    assert not seen[SlotName("cloud3")].online


def test_when_a_rank_s_last_job_ended_is_known_by_the_leader_s_clock() -> None:
    world = World(seed=1, start_at=1000.0)
    flux = small_instance(world)
    flux.set_clock_skew(600.0)
    up(flux, "cloud1")
    world.advance_by(1.0)
    flux.submit(CORE, run_s=5.0)
    world.advance_by(30.0)
    first, second, *_ = SimulatedFluxPort(flux, "anybody").ranks()
    assert first.last_job_ended_at == pytest.approx(1000.0 + 600.0 + 6.0, abs=0.1)
    assert second.last_job_ended_at is None
