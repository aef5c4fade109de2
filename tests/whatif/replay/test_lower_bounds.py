from __future__ import annotations

from decimal import Decimal
from itertools import combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.whatif.replay.lower_bounds import WindowCover
from tests.builders import a_type

NODE_TYPE = a_type(cores=1, price="1.00", window_s=180.0)  # three minutes
MINUTES = 8


def _cover(demand: list[int]) -> WindowCover:
    cover = WindowCover((NODE_TYPE,))
    for minute, cores in enumerate(demand):
        cover.note(minute * 60.0, cores)
    cover.note(len(demand) * 60.0, 0)
    return cover


def _least(demand: list[int]) -> int:
    """Try every set of windows that start at full minutes, the smallest sets first."""
    for count in range(sum(demand) + 1):
        for begins in combinations_with_replacement(range(-2, len(demand)), count):
            there = [sum(begin <= minute < begin + 3 for begin in begins) for minute in range(len(demand))]
            if all(has >= wants for has, wants in zip(there, demand, strict=True)):
                return count
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=MINUTES).filter(lambda demand: sum(demand) <= 9))
def test_no_cover_has_fewer_windows_than_the_sweep(demand: list[int]) -> None:
    assert _cover(demand).windows == _least(demand)


def test_the_cost_is_that_of_the_windows() -> None:
    assert _cover([1, 1, 1, 0, 0, 2]).cost() == Decimal(3) * 180 / 3600


def test_short_windows_cost_the_area_under_the_demand() -> None:
    cover = WindowCover((a_type(cores=2, price="1.00", window_s=1.0),))
    cover.note(0.0, 3)  # two nodes
    cover.note(1800.0, 0)
    assert cover.cost() == 1
