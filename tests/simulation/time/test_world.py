from __future__ import annotations

import pytest

from nodemanager.simulation.time.world import World


def test_events_happen_at_their_own_moment_and_in_the_order_asked() -> None:
    world = World(seed=1)
    seen: list[tuple[str, float]] = []
    for name, at_s in (("late", 5.0), ("first", 2.0), ("second", 2.0)):
        world.after(at_s, lambda name=name: seen.append((name, world.now_s)))  # type: ignore[misc]
    world.advance_to(4.0)
    assert seen == [("first", 2.0), ("second", 2.0)]
    assert (world.now_s, world.next_event_s()) == (4.0, 5.0)
    world.advance_by(10.0)
    assert seen[-1] == ("late", 5.0)
    assert (world.now_s, world.next_event_s()) == (14.0, None)


def test_what_an_event_asks_for_happens_on_the_same_way() -> None:
    world = World(seed=1)
    seen: list[float] = []

    def again() -> None:
        seen.append(world.now_s)
        if len(seen) < 3:
            world.after(1.0, again)

    world.after(1.0, again)
    world.advance_to(10.0)
    assert seen == [1.0, 2.0, 3.0]


def test_a_cancelled_event_does_not_happen_and_is_not_awaited() -> None:
    world = World(seed=1)
    cancelled = world.after(1.0, lambda: pytest.fail("it was cancelled"))
    world.after(3.0, lambda: None)
    cancelled.cancel()
    assert world.next_event_s() == 3.0
    world.advance_to(5.0)


def test_a_moment_that_is_past_leaves_the_clock_alone() -> None:
    world = World(seed=1)
    world.advance_to(5.0)
    world.advance_to(3.0)
    assert world.now_s == 5.0
    with pytest.raises(ValueError, match="backwards"):
        world.after(-1.0, lambda: None)


def test_a_wall_clock_that_jumps_leaves_timers_alone() -> None:
    world = World(seed=1, start_at=1000.0)
    world.advance_to(5.0)
    world.skew_s = -3600.0
    assert world.clock().monotonic_s() == 5.0
    assert world.clock().wall_at() == 1005.0 - 3600.0
    assert world.clock(skew_s=600.0).wall_at() == 1005.0 - 3000.0


def test_one_part_s_draws_do_not_depend_on_another_s() -> None:
    alone, beside = World(seed=7), World(seed=7)
    beside.draws_for("flux").random()
    assert alone.draws_for("cloud").random() == beside.draws_for("cloud").random()
    assert alone.draws_for("cloud").random() != alone.draws_for("flux").random()
    assert World(seed=8).draws_for("cloud").random() != alone.draws_for("cloud").random()
