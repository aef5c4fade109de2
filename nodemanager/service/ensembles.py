"""Run the site's ensembles inside the service, each in a thread with its own connection.

Two services on one instance both try. The one that holds an ensemble's service name runs it, and the other one
takes over when that name is free.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from nodemanager.config.site import Site
from nodemanager.config.text.settings import EnsembleSettings
from nodemanager.core.notation import format_job_id
from nodemanager.core.ports import FluxError
from nodemanager.ensemble.deeds import Call, Cancel, Deed, Fired, Noted, Notify, Resize
from nodemanager.ensemble.events import counts_line, to_line
from nodemanager.ensemble.fair_share import Claim
from nodemanager.ensemble.file.schema import EnsembleError, read_ensemble
from nodemanager.ensemble.ports import CustomPort, NameTaken, RunRecord
from nodemanager.ensemble.session import Session
from nodemanager.flux.ensembles.functions import WorkerFunctions
from nodemanager.flux.ensembles.nodes import ManagerNodes
from nodemanager.flux.ensembles.runner import AnotherFile, Assignment, RanBefore, Runner
from nodemanager.flux.reactor import Reactor
from nodemanager.history.events import HistoryEvent

AGAIN_S = 5.0
STOP_WITHIN_S = 1.0


Show = Callable[[str, Mapping[str, Any]], None]
Record = Callable[[Sequence[HistoryEvent]], bool]  # False if the history takes nothing yet
EVENTS_MAX = 10_000  # that wait for the history


class EnsembleFileError(Exception):
    """An ensemble's file cannot run. The message has a line for each fault."""


def read_assignment(name: str, settings: EnsembleSettings) -> Assignment:
    """Read the file of an ``[Ensemble NAME]``. Raises ``EnsembleFileError``."""
    try:
        text = settings.file.read_text(encoding="utf-8")
        ensemble, _ = read_ensemble(text)
    except (OSError, UnicodeDecodeError) as error:
        raise EnsembleFileError(f"[Ensemble {name}] {settings.file}: {error}") from error
    except EnsembleError as error:
        raise EnsembleFileError(
            "\n".join(f"[Ensemble {name}] {settings.file}:{fault}" for fault in error.faults)
        ) from error
    folder = str(Path(settings.file).parent)
    return Assignment(name, str(settings.file), text, ensemble, folder, until_done=True, once=True)


def terms_of(site: Site) -> dict[str, Claim]:
    """Return the shares that the site grants, by ensemble."""
    return {
        name: Claim(0, settings.weight, settings.nodes_min, settings.nodes_max, settings.per_day)
        for name, settings in site.ensembles.items()
    }


@dataclass(slots=True)
class Ensembles:
    """All ensembles of a site. ``show`` gets the state of each, by name, while it runs; ``record`` what happens."""

    site: Site
    show: Show
    record: Record
    _threads: list[threading.Thread] = field(default_factory=list)
    _ask_to_stop: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        """Start a thread for each ensemble. One whose file has faults is logged and left out."""
        log: Any = structlog.get_logger()
        for name, settings in self.site.ensembles.items():
            try:
                assignment = read_assignment(name, settings)
            except EnsembleFileError as error:
                log.error("ensemble_refused", ensemble=name, why=str(error))  # noqa: TRY400 - the file is at fault
                continue
            stop_asked, ask_to_stop = socket.socketpair()
            self._ask_to_stop.append(ask_to_stop)
            view = _LogView(name, self.show, self.record)
            attempt = _Attempt(self.site.flux.uri, assignment, settings.allow_custom, stop_asked, view)
            thread = threading.Thread(target=attempt.run, name=f"ensemble-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End all threads. Their runs go on at the next start."""
        for ask_to_stop in self._ask_to_stop:
            ask_to_stop.close()  # makes the other end readable
        for thread in self._threads:
            thread.join(STOP_WITHIN_S)


class _LogView:
    """Writes what happens into the service's log and the history, and shows the state of the run."""

    def __init__(self, name: str, show: Show, record: Record) -> None:
        self._name = name
        self._show = show
        self._record = record
        self._events: deque[HistoryEvent] = deque(maxlen=EVENTS_MAX)  # not recorded yet
        self._session: Session | None = None
        self._log: Any = structlog.get_logger().bind(ensemble=name)

    def opened(self, record: RunRecord, session: Session, *, resumed: bool) -> None:
        self._session = session
        what = "resumed" if resumed else "begun"
        self._log.info(f"ensemble_{what}", run=record.run)
        self._note(what, f"run {record.run} of {record.file}")

    def happened(self, deed: Deed) -> None:
        match deed:
            case Fired(rule, run, at, job, text):
                self._log.info("ensemble_rule", rule=rule, run=run, text=text, **_job(job))
                self._note("rule", to_line(deed), at)
            case Noted(at, text):
                self._log.warning("ensemble_note", text=text)
                self._note("note", text, at)
            case Notify(_, text, job):
                self._log.info("ensemble_message", text=text, **_job(job))
            case Resize(_, change, floor, _):
                self._log.info("ensemble_resize", change=change, floor=floor)
            case Cancel(_, jobs):
                self._log.info("ensemble_cancel", jobs=len(jobs))
            case Call(_, function):
                self._log.info("ensemble_call", function=function)
            case _:
                pass  # each submission is an event of Flux

    def lost(self, why: str) -> None:
        self._log.warning("ensemble_lost", why=why)

    def refresh(self, nodes_up: int | None) -> None:
        del nodes_up
        self._record_events()
        if self._session is not None:
            self._show(self._name, self._session.summary())

    def ended(self, outcome: str, summary: Mapping[str, Any]) -> None:
        self._show(self._name, summary)
        groups = summary.get("groups", {})
        self._log.info("ensemble_ended", outcome=outcome, groups=groups)
        self._note("ended", "; ".join([outcome, *(f"{group}: {counts_line(it)}" for group, it in groups.items())]))
        self._record_events()

    def _note(self, what: str, detail: str, at: float | None = None) -> None:
        now_at = time.time() if at is None else at
        event = HistoryEvent(now_at, "ensemble", f"ensemble {self._name}", what, figures={"detail": detail[:1000]})
        self._events.append(event)

    def _record_events(self) -> None:
        if self._events and self._record(tuple(self._events)):
            self._events.clear()


def _job(job: int | None) -> dict[str, str]:
    return {} if job is None else {"job": format_job_id(job)}


class _NoFunctions:
    """Refuses all custom functions, as the site says."""

    def __init__(self, reactor: Reactor, name: str) -> None:
        self._reactor = reactor
        self._name = name

    def call(self, call: Call, then: Callable[[Mapping[str, Any] | None, str], None]) -> None:
        del call
        self._reactor.after(0.0, lambda: then(None, f"[Ensemble {self._name}] allow_custom = no"))


class _Attempt:
    """The thread of one ensemble: it tries until the run has ended or the service stops."""

    def __init__(
        self, uri: str, assignment: Assignment, allow_custom: bool, stop_asked: socket.socket, view: _LogView
    ) -> None:
        self._uri = uri
        self._assignment = assignment
        self._allow_custom = allow_custom
        self._stop_asked = stop_asked
        self._worker: WorkerFunctions | None = None
        self._view = view
        self._log: Any = structlog.get_logger().bind(ensemble=assignment.name)

    def run(self) -> None:
        with self._stop_asked:
            said = ""
            while True:
                try:
                    if self._run_once():
                        return
                except (AnotherFile, RanBefore) as error:
                    self._log.warning("ensemble_not_run", why=str(error))
                    return
                except (NameTaken, FluxError) as error:
                    if (why := str(error)) != said:
                        said = why
                        self._log.warning("ensemble_waits", why=why)
                finally:
                    self._end_worker()
                if Runner.is_stop_asked(self._stop_asked, AGAIN_S):
                    return

    def _run_once(self) -> bool:
        """Run until the end, or until the service stops. Raises as :meth:`Runner.run`."""
        name = self._assignment.name
        runner = Runner(
            self._uri,
            self._assignment,
            self._view,
            self._stop_asked,
            functions=self._functions,
            nodes=lambda reactor: ManagerNodes(reactor, name),
        )
        if outcome := runner.run():
            self._view.ended(outcome, runner.summary)
        return True

    def _functions(self, reactor: Reactor) -> CustomPort:
        self._end_worker()
        if not self._allow_custom:
            return _NoFunctions(reactor, self._assignment.name)
        self._worker = WorkerFunctions(reactor, self._assignment.ensemble, self._uri)
        return self._worker

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
