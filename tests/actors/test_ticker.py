"""Ticks are frequent while messages arrive, and immediate for the first message after a quiet time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nodemanager.actors.ticker import Ticker, WakingMailbox
from nodemanager.core.facts import RanksChanged, Tick
from nodemanager.simulation.time.world import World

NEVER_S = 3600.0
WITHIN_S = 30.0  # for a thread to be scheduled


class Heard(queue.Queue[Any]):
    def tell(self, message: Any) -> None:
        self.put(message)


@contextmanager
def ticking(quiet_period_s: float, lively_s: float) -> Iterator[tuple[Heard, WakingMailbox]]:
    heard, news = Heard(), threading.Event()
    manager = WakingMailbox(heard, news)
    ticker = Ticker(World(1).clock(), manager, news, quiet_period_s, lively_s)
    ticker.start()
    yield heard, manager
    ticker.stop()
    ticker.join(WITHIN_S)
    assert not ticker.is_alive()


def test_what_comes_after_quiet_is_followed_by_the_time() -> None:
    with ticking(quiet_period_s=NEVER_S, lively_s=0.0) as (heard, manager):
        for _ in range(3):
            manager.tell(RanksChanged())
            assert isinstance(heard.get(timeout=WITHIN_S), RanksChanged)
            assert isinstance(heard.get(timeout=WITHIN_S), Tick)


@pytest.mark.parametrize(("quiet_period_s", "lively_s"), [(NEVER_S, NEVER_S), (0.001, 0.0)])
def test_the_time_is_told_again_and_again(quiet_period_s: float, lively_s: float) -> None:
    with ticking(quiet_period_s, lively_s) as (heard, _):
        for _ in range(3):
            assert isinstance(heard.get(timeout=WITHIN_S), Tick)


def test_what_comes_keeps_it_lively() -> None:
    with ticking(quiet_period_s=NEVER_S, lively_s=NEVER_S) as (heard, manager):
        manager.tell(RanksChanged())
        told = [heard.get(timeout=WITHIN_S) for _ in range(4)]
        assert sum(isinstance(it, Tick) for it in told) == 3
