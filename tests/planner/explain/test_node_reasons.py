"""The reasons of nodes and jobs, in one plan and in the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.facts import CloudCallFailed
from nodemanager.core.nodes import CloudState, FailureKind, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import because
from nodemanager.planner.reasons import NodeReasons
from tests.builders import NOW_S, a_cloud_node, a_launch, a_node, a_world, whole_nodes

BUSY = because(Code.BUSY)
IDS = st.sampled_from([LaunchId(f"cloud{number}-1") for number in range(6)])
WHY = st.sampled_from(
    [BUSY, because(Code.IDLE_UNCONFIRMED, looks=1, needs=2), because(Code.DEMAND, node_type="cloud", job_count=1)]
)


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


# --- nodes that are ordered and do not boot ---------------------------------------------------------------


def test_a_create_that_may_have_failed_is_shown_on_the_job() -> None:
    """Without a word of it, the job's node would be booting for ever on a full disk."""
    world = a_world().node("cloud1", NodeState.REQUESTED, cloud=None, sent_s=NOW_S).job(whole_nodes(1))
    assert world.why_job(1) == because(Code.NODE_COMING, nodes=("cloud1",))
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.AMBIGUOUS, "No space left on device"))
    failed = because(Code.NODE_CREATE_FAILED, nodes=("cloud1",), detail="No space left on device")
    assert world.why_job(1) == failed
    assert to_sentence(failed.code, failed.figures).endswith("(tried again): No space left on device")


def test_a_node_in_the_outer_queue_is_not_booting() -> None:
    cloud = a_cloud_node(a_launch("cloud1"), state=CloudState.PENDING, queued=True)
    world = a_world().booting_node("cloud1", cloud=cloud).job(whole_nodes(1))
    assert world.why_job(1) == because(Code.NODE_QUEUED_OUTSIDE, nodes=("cloud1",))
    assert world.why("cloud1") == "queued_outside"
    started = a_world().booting_node("cloud1", cloud=replace(cloud, queued=False)).job(whole_nodes(1))
    assert started.why_job(1) == because(Code.NODE_COMING, nodes=("cloud1",))
    assert started.why("cloud1") == "booting"
