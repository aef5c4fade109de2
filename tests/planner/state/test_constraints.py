from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, Not, OnHosts, OnRanks
from nodemanager.core.notation import format_idset
from nodemanager.core.slots import Rank, SlotName
from nodemanager.planner.constraints import Matches, alike, holds
from nodemanager.planner.constraints import Place as PlaceOfRank

NAMES = st.sampled_from(["a", "b", "c", "cloud1", "cloud2"])
HOSTS = st.sampled_from(["cloud1", "cloud2"])
RANKS = st.integers(1, 3)
LEAVES: st.SearchStrategy[Constraint] = st.one_of(
    NAMES.map(HasProperty),
    st.lists(HOSTS).map(tuple).map(OnHosts),
    st.frozensets(RANKS).map(lambda ranks: OnRanks((format_idset(ranks),))),
)


def _joined(parts: st.SearchStrategy[Constraint]) -> st.SearchStrategy[Constraint]:
    several = st.lists(parts, max_size=3).map(tuple)
    return st.one_of(several.map(All), several.map(AnyOf), parts.map(Not))


CONSTRAINTS = st.recursive(LEAVES, _joined, max_leaves=8)
PLACES = st.fixed_dictionaries({"properties": st.frozensets(NAMES), "host": HOSTS, "rank": RANKS})
Place = dict[str, object]


def _holds(constraint: Constraint, place: Place) -> bool:
    properties, host, rank = place["properties"], place["host"], place["rank"]
    assert isinstance(properties, frozenset)
    assert isinstance(host, str)
    assert isinstance(rank, int)
    return holds(constraint, properties=properties, host=host, rank=rank)


def test_a_constraint_is_met_by_property_by_host_and_by_rank() -> None:
    place: Place = {"properties": frozenset({"gpu"}), "host": "gpu-01", "rank": 7}
    assert _holds(HasProperty("gpu"), place)
    assert not _holds(HasProperty("large"), place)
    assert _holds(OnHosts(("gpu-01,gpu-02",)), place)
    assert not _holds(OnHosts(("gpu-02",)), place)
    assert _holds(OnRanks(("7",)), place)
    assert not _holds(OnRanks(("8",)), place)


def test_a_host_name_is_a_property_of_its_host() -> None:
    assert holds(HasProperty("gpu-01"), properties=frozenset(), host="gpu-01", rank=7)
    assert not holds(Not(HasProperty("gpu-01")), properties=frozenset(), host="gpu-01", rank=7)


@given(PLACES)
def test_the_empty_ones(place: Place) -> None:
    assert _holds(ANYWHERE, place)
    assert _holds(AnyOf(()), place)
    assert not _holds(OnHosts(()), place)
    assert not _holds(OnRanks(()), place)


@given(CONSTRAINTS, PLACES)
def test_not_is_the_opposite(constraint: Constraint, place: Place) -> None:
    assert _holds(Not(constraint), place) is not _holds(constraint, place)


@given(st.lists(CONSTRAINTS, min_size=1, max_size=3), PLACES)
def test_all_and_any_are_each_other_s_opposite(parts: list[Constraint], place: Place) -> None:
    none_holds = Not(AnyOf(tuple(parts)))
    each_fails = All(tuple(Not(part) for part in parts))
    assert _holds(none_holds, place) is _holds(each_fails, place)


@given(st.lists(CONSTRAINTS, max_size=3), CONSTRAINTS, PLACES)
def test_one_part_more_never_widens_all_nor_narrows_any(
    parts: list[Constraint], more: Constraint, place: Place
) -> None:
    if _holds(All((*parts, more)), place):
        assert _holds(All(tuple(parts)), place)
    if parts and _holds(AnyOf(tuple(parts)), place):
        assert _holds(AnyOf((*parts, more)), place)


@given(st.lists(CONSTRAINTS, min_size=1, max_size=3), st.lists(PLACES, max_size=4, unique_by=lambda it: it["rank"]))
def test_all_ranks_at_once_give_what_each_gives_alone(constraints: list[Constraint], places: list[Place]) -> None:
    known = [PlaceOfRank(it["rank"], it["host"], it["properties"]) for it in places]  # type: ignore[arg-type]
    matches = Matches(lambda: known)
    for constraint in constraints:
        for place in known:
            alone = holds(constraint, properties=place.properties, host=place.host, rank=place.rank)
            assert matches.suits(constraint, place.rank) is alone
        assert not matches.suits(constraint, Rank(99))


@given(st.lists(CONSTRAINTS, max_size=4), st.lists(PLACES, max_size=4, unique_by=lambda it: it["rank"]))
def test_ranks_are_alike_if_they_meet_the_same_constraints(
    constraints: list[Constraint], places: list[Place]
) -> None:
    known = [PlaceOfRank(it["rank"], it["host"], it["properties"]) for it in places]  # type: ignore[arg-type]
    matches = Matches(lambda: known)
    ranks = [place.rank for place in known]
    keys = alike([matches.of(constraint) for constraint in constraints], matches.mask(ranks))
    for one in ranks:
        for other in ranks:
            same = all(matches.suits(it, one) == matches.suits(it, other) for it in constraints)
            assert (keys.get(matches.index(one), ()) == keys.get(matches.index(other), ())) is same


def test_each_constraint_is_evaluated_once() -> None:
    seen: list[int] = []

    def places() -> list[PlaceOfRank]:
        seen.append(1)
        return [PlaceOfRank(Rank(5), SlotName("n1"), frozenset())]

    matches = Matches(places)
    assert matches.of(OnRanks(("0-9",))) == matches.of(OnHosts(("n[1-3]",))) == 1
    assert matches.of(OnHosts(("n[2-3]",))) == 0
    assert seen == [1]


@pytest.mark.parametrize(
    ("hostlist", "named"),
    [
        ("n[0-999999]", {"n5", "n10", "n0"}),
        ("n[000-999]", {"n007"}),
        ("n[5-5,4-999999999]", {"n5", "n10"}),
        ("n[0-999999]x", {"n5x"}),
        ("n[00-99,5-100000000]", {"n5", "n10"}),
        ("[1-999999]", {"12"}),
    ],
)
def test_a_wide_range_names_the_hosts_that_exist(hostlist: str, named: set[str]) -> None:
    hosts = ["n5", "n10", "n0", "n007", "n5x", "12", "n", "n5y", "nn5"]
    matches = Matches(lambda: [PlaceOfRank(Rank(n), SlotName(host), frozenset()) for n, host in enumerate(hosts)])
    found = {host for n, host in enumerate(hosts) if matches.suits(OnHosts((hostlist,)), Rank(n))}
    assert found == named
    assert {host for host in hosts if holds(OnHosts((hostlist,)), properties=set(), host=host, rank=0)} == named
