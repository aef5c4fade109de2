from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import NodeState
from nodemanager.planner.snapshot import MOVES_KEPT, NEXT_STATE, Event, IllegalMoveError, allows, move
from tests.builders import NOW_S, a_node

PAIRS = [(state, event) for state in NodeState for event in Event]


@pytest.mark.parametrize(("state", "event"), NEXT_STATE)
def test_each_row_of_the_table_is_a_move(state: NodeState, event: Event) -> None:
    node = a_node(state=state)
    moved = move(node, event, NOW_S)
    assert moved.state is NEXT_STATE[state, event]
    assert moved.since_s == NOW_S
    assert moved.moves == (f"{event} -> {moved.state} at {NOW_S:.3f}",)
    assert moved.launch is node.launch


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair not in NEXT_STATE])
def test_what_is_not_in_the_table_raises_with_the_node_s_story(state: NodeState, event: Event) -> None:
    node = a_node(state=state, moves=("appeared -> booting at 1.000", "joined -> idle at 2.000"))
    assert not allows(node, event)
    with pytest.raises(IllegalMoveError) as raised:
        move(node, event, NOW_S)
    said = str(raised.value)
    assert node.id in said
    assert f"is {state} and cannot be {event}" in said
    assert "joined -> idle at 2.000" in said


def test_a_node_without_a_story_says_so() -> None:
    with pytest.raises(IllegalMoveError, match="its moves so far: none"):
        move(a_node(state=NodeState.GONE), Event.JOINED, NOW_S)


def test_gone_is_the_end() -> None:
    assert not any(state is NodeState.GONE for state, _ in NEXT_STATE)


def test_every_state_is_reached_and_left() -> None:
    assert set(NEXT_STATE.values()) | {NodeState.REQUESTED} == set(NodeState)
    assert {state for state, _ in NEXT_STATE} == set(NodeState) - {NodeState.GONE}


def test_every_state_but_the_last_can_end() -> None:
    """The provider may show any node terminated at any moment."""
    assert all((state, Event.ENDED) in NEXT_STATE for state in NodeState if state is not NodeState.GONE)


def test_only_a_drained_node_is_stopped() -> None:
    assert [pair for pair, state in NEXT_STATE.items() if state is NodeState.STOPPING] == [
        (NodeState.DRAINING, Event.CONDEMNED)
    ]


def test_a_busy_node_is_never_retired() -> None:
    assert (NodeState.BUSY, Event.RETIRED) not in NEXT_STATE


@given(st.lists(st.sampled_from(Event), max_size=60))
def test_a_story_is_kept_short_and_ends_with_the_latest_move(events: list[Event]) -> None:
    node = a_node(state=NodeState.REQUESTED)
    for moment, event in enumerate(events):
        if allows(node, event):
            node = move(node, event, float(moment))
            assert node.moves[-1].startswith(f"{event} -> {node.state}")
    assert len(node.moves) <= MOVES_KEPT
