"""Warnings about nodes, for the site's administrator."""

from __future__ import annotations

from decimal import Decimal

import pytest

from nodemanager.core.drains import hold_text
from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from tests.builders import a_node, a_rank, a_world, busy, drained

UP = a_rank("cloud1", online=True)


def test_idle_nodes_that_somebody_drained_cost_money_and_are_warned_of() -> None:
    world = a_world()
    for slot in ("cloud2", "cloud1"):
        world.idle_node(slot, rank=drained(a_rank(slot, online=True), "bad fan"))
    assert world.plan().warnings == (
        because(
            Code.DRAINED_YET_PAID,
            node_type="cloud",
            nodes=("cloud1", "cloud2"),
            node_count=2,
            price_per_hour=Decimal("0.80"),
        ),
    )


@pytest.mark.parametrize(
    ("state", "rank"),
    [
        (NodeState.IDLE, UP),
        (NodeState.BUSY, drained(busy(UP), "bad fan")),  # it works for its money
        (NodeState.IDLE, drained(UP, hold_text(a_node("cloud1").id))),
    ],
)
def test_no_other_node_is_warned_of(state: NodeState, rank: object) -> None:
    assert a_world().node("cloud1", state, rank=rank).plan().warnings == ()
