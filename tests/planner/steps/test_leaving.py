"""The second look after a drain: what still forbids stopping a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.nodes import FluxRank
from nodemanager.planner.node_steps import StopObstacle, second_look
from tests.builders import a_node, a_rank, a_world, busy, drained, orders

NODE = a_node("cloud1")
OURS = drained(a_rank("cloud1", online=True), drain_text(NODE.id))
AWAY = replace(OURS, online=False)


@pytest.mark.parametrize(
    ("rank", "obstacle"),
    [
        (OURS, None),
        (AWAY, None),
        (replace(AWAY, drain_reason=None), None),
        (replace(OURS, drain_reason="broken fan"), StopObstacle.HELD_BY_DRAIN),
        (replace(AWAY, drain_reason="broken fan"), None),
        (replace(OURS, allocated=True), StopObstacle.JOB_SLIPPED_IN),
        (replace(AWAY, allocated=True), StopObstacle.JOB_SLIPPED_IN),
        (replace(OURS, schedulable=True), StopObstacle.STILL_SCHEDULABLE),
        (replace(AWAY, schedulable=True), StopObstacle.STILL_SCHEDULABLE),
        (replace(OURS, drain_reason=None), StopObstacle.NOT_DRAINED),
        (replace(busy(OURS), drain_reason=None), StopObstacle.JOB_SLIPPED_IN),
    ],
)
def test_the_second_look_forbids_a_stop_while_anything_may_run(
    rank: FluxRank, obstacle: StopObstacle | None
) -> None:
    assert second_look(NODE, rank) is obstacle


def test_a_node_whose_broker_is_away_while_flux_still_counts_its_job_is_not_stopped() -> None:
    """Flux has not ended the job: its broker may come back, and the job runs on."""
    world = a_world().draining_node("cloud1", rank=replace(AWAY, allocated=True))
    assert orders(world.plan()) == []
    assert world.why("cloud1") == "job_slipped_in"
