"""Run an ensemble from the command line, with custom functions in a worker, and without a node manager."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.flux.ensembles.functions import WorkerFunctions
from nodemanager.flux.ensembles.runner import Assignment, Runner, View
from nodemanager.flux.reactor import Reactor


class FixedNodes:
    """:class:`nodemanager.ensemble.ports.NodesPort` of an instance whose nodes nobody changes."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor

    def keep(self, floor: int, change: int, then: Callable[[str], None]) -> None:
        del floor, change
        self._reactor.after(0.0, lambda: then(NO_SLOTS))


NO_SLOTS = "this instance has no elastic slots: no node manager runs on it"


def run_alone(
    uri: str, assignment: Assignment, view: View, stop_asked: socket.socket
) -> tuple[str, Mapping[str, Any]]:
    """Run until the end. Returns the outcome, "" if asked to stop before, and the run's summary.

    Raises as :meth:`Runner.run`.
    """
    workers: list[WorkerFunctions] = []

    def functions(reactor: Reactor) -> WorkerFunctions:
        for worker in workers:
            worker.close()  # of the connection that was lost
        workers[:] = [WorkerFunctions(reactor, assignment.ensemble, uri)]
        return workers[0]

    try:
        runner = Runner(uri, assignment, view, stop_asked, functions=functions, nodes=FixedNodes)
        return runner.run(), runner.summary
    finally:
        for worker in workers:
            worker.close()
