"""Drive one run of an ensemble on a real instance, across lost connections, until it ends or is asked to stop.

Who holds the service name ``ensemble-NAME`` on rank 0 runs the ensemble of that name. The service also answers
``status`` and ``stop``.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from nodemanager.core.notation import parse_idset
from nodemanager.core.ports import FluxError
from nodemanager.ensemble.deeds import Deed
from nodemanager.ensemble.file.model import Ensemble
from nodemanager.ensemble.file.schema import EnsembleError, read_ensemble
from nodemanager.ensemble.ports import CustomPort, NameTaken, NodesPort, RunRecord, Then
from nodemanager.ensemble.session import Session
from nodemanager.flux import submit
from nodemanager.flux.bindings import LEADER, CallFailed
from nodemanager.flux.ensembles import records
from nodemanager.flux.reactor import Reactor, RpcRequest, contained

TIMEOUT_S = 10.0
REFRESH_S = 0.5
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.2, 5.0
STABLE_S = 10.0  # a connection that held for so long worked; the next pause is short again
STOPPED = "stopped by its user"


class AnotherFile(Exception):
    """A run of this name goes on, from a file with other jobs or rules."""


class RanBefore(Exception):
    """The run of this name has ended, and it is to be run once."""


class View(Protocol):
    """Sees a run."""

    def opened(self, record: RunRecord, session: Session, *, resumed: bool) -> None:
        """A connection was made, and the run is restored."""
        ...

    def happened(self, deed: Deed) -> None: ...

    def lost(self, why: str) -> None:
        """The connection is lost; it is made again, after longer and longer pauses. The same reason comes once."""
        ...

    def refresh(self, nodes_up: int | None) -> None:
        """Called about twice a second. ``nodes_up``: the nodes that are online and may run jobs, if known."""
        ...


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to run.

    ``reconnect_s``: how long a lost instance is waited for. ``once``: a run that has ended is not run again.
    """

    name: str
    file: str
    text: str
    ensemble: Ensemble
    folder: str
    until_done: bool = False
    reconnect_s: float = 600.0
    once: bool = False


class Runner:
    """One process's attempt at one assignment. ``stop_asked``: becomes readable when the process should stop."""

    def __init__(
        self,
        uri: str,
        assignment: Assignment,
        view: View,
        stop_asked: socket.socket,
        *,
        functions: Callable[[Reactor], CustomPort],
        nodes: Callable[[Reactor], NodesPort],
    ) -> None:
        self._uri = uri
        self._assignment = assignment
        self._view = view
        self._stop_asked = stop_asked
        self._functions = functions
        self._nodes = nodes
        self._fault: FluxError | None = None
        self._outcome = ""
        self._connected = False
        self._session_now: Session | None = None

    @property
    def summary(self) -> Mapping[str, Any]:
        """The state of the run as last known; empty before the first connection."""
        return {} if self._session_now is None else self._session_now.summary()

    def run(self) -> str:
        """Return why the run ended; "" if the process was asked to stop before.

        Raises ``NameTaken``, ``AnotherFile``, and ``FluxError`` if the instance cannot be reached, or not again.
        """
        pause_s, lost_at_s, said = 0.0, 0.0, ""
        while not self.is_stop_asked(self._stop_asked, pause_s):
            begun_s = time.monotonic()
            try:
                self._connected = False
                with Reactor(self._uri) as reactor:
                    self._drive(reactor)
            except CallFailed as failure:
                now_s = time.monotonic()
                if self._connected:
                    lost_at_s = now_s
                if now_s > begun_s + STABLE_S:
                    pause_s, said = 0.0, ""
                # While rank 0 starts again, some of its services are missing.
                if not lost_at_s or now_s > lost_at_s + self._assignment.reconnect_s:
                    raise
                pause_s = min(max(2 * pause_s, RECONNECT_MIN_S), RECONNECT_MAX_S)
                if str(failure) != said:
                    said = str(failure)
                    self._view.lost(said)
            else:
                break
        return self._outcome

    @staticmethod
    def is_stop_asked(stop_asked: socket.socket, within_s: float) -> bool:
        """Wait until the process is asked to stop; False if it is not within the time."""
        readable, _, _ = select.select([stop_asked], [], [], within_s)
        return bool(readable)

    def _drive(self, reactor: Reactor) -> None:
        """Run until the end, or until asked to stop. Raises ``FluxError`` if the connection is lost."""
        self._fault = None
        reactor.on_readable(self._stop_asked.fileno(), reactor.stop)
        record, resumed = self._claim(reactor)
        session = self._session(reactor, record)
        self._view.opened(record, session, resumed=resumed)
        reactor.every(REFRESH_S, partial(self._refresh, reactor)).start()
        self._connected = True
        with contained(service_name(self._assignment.name)):
            try:
                session.start()
            except ValueError as error:
                raise FluxError(f"the log of {self._assignment.name} is damaged: {error}") from error
            reactor.run()
        if self._fault is not None:
            raise self._fault

    def _claim(self, reactor: Reactor) -> tuple[RunRecord, bool]:
        """Take the name, and return the record of the run, and whether it was begun earlier."""
        assignment, handle = self._assignment, reactor.handle
        if (rank := handle.rank) != LEADER:
            raise FluxError(f"this leads to rank {rank} of the instance: run ensembles on rank 0, or use its --uri")
        service = service_name(assignment.name)
        try:
            reactor.serve(service, {"status": self._status, "stop": self._stop}, timeout_s=TIMEOUT_S)
        except CallFailed as failure:
            if failure.errno == errno.EEXIST:
                raise NameTaken(
                    f"another process runs the ensemble {assignment.name}. To see it: flux-node-manager ensemble"
                    f" status {assignment.name}. To run the file once more: choose another --name"
                ) from failure
            if failure.errno == errno.EPERM:
                raise FluxError(NOT_THE_OWNER) from failure
            raise
        record = records.read(handle, assignment.name, timeout_s=TIMEOUT_S)
        if record is not None and not record.outcome:
            if _parsed(record.text) != assignment.ensemble:
                raise AnotherFile(
                    f"a run of {assignment.name} goes on, and was begun from a file with other jobs or rules"
                    f" ({record.file}). Restore that file, end the run with: flux-node-manager ensemble stop"
                    f" {assignment.name}, or choose another --name"
                )
            return records.take_over(handle, assignment.name, record, timeout_s=LOG_TIMEOUT_S), True
        if record is not None and assignment.once and _parsed(record.text) == assignment.ensemble:
            raise RanBefore(f"it has ended: {record.outcome}. Change the file to run it again")
        record = RunRecord(
            uuid.uuid4().hex[:12], assignment.file, assignment.text, assignment.folder, round(time.time(), 3)
        )
        records.begin(handle, assignment.name, record, timeout_s=TIMEOUT_S)
        return record, False

    def _session(self, reactor: Reactor, record: RunRecord) -> Session:
        def lost(failure: CallFailed) -> None:
            self._fault = self._fault or failure
            reactor.stop()

        def on_end(outcome: str) -> None:
            self._outcome = outcome
            reactor.stop()

        session = Session(
            self._assignment.ensemble,
            record,
            RealEnsemblePort(reactor, self._assignment.name, record, lost, timeout_s=TIMEOUT_S),
            functions=self._functions(reactor),
            nodes=self._nodes(reactor),
            listener=self._view.happened,
            on_end=on_end,
            until_done=self._assignment.until_done,
        )
        self._session_now = session
        return session

    def _refresh(self, reactor: Reactor) -> None:
        def on_answer(answer: Mapping[str, Any]) -> None:
            online, excluded = ({*parse_idset(answer[ranks])} for ranks in ("online", "exclude"))
            self._view.refresh(len(online - excluded))

        reactor.request("resource.status", None, on_answer, lambda _: self._view.refresh(None), timeout_s=TIMEOUT_S)

    def _status(self, _: RpcRequest) -> str:
        return json.dumps(self.summary)

    def _stop(self, _: RpcRequest) -> str:
        if self._session_now is not None:
            self._session_now.stop(STOPPED)
        return "{}"


def service_name(name: str) -> str:
    """The Flux service of the process that runs the ensemble of a name."""
    return f"ensemble-{name}"


NOT_THE_OWNER = (
    "only the owner of the instance may follow its jobs. Run the ensemble in an instance of your own:"
    " flux alloc -N NODES flux-node-manager ensemble run FILE"
)


def _parsed(text: str) -> Ensemble | None:
    try:
        return read_ensemble(text)[0]
    except EnsembleError:
        return None


# --- A real instance as one run of an ensemble uses it, by one connection and its reactor -----------------


LOG_TIMEOUT_S = 60.0  # a log of some MB is read at the start
_REFUSALS = frozenset({errno.EINVAL, errno.EPERM, errno.ENOENT, errno.EOVERFLOW})
_ENDED = frozenset({errno.ENOENT, errno.EINVAL})  # answers about a job that is not active


class RealEnsemblePort:
    """:class:`nodemanager.ensemble.ports.EnsemblePort`. ``lost`` is called if the connection fails.

    An object belongs to one connection. After ``lost`` it calls nothing any more.
    """

    def __init__(
        self,
        reactor: Reactor,
        name: str,
        record: RunRecord,
        lost: Callable[[CallFailed], None],
        *,
        timeout_s: float,
    ) -> None:
        self._reactor = reactor
        self._name = name
        self._record = record
        self._lost = lost
        self._timeout_s = timeout_s

    def wall_at(self) -> float:
        return time.time()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._reactor.after(delay_s, action)

    def read_log(self) -> str:
        return records.read_log(self._reactor.handle, self._name, self._record, timeout_s=LOG_TIMEOUT_S)

    def append(self, lines: str, then: Callable[[], None]) -> None:
        if not lines:
            self._reactor.after(0.0, then)
            return
        self._reactor.take_later(
            "ensemble log",
            lambda: records.send_log(self._reactor.handle, self._name, self._record, lines),
            lambda _: then(),
            self._lost,
            timeout_s=LOG_TIMEOUT_S,
        )

    def follow(self, on_record: Callable[[Mapping[str, Any]], None]) -> None:
        self._reactor.subscribe("job-manager.events-journal", {"full": True}, on_record, self._lost)

    def submit(self, jobspec: Mapping[str, Any], urgency: int, then: Then) -> None:
        def on_failure(failure: CallFailed) -> None:
            if failure.errno in _REFUSALS:
                then(str(failure))
            else:  # the job may have been submitted or not: the next connection finds out, and submits it if not
                self._lost(failure)

        submit.submit_later(
            self._reactor, jobspec, urgency, lambda _: then(""), on_failure, timeout_s=LOG_TIMEOUT_S
        )

    def cancel(self, job: int, why: str, then: Then) -> None:
        self._ask_about_job("job-manager.raise", {"id": job, "severity": 0, "type": "cancel", "note": why}, then)

    def show_on_job(self, job: int, text: str, then: Then) -> None:
        self._ask_about_job("job-manager.memo", {"id": job, "volatile": False, "memo": {"ensemble": text}}, then)

    def _ask_about_job(self, topic: str, payload: Mapping[str, Any], then: Then) -> None:
        def on_failure(failure: CallFailed) -> None:
            if not failure.answered:
                self._lost(failure)
            else:
                then("" if failure.errno in _ENDED else str(failure))

        self._reactor.request(topic, payload, lambda _: then(""), on_failure, timeout_s=self._timeout_s)

    def finish(self, outcome: str, summary: Mapping[str, Any]) -> None:
        records.finish(
            self._reactor.handle,
            self._name,
            self._record,
            outcome,
            self.wall_at(),
            summary,
            timeout_s=self._timeout_s,
        )
