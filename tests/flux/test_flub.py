"""The slot of each rank, if Flux assigns the ranks."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Rank, SlotName
from nodemanager.flux.flub import FlubSlotNames, assign_slot_names
from tests.paths import DATA

RECORDED = DATA / "flub-rpc.jsonl"
HOSTS = [SlotName(f"s{number}") for number in range(1, 5)]


def ranks(*online: int) -> tuple[FluxRank, ...]:
    """The ranks as R declares them: ``s1`` is rank 1, and so on."""
    return tuple(
        FluxRank(Rank(number), host, online=number in online, cores=2) for number, host in enumerate(HOSTS, start=1)
    )


def names_of(seen: tuple[FluxRank, ...]) -> dict[int, str]:
    return {rank.rank: rank.host for rank in seen}


def given_out() -> list[int]:
    """The ranks that a real ``overlay.flub-getinfo`` assigned, until it had no more."""
    replies = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    asked = [reply for reply in replies if reply["topic"] == "overlay.flub-getinfo"]
    assert asked[-1]["error"] == "there are no available ranks"
    return [reply["response"]["rank"] for reply in asked[:-1]]


def test_a_slot_goes_to_the_rank_that_its_node_was_given() -> None:
    """Two nodes ask; each gets the lowest free rank, in the order of their requests."""
    first, second = given_out()
    names = FlubSlotNames()
    look = ranks(first)
    assert names.ranks_to_ask(look) == [first]
    names.learn({Rank(first): SlotName("s4")})
    assert names_of(names.rename_ranks(look))[first] == "s4"
    look = ranks(first, second)
    assert names.ranks_to_ask(look) == [second], "what is known is not asked again"
    names.learn({Rank(second): SlotName("s1")})
    seen = names_of(names.rename_ranks(look))
    assert (seen[first], seen[second]) == ("s4", "s1")
    assert {seen[1], seen[4]} == {"s2", "s3"}


def test_a_slot_whose_node_is_away_keeps_its_rank_until_another_is_given_it() -> None:
    names = FlubSlotNames()
    names.ranks_to_ask(ranks(1))
    names.learn({Rank(1): SlotName("s3")})
    names.rename_ranks(ranks(1))
    assert names.ranks_to_ask(ranks()) == []
    assert names_of(names.rename_ranks(ranks()))[1] == "s3"
    assert names.ranks_to_ask(ranks(1)) == [1]
    names.learn({Rank(1): SlotName("s2")})
    assert names_of(names.rename_ranks(ranks(1))) == {1: "s2", 2: "s3", 3: "s1", 4: "s4"}


def test_a_name_that_is_no_slot_is_passed_over() -> None:
    assert assign_slot_names(ranks(1), {Rank(1): SlotName("vm")}, {}) == dict(enumerate(HOSTS, start=1))


some_names = st.dictionaries(st.integers(1, 4).map(Rank), st.sampled_from([*HOSTS, SlotName("vm")]), max_size=4)


@given(some_names, some_names)
def test_every_slot_is_one_rank_and_a_broker_that_alone_claims_a_slot_has_it(
    said: dict[Rank, SlotName], before: dict[Rank, SlotName]
) -> None:
    names = assign_slot_names(ranks(), said, before)
    assert sorted(names.values()) == HOSTS
    for rank, name in said.items():
        if list(said.values()).count(name) == 1 and name in HOSTS:
            assert names[rank] == name
