"""The production delegator among simulated faults: nothing is lost, and nothing runs twice.

A seed determines the jobs, the faults and how long each message travels.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from nodemanager.actors.base import Fate
from nodemanager.actors.delegation.delegator import Delegator, StartDelegation
from nodemanager.core.jobs import JobId
from nodemanager.core.orders import DelegateJob
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.delegation.choose import Peer, Targets
from nodemanager.delegation.jobs import SUBMITTED, PeerName
from nodemanager.delegation.ports import CopyEvents, PeerFact, PeerPort, Submitted
from nodemanager.delegation.view import DelegationView
from nodemanager.simulation.delegation.instance import SimulatedInstance, SimulatedJob
from nodemanager.simulation.delegation.ports import SimulatedHome, SimulatedPeer
from nodemanager.simulation.time.pump import Inbox, Pump
from nodemanager.simulation.time.world import World

CLUSTER = "cafe"
FAULTS_S = 120.0
CALM_S = 240.0
SEEDS = range(40)


def delegate_to(target: str) -> dict[str, Any]:
    return {"dependencies": [{"scheme": "delegate", "value": target}]}


class Scene:
    """Home, two peers, and managers that are killed and started."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.draws = self.world.draws_for("scene")
        self.home = SimulatedInstance(self.world, "home", takes=1)
        self.peers = {PeerName(name): SimulatedInstance(self.world, name) for name in "bc"}
        self.links: list[Any] = []
        self.pumps: list[Pump] = []
        self.fates: list[Fate] = []
        self.submitted: list[JobId] = []
        self.plain: list[JobId] = []
        self.views: list[DelegationView] = []
        self.ever: dict[
            tuple[str, JobId], SimulatedJob
        ] = {}  # every copy that there was, also of a peer that lost it
        self.start_manager()

    def start_manager(self) -> None:
        """A second one that still runs is suspended for ever, or for a while."""
        pump = Pump(self.world, f"manager{len(self.pumps)}", {Delegator: (0.0, 0.05)})
        fate = Fate()
        links: list[Any] = []
        home = SimulatedHome(self.home, f"home{len(self.pumps)}")
        links.append(home)

        def make_peer(peer: Peer) -> PeerPort:
            link = SimulatedPeer(peer.name, self.peers[peer.name], CLUSTER, f"peer{len(self.pumps)}")
            links.append(link)
            return link

        targets = Targets(tuple(Peer(name, f"local:///{name}") for name in self.peers))
        clock = self.world.clock()
        inbox = pump.spawn(Delegator, home, make_peer, targets, CLUSTER, clock, self.views.append, fate)
        inbox.tell(StartDelegation(inbox))
        self.inbox = inbox
        pump.start_ticks(inbox, clock)
        self.pumps.append(pump)
        self.links, self.fates = links, [*self.fates, fate]

    def kill_manager(self) -> None:
        self.pumps[-1].kill(lambda: False)
        for link in self.links:
            link.stop()

    def submit(self) -> None:
        target = self.draws.choice(["b", "c", "any"])
        cores = self.draws.choice([1, 1, 1, 99])
        jobspec = {
            "resources": [{"type": "core", "count": cores}],
            "attributes": {"system": delegate_to(target) | {"duration": self.draws.choice([0, 5, 30])}},
        }
        self.submitted.append(self.home.submit(jobspec))

    def submit_plain(self) -> None:
        """A job whose user did not ask for a peer. The planner may send it to one, also too late."""
        cores, duration = self.draws.choice([1, 1, 1, 99]), self.draws.choice([0, 5, 30])
        system = {"duration": duration}
        job = self.home.submit({"resources": [{"type": "core", "count": cores}], "attributes": {"system": system}})
        self.submitted.append(job)
        self.plain.append(job)

    def send_to_a_peer(self) -> None:
        waiting = [job for job in self.plain if self.home.jobs[job].urgency and not self.home.jobs[job].ended]
        if waiting:
            reason = because(Code.PEER_CHOSEN, peer="b", wait="0 s", price_per_hour=Decimal(0), others="none")
            peer = self.draws.choice([*self.peers])
            job = self.draws.choice(waiting)
            self.inbox.tell(DelegateJob(job, peer, self.home.jobs[job].urgency, reason))

    def unhold(self) -> None:
        """A user gives a job its urgency again, whatever the manager does with it."""
        waiting = [
            job for job in self.plain if not self.home.jobs[job].has("alloc") and not self.home.jobs[job].ended
        ]
        if waiting:
            self.home.set_urgency(self.draws.choice(waiting), 16)

    # --- faults ---

    def lose_a_connection(self) -> None:
        self.draws.choice(self.links).lose()

    def restart_manager(self) -> None:
        self.kill_manager()
        self.start_manager()

    def suspend_manager_while_another_acts(self) -> None:
        """It holds connections that it does not read, and wakes up later with what it had decided."""
        self.pumps[-1].freeze_until(self.world.now_s + self.draws.uniform(1, 10))
        self.start_manager()

    def restart_home(self) -> None:
        self.home.restart()

    def kill_home(self) -> None:
        self.home.kill(self.draws.uniform(0, 20))

    def restart_peer(self) -> None:
        self.draws.choice([*self.peers.values()]).restart(keeps_state=self.draws.random() < 0.7)

    def peer_away(self) -> None:
        peer = self.draws.choice([*self.peers.values()])
        peer.up = False

        def back() -> None:
            if not peer.up:
                peer.restart()

        self.world.after(self.draws.uniform(1, 20), back)

    def cancel(self) -> None:
        active = [job for job in self.submitted if job in self.home.jobs and not self.home.jobs[job].ended]
        if active:
            self.home.raise_on(self.draws.choice(active), "cancel", "by its user")

    def cancel_copy(self) -> None:
        copies = [(peer, job) for peer in self.peers.values() for job in peer.jobs.values() if not job.ended]
        if copies:
            peer, copy = self.draws.choice(copies)
            peer.raise_on(copy.id, "cancel", "by an operator")

    def disable_queue(self) -> None:
        peer = self.draws.choice([*self.peers.values()])
        peer.queue_disabled = not peer.queue_disabled


USERS: tuple[Callable[[Scene], None], ...] = (
    Scene.submit,
    Scene.submit_plain,
    Scene.send_to_a_peer,
    Scene.send_to_a_peer,
    Scene.unhold,
)
FAULTS: tuple[Callable[[Scene], None], ...] = (
    Scene.lose_a_connection,
    Scene.restart_manager,
    Scene.suspend_manager_while_another_acts,
    Scene.restart_home,
    Scene.restart_peer,
    Scene.peer_away,
    Scene.cancel,
    Scene.cancel_copy,
    Scene.disable_queue,
)


def run(
    seed: int,
    users: tuple[Callable[[Scene], None], ...] = USERS,
    faults: tuple[Callable[[Scene], None], ...] = FAULTS,
) -> Scene:
    scene = Scene(seed)
    draws: Random = scene.draws

    def remember() -> None:
        scene.ever |= {(name, job.id): job for name, peer in scene.peers.items() for job in peer.jobs.values()}

    while scene.world.now_s < FAULTS_S:
        scene.world.advance_by(draws.expovariate(1.0))
        draws.choice(users if draws.random() < 0.5 else faults)(scene)
        remember()
    for peer in scene.peers.values():
        peer.queue_disabled = False
        if not peer.up:
            peer.restart()
    scene.world.advance_by(CALM_S)
    remember()
    return scene


def copies_that_ran(scene: Scene, job: JobId) -> int:
    marker = f"{CLUSTER}/{job}/"
    markers = [
        (copy, copy.jobspec["attributes"]["system"]["node-manager"]["delegated-from"])
        for copy in scene.ever.values()
    ]
    return sum(copy.runs for copy, text in markers if text.startswith(marker))


def started_of(scene: Scene, job: JobId) -> int:
    return scene.home.jobs[job].runs + copies_that_ran(scene, job)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_runs_twice(seed: int) -> None:
    scene = run(seed)
    assert not [fate.crashed for fate in scene.fates if fate.crashed]
    twice = [job for job in scene.submitted if started_of(scene, job) > 1]
    assert not twice, [scene.home.jobs[job].events for job in twice]
    stuck = [scene.home.jobs[job].events for job in scene.submitted if not scene.home.jobs[job].ended]
    assert not stuck
    left = [job.events for peer in scene.peers.values() for job in peer.jobs.values() if not job.ended]
    assert not left, "copies that nobody will end"
    for job in scene.submitted:
        agree(scene.home.jobs[job], scene.ever)


def test_each_job_that_ran_at_a_peer_is_told_once_with_its_cores_and_times() -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    attributes = {"system": delegate_to("b") | {"duration": 30}}
    jobs = [
        scene.home.submit({"resources": [{"type": "core", "count": cores}], "attributes": attributes})
        for cores in (1, 3)
    ]
    scene.world.advance_by(20.0)
    scene.restart_manager()
    scene.world.advance_by(60.0)
    told = {run.job: run for view in scene.views for run in view.runs}
    copies = {run.job: scene.peers[run.peer].jobs[run.remote] for run in told.values()}
    at = {job: {event.name: event.at for event in copy.events} for job, copy in copies.items()}
    assert [(told[job].cores, told[job].started_at, told[job].ended_at) for job in jobs] == [
        (1, at[jobs[0]]["start"], at[jobs[0]]["finish"]),
        (3, at[jobs[1]]["start"], at[jobs[1]]["finish"]),
    ]
    events = [event.detail for view in scene.views for event in view.events if event.what == "ended_at_peer"]
    assert [detail.endswith("ran for 30s, exit code 3") for detail in events] == [True, True]


def test_a_job_that_its_peer_lost_is_told_as_lost() -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    attributes = {"system": delegate_to("b") | {"duration": 1000}}
    job = scene.home.submit({"resources": [{"type": "core", "count": 1}], "attributes": attributes})
    scene.world.advance_by(10.0)
    scene.peers[PeerName("b")].restart(keeps_state=False)
    scene.world.advance_by(30.0)
    assert scene.home.jobs[job].failed
    assert [(run.job, run.peer, run.started_at) for view in scene.views for run in view.runs] == [(job, "b", None)]


def test_an_answer_of_a_connection_that_is_gone_does_not_count() -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    link = next(it for it in scene.links if isinstance(it, SimulatedPeer) and it.instance.name == "b")
    scene.peers[PeerName("b")].faults.answers_from_s = scene.world.now_s + 20.0
    link.lose()
    job = one_job(scene, duration=5.0)
    scene.world.advance_by(5.0)
    link._listener(Submitted(PeerName("b"), job, JobId(4242)))
    scene.world.advance_by(60.0)
    (placed,) = (event for event in scene.home.jobs[job].events if event.name == SUBMITTED)
    assert placed.context["jobid"] != 4242
    assert scene.home.jobs[job].ended
    assert not scene.home.jobs[job].failed


def test_a_copy_whose_id_is_told_before_its_events_is_submitted_once() -> None:
    """A peer answers a submission and reports the new job by two ways. Either may be the faster one."""
    scene = Scene(0)
    scene.world.advance_by(10.0)
    link = next(it for it in scene.links if isinstance(it, SimulatedPeer) and it.instance.name == "b")
    tell_now = link.tell

    def tell(fact: PeerFact) -> None:
        if isinstance(fact, CopyEvents):
            scene.world.after(5.0, lambda: tell_now(fact))
        else:
            tell_now(fact)

    link.tell = tell  # type: ignore[method-assign]
    job = one_job(scene, duration=20.0)
    scene.world.advance_by(4.0)
    (copy,) = scene.peers[PeerName("b")].jobs.values()
    assert copy.has("start"), "its id is on record, so it may run"
    assert scene.home.jobs[job].has(SUBMITTED)
    scene.world.advance_by(60.0)
    assert [*scene.peers[PeerName("b")].jobs] == [copy.id]
    assert scene.home.jobs[job].ended
    assert not scene.home.jobs[job].failed


def test_a_copy_that_its_peer_does_not_know_when_it_is_to_change_is_looked_up_again() -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    job = one_job(scene)
    scene.home.set_urgency(job, 0)
    scene.world.advance_by(10.0)
    scene.peers[PeerName("b")].jobs.clear()  # and nobody hears of it
    scene.home.set_urgency(job, 16)
    scene.world.advance_by(30.0)
    assert scene.home.jobs[job].failed
    failure = next(event for event in scene.home.jobs[job].events if event.name == "exception")
    assert "does not know" in failure.context["note"]


def agree(job: SimulatedJob, copies: dict[tuple[str, JobId], SimulatedJob]) -> None:
    """A job that ended well here has a copy that ended well, with the same status; and its output, once."""
    if job.failed or job.runs:
        return
    status = next(event.context["status"] for event in job.events if event.name == "finish")
    placed = next(event.context for event in job.events if event.name == "delegate::submit")
    copy = copies[placed["peer"], placed["jobid"]]
    assert status == next(event.context["status"] for event in copy.events if event.name == "finish")
    assert len(job.output) == len(copy.output) == 1


def one_job(scene: Scene, target: str = "b", duration: float = 1000.0) -> JobId:
    attributes = {"system": delegate_to(target) | {"duration": duration}}
    return scene.home.submit({"resources": [{"type": "core", "count": 1}], "attributes": attributes})


@pytest.mark.parametrize("released", [True, False])
def test_the_copy_of_a_lost_job_is_cancelled(released: bool) -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    job = one_job(scene)
    if not released:
        scene.home.set_urgency(job, 0)
    scene.world.advance_by(10.0)
    (copy,) = scene.peers[PeerName("b")].jobs.values()
    assert copy.has("start") == released
    del scene.home.jobs[job]
    scene.links[0].lose()  # to home
    scene.world.advance_by(20.0)
    assert copy.ended
    said = [event.detail for view in scene.views for event in view.events if event.what == "copy_without_a_job"]
    assert len(said) == 1
    assert said[0].endswith("is cancelled: its job at home is not known any more")


@pytest.mark.parametrize("later_s", [0.9, 10.0])
def test_the_copy_of_another_job_with_the_same_id_is_cancelled_and_not_adopted(later_s: float) -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    former = one_job(scene)
    scene.world.advance_by(later_s)
    (copy,) = scene.peers[PeerName("b")].jobs.values()
    scene.home.restart(keeps_state=False)
    scene.home._next = former - 1
    assert one_job(scene, duration=5.0) == former
    scene.world.advance_by(30.0)
    assert copy.failed
    assert scene.home.jobs[former].ended
    assert not scene.home.jobs[former].failed
    assert len(scene.peers[PeerName("b")].jobs) == 2


@pytest.mark.parametrize("duration", [5.0, 1000.0], ids=["has ended", "runs"])
@pytest.mark.parametrize("killed_too", [False, True], ids=["same manager", "another manager"])
def test_a_copy_whose_record_was_lost_is_adopted(duration: float, killed_too: bool) -> None:
    """It is found by its marker, also once it has ended, and at a peer that would not be chosen now."""
    scene = Scene(0)
    scene.world.advance_by(10.0)
    job = one_job(scene, "any", duration)
    scene.world.advance_by(1.0)
    since_at = scene.world.wall_at()
    assert not scene.home.jobs[job].has("delegate::submit")
    scene.world.advance_by(20.0)
    ((place, copy),) = [(peer, it) for peer in scene.peers.values() for it in peer.jobs.values()]
    assert copy.runs == 1
    place.queue_disabled = True
    if killed_too:
        scene.kill_manager()
    scene.home.kill(scene.world.wall_at() - since_at)
    assert not scene.home.jobs[job].has("delegate::submit")
    if killed_too:
        scene.start_manager()
    scene.world.advance_by(1020.0)
    assert [it.runs for peer in scene.peers.values() for it in peer.jobs.values()] == [1]
    assert scene.home.jobs[job].ended
    agree(scene.home.jobs[job], {(place.name, copy.id): copy})


def test_while_a_peer_is_away_that_may_have_the_job_no_other_gets_it() -> None:
    scene = Scene(0)
    b, c = scene.peers.values()
    b.up = c.up = False
    scene.world.advance_by(10.0)
    job = one_job(scene, "any", 5.0)
    scene.world.advance_by(5.0)
    scene.home.restart()
    b.restart()
    scene.world.advance_by(60.0)
    assert not b.jobs
    assert "it may have this job already" in str(scene.views[-1].jobs[job].reason.figures["detail"])
    c.restart()
    scene.world.advance_by(60.0)
    assert scene.home.jobs[job].ended
    assert not scene.home.jobs[job].failed


KILLS: tuple[Callable[[Scene], None], ...] = (
    Scene.kill_home,
    Scene.kill_home,
    Scene.lose_a_connection,
    Scene.restart_manager,
    Scene.suspend_manager_while_another_acts,
    Scene.restart_home,
    Scene.peer_away,
    Scene.cancel,
    Scene.disable_queue,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_runs_twice_although_home_loses_its_latest_events(seed: int) -> None:
    scene = run(seed, (Scene.submit,), KILLS)
    assert not [fate.crashed for fate in scene.fates if fate.crashed]
    for job in scene.submitted:
        assert copies_that_ran(scene, job) <= 1
    left = [job.events for peer in scene.peers.values() for job in peer.jobs.values() if not job.ended]
    assert not left, "copies of jobs that are lost or have ended"
    for kept in scene.home.jobs.values():
        assert kept.ended, kept.events
        agree(kept, scene.ever)


def test_a_job_sent_to_a_peer_that_cannot_be_reached_runs_at_home() -> None:
    scene = Scene(0)
    scene.peers[PeerName("b")].up = False
    scene.world.advance_by(10.0)
    system = {"duration": 20.0}
    blocker, job = (
        scene.home.submit({"resources": [{"type": "core", "count": 1}], "attributes": {"system": system}})
        for _ in range(2)
    )
    reason = because(Code.PEER_CHOSEN, peer="b", wait="0 s", price_per_hour=Decimal(0), others="none")
    scene.inbox.tell(DelegateJob(job, PeerName("b"), 16, reason))
    scene.world.advance_by(10.0)
    assert scene.home.jobs[blocker].runs
    scene.world.advance_by(50.0)
    assert scene.home.jobs[job].ended
    assert not scene.home.jobs[job].failed
    assert not scene.peers[PeerName("b")].jobs


def test_a_job_sent_to_a_peer_shows_why_the_planner_sent_it() -> None:
    scene = Scene(0)
    scene.world.advance_by(10.0)
    blocker, job = (
        scene.home.submit({"resources": [{"type": "core", "count": 1}], "attributes": {"system": {"duration": 90}}})
        for _ in range(2)
    )
    reason = because(
        Code.PEER_CHOSEN,
        peer="b",
        wait="0 s",
        price_per_hour=Decimal(0),
        others="new nodes: wait 60 s, 0.4 an hour",
    )
    scene.inbox.tell(DelegateJob(job, PeerName("b"), 16, reason))
    scene.world.advance_by(10.0)
    assert scene.home.jobs[blocker].runs
    shown = scene.views[-1].jobs[job]
    assert (shown.peer, shown.chosen) == ("b", reason)


def test_inboxes_are_those_of_the_pump() -> None:
    assert isinstance(Scene(0).pumps[0].inboxes[0], Inbox)
