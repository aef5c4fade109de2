"""What operators may do: each verb is a fact told to the manager, and answered once it is on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nodemanager.actors.manager import Published
from nodemanager.core.facts import (
    DecisionsPaused,
    DecisionsResumed,
    HoldPlaced,
    NodeReleased,
    OperatorFact,
    RetirementAsked,
)
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.records import Mark, Steering
from nodemanager.web.api import explain
from nodemanager.web.api.documents import Document
from nodemanager.web.state.access import Refused
from nodemanager.web.state.board import Board

ON_RECORD_WITHIN_S = 5.0
TOO_LATE = (NodeState.STOPPING, NodeState.GONE)


class ReloadRefused(Exception):
    """The site cannot be used, or not without a restart; the old one stays. Says every fault."""


class Operated(Protocol):
    """The running service, as far as it is steered."""

    def tell(self, fact: OperatorFact) -> None: ...

    def reload(self) -> Document:
        """Read the site anew and decide by it. Raises ``ReloadRefused``; then nothing has changed."""
        ...


class Control:
    def __init__(self, board: Board, service: Operated) -> None:
        self._board = board
        self._service = service

    def hold(self, name: str, by: str) -> Document:
        published, launch = self._node(name, "held")
        fact = HoldPlaced(launch, Mark(by, published.snapshot.wall_at))
        return self._set(fact, lambda set_: launch in set_.holds, launch)

    def retire(self, name: str, by: str) -> Document:
        published, launch = self._node(name, "retired")
        fact = RetirementAsked(launch, Mark(by, published.snapshot.wall_at))
        return self._set(fact, lambda set_: launch in set_.retirements, launch)

    def release(self, name: str, by: str) -> Document:
        del by
        published = self._acting()
        launch = explain.find_node(published, name).id
        if not published.snapshot.steering.keeps_work_from(launch):
            raise Refused(409, f"{name} is neither held nor to be retired")
        return self._set(NodeReleased(launch), lambda set_: not set_.keeps_work_from(launch), launch)

    def pause(self, by: str) -> Document:
        published = self._acting()
        fact = DecisionsPaused(Mark(by, published.snapshot.wall_at))
        return self._set(fact, lambda set_: set_.paused is not None)

    def resume(self, by: str) -> Document:
        del by
        self._acting()
        return self._set(DecisionsResumed(), lambda set_: set_.paused is None)

    def reload(self) -> Document:
        try:
            return self._service.reload()
        except ReloadRefused as error:
            raise Refused(409, str(error)) from error

    def _acting(self) -> Published:
        posted = self._board.posted
        if posted is None:
            raise Refused(503, "nothing is known yet: the service has just begun")
        if not posted.published.acts:
            raise Refused(409, "mode = observe: nothing is changed, so there is nothing to steer")
        if not posted.published.snapshot.claimed:
            raise Refused(409, "this manager does not hold the instance: steer the one that does")
        return posted.published

    def _node(self, name: str, what: str) -> tuple[Published, LaunchId]:
        published = self._acting()
        node = explain.find_node(published, name)
        if node.state in TOO_LATE:
            raise Refused(409, f"{name} is {node.state}: it is too late for it to be {what}")
        return published, node.id

    def _set(self, fact: OperatorFact, holds: Callable[[Steering], bool], launch: str = "") -> Document:
        self._service.tell(fact)

        def kept(published: Published) -> bool:
            snapshot = published.snapshot
            return holds(snapshot.steering) and snapshot.steering == snapshot.steering_on_record

        on_record = self._board.wait_for(kept, ON_RECORD_WITHIN_S)
        return {"node": launch or None, "on_record": on_record}
