"""The simulated ports of delegation. Requests and answers travel for a random time; connections can be lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_never

from nodemanager.core.jobs import JobId
from nodemanager.core.untrusted import read_lines
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import TAKEN, EventlogEntry, PeerName
from nodemanager.delegation.jobspec import read_cores, read_duration_s, read_marker, read_needs, read_target
from nodemanager.delegation.ports import (
    AppendOutput,
    ChangeDuration,
    ChangeUrgency,
    CheckFit,
    CopyEvents,
    CopyMissing,
    CopyOutput,
    CopyOutputEnded,
    CountOutput,
    EndCopy,
    FindCopies,
    FindJob,
    FitChecked,
    FollowOutput,
    HoldJob,
    HomeDone,
    HomeEvents,
    HomeFact,
    HomeLost,
    HomeRefused,
    HomeRequest,
    HomeSynced,
    JobFound,
    JobspecRead,
    OutputCounted,
    PeerDone,
    PeerFact,
    PeerLoadSeen,
    PeerLost,
    PeerRefused,
    PeerRequest,
    PeerSynced,
    PostEvent,
    RaiseOnJob,
    ReadCopy,
    ReadJobspec,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowMemo,
    ShowRunning,
    StopOutput,
    SubmitCopy,
    SubmitRefused,
    Submitted,
    Validate,
)
from nodemanager.delegation.relay import EXEC, OUTPUT, counts_for_relay
from nodemanager.simulation.delegation.instance import InstanceRefused, SimulatedInstance, SimulatedJob

RECONNECT_S = 1.0
PROBE_S = 5.0
ASK_AGAIN_S = 0.2
Fact = TypeVar("Fact")
Request = TypeVar("Request")


class SimulatedLink(Generic[Request, Fact]):
    """One connection to an instance. Everything that was on its way when it is lost never arrives."""

    once: tuple[type[Any], ...] = ()  # facts that never come twice

    def __init__(self, instance: SimulatedInstance, reader: str) -> None:
        self.instance = instance
        self.closed = False
        self._on_the_wire: Callable[[], bool] = lambda: False
        self._world = instance.world
        self._draws = self._world.draws_for(f"{reader}/{instance.name}")
        self._listener: Callable[[Fact], None]
        self._connection = 0
        self._incarnation = -1
        self._last_s = {"to": 0.0, "from": 0.0}

    def start(self, listener: Callable[[Fact], None]) -> None:
        self._listener = listener
        self._connect()

    def stop(self) -> None:
        self.closed = True
        self.instance.unwatch(self._on_events)

    def kill(self, on_the_wire: Callable[[], bool]) -> None:
        """End with the process. A request ``on_the_wire`` is still carried out, and nobody gets the answer."""
        self.stop()
        self._on_the_wire = on_the_wire

    def send(self, request: Request) -> None:
        connection = self._connection

        def arrive() -> None:
            if self._is_on(connection) or self._outlives_its_process(connection):
                self.carry_out(request)

        self._travel("to", arrive)

    def lose(self, why: str = "connection reset") -> None:
        """Lose the connection; another one is tried after a while."""
        if self.closed or self._incarnation < 0:
            return
        self._connection += 1
        self._incarnation = -1
        self.instance.unwatch(self._on_events)
        self._listener(self.lost(why))
        self._world.after(RECONNECT_S, self._connect)

    def tell(self, fact: Fact) -> None:
        connection = self._connection

        def arrive() -> None:
            if self._is_on(connection):
                self._listener(fact)

        repeats = self._draws.random() < self.instance.faults.p_repeats and not isinstance(fact, self.once)
        for _ in range(1 + repeats):
            self._travel("from", arrive)

    def _travel(self, way: str, arrive: Callable[[], None]) -> None:
        """Messages of one way keep their order."""
        faults = self.instance.faults
        arrives_s = self._world.now_s + self._draws.uniform(0.0, faults.travel_s)
        at_s = max(self._last_s[way], arrives_s, faults.answers_from_s)
        self._last_s[way] = at_s
        self._world.at(at_s, arrive)

    def _is_on(self, connection: int) -> bool:
        if self.closed or connection != self._connection:
            return False
        if self._incarnation >= 0 and (self.instance.incarnation != self._incarnation or not self.instance.up):
            self.lose("the instance restarted")
            return False
        return True

    def _outlives_its_process(self, connection: int) -> bool:
        same = connection == self._connection and self._incarnation == self.instance.incarnation
        return self.closed and same and self.instance.up and self._on_the_wire()

    def _connect(self) -> None:
        if self.closed or self._incarnation >= 0:
            return
        if not self.may_connect() or self.instance.faults.answers_from_s > self._world.now_s:
            self._world.after(RECONNECT_S, self._connect)
            return
        self._incarnation = self.instance.incarnation
        self.instance.watch(self._on_events)
        for job in self.instance.jobs.values():
            if not job.ended:
                self.report(job, job.events)
        self.synced()
        self._probe(self._connection)

    def _probe(self, connection: int) -> None:
        """Notice that the instance restarted, also if nothing is sent."""
        if self._is_on(connection):
            self._world.after(PROBE_S, lambda: self._probe(connection))

    def _on_events(self, job: JobId, events: Sequence[EventlogEntry]) -> None:
        if self._is_on(self._connection):
            self.report(self.instance.jobs[job], events)

    def may_connect(self) -> bool:
        return self.instance.up

    def lost(self, why: str) -> Fact:
        raise NotImplementedError

    def synced(self) -> None:
        raise NotImplementedError

    def report(self, job: SimulatedJob, events: Sequence[EventlogEntry]) -> None:
        raise NotImplementedError

    def carry_out(self, request: Request) -> None:
        raise NotImplementedError


@dataclass
class _Stream:
    sent: int = 0


class SimulatedPeer(SimulatedLink[PeerRequest, PeerFact]):
    """``PeerPort`` on a simulated instance."""

    once = (CopyOutput,)

    def __init__(
        self, name: PeerName, instance: SimulatedInstance, cluster_uuid: str, reader: str = "peer"
    ) -> None:
        super().__init__(instance, reader)
        self._name = name
        self._cluster_uuid = cluster_uuid
        self._streams: dict[JobId, int] = {}

    def lost(self, why: str) -> PeerFact:
        self._streams.clear()
        return PeerLost(self._name, why)

    def synced(self) -> None:
        self.tell(PeerLoadSeen(self._name, self._load()))
        self.tell(PeerSynced(self._name))

    def _load(self) -> PeerLoad:
        running = sum(1 for it in self.instance.jobs.values() if it.has("start") and not it.ended)
        cores = self.instance.cores_max
        return PeerLoad(
            self._world.wall_at(), "simulated", 1, 1, 1, cores, max(0, cores - running), running=running
        )

    def report(self, job: SimulatedJob, events: Sequence[EventlogEntry]) -> None:
        marker = read_marker(job.jobspec)
        if marker is None or marker.cluster_uuid != self._cluster_uuid:
            return
        whole = events[0].name == "submit"
        duration_s, cores = read_duration_s(job.jobspec), read_cores(job.jobspec)
        self.tell(CopyEvents(self._name, job.id, tuple(events), marker if whole else None, duration_s, cores))

    def carry_out(self, request: PeerRequest) -> None:  # noqa: C901 - one arm a request
        match request:
            case SubmitCopy(job=job, jobspec=jobspec):
                self._submit(job, jobspec)
            case CheckFit(key=key, jobspec=jobspec):
                fits = read_needs(jobspec).cores <= self.instance.cores_max
                self.tell(FitChecked(self._name, key, "" if fits else "unsatisfiable request"))
            case ReadCopy(remote=remote):
                self._read_copy(remote)
            case FindCopies():
                for job_ in self.instance.jobs.values():
                    self.report(job_, job_.events)
                self.tell(PeerDone(self._name, request))
            case ChangeUrgency(remote=remote, urgency=urgency):
                self._change(request, lambda: self.instance.set_urgency(remote, urgency))
            case ChangeDuration(remote=remote, duration_s=duration_s):
                self._change(request, lambda: self.instance.set_duration(remote, duration_s))
            case EndCopy(remote=remote, note=note):
                if remote in self.instance.jobs and not self.instance.jobs[remote].ended:
                    self.instance.raise_on(remote, "cancel", note)
                self.tell(PeerDone(self._name, request))
            case FollowOutput(remote=remote, stream=stream):
                self._streams[remote] = stream
                self._send_output(remote, stream, _Stream())
            case StopOutput(remote=remote):
                self._streams.pop(remote, None)
            case _:
                assert_never(request)

    def _submit(self, job: JobId, jobspec: Mapping[str, Any]) -> None:
        try:
            remote = self.instance.submit(jobspec, 0)
        except InstanceRefused as refused:
            self.tell(SubmitRefused(self._name, job, str(refused)))
            return
        if self._draws.random() < self.instance.faults.p_loses_submit:
            self.lose("the connection broke")
        else:
            self.tell(Submitted(self._name, job, remote))

    def _change(self, request: PeerRequest, change: Callable[[], None]) -> None:
        try:
            change()
        except InstanceRefused as refused:
            self.tell(PeerRefused(self._name, request, str(refused)))
        else:
            self.tell(PeerDone(self._name, request))

    def _read_copy(self, remote: JobId) -> None:
        job = self.instance.jobs.get(remote)
        if job is None:
            self.tell(CopyMissing(self._name, remote))
        else:
            marker, duration_s = read_marker(job.jobspec), read_duration_s(job.jobspec)
            cores = read_cores(job.jobspec)
            self.tell(CopyEvents(self._name, remote, tuple(job.events), marker, duration_s, cores))

    def _send_output(self, remote: JobId, stream: int, state: _Stream) -> None:
        job = self.instance.jobs.get(remote)
        if self._streams.get(remote) != stream or job is None or self.closed:
            return
        if job.output[state.sent :]:
            self.tell(CopyOutput(self._name, remote, stream, OUTPUT, tuple(job.output[state.sent :])))
            state.sent = len(job.output)
        if job.ended:
            del self._streams[remote]
            self.tell(CopyOutputEnded(self._name, remote, stream))
        else:
            self._world.after(ASK_AGAIN_S, lambda: self._send_output(remote, stream, state))


class SimulatedHome(SimulatedLink[HomeRequest, HomeFact]):
    """``HomePort`` on a simulated instance. The latest one that was started holds the name."""

    def __init__(self, instance: SimulatedInstance, reader: str = "home") -> None:
        super().__init__(instance, reader)
        self.memos: dict[JobId, str] = {}

    def start(self, listener: Callable[[HomeFact], None]) -> None:
        self.take_name()
        super().start(listener)

    def take_name(self) -> None:
        self.instance.actor = self

    def holds_name(self) -> bool:
        return self.instance.actor is self

    def lost(self, why: str) -> HomeFact:
        return HomeLost(why)

    def may_connect(self) -> bool:
        return self.instance.up and self.holds_name()

    def synced(self) -> None:
        self.tell(HomeSynced(self.instance.started_at))

    def report(self, job: SimulatedJob, events: Sequence[EventlogEntry]) -> None:
        target = read_target(job.jobspec)
        if not target and not job.has(TAKEN):
            return
        if not target and any(event.name == TAKEN for event in events):
            events = job.events
        if events[0].name == "submit":
            self.tell(HomeEvents(job.id, tuple(events), target, read_duration_s(job.jobspec), target))
        else:
            self.tell(HomeEvents(job.id, tuple(events)))

    def carry_out(self, request: HomeRequest) -> None:
        if not self.holds_name():
            self.lose("another manager acts")
            return
        try:
            answer = self._answer(request)
        except InstanceRefused as refused:
            self.tell(HomeRefused(request, str(refused)))
        else:
            self.tell(answer)

    def _answer(self, request: HomeRequest) -> HomeFact:  # noqa: C901, PLR0912 - one arm a request
        job, instance = request.job, self.instance
        match request:
            case ReadJobspec():
                return JobspecRead(job, instance.known(job).submitted)
            case PostEvent(event=event):
                instance.post(instance.active(job), event.name, **event.context)
            case RemoveDependency(description=description):
                instance.remove_dependency(job, description)
            case Validate(duration_s=duration_s):
                instance.validate(job, duration_s)
            case ShowRunning():
                instance.show_running(job)
            case ShowFinished(status=status):
                instance.finish(job, status)
            case RaiseOnJob(failure=failure, status=status):
                if job in instance.jobs and not instance.jobs[job].ended:
                    instance.raise_on(job, failure.type, failure.note, status)
            case ShowMemo(text=text):
                self.memos[instance.active(job).id] = text
            case CountOutput():
                found = instance.running(job)
                logs = {OUTPUT: found.output, EXEC: found.exec_events}
                return OutputCounted(job, {key: counts_for_relay(key, log) for key, log in logs.items()})
            case AppendOutput(lines=lines):
                found = instance.running(job)
                for key, text in lines.items():
                    log = found.output if key == OUTPUT else found.exec_events
                    log.extend(json.loads(line) for line in read_lines(text))
            case HoldJob():
                instance.set_urgency(job, 0)
            case ReleaseJob(urgency=urgency):
                instance.set_urgency(job, urgency)
            case FindJob():
                return JobFound(job, job in instance.jobs)
            case _:
                assert_never(request)
        return HomeDone(request)
