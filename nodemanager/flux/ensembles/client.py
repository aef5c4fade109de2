"""Ask about the ensembles of an instance, and end their runs."""

from __future__ import annotations

import errno
import time
from typing import Any

from nodemanager.core.ports import FluxError
from nodemanager.flux.bindings import CallFailed, Handle, ask, held_service
from nodemanager.flux.ensembles import records
from nodemanager.flux.ensembles.runner import STOPPED, service_name

TIMEOUT_S = 10.0


class UnknownEnsemble(FluxError):
    """The instance has no ensemble of this name."""


class EnsembleClient:
    """The ensembles of one instance. All methods raise ``FluxError``."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def names(self) -> tuple[str, ...]:
        """List the names of all ensembles, those that have ended too."""
        return records.names(self._handle, timeout_s=TIMEOUT_S)

    def status(self, name: str) -> dict[str, Any]:
        """Show an ensemble's last run. ``state``: "runs", "waits for a process", or why it ended."""
        record = self._record(name)
        document = {"name": name, **record.document(), "state": record.outcome}
        del document["text"]
        if not record.outcome:
            summary = self._ask(name, "status")
            document |= {"state": "waits for a process" if summary is None else "runs", "summary": summary or {}}
        return document

    def stop(self, name: str) -> str:
        """End an ensemble's run, whether a process drives it or not. Returns what was done."""
        while True:
            record = self._record(name)
            if record.outcome:
                return f"{name} has ended already: {record.outcome}"
            if self._ask(name, "stop") is not None:
                break
            with held_service(self._handle, service_name(name), timeout_s=TIMEOUT_S) as is_held:
                if not is_held:
                    continue  # a process has just taken the run over: ask it
                record = self._record(name)
                if not record.outcome:
                    records.finish(self._handle, name, record, STOPPED, time.time(), {}, timeout_s=TIMEOUT_S)
                break
        return f"{name} is stopped; its jobs go on"

    def _record(self, name: str) -> Any:
        record = records.read(self._handle, name, timeout_s=TIMEOUT_S)
        if record is None:
            known = ", ".join(self.names())
            raise UnknownEnsemble(f"no ensemble is called {name}; there are: {known}" if known else "no ensembles")
        return record

    def _ask(self, name: str, method: str) -> Any:
        """Ask the process that runs the ensemble; None if there is none."""
        try:
            return ask(self._handle, f"{service_name(name)}.{method}", timeout_s=TIMEOUT_S)
        except CallFailed as failure:
            if failure.errno == errno.ENOSYS:
                return None
            raise
