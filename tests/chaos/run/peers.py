"""The peers of a run, and the check that every delegated job ran once and ended alike at both sides.

The check reads only the eventlogs of the instances. It knows nothing of the delegator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import Peer, Targets
from nodemanager.delegation.jobs import EventlogEntry, PeerName
from nodemanager.simulation.delegation.flux_home import ClaimedHome, DelegatingFlux, FluxHome
from nodemanager.simulation.delegation.instance import InstanceFaults, SimulatedInstance, SimulatedJob
from nodemanager.simulation.delegation.ports import SimulatedPeer
from nodemanager.simulation.time.world import World
from tests.chaos.run.site import CLUSTER_UUID

NAMES = ("east", "west", "north")
STATUSES = (0, 0, 0, 256, 768, 9, 139)  # with which copies end: exit codes 0, 1 and 3, and two signals
RUNS_S = (3.0, 25.0)
CORES = 8
TAKES = (1, 2, 4)  # jobs that run at once in each peer
OURS = "delegate"  # the type of the delegator's own exceptions

CopyKey = tuple[str, JobId]
Require = Callable[[bool, str], None]


class PortOfAProcess:
    """A port whose process may be killed before and after each request. ``step`` is called there."""

    def __init__(self, link: ClaimedHome | SimulatedPeer, step: Callable[[], None]) -> None:
        self.link = link
        self._step = step

    def start(self, listener: Callable[[Any], None]) -> None:
        self.link.start(listener)

    def send(self, request: Any) -> None:
        self._step()
        self.link.send(request)
        self._step()

    def stop(self) -> None:
        self.link.stop()


class PeerWorld:
    """The home and the peers of one run."""

    def __init__(self, world: World, flux: DelegatingFlux, count: int, require: Require) -> None:
        self.home = FluxHome(flux)
        draws = world.draws_for("peers")
        self.instances = {
            PeerName(name): SimulatedInstance(world, name, takes=draws.choice(TAKES), cores_max=CORES)
            for name in NAMES[:count]
        }
        for instance in self.instances.values():
            instance.status_of = lambda job: STATUSES[job.id % len(STATUSES)]
            instance.runs_s = lambda job: RUNS_S[0] + job.id % int(RUNS_S[1] - RUNS_S[0])
        self.truth = DelegatedTruth(self.home, self.instances, require)
        self.targets = Targets(tuple(Peer(name, f"local:///{name}") for name in self.instances))

    def ports(self, token: str, step: Callable[[], None]) -> ProcessPorts:
        """The ports of a manager process that starts now."""
        return ProcessPorts(self, token, step)

    def make_peace(self) -> None:
        """End the faults of the peers."""
        for instance in self.instances.values():
            instance.faults = InstanceFaults()
            instance.queue_disabled = False
            if not instance.up:
                instance.restart()


class ProcessPorts:
    """The delegation ports of one manager process."""

    def __init__(self, peers: PeerWorld, token: str, step: Callable[[], None]) -> None:
        self._peers = peers
        self._token = token
        self._step = step
        self._open: list[PortOfAProcess] = []

    def home(self) -> PortOfAProcess:
        return self._opened(ClaimedHome(self._peers.home, self._token))

    def peer(self, peer: Peer) -> PortOfAProcess:
        return self._opened(SimulatedPeer(peer.name, self._peers.instances[peer.name], CLUSTER_UUID, self._token))

    def kill(self, on_the_wire: Callable[[], bool]) -> None:
        """End with the process."""
        for port in self._open:
            port.link.kill(on_the_wire)

    def links(self) -> Sequence[ClaimedHome | SimulatedPeer]:
        """The connections: of home, then of each peer."""
        return [port.link for port in self._open]

    def _opened(self, link: ClaimedHome | SimulatedPeer) -> PortOfAProcess:
        self._open.append(PortOfAProcess(link, self._step))
        return self._open[-1]


@dataclass
class DelegatedTruth:
    """What became of every job at home and at its peers. ``require`` raises if its first argument is false."""

    home: FluxHome
    peers: Mapping[PeerName, SimulatedInstance]
    require: Require
    cancelled: set[JobId] = field(default_factory=set)  # at home, by their users
    copies: dict[CopyKey, SimulatedJob] = field(default_factory=dict)  # also those that a peer has lost
    emptied: set[CopyKey] = field(default_factory=set)  # copies that a peer has lost
    starts: dict[JobId, list[str]] = field(default_factory=dict)  # where the work of each job began

    def __post_init__(self) -> None:
        self.home.watch(self._on_home)
        for name, instance in self.peers.items():
            instance.watch(lambda copy, events, name=name: self._on_peer(name, copy, events))  # type: ignore[misc]

    # --- while it happens ---

    def _on_home(self, job: JobId, events: Sequence[EventlogEntry]) -> None:
        for event in events:
            real = event.name == "alloc" and event.context.get("bypass") is not True
            self.require(
                not (real and _asks_for_a_peer(self.home.jobs[job])), f"delegated job {job} took cores at home"
            )
            if event.name == "start" and self._has_cores(job) and not self.home.flux.proxies.is_inert(job):
                self._note_start(job, "home")

    def _on_peer(self, name: str, copy: JobId, events: Sequence[EventlogEntry]) -> None:
        job = self.peers[PeerName(name)].jobs[copy]
        self.copies[name, copy] = job
        if any(event.name == "start" for event in events):
            self._note_start(_home_id(job), f"{name} {copy}")

    def _note_start(self, job: JobId, where: str) -> None:
        begun = self.starts.setdefault(job, [])
        begun.append(where)
        self.require(len(begun) == 1, f"job {job} ran twice: {' and '.join(begun)}")
        recorded = self._recorded(job)
        self.require(
            where == "home" or f"{recorded[0]} {recorded[1]}" == where if recorded else where == "home",
            f"job {job} runs at {where}, and home has {recorded} on record",
        )

    def _has_cores(self, job: JobId) -> bool:
        events = self.home.jobs[job].events
        return any(it.name == "alloc" and it.context.get("bypass") is not True for it in events)

    def _recorded(self, job: JobId) -> CopyKey | None:
        """The copy that home's eventlog names: the first since the last refusal or return."""
        found: CopyKey | None = None
        for event in self.home.jobs[job].events:
            if event.name == "delegate::submit" and found is None:
                found = str(event.context["peer"]), JobId(int(event.context["jobid"]))
            elif event.name == "delegate::return" or (
                event.name == "delegate::refused" and found is not None and event.context["peer"] == found[0]
            ):
                found = None
        return found

    def note_emptied(self, name: PeerName) -> None:
        """A peer is about to lose its state."""
        self.emptied |= {(name, copy) for copy in self.peers[name].jobs}

    # --- at the end ---

    def unfinished(self) -> list[str]:
        """The copies that are still active."""
        return [f"{name} {it.id}" for name, peer in self.peers.items() for it in peer.jobs.values() if not it.ended]

    def check_end(self, held: Collection[JobId]) -> None:
        """Both sides of every delegated job tell the same. Call it when all jobs except those held have ended."""
        for job in self._jobs_that_went():
            if job not in held:
                self._check_job(self.home.jobs[job])

    def _jobs_that_went(self) -> Iterable[JobId]:
        for job in self.home.jobs.values():
            if _asks_for_a_peer(job) or job.has("delegate::take"):
                yield job.id

    def _check_job(self, job: SimulatedJob) -> None:
        self.require(job.ended, f"delegated job {job.id} never ended")
        if "home" in self.starts.get(job.id, ()) or (not _asks_for_a_peer(job) and not self._recorded(job.id)):
            return  # it ran at home, or ended before any peer had it
        recorded = self._recorded(job.id)
        copy = self.copies.get(recorded) if recorded is not None else None
        self.require(recorded is None or copy is not None, f"job {job.id}: {recorded} never was")
        failure = _failure(job)
        if failure is None:
            self._check_success(job, copy)
        elif job.id not in self.cancelled and not (self._has_cores(job.id) and failure["type"] == "exec"):
            self._check_failure(job, copy, failure, lost=recorded in self.emptied)

    def _check_success(self, job: SimulatedJob, copy: SimulatedJob | None) -> None:
        self.require(copy is not None and _failure(copy) is None, f"job {job.id} ended well, and its copy did not")
        if copy is not None:
            self.require(
                _status(job) == _status(copy),
                f"job {job.id} ended with {_status(job)}, its copy with {_status(copy)}",
            )
            self.require(job.output == copy.output, f"job {job.id} has {len(job.output)} lines of output")

    def _check_failure(
        self, job: SimulatedJob, copy: SimulatedJob | None, failure: Mapping[str, Any], *, lost: bool
    ) -> None:
        if failure["type"] == OURS and lost:
            return
        if copy is None:
            self.require(failure["type"] == OURS, f"job {job.id} failed before any peer had it: {failure}")
            refused = {event.context["peer"] for event in job.events if event.name == "delegate::refused"}
            self.require(
                bool(refused) or "unsatisfiable" in failure["note"], f"job {job.id} was given up: {failure}"
            )
            return
        there = _failure(copy)
        self.require(
            there is not None and there["type"] == failure["type"],
            f"job {job.id} failed ({failure}), and its copy did not, or otherwise: {there}",
        )


def _asks_for_a_peer(job: SimulatedJob) -> bool:
    try:
        dependencies = job.submitted["attributes"]["system"].get("dependencies", ())
        return any(it["scheme"] == "delegate" for it in dependencies)
    except (TypeError, KeyError, AttributeError):
        return False  # the odd jobspec of a hostile user


def _home_id(copy: SimulatedJob) -> JobId:
    """The job that a copy belongs to, from the marker in its jobspec."""
    marker = copy.jobspec["attributes"]["system"]["node-manager"]["delegated-from"]
    return JobId(int(marker.split("/")[1]))


def _events(job: SimulatedJob, name: str) -> Iterator[EventlogEntry]:
    return (event for event in job.events if event.name == name)


def _failure(job: SimulatedJob) -> Mapping[str, Any] | None:
    return next((it.context for it in _events(job, "exception") if it.context["severity"] == 0), None)


def _status(job: SimulatedJob) -> int | None:
    return next((int(it.context["status"]) for it in _events(job, "finish")), None)
