"""Ask the node manager of the instance to keep nodes for an ensemble: ``node-manager.floor``."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from nodemanager.ensemble.ports import Then
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.claim import SERVICE
from nodemanager.flux.reactor import Reactor

TIMEOUT_S = 10.0
NO_MANAGER = "no node manager acts on this instance, so it has no elastic slots"


class ManagerNodes:
    """:class:`nodemanager.ensemble.ports.NodesPort` by the manager that holds the name ``node-manager``."""

    def __init__(self, reactor: Reactor, name: str) -> None:
        self._reactor = reactor
        self._name = name

    def keep(self, floor: int, change: int, then: Then) -> None:
        del change  # the manager keeps the number itself

        def on_answer(answer: Mapping[str, Any]) -> None:
            then(str(answer.get("why", "")))

        def on_failure(failure: CallFailed) -> None:
            then(NO_MANAGER if failure.errno == errno.ENOSYS else f"the node manager did not answer: {failure}")

        request = {"ensemble": self._name, "nodes": floor}
        self._reactor.request(f"{SERVICE}.floor", request, on_answer, on_failure, timeout_s=TIMEOUT_S)
