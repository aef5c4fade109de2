"""A peer by RPC: the journal of its jobs, submission, cancellation, output, and how busy it is.

Payloads follow flux-core's modules ``job-manager``, ``job-info``, ``job-list``, ``job-ingest``, ``resource`` and
the schedulers; RFC 27 (the scheduler's feasibility service). The manager's user must own the peer instance, because
only its owner may read the journal.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, assert_never
from urllib.parse import urlsplit

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import parse_idset_ranges
from nodemanager.core.ports import Clock, FluxError
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.jobs import COPY_EVENTS, DURATION, PeerName
from nodemanager.delegation.jobspec import read_cores, read_duration_s, read_marker
from nodemanager.delegation.next_step import HELD_URGENCY
from nodemanager.delegation.ports import (
    ChangeDuration,
    ChangeUrgency,
    CheckFit,
    CopyEvents,
    CopyMissing,
    CopyOutput,
    CopyOutputEnded,
    EndCopy,
    FindCopies,
    FitChecked,
    FollowOutput,
    PeerDone,
    PeerFact,
    PeerLoadSeen,
    PeerLost,
    PeerRefused,
    PeerRequest,
    PeerSynced,
    ReadCopy,
    StopOutput,
    SubmitCopy,
    SubmitRefused,
    Submitted,
)
from nodemanager.delegation.relay import EXEC, OUTPUT
from nodemanager.flux.bindings import CallFailed, ask, resolve
from nodemanager.flux.link import Link, LinkSession
from nodemanager.flux.parse.eventlog import (
    CAUGHT_UP,
    JOURNAL,
    is_submitted_by,
    journal_request,
    read_eventlog,
    read_events,
    read_journal,
    read_json,
    read_output,
)
from nodemanager.flux.parse.json_fields import SECONDS_MAX, list_at, object_at, text_at, whole_at
from nodemanager.flux.reactor import Reactor
from nodemanager.flux.submit import submit_later

LOAD_EVERY_S = 5.0
_AGAIN_S = 0.05
_WRITTEN_TRIES = 40
_OPENED_DIRECTLY = ("local", "ssh")

Listener = Callable[[PeerFact], None]


class RealPeer:
    """``PeerPort`` by RPC. ``cluster_uuid``: only copies with a marker of this cluster are reported."""

    def __init__(
        self, name: PeerName, uri: str, cluster_uuid: str, clock: Clock, *, timeout_s: float = 10.0
    ) -> None:
        self._name = name
        self._uri = uri
        self._cluster_uuid = cluster_uuid
        self._clock = clock
        self._timeout_s = timeout_s
        self._listener: Listener
        self._link = Link[PeerRequest](f"peer-{name}", self._find_uri, self._session, self._lost)

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._link.start()

    def send(self, request: PeerRequest) -> None:
        self._link.send(request)

    def stop(self) -> None:
        self._link.stop()

    def _find_uri(self) -> str:
        if urlsplit(self._uri).scheme in _OPENED_DIRECTLY:
            return self._uri
        return resolve(self._uri)  # jobid:, pid:, slurm: and the like name an instance that must be found first

    def _session(self) -> LinkSession[PeerRequest]:
        return _PeerSession(self._name, self._cluster_uuid, self._clock, self._listener, self._timeout_s)

    def _lost(self, failure: FluxError) -> None:
        self._listener(PeerLost(self._name, str(failure)))


class _PeerSession(LinkSession[PeerRequest]):
    def __init__(
        self, name: PeerName, cluster_uuid: str, clock: Clock, listener: Listener, timeout_s: float
    ) -> None:
        super().__init__(timeout_s)
        self._name = name
        self._cluster_uuid = cluster_uuid
        self._clock = clock
        self._tell = listener
        self._copies: set[int] = set()
        self._expected_at: dict[int, float] = {}  # of every waiting job, as the scheduler's annotations say
        self._streams: dict[int, list[Callable[[], None]]] = {}
        self._unwritten: list[Callable[[], None]] = []
        self._load = LoadRound(0.0)

    def _connected(self, uri: str) -> Reactor:
        return Reactor(uri, any_version=True)  # the messages used here have been stable for years

    def begin(self) -> None:
        self._ensure_owner()
        self._reactor.every(LOAD_EVERY_S, self._look_at_load).start()
        self._output_again = self._reactor.every(_AGAIN_S, self._follow_unwritten)
        self._reactor.subscribe(JOURNAL, journal_request(COPY_EVENTS), self._on_jobs, self.fail)

    def _ensure_owner(self) -> None:
        """The journal refuses other users, but does not say why."""
        answer = ask(self._reactor.handle, "attr.get", {"name": "security.owner"}, timeout_s=self._timeout_s)
        owner = str(object_at(answer, "attr.get").get("value"))
        if owner != str(os.getuid()):
            raise FluxError(f"it belongs to user {owner}, and only an instance's owner can delegate to it")

    # --- the journal ---

    def _on_jobs(self, response: object) -> None:
        job, entries = read_journal(response)
        if job in CAUGHT_UP:
            self.synced = True
            self._look_at_load()  # its answer comes before anything that a request could bring about
            self._tell(PeerSynced(self._name))
            return
        self._note_forecasts(job, entries)
        if (jobspec := object_at(response, "journal").get("jobspec")) is not None:
            if (copy := self._read_whole(job, entries, jobspec)) is not None:
                self._copies.add(job)
                self._tell(copy)
        elif job in self._copies:
            self._tell(CopyEvents(self._name, JobId(job), read_events(entries)))
            if entries and entries[-1]["name"] == "clean":
                self._copies.discard(job)

    def _read_whole(self, job: int, entries: list[Mapping[str, Any]], jobspec: object) -> CopyEvents | None:
        """Read a job with all its events; None if it is no copy of ours."""
        marker = read_marker(jobspec)
        if marker is None or marker.cluster_uuid != self._cluster_uuid or not is_submitted_by(os.getuid(), entries):
            return None
        events, duration_s, cores = read_events(entries), read_duration_s(jobspec), read_cores(jobspec)
        return CopyEvents(self._name, JobId(job), events, marker, duration_s, cores)

    def _note_forecasts(self, job: int, events: list[Mapping[str, Any]]) -> None:
        for event in events:
            if event["name"] == "annotations":
                if (expected_at := read_forecast(event)) is not None:
                    self._expected_at[job] = expected_at
            elif event["name"] in {"alloc", "exception", "clean"}:
                self._expected_at.pop(job, None)

    # --- requests ---

    def carry_out(self, requests: list[PeerRequest]) -> None:
        for request in requests:
            self._carry_out(request)

    def _carry_out(self, request: PeerRequest) -> None:  # noqa: C901 - one arm a request
        match request:
            case SubmitCopy(job=job, jobspec=jobspec):
                submit_later(
                    self._reactor,
                    jobspec,
                    HELD_URGENCY,
                    lambda remote: self._tell(Submitted(self._name, job, JobId(remote))),
                    partial(self._on_submit_failure, job),
                    timeout_s=self._timeout_s,
                )
            case CheckFit(key=key, jobspec=jobspec):
                self.ask(
                    "feasibility.check",
                    {"jobspec": jobspec},
                    lambda _: self._tell(FitChecked(self._name, key, "")),
                    partial(self._on_misfit, key),
                )
            case ReadCopy(remote=remote):
                self._read_copy(remote)
            case FindCopies():
                self._find_copies(request)
            case ChangeUrgency(remote=remote, urgency=urgency):
                self._change("job-manager.urgency", {"id": remote, "urgency": urgency}, request)
            case ChangeDuration(remote=remote, duration_s=duration_s):
                update = {"id": remote, "updates": {DURATION: duration_s}}
                self._change("job-manager.update", update, request)
            case EndCopy(remote=remote, note=note):
                cancel = {"id": remote, "type": "cancel", "severity": 0, "note": note}
                self._change("job-manager.raise", cancel, request, gone_is_done=True)
            case FollowOutput():
                self._follow_output(request)
            case StopOutput(remote=remote):
                for stop in self._streams.pop(remote, ()):
                    stop()
            case _:
                assert_never(request)

    def _change(self, topic: str, payload: object, request: PeerRequest, *, gone_is_done: bool = False) -> None:
        def take_refusal(failure: CallFailed) -> None:
            if gone_is_done and failure.errno == errno.ENOENT:
                self._tell(PeerDone(self._name, request))
            else:
                self._tell(PeerRefused(self._name, request, str(failure)))

        self.ask(topic, payload, lambda _: self._tell(PeerDone(self._name, request)), take_refusal)

    def _on_submit_failure(self, job: JobId, failure: CallFailed) -> None:
        if failure.timed_out:
            self.fail(failure)
            return
        refused = SubmitRefused(self._name, job, str(failure))
        self.ask("attr.get", {"name": "rank"}, lambda _: self._tell(refused))

    def _on_misfit(self, key: str, failure: CallFailed) -> None:
        unchecked = failure.errno == errno.ENOSYS  # no scheduler, or one without the service: ask by submitting
        self._tell(FitChecked(self._name, key, "" if unchecked else failure.text))

    def _find_copies(self, request: FindCopies) -> None:
        """Read the journal once more, from the first job that the peer still knows."""

        def take(response: object) -> None:
            job, entries = read_journal(response)
            if job in CAUGHT_UP:
                stop()
                self._tell(PeerDone(self._name, request))
                return
            jobspec = object_at(response, "journal").get("jobspec")
            if jobspec is not None and (copy := self._read_whole(job, entries, jobspec)) is not None:
                self._tell(copy)

        stop = self._reactor.subscribe(JOURNAL, journal_request(COPY_EVENTS, full=True), take, self.fail)

    def _read_copy(self, remote: JobId, again: int = _WRITTEN_TRIES) -> None:
        """Look a copy up. ``again``: how often it may be looked up once more, if its end is not written yet."""
        lookup = {"id": remote, "keys": ["eventlog", "jobspec"], "flags": 0}

        def take(answer: object) -> None:
            found = object_at(answer, "job-info.lookup")
            events = read_events(read_eventlog(found.get("eventlog")))
            if again and remote not in self._copies and not any(event.name == "clean" for event in events):
                # The journal tells an event before Flux writes it. This copy has ended, so it is written soon.
                self._reactor.after(_AGAIN_S, partial(self._read_copy, remote, again - 1))
                return
            jobspec = read_json(found.get("jobspec"))
            duration_s, cores = read_duration_s(jobspec), read_cores(jobspec)
            self._tell(CopyEvents(self._name, remote, events, read_marker(jobspec), duration_s, cores))

        def take_refusal(failure: CallFailed) -> None:
            if failure.errno == errno.ENOENT:
                self._tell(CopyMissing(self._name, remote))
            else:
                self.fail(failure)

        self.ask("job-info.lookup", lookup, take, take_refusal)

    # --- output ---

    def _follow_output(self, request: FollowOutput) -> None:
        remote, stream = request.remote, request.stream
        flowing = {EXEC, OUTPUT}
        stops = self._streams[remote] = []

        def take(key: str, response: object) -> None:
            events = read_output(object_at(response, "job-info.eventlog-watch").get("event"))
            self._tell(CopyOutput(self._name, remote, stream, key, events))

        def end(key: str, failure: CallFailed) -> None:
            # A job that has just started has written nothing yet. Flux can wait for that, but then it may miss the
            # end of a short job. If the connection is lost, that shows elsewhere.
            if failure.errno == errno.ENOENT and remote in self._copies:
                self._unwritten.append(partial(follow, key))
                self._output_again.start()
                return
            flowing.discard(key)
            if not flowing:
                if self._streams.get(remote) is stops:
                    del self._streams[remote]
                self._tell(CopyOutputEnded(self._name, remote, stream))

        def follow(key: str) -> None:
            if self._streams.get(remote) is stops:
                watch = {"id": remote, "path": f"guest.{key}", "flags": 0}
                on_end = partial(end, key)
                stops.append(self._reactor.subscribe("job-info.eventlog-watch", watch, partial(take, key), on_end))

        for key in (EXEC, OUTPUT):
            follow(key)

    def _follow_unwritten(self) -> None:
        self._output_again.stop()
        again, self._unwritten = self._unwritten, []
        for follow in again:
            follow()

    # --- how busy it is ---

    def _look_at_load(self) -> None:
        self._load = load = LoadRound(self._clock.wall_at())
        questions: dict[str, object] = {RESOURCES: None, STATS: {}, QUEUES: {}, FLUXION: None}
        load.unanswered = len(questions)
        for topic, payload in questions.items():
            self.ask(topic, payload, partial(self._on_load, load, topic), partial(self._on_no_load, load))

    def _on_load(self, load: LoadRound, topic: str, answer: object) -> None:
        load.answers[topic] = answer
        if topic == QUEUES:
            for queue in read_queue_names(answer):
                load.queues[queue] = False
                load.unanswered += 1
                on_answer, on_refused = partial(self._on_queue, load, queue), partial(self._on_no_load, load)
                self.ask(QUEUE, {"name": queue}, on_answer, on_refused)
        self._count_down(load)

    def _on_no_load(self, load: LoadRound, _failure: CallFailed) -> None:
        self._count_down(load)

    def _on_queue(self, load: LoadRound, queue: str, answer: object) -> None:
        load.queues[queue] = takes_jobs(answer)
        self._count_down(load)

    def _count_down(self, load: LoadRound) -> None:
        load.unanswered -= 1
        if not load.unanswered and load is self._load:
            expected = max(self._expected_at.values(), default=None)
            self._tell(PeerLoadSeen(self._name, load.read(expected)))


# --- load -------------------------------------------------------------------------------------------------
#
# Read how busy a peer is from its answers (``sched.resource-status``, ``job-list.job-stats`` and others; RFC 20).
#
# Every function raises ``ValueError``, and nothing else, if an answer has another shape.


RESOURCES = "sched.resource-status"
STATS = "job-list.job-stats"
QUEUES = "job-manager.queue-list"
QUEUE = "job-manager.queue-status"
FLUXION = "sched-fluxion-qmanager.stats-get"
QUEUES_MAX = 1000
RANKS_MAX = 100_000  # of one peer; entries may name a rank again


class LoadRound:
    """One round of questions about how busy the peer is."""

    def __init__(self, seen_at: float) -> None:
        self.seen_at = seen_at
        self.unanswered = 0
        self.answers: dict[str, object] = {}
        self.queues: dict[str, bool] = {}

    def read(self, last_start_at: float | None) -> PeerLoad:
        """Read all answers together. ``last_start_at``: see ``PeerLoad``."""
        status = object_at(self.answers.get(RESOURCES) or {}, RESOURCES)
        all_, allocated, down = (_cores_of_ranks(status.get(key)) for key in ("all", "allocated", "down"))
        stats = object_at(self.answers.get(STATS) or {}, STATS)
        states = object_at(stats.get("job_states") or {}, "job_states")
        fluxion = self.answers.get(FLUXION)
        up = all_.keys() - down.keys()
        return PeerLoad(
            seen_at=self.seen_at,
            scheduler="fluxion" if fluxion is not None else "sched-simple" if status else "none",
            nodes=len(all_),
            nodes_up=len(up),
            nodes_free=sum(1 for rank in up if allocated.get(rank, 0) < all_[rank]),
            cores=sum(all_.values()),
            cores_free=sum(all_[rank] - allocated.get(rank, 0) for rank in up),
            waiting=fluxion_backlog(fluxion) if fluxion is not None else whole_at(states.get("sched", 0), "sched"),
            running=whole_at(states.get("run", 0), "run"),
            queues=dict(self.queues) if self.queues else None,
            last_start_at=last_start_at,
        )


def read_queue_names(answer: object) -> list[str]:
    """Read the names of a peer's queues."""
    queues = list_at(object_at(answer, QUEUES).get("queues"), "queues")
    if len(queues) > QUEUES_MAX:
        raise ValueError(f"queues: more than {QUEUES_MAX}")
    return [text_at(queue, "queues") for queue in queues]


def takes_jobs(answer: object) -> bool:
    """Read whether a queue is enabled."""
    enabled = object_at(answer, QUEUE).get("enable")
    if not isinstance(enabled, bool):
        raise ValueError("enable: true or false is needed")  # noqa: TRY004 - as other faults of an answer
    return enabled


def read_forecast(event: Mapping[str, Any]) -> float | None:
    """Read when the scheduler expects a job to start, from an ``annotations`` event; None if it says nothing."""
    value: object = event.get("context")
    for key in ("annotations", "sched", "t_estimate"):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= SECONDS_MAX:
        return None
    return float(value)


def _cores_of_ranks(r: object) -> dict[int, int]:
    """Count the cores of each rank of a resource set (RFC 20)."""
    execution = object_at(object_at(r or {}, "R").get("execution") or {}, "R.execution")
    cores: dict[int, int] = {}
    listed = 0
    for entry in list_at(execution.get("R_lite") or [], "R_lite"):
        ranks = object_at(entry, "R_lite")
        children = object_at(ranks.get("children"), "R_lite.children")
        count = _count(parse_idset_ranges(text_at(children.get("core", ""), "R_lite.children.core")))
        entry_ranks = parse_idset_ranges(text_at(ranks.get("rank"), "R_lite.rank"))
        listed += _count(entry_ranks)
        if listed > RANKS_MAX:  # before they are listed: a short text can name very many
            raise ValueError(f"R_lite: more than {RANKS_MAX} ranks")
        cores |= {rank: count for low, high in entry_ranks for rank in range(low, high + 1)}
    return cores


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(high - low + 1 for low, high in ranges)


def fluxion_backlog(stats: object) -> int:
    """Count the jobs in Fluxion's lists of waiting jobs. Its counters count every job that ever waited."""
    waiting = 0
    for queue in object_at(object_at(stats, FLUXION).get("queues") or {}, "queues").values():
        lists = object_at(object_at(queue, "queue").get("pending_queues") or {}, "pending_queues")
        waiting += sum(len(jobs) for jobs in lists.values() if isinstance(jobs, list))
    return waiting
