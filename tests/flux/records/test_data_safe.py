"""The record of what was copied off a job's nodes, and which ended jobs are awaited."""

from __future__ import annotations

import itertools

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import FluxRank, Launch, LaunchId
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.flux.records import data_safe
from nodemanager.flux.records.data_safe import decode, encode, key_of
from nodemanager.flux.records.unsafe_data import EndedJob, UnsafeJobs, read_ended_jobs

RANKS = frozenset(map(Rank, (1, 2, 3)))


def a_rank(number: int, type_name: str | None = "scratch") -> FluxRank:
    named = TypeName(type_name) if type_name else None
    return FluxRank(Rank(number), SlotName(f"s{number}"), online=True, cores=2, type_name=named)


def test_a_record_is_in_the_job_s_own_directory() -> None:
    assert key_of(JobId(0x68F000000)) == "job.0000.0006.8f00.0000.node-manager-data-safe"


def test_exactly_one_of_those_who_say_it_posts_the_event_whatever_the_order() -> None:
    for order in itertools.permutations((1, 2, 3)):
        record = decode("".join(encode(f"mark{rank}", [Rank(rank)]) for rank in order))
        telling = [rank for rank in order if record.is_mine_to_tell(f"mark{rank}", RANKS)]
        assert telling == [order[-1]]
        assert record.safe == RANKS


def test_who_says_it_again_posts_an_event_that_nobody_posted() -> None:
    """The one whose turn it was may have been killed between its line and the event."""
    whole = encode("a", RANKS)
    again = whole + encode("b", [Rank(2)])
    assert decode(again).is_mine_to_tell("b", RANKS)
    told = whole + data_safe.TOLD + encode("b", [Rank(2)])
    assert not decode(told).is_mine_to_tell("b", RANKS)


def test_nobody_posts_before_all_ranks_are_safe() -> None:
    record = decode(encode("a", [Rank(1)]) + encode("b", [Rank(3)]))
    assert not record.is_mine_to_tell("b", RANKS)
    assert RANKS - record.safe == {Rank(2)}


@pytest.mark.parametrize("text", ["{", '{"mark": "a"}', '{"mark": "a", "ranks": "x"}', "[]", '{"ranks": "1"}'])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text differs
        decode(text)


def test_ended_jobs_are_read_and_those_that_never_ran_left_out() -> None:
    answer = {"jobs": [{"id": 5, "ranks": "1-2", "t_inactive": 7.5}, {"id": 6, "t_inactive": 8.0}, {"id": 7}]}
    assert read_ended_jobs(answer) == [EndedJob(JobId(5), frozenset({Rank(1), Rank(2)}), 7.5)]


def test_only_ranks_of_types_that_wait_count_and_rank_by_rank_they_become_safe() -> None:
    jobs = UnsafeJobs([TypeName("scratch")], [SlotName("s3")])
    ranks = (a_rank(1), a_rank(2, "fast"), a_rank(3, None), a_rank(4, None))
    jobs.add([EndedJob(JobId(5), frozenset(map(Rank, (1, 2, 3, 4))), 7.5)], ranks)
    assert [it.rank for it in jobs.mark(ranks) if it.unsafe] == [1, 4]
    jobs.apply(JobId(5), decode(encode("a", [Rank(1)])))
    assert [it.rank for it in jobs.mark(ranks) if it.unsafe] == [4]
    jobs.apply(JobId(5), decode(encode("a", [Rank(1), Rank(4)])))
    assert jobs.mark(ranks) is ranks
    assert not jobs.keys()


def test_what_ran_before_the_present_lease_or_on_one_that_ended_is_forgotten() -> None:
    jobs, ranks = UnsafeJobs([TypeName("scratch")]), (a_rank(1), a_rank(2), a_rank(3))
    jobs.add([EndedJob(JobId(id_), frozenset({Rank(id_)}), 10.0) for id_ in (1, 2, 3)], ranks)
    leases = [
        Launch(LaunchId(f"l{rank}"), SlotName(f"s{rank}"), Rank(rank), TypeName("scratch"), "t", at)
        for rank, at in ((1, 9.0), (2, 11.0))
    ]
    jobs.drop_before(leases)
    assert [it.rank for it in jobs.mark(ranks) if it.unsafe] == [1]
    jobs.drop_rank(Rank(1))
    assert jobs.mark(ranks) is ranks
