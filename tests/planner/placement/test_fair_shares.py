"""The steps of a search are shared between users."""

from __future__ import annotations

from nodemanager.planner.packing.types import Effort
from nodemanager.planner.serving import FairShares


def _taken(users_of: list[frozenset[int]], steps: int, each: int) -> list[int]:
    """The kinds of work that get steps, if each takes as many."""
    effort, taken = Effort(steps), list[int]()
    shares = FairShares(users_of, effort)
    for number in range(len(users_of)):
        before = effort.left
        if shares.may_take(number):
            taken.append(number)
            effort.left -= each
        shares.take(number, before - effort.left)
    return taken


def test_the_many_kinds_of_one_user_leave_steps_to_those_behind() -> None:
    many = [frozenset({1})] * 100
    assert _taken([*many, frozenset({2})], 100, 10) == [0, 1, 2, 3, 4, 100]


def test_a_user_alone_may_take_all_steps() -> None:
    assert len(_taken([frozenset({1})] * 100, 100, 10)) == 10


def test_what_a_user_leaves_goes_to_the_others() -> None:
    assert _taken([frozenset({2}), *[frozenset({1})] * 100], 100, 10) == list(range(10))


def test_a_kind_of_several_users_counts_for_each_of_them() -> None:
    both = frozenset({1, 2})
    assert len(_taken([both] * 100, 100, 10)) == 10
