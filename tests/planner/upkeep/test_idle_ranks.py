"""Which idle ranks a batch job's own instance gives back, and why the others stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.slots import Rank
from nodemanager.flux.in_job.release_idle import RankUse, choose_idle_ranks

NOW_S = 1000.0
LEADER = RankUse(Rank(0), None, is_critical=True)


def idle(number: int, since_s: float = 0.0, *, critical: bool = False) -> RankUse:
    return RankUse(Rank(number), since_s, critical)


def test_the_highest_idle_ranks_go_and_so_many_nodes_stay() -> None:
    found = choose_idle_ranks([LEADER, idle(1), idle(2), idle(3)], 0, 2, 300.0, NOW_S)
    assert found.ranks == (3, 2)
    assert found.why[Rank(1)].code == "kept_by_min"
    assert found.why[Rank(3)].code == "rank_given_back"


def test_nothing_goes_while_a_job_waits() -> None:
    found = choose_idle_ranks([LEADER, idle(1), idle(2)], 3, 1, 300.0, NOW_S)
    assert (found.ranks, found.why[Rank(1)].code) == ((), "waiting_jobs_need_it")


def test_a_critical_rank_stays_and_a_busy_one_is_not_mentioned() -> None:
    found = choose_idle_ranks([LEADER, idle(1, critical=True), RankUse(Rank(2), None)], 0, 1, 300.0, NOW_S)
    assert (found.ranks, {rank: why.code for rank, why in found.why.items()}) == ((), {1: "rank_critical"})


@pytest.mark.parametrize(("since_s", "ranks", "again_at_s"), [(700.0, (1,), float("inf")), (701.0, (), 1001.0)])
def test_a_rank_goes_once_it_was_idle_for_long_enough(
    since_s: float, ranks: tuple[int, ...], again_at_s: float
) -> None:
    found = choose_idle_ranks([LEADER, idle(1, since_s)], 0, 1, 300.0, NOW_S)
    assert (found.ranks, found.again_at_s) == (ranks, again_at_s)


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(0, NOW_S)), st.booleans()), max_size=8),
    st.integers(0, 2),
    st.integers(1, 9),
)
def test_never_a_busy_critical_or_needed_rank(
    ranks: list[tuple[float | None, bool]], waiting: int, nodes_min: int
) -> None:
    up = [LEADER, *(RankUse(Rank(number), *it) for number, it in enumerate(ranks, start=1))]
    found = choose_idle_ranks(up, waiting, nodes_min, 300.0, NOW_S)
    of = {it.rank: it for it in up}
    assert not (waiting and found.ranks)
    assert not found.ranks or len(up) - len(found.ranks) >= nodes_min
    for rank in found.ranks:
        since_s = of[rank].idle_since_s
        assert not of[rank].is_critical
        assert since_s is not None
        assert NOW_S - since_s >= 300.0
    assert found.why.keys() == {it.rank for it in up if it.idle_since_s is not None}
