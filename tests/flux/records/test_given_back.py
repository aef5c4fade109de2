"""What a running instance gives back, read from its job's eventlog. Users write that: none of it is trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.core.slots import Rank
from nodemanager.flux.records.given_back import MEMO, encode, jobs_that_gave_back, outer_ranks, read_given_back

CORES = {Rank(number): 2 for number in range(1, 6)}
URI = ("memo", {"uri": "ssh://head/run/flux"})


def an_r(ranks: str = "1-4", cores: str = "0-1") -> dict[str, Any]:
    return {
        "version": 1,
        "execution": {"R_lite": [{"rank": ranks, "children": {"core": cores}}], "expiration": 0.0},
    }


def a_log(*events: tuple[str, Any]) -> str:
    lines = [{"timestamp": 1.0, "name": name, "context": context} for name, context in events]
    return "".join(json.dumps(line) + "\n" for line in lines)


def read(*events: tuple[str, Any], r: object = None) -> set[int]:
    return set(read_given_back(a_log(*events), json.dumps(r if r is not None else an_r()), CORES))


def test_the_last_memo_counts_and_never_the_first_rank() -> None:
    first, second = ("memo", dict(encode([Rank(3)]))), ("memo", dict(encode([Rank(1), Rank(3), Rank(4)])))
    assert read(URI, first) == {3}
    assert read(URI, first, second) == {3, 4}


def test_only_instances_give_back_and_only_what_they_hold_whole() -> None:
    memo = ("memo", {MEMO: "2-5"})
    assert read(memo) == set()
    assert read(URI, memo) == {2, 3, 4}
    assert read(URI, memo, r=an_r(cores="0")) == set()


@pytest.mark.parametrize("ending", ["finish", "release", "free", "clean"])
def test_a_job_that_ends_gives_nothing_back(ending: str) -> None:
    assert read(URI, ("memo", {MEMO: "2-3"}), (ending, {"status": 0})) == set()


@pytest.mark.parametrize("value", [None, 3, "x", "1-", "", ["2"], {"2": 3}, "99999999-1", "2" * 5000])
def test_odd_values_mean_nothing(value: object) -> None:
    assert read(URI, ("memo", {MEMO: value})) == set()


def test_a_memo_may_name_more_ranks_than_memory_has_room_for() -> None:
    assert read(URI, ("memo", {MEMO: "0-4000000000"})) == {2, 3, 4}


@pytest.mark.parametrize("log", ["", "{", "[]\n", '{"name": "memo"}\n', '{"name": "memo", "context": 5}\n'])
def test_an_odd_log_means_nothing(log: str) -> None:
    assert read_given_back(log, json.dumps(an_r()), CORES) == frozenset()


def test_the_list_of_jobs_says_where_to_look() -> None:
    listed = {
        "jobs": [
            {"id": 1},
            {"id": 2, "annotations": {"user": {MEMO: "3"}}},
            {"id": 3, "annotations": {"user": {"uri": "x"}}},
            {"id": 4, "annotations": {"sched": {}}},
        ]
    }
    assert jobs_that_gave_back(listed) == [JobId(2)]


def test_shell_ranks_are_the_ranks_of_r_in_order() -> None:
    assert outer_ranks(an_r("2-3,7")) == [2, 3, 7]
