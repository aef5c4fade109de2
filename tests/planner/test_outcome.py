"""The reasons of nodes, in one plan and in the next."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.reasons import because
from nodemanager.planner.outcome import NodeReasons
from tests.builders import a_node

BUSY = because("busy")
IDS = st.sampled_from([LaunchId(f"cloud{number}-1") for number in range(6)])
WHY = st.sampled_from([BUSY, because("idle_unconfirmed", looks=1, needs=2), because("demand", jobs=1)])


@st.composite
def reasons(draw: st.DrawFn) -> NodeReasons:
    """Reasons of existing nodes, and of some that are bought now and do not exist yet."""
    node = a_node("cloud1", NodeState.BUSY)
    nodes = dict.fromkeys(draw(st.sets(IDS)), node)
    return NodeReasons(nodes, draw(st.dictionaries(IDS, WHY)), rest=BUSY)


def changed(before: Mapping[LaunchId, object], after: Mapping[LaunchId, object]) -> list[LaunchId]:
    return [id_ for id_ in after if before.get(id_) != after[id_]]


@given(reasons(), reasons())
def test_no_node_is_passed_over_whose_reason_is_another(before: NodeReasons, after: NodeReasons) -> None:
    looked_at = after.changed_since(before)
    assert [id_ for id_ in looked_at if before.get(id_) != after[id_]] == changed(before, after)
