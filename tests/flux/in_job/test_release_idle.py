"""``release-idle --follow`` without a Flux: what it tells the outer instance, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Rank, SlotName
from nodemanager.flux.in_job import release_idle
from nodemanager.flux.in_job.release_idle import RankUse

OUTER_OF = {Rank(number): Rank(number + 4) for number in range(3)}
ENDS_S = {Rank(1): 100.0, Rank(2): 0.0}  # when the broker of each rank is gone


class Over(Exception):
    """The end of the story."""


class Instance:
    """Ranks 1 and 2 are idle. The broker of rank 1 takes long to end."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stopped: list[Rank] = []

    def wait(self, seconds_s: float) -> None:
        self.now_s += seconds_s
        if self.now_s > 200.0:
            raise Over

    def ranks_up(self, idle_since_s: dict[Rank, float], now_s: float) -> list[RankUse]:
        del idle_since_s, now_s
        idle = [RankUse(rank, -1.0) for rank in ENDS_S if rank not in self.stopped]
        return [RankUse(Rank(0), None, is_critical=True), *idle]

    def count_waiting(self) -> int:
        return 0

    def stop_idle(self, choose: Callable[[list[Rank]], list[Rank]], ranks: Mapping[Rank, Rank]) -> list[Rank]:
        del ranks
        chosen = choose([rank for rank in ENDS_S if rank not in self.stopped])
        self.stopped += chosen
        return chosen

    def gone(self) -> list[Rank]:
        return [rank for rank in self.stopped if self.now_s >= ENDS_S[rank]]


def test_a_broker_that_takes_long_to_end_is_given_back_once_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance()
    memos: list[tuple[bool, object]] = []
    lines: list[str] = []

    @contextmanager
    def inside(*_: object) -> Iterator[release_idle._Job]:
        yield release_idle._Job(cast("Any", instance), cast("Any", None), 7, OUTER_OF, 30.0)

    def ask(_: object, topic: str, memo: dict[str, Any], *, timeout_s: float) -> None:
        del topic, timeout_s
        memos.append((instance.now_s >= ENDS_S[Rank(1)], *memo["memo"].values()))

    monkeypatch.setattr(release_idle, "_inside", inside)
    monkeypatch.setattr(release_idle, "ask", ask)
    with pytest.raises(Over):
        release_idle.release_idle_always(
            "",
            lambda _: pytest.fail("no connection is needed"),
            0.0,
            1,
            lines.append,
            timeout_s=30.0,
            wait_s=instance.wait,
            now_s=lambda: instance.now_s,
        )
    assert memos == [(False, "6"), (True, "5-6")], "each memo stays in the job's eventlog, so there are no others"
    assert lines[-1] == "given back: rank 5 of the outer instance; earlier: rank 6"


class Connection:
    """A connection to an instance of three ranks; ``ends``: which brokers end when they are told to."""

    rank = 0

    def __init__(self, ends: set[int]) -> None:
        self.ends = ends
        self.is_open = True

    def close(self) -> None:
        assert self.is_open, "closed twice"
        self.is_open = False


def rank_of(number: int, *, told: set[int], ends: set[int], drained: set[int]) -> FluxRank:
    return FluxRank(
        Rank(number),
        SlotName(f"node{number}"),
        cores=1,
        online=number not in told & ends,
        schedulable=number not in drained,
        drain_reason=release_idle.DRAIN_REASON if number in drained else None,
    )


def test_a_connection_to_a_broker_is_kept_only_until_the_broker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a job that gives many nodes back would keep as many connections until it ends."""
    told: set[int] = set()
    drained: set[int] = set()
    ends = {1}
    opened: list[Connection] = []

    def ask(_: object, topic: str, payload: Any = None, *, rank: int = 0, timeout_s: float) -> Any:
        del timeout_s
        match topic:
            case "resource.drain":
                drained.add(int(payload["targets"]))
            case "rexec.exec":
                told.add(rank)
            case "attr.get":
                return {"value": {"broker.pid": "123", "broker.critical-ranks": "0"}[payload["name"]]}
        return {}

    def another() -> Connection:
        opened.append(Connection(ends))
        return opened[-1]

    now = iter(range(10_000))
    monkeypatch.setattr(release_idle, "ask", ask)
    monkeypatch.setattr(
        release_idle._Instance,
        "_look",
        lambda _: {Rank(it): rank_of(it, told=told, ends=ends, drained=drained) for it in range(3)},
    )
    instance = release_idle._Instance(
        cast("Any", Connection(ends)), cast("Any", another), 30.0, lambda _: None, lambda: float(next(now))
    )
    assert instance.stop_idle(lambda idle: idle, OUTER_OF) == [Rank(2), Rank(1)]
    assert instance.gone() == [Rank(1)]
    assert [it.is_open for it in opened] == [True, False], "that of rank 2, whose broker takes long, stays open"
    ends.add(2)
    assert instance.gone() == [Rank(1), Rank(2)]
    assert not any(it.is_open for it in opened)
    instance.close()
