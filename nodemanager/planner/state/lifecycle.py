"""The lifecycle of a node: one table of every legal move. ``doc/lifecycle.md`` is generated from it.

A move that is not in the table is a bug in the calling code: it raises an error that lists the node's latest moves.
Facts may arrive in any order, so ``observe`` asks :func:`allows` first if a fact may be old news. Code that acts on
a decision never asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from nodemanager.core.nodes import NodeState
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node

MOVES_KEPT = 16


class Event(StrEnum):
    """What can happen to a node. Events are observed, unless marked as decided."""

    APPEARED = "appeared"  # the provider answered the create, or lists it
    DISPROVED = "disproved"  # the create was refused, or enough lists lack it
    JOINED = "joined"  # its rank is online
    JOB_BEGAN = "job began"
    JOBS_ENDED = "jobs ended"
    LEFT = "left"  # its rank is offline
    RETIRED = "retired"  # decided: drain it, then look again
    REPRIEVED = "reprieved"  # decided: undrained and kept; or somebody else undrained it
    CONDEMNED = "condemned"  # decided on the second look: nothing runs there, stop it
    ENDED = "ended"  # the provider shows it terminated, or enough lists lack it


NEXT_STATE: Mapping[tuple[NodeState, Event], NodeState] = {
    (NodeState.REQUESTED, Event.APPEARED): NodeState.BOOTING,
    (NodeState.REQUESTED, Event.DISPROVED): NodeState.GONE,
    (NodeState.REQUESTED, Event.ENDED): NodeState.GONE,  # dead before it was first listed
    (NodeState.BOOTING, Event.JOINED): NodeState.IDLE,
    (NodeState.BOOTING, Event.RETIRED): NodeState.DRAINING,  # never joined in time, or failed at the provider
    (NodeState.BOOTING, Event.ENDED): NodeState.GONE,
    (NodeState.IDLE, Event.JOB_BEGAN): NodeState.BUSY,
    (NodeState.IDLE, Event.LEFT): NodeState.LOST,
    (NodeState.IDLE, Event.RETIRED): NodeState.DRAINING,
    (NodeState.IDLE, Event.ENDED): NodeState.GONE,
    (NodeState.BUSY, Event.JOBS_ENDED): NodeState.IDLE,
    (NodeState.BUSY, Event.LEFT): NodeState.LOST,
    (NodeState.BUSY, Event.ENDED): NodeState.GONE,
    (NodeState.LOST, Event.JOINED): NodeState.IDLE,
    (NodeState.LOST, Event.RETIRED): NodeState.DRAINING,
    (NodeState.LOST, Event.ENDED): NodeState.GONE,
    (NodeState.DRAINING, Event.REPRIEVED): NodeState.IDLE,
    (NodeState.DRAINING, Event.CONDEMNED): NodeState.STOPPING,
    (NodeState.DRAINING, Event.ENDED): NodeState.GONE,
    (NodeState.STOPPING, Event.ENDED): NodeState.GONE,
}


# The text of each move in ``Node.moves``, without its time.
_MOVE_TEXT: Mapping[tuple[NodeState, Event], str] = {
    (before, event): f"{event} -> {after} at " for (before, event), after in NEXT_STATE.items()
}


class IllegalMoveError(Exception):
    """A move that is not in the table: a bug. The message lists the node's latest moves."""

    def __init__(self, node: Node, event: Event) -> None:
        moves = ", ".join(node.moves) or "none"
        super().__init__(f"{node.id} is {node.state} and cannot be {event}; its moves so far: {moves}")


def allows(node: Node, event: Event) -> bool:
    """Whether the event is legal in the node's state."""
    return (node.state, event) in NEXT_STATE


def move(node: Node, event: Event, now_s: float, **changes: Any) -> Node:
    """The node after the event, with other fields changed too. Raises ``IllegalMoveError`` for an illegal move."""
    state = NEXT_STATE.get((node.state, event))
    if state is None:
        raise IllegalMoveError(node, event)
    moves = (*node.moves, f"{_MOVE_TEXT[node.state, event]}{now_s:.3f}")[-MOVES_KEPT:]
    return replace(node, state=state, since_s=now_s, moves=moves, **changes)
