"""The operators' controls: each sends the manager a fact, and is answered once the change is on record in Flux."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nodemanager.actors.manager import Publication
from nodemanager.core.drains import drained_by_others
from nodemanager.core.facts import (
    DecisionsPaused,
    DecisionsResumed,
    HoldPlaced,
    NodeReleased,
    OperatorFact,
    ReplacementsRequested,
    RetirementRequested,
    SteeringSeen,
)
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.records import Mark, Steering
from nodemanager.web.api import explain
from nodemanager.web.api.documents import Document
from nodemanager.web.state.access import RequestRefused
from nodemanager.web.state.board import Board

ON_RECORD_WITHIN_S = 5.0
LEAVING_STATES = (NodeState.STOPPING, NodeState.GONE)


class ReloadRefused(Exception):
    """The site has faults, or its changes need a restart. The old one stays. The message names every fault."""


class SteeredService(Protocol):
    """The running service, as far as operators steer it."""

    def tell(self, fact: OperatorFact | SteeringSeen) -> None: ...

    def reload(self, by: str) -> Document:
        """Reload the site and use it from now on. Raises ``ReloadRefused``, with nothing changed."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator says with a verb: the own name, a reason or "", and until when it applies (None: no end)."""

    by: str
    why: str = ""
    until_at: float | None = None

    def mark(self, at: float) -> Mark:
        """The mark to set now. Raises ``RequestRefused`` if its end has passed."""
        if self.until_at is not None and self.until_at <= at:
            raise RequestRefused(400, "until: this time has passed")
        return Mark(self.by, at, self.why, self.until_at)


class Control:
    """Carries out the operators' verbs. Every method raises ``RequestRefused`` if it is not possible now.

    Each answers whether the change is ``on_record``: stored in Flux's KVS within ``ON_RECORD_WITHIN_S``.
    """

    def __init__(self, board: Board, service: SteeredService) -> None:
        self._board = board
        self._service = service

    def hold(self, name: str, order: Order) -> Document:
        """Hold a node, named by its slot or its launch."""
        published, launch = self._find_node(name, "hold")
        fact = HoldPlaced(launch, order.mark(published.snapshot.wall_at))
        return self._tell_and_wait(fact, lambda set_: fact.mark.says_as(set_.holds.get(launch)), launch)

    def retire(self, name: str, order: Order) -> Document:
        """Retire a node. If somebody drained it, ``waits_for`` says what ends that hold: until then it stays."""
        published, launch = self._find_node(name, "retire")
        fact = RetirementRequested(launch, order.mark(published.snapshot.wall_at))
        done = self._tell_and_wait(fact, lambda set_: fact.mark.says_as(set_.retirements.get(launch)), launch)
        rank = published.snapshot.nodes[launch].rank
        if rank is None or not drained_by_others(rank):
            return done
        remedy = f"flux resource undrain {rank.rank}"
        return {**done, "waits_for": f'somebody drained it ("{rank.drain_reason}"), which keeps it: {remedy}'}

    def replace(self, name: str, order: Order) -> Document:
        """Replace a node when the site's disruption budget and windows allow it."""
        published, launch = self._find_node(name, "replace")
        return self._replace(published, (launch,), order)

    def replace_all(self, type_name: str, order: Order) -> Document:
        """Replace every node, or every node of a type, in turns."""
        published = self._acting_publication()
        if type_name and type_name not in published.policy.types:
            known = ", ".join(published.policy.types)
            raise RequestRefused(404, f"the site has no node type {type_name}; it has {known}")
        launches = tuple(
            node.id
            for node in published.snapshot.nodes.values()
            if node.state not in LEAVING_STATES and type_name in ("", node.launch.type_name)
        )
        return self._replace(published, launches, order)

    def _replace(self, published: Publication, launches: tuple[LaunchId, ...], order: Order) -> Document:
        fact = ReplacementsRequested(launches, order.mark(published.snapshot.wall_at))
        # A node that has gone meanwhile is forgotten.
        done = self._tell_and_wait(
            fact, lambda set_: bool(set_.replacements.keys() & set(launches)) or not launches
        )
        return {**done, "nodes": list(launches)}

    def release(self, name: str, order: Order) -> Document:
        """Undo a hold, a retirement or a replacement."""
        published = self._acting_publication()
        launch = explain.find_node(published, name).id
        if launch not in published.snapshot.operator.steering.launches:
            raise RequestRefused(409, f"{name} is neither held nor being retired or replaced by an operator")
        return self._tell_and_wait(NodeReleased(launch, order.by), lambda set_: launch not in set_.launches, launch)

    def pause(self, order: Order) -> Document:
        """Pause all decisions."""
        published = self._acting_publication()
        fact = DecisionsPaused(order.mark(published.snapshot.wall_at))
        return self._tell_and_wait(fact, lambda set_: fact.mark.says_as(set_.paused))

    def resume(self, order: Order) -> Document:
        """Resume decisions."""
        self._acting_publication()
        return self._tell_and_wait(DecisionsResumed(order.by), lambda set_: set_.paused is None)

    def reload(self, order: Order) -> Document:
        """Reload the site."""
        try:
            return self._service.reload(order.by)
        except ReloadRefused as error:
            raise RequestRefused(409, str(error)) from error

    def _acting_publication(self) -> Publication:
        posted = self._board.latest
        if posted is None:
            raise RequestRefused(503, "nothing is known yet: the service has just started")
        if not posted.published.acts:
            raise RequestRefused(409, "mode = observe: the service changes nothing, so there is nothing to steer")
        if not posted.published.snapshot.sources.claimed:
            raise RequestRefused(409, "this manager does not hold the instance: steer the one that does")
        return posted.published

    def _find_node(self, name: str, verb: str) -> tuple[Publication, LaunchId]:
        published = self._acting_publication()
        node = explain.find_node(published, name)
        if node.state in LEAVING_STATES:
            raise RequestRefused(409, f"{name} is {node.state}: it is too late to {verb} it")
        return published, node.id

    def _tell_and_wait(self, fact: OperatorFact, holds: Callable[[Steering], bool], launch: str = "") -> Document:
        self._service.tell(fact)

        def kept(published: Publication) -> bool:
            snapshot = published.snapshot
            return (
                holds(snapshot.operator.steering)
                and snapshot.operator.steering == snapshot.operator.steering_on_record
            )

        on_record = self._board.wait_for(kept, ON_RECORD_WITHIN_S)
        return {"node": launch or None, "on_record": on_record}
