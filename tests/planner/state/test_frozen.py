"""``replace`` makes the same value as the constructor would."""

from __future__ import annotations

import dataclasses

import pytest

from nodemanager.core.jobs import Shape
from nodemanager.core.nodes import NodeState
from nodemanager.planner.frozen import replace
from nodemanager.planner.snapshot import Snapshot
from tests.builders import a_node


def test_it_is_equal_to_what_the_constructor_makes_and_leaves_the_first_as_it_was() -> None:
    node = a_node("cloud1", NodeState.IDLE)
    made = replace(node, tries=3, moves=("x",))
    assert made == dataclasses.replace(node, tries=3, moves=("x",))
    assert (node.tries, made.tries) == (0, 3)
    assert replace(Snapshot(), now_s=5.0) == Snapshot(now_s=5.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.tries = 4  # type: ignore[misc] # that is the point


def test_a_class_that_works_something_out_when_it_is_made_does_so_again() -> None:
    made = replace(Shape(1, 1), slots=7)
    assert hash(made) == hash(Shape(7, 1))


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        replace(Snapshot(), colour="red")  # type: ignore[call-arg] # that is the point
