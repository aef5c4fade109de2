"""Run an ensemble from the command line: functions in a worker, and by default nodes from the node manager."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.ensemble.ports import NodesPort
from nodemanager.flux.ensembles.functions import WorkerFunctions
from nodemanager.flux.ensembles.nodes import ManagerNodes
from nodemanager.flux.ensembles.runner import Assignment, Runner, View
from nodemanager.flux.reactor import Reactor


def run_alone(
    uri: str,
    assignment: Assignment,
    view: View,
    stop_asked: socket.socket,
    nodes: Callable[[Reactor], NodesPort] | None = None,
) -> tuple[str, Mapping[str, Any]]:
    """Run until the end. Returns the outcome, "" if asked to stop before, and the run's summary.

    ``nodes`` None: by the node manager of the instance, if there is one. Raises as :meth:`Runner.run`.
    """
    workers: list[WorkerFunctions] = []

    def functions(reactor: Reactor) -> WorkerFunctions:
        for worker in workers:
            worker.close()  # of the connection that was lost
        workers[:] = [WorkerFunctions(reactor, assignment.ensemble, uri)]
        return workers[0]

    def manager_nodes(reactor: Reactor) -> ManagerNodes:
        return ManagerNodes(reactor, assignment.name)

    try:
        runner = Runner(uri, assignment, view, stop_asked, functions=functions, nodes=nodes or manager_nodes)
        return runner.run(), runner.summary
    finally:
        for worker in workers:
            worker.close()
