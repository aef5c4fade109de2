"""A real instance as one run of an ensemble uses it, by one connection and its reactor."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.ensemble.ports import RunRecord, Then
from nodemanager.flux import submit
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.ensembles import records
from nodemanager.flux.reactor import Reactor

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
