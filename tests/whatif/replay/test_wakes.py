"""The replay plans again when a node's time is up, according to the node's reason."""

from __future__ import annotations

import pytest

from nodemanager.core.slots import TypeName
from nodemanager.whatif.replay.wakes import next_wake_s
from tests.builders import NOW_S, a_world


@pytest.mark.parametrize(
    ("left_s", "code", "goes_in_s"),
    [
        (300.0, "paid_time_left", 250.0),
        (3.0, "next_window_begins", 3 + 3600 - 50.0),
    ],
)
def test_it_wakes_when_a_node_that_is_paid_for_goes(left_s: float, code: str, goes_in_s: float) -> None:
    world = a_world().idle_node("cloud1", hour_ends_in_s=left_s)
    world.but(stops_s={TypeName("cloud"): (40.0, 50.0, 45.0)})
    assert world.why("cloud1") == code
    assert next_wake_s(world.plan(), world.snapshot, world.policy) == (NOW_S + goes_in_s, False)
