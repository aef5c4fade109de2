"""Our own instance by RPC: the delegated jobs' journal, and the calls that make a proxy look like its copy.

Payloads follow flux-core's modules ``job-manager`` (``post-event``, ``raise``, ``update``, ``memo``), ``job-exec``
(``override``, of jobs with ``exec.test.override``) and ``job-info``; RFC 24 (output).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from nodemanager.core.jobs import JobId
from nodemanager.core.ports import FluxError
from nodemanager.delegation.jobs import DURATION, PROXY_EVENTS, TAKEN, nodelist_of
from nodemanager.delegation.jobspec import read_duration_s, read_pretended_resources, read_target
from nodemanager.delegation.ports import (
    AppendOutput,
    CountOutput,
    FindJob,
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
    PostEvent,
    RaiseOnJob,
    ReadJobspec,
    ReleaseJob,
    RemoveDependency,
    ShowFinished,
    ShowMemo,
    ShowRunning,
    Validate,
)
from nodemanager.delegation.relay import EXEC, OUTPUT, counts_for_relay
from nodemanager.flux.bindings import CallFailed, ask, connection
from nodemanager.flux.claim import Claim, owner_of
from nodemanager.flux.delegate.setup import SetupIncomplete, check_setup
from nodemanager.flux.kvs import append_later, read_later
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
)
from nodemanager.flux.parse.json_fields import object_at
from nodemanager.flux.resubmit import unwrap_jobspec

MEMO = "delegated"
_RETRY_S = 0.01
_ACTOR_GOOD_S = 0.05
_TRIES_MAX = 500  # 5 s: job-exec learns of a job some milliseconds after its ``alloc`` event

Listener = Callable[[HomeFact], None]


class RealHome:
    """``HomePort`` by RPC. It acts only while ``claim`` holds the name. ``frobnicator``: the plugin's file."""

    def __init__(self, uri: str, claim: Claim, frobnicator: Path, *, timeout_s: float = 10.0) -> None:
        self._uri = uri
        self._frobnicator = frobnicator
        self._claim = claim
        self._timeout_s = timeout_s
        self._listener: Listener
        self._link = Link[HomeRequest]("delegation-home", lambda: uri, self._session, self._lost)

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self._link.start()

    def send(self, request: HomeRequest) -> None:
        self._link.send(request)

    def stop(self) -> None:
        self._link.stop()

    def _session(self) -> LinkSession[HomeRequest]:
        return _HomeSession(self._uri, self._claim, self._frobnicator, self._listener, self._timeout_s)

    def _lost(self, failure: FluxError) -> None:
        self._listener(HomeLost(str(failure), setup_fault=isinstance(failure, SetupIncomplete)))


class _HomeSession(LinkSession[HomeRequest]):
    def __init__(self, uri: str, claim: Claim, frobnicator: Path, listener: Listener, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._uri = uri
        self._frobnicator = frobnicator
        self._claim = claim
        self._tell = listener
        self._jobs: set[int] = set()
        self._appending: dict[JobId, list[AppendOutput]] = {}
        self._actor_until_s = float("-inf")
        self._started_at = 0.0
        self._taking: dict[int, list[Mapping[str, Any]]] = {}  # the events of jobs whose eventlog is being read
        self._tries: dict[ShowRunning, int] = {}

    def begin(self) -> None:
        self._ensure_actor()
        handle = self._reactor.handle
        check_setup(handle, self._frobnicator, timeout_s=self._timeout_s)
        started = ask(handle, "attr.get", {"name": "broker.starttime"}, timeout_s=self._timeout_s)
        self._started_at = float(str(object_at(started, "attr.get").get("value")))
        self._retry = self._reactor.every(_RETRY_S, self._try_again)
        self._reactor.subscribe(JOURNAL, journal_request(PROXY_EVENTS), self._on_jobs, self.fail)

    def _ensure_actor(self) -> None:
        """Check that the name is ours. An answer counts for some milliseconds, so one check covers many requests.

        A request that is sent too late does no harm: the record at home decides, not its writer.
        """
        now_s = time.monotonic()
        if now_s < self._actor_until_s:
            return
        owner = owner_of(self._reactor.handle, timeout_s=self._timeout_s)
        if owner is None:
            raise FluxError("the name node-manager is not taken yet")
        if not self._claim.is_ours(owner):
            raise FluxError(f"{owner} is the acting manager")
        self._actor_until_s = now_s + _ACTOR_GOOD_S

    # --- the journal ---

    def _on_jobs(self, response: object) -> None:
        job, entries = read_journal(response)
        if job in CAUGHT_UP:
            self.synced = True
            self._tell(HomeSynced(self._started_at))
            return
        if (jobspec := object_at(response, "journal").get("jobspec")) is not None:
            target = read_target(jobspec)
            if not (target or _is_taken(entries)) or not is_submitted_by(os.getuid(), entries):
                return
            self._jobs.add(job)
            nodelist = nodelist_of(read_pretended_resources(jobspec))
            events, duration_s = read_events(entries), read_duration_s(jobspec)
            self._tell(HomeEvents(JobId(job), events, target, duration_s, nodelist))
        elif job in self._taking:
            self._taking[job].extend(entries)
        elif job in self._jobs:
            self._tell(HomeEvents(JobId(job), read_events(entries)))
            if entries and entries[-1]["name"] == "clean":
                self._jobs.discard(job)

        elif _is_taken(entries):
            self._begin_taken(job, entries)

    def _begin_taken(self, job: int, entries: list[Mapping[str, Any]]) -> None:
        """Report the whole eventlog of a job that was just taken, with the events that arrive meanwhile."""
        self._taking[job] = list(entries)

        def take(answer: object) -> None:
            found = object_at(answer, "job-info.lookup")
            log, jobspec = read_eventlog(found.get("eventlog")), read_json(found.get("jobspec"))
            later = self._taking.pop(job)
            if not is_submitted_by(os.getuid(), log):
                return
            self._jobs.add(job)
            self._tell(HomeEvents(JobId(job), read_events([*log, *later]), "", read_duration_s(jobspec), ""))

        self.ask("job-info.lookup", {"id": job, "keys": ["eventlog", "jobspec"], "flags": 0}, take)

    # --- requests ---

    def carry_out(self, requests: list[HomeRequest]) -> None:
        try:
            self._ensure_actor()
        except FluxError as failure:
            self.fail(failure)
            return
        for request in requests:
            self._carry_out(request)

    def _carry_out(self, request: HomeRequest) -> None:  # noqa: C901, PLR0912 - one arm a request
        match request:
            case ReadJobspec(job=job):
                lookup = {"id": job, "keys": ["J"], "flags": 0}
                self._request("job-info.lookup", lookup, request, partial(self._on_jobspec, request))
            case PostEvent(job=job, event=event):
                post = {"id": job, "name": event.name, "context": dict(event.context)}
                self._request("job-manager.post-event.post", post, request)
            case RemoveDependency(job=job, description=description):
                event_ = {"id": job, "name": "dependency-remove", "context": {"description": description}}
                gone = frozenset({errno.EEXIST, errno.ENOENT})
                self._request("job-manager.post-event.post", event_, request, done_if=gone)
            case Validate():
                self._validate(request)
            case ShowRunning(job=job):
                self._show_running(request)
            case ShowFinished(job=job, status=status):
                finish = {"event": "finish", "jobid": job, "status": status}
                self._request("job-exec.override", finish, request)
            case RaiseOnJob(job=job, failure=failure, status=status):
                raised = {"id": job, "type": failure.type, "severity": 0, "note": failure.note}
                if status is not None:
                    raised["wait_status"] = status
                self._request("job-manager.raise", raised, request, done_if=frozenset({errno.ENOENT}))
            case ShowMemo(job=job, text=text):
                memo = {"id": job, "volatile": False, "memo": {MEMO: text}}
                self._request("job-manager.memo", memo, request)
            case CountOutput(job=job):
                self._count_output(request)
            case AppendOutput():
                self._append(request)
            case HoldJob():
                self._hold(request)
            case ReleaseJob(job=job, urgency=urgency):
                self._request("job-manager.urgency", {"id": job, "urgency": urgency}, request)
            case FindJob(job=job):
                self._find(job)
            case _:
                assert_never(request)

    def _request(
        self,
        topic: str,
        payload: object,
        request: HomeRequest,
        on_answer: Callable[[Any], None] | None = None,
        *,
        done_if: frozenset[int] = frozenset(),
    ) -> None:
        def take_refusal(failure: CallFailed) -> None:
            done = failure.errno in done_if
            self._tell(HomeDone(request) if done else HomeRefused(request, str(failure)))

        self.ask(topic, payload, on_answer or (lambda _: self._tell(HomeDone(request))), take_refusal)

    def _on_jobspec(self, request: ReadJobspec, answer: Mapping[str, Any]) -> None:
        try:
            self._tell(JobspecRead(request.job, unwrap_jobspec(answer.get("J"))))
        except ValueError as fault:
            self._tell(HomeRefused(request, f"its signed jobspec cannot be read: {fault}"))

    def _validate(self, request: Validate) -> None:
        """Update the time limit in the role of a plain user: for an owner Flux would skip the validation."""
        update = {"id": request.job, "updates": {DURATION: request.duration_s}}
        try:
            with connection(self._uri) as handle:
                handle.take_user_role()
                ask(handle, "job-manager.update", update, timeout_s=self._timeout_s)
        except CallFailed as failure:
            self._tell(HomeRefused(request, str(failure)))
        else:
            self._tell(HomeDone(request))

    def _show_running(self, request: ShowRunning) -> None:
        start = {"event": "start", "jobid": request.job}

        def take_failure(failure: CallFailed) -> None:
            tries = self._tries.get(request, 0) + 1
            if failure.errno == errno.ENOENT and not failure.timed_out and tries <= _TRIES_MAX:
                self._tries[request] = tries
                self._retry.start()
            else:
                self.take_failure(take_refusal, failure)

        def take_refusal(failure: CallFailed) -> None:
            if failure.errno == errno.EINVAL:  # it is running already
                take_answer(None)
                return
            self._tries.pop(request, None)
            self._tell(HomeRefused(request, str(failure)))

        def take_answer(_answer: object) -> None:
            self._tries.pop(request, None)
            self._tell(HomeDone(request))

        self._reactor.request("job-exec.override", start, take_answer, take_failure, timeout_s=self._timeout_s)

    def _try_again(self) -> None:
        self._retry.stop()
        for request in list(self._tries):
            self._show_running(request)

    def _hold(self, request: HoldJob) -> None:
        """Set the urgency to 0, and let everything arrive that the scheduler had answered before.

        The scheduler answers in order. So once it has answered a question that was sent after the hold, it has
        answered every request to allocate; and once the job manager has answered the next question, it has
        published every ``alloc`` that followed.
        """

        def refuse(failure: CallFailed) -> None:
            self._tell(HomeRefused(request, str(failure)))

        def ask_manager(_: object) -> None:
            self.ask("job-manager.queue-list", {}, lambda _: self._tell(HomeDone(request)), refuse)

        def ask_scheduler(_: object) -> None:
            self.ask("sched.resource-status", None, ask_manager, ask_manager)

        self.ask("job-manager.urgency", {"id": request.job, "urgency": 0}, ask_scheduler, refuse)

    def _find(self, job: JobId) -> None:
        def take_refusal(failure: CallFailed) -> None:
            if failure.errno == errno.ENOENT:
                self._tell(JobFound(job, known=False))
            else:
                self.fail(failure)

        lookup = {"id": job, "keys": ["eventlog"], "flags": 0}
        self.ask("job-info.lookup", lookup, lambda _: self._tell(JobFound(job, known=True)), take_refusal)

    # --- output: in the namespace of a running job's guest ---

    def _count_output(self, request: CountOutput) -> None:
        """Read one log after the other, so that a failure is told once."""
        namespace, counts = _namespace(request.job), dict[str, int]()

        def refuse(failure: CallFailed) -> None:
            self._tell(HomeRefused(request, str(failure)))

        def read(key: str, then: Callable[[], None]) -> None:
            def take(text: str) -> None:
                try:
                    counts[key] = counts_for_relay(key, read_eventlog(text))
                except ValueError as fault:  # the job's user can write there
                    self._tell(HomeRefused(request, f"the job's {key} cannot be read: {fault}"))
                else:
                    then()

            on_failure = partial(self.take_failure, refuse)
            read_later(self._reactor, namespace, key, take, on_failure, timeout_s=self._timeout_s)

        read(EXEC, lambda: read(OUTPUT, lambda: self._tell(OutputCounted(request.job, counts))))

    def _append(self, request: AppendOutput) -> None:
        """Append, in order: while one commit is on its way, the lines that follow are gathered."""
        if (waiting := self._appending.get(request.job)) is not None:
            waiting.append(request)
            return
        self._appending[request.job] = []
        self._commit(request.job, [request])

    def _commit(self, job: JobId, requests: list[AppendOutput]) -> None:
        texts: dict[str, str] = {}
        for request in requests:
            for key, lines in request.lines.items():
                texts[key] = texts.get(key, "") + lines

        def tell(answer: Callable[[AppendOutput], HomeFact]) -> None:
            for request in requests:
                self._tell(answer(request))
            if waiting := self._appending.pop(job):
                self._appending[job] = []
                self._commit(job, waiting)

        def refuse(failure: CallFailed) -> None:
            # ENOTSUP: the job has ended, and its namespace with it.
            tell(lambda request: HomeRefused(request, str(failure)))

        done, on_failure = (lambda _: tell(HomeDone)), partial(self.take_failure, refuse)
        append_later(self._reactor, _namespace(job), texts, done, on_failure, timeout_s=self._timeout_s)


def _is_taken(entries: list[Mapping[str, Any]]) -> bool:
    return any(entry["name"] == TAKEN for entry in entries)


def _namespace(job: JobId) -> str:
    return f"job-{job}"
