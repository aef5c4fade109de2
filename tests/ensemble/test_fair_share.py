"""Nodes are shared among ensembles by weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.ensemble.fair_share import Claim, share_nodes

CLAIMS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Claim, st.integers(0, 30), st.floats(0.1, 10), st.integers(0, 5), st.none() | st.integers(0, 20)),
)


def test_what_is_there_goes_to_all_who_ask_for_little() -> None:
    assert share_nodes({"a": Claim(2), "b": Claim(3)}, 10) == {"a": 2, "b": 3}


def test_what_is_scarce_is_shared_by_weight() -> None:
    assert share_nodes({"a": Claim(9, weight=2), "b": Claim(9)}, 9) == {"a": 6, "b": 3}


def test_what_one_does_not_want_goes_to_the_others() -> None:
    assert share_nodes({"a": Claim(1), "b": Claim(9), "c": Claim(9)}, 9) == {"a": 1, "b": 4, "c": 4}


def test_a_minimum_comes_before_all_shares() -> None:
    assert share_nodes({"a": Claim(9, weight=100), "b": Claim(4, nodes_min=3)}, 6) == {"a": 3, "b": 3}


def test_a_maximum_is_kept() -> None:
    assert share_nodes({"a": Claim(9, nodes_max=2), "b": Claim(9)}, 20) == {"a": 2, "b": 9}


@given(CLAIMS, st.integers(0, 40))
def test_no_node_is_given_twice_or_left_while_one_is_wanted(claims: dict[str, Claim], nodes: int) -> None:
    shares = share_nodes(claims, nodes)
    wanted = sum(claim.wanted for claim in claims.values())
    assert sum(shares.values()) == min(nodes, wanted)
    assert all(0 <= shares[name] <= claim.wanted for name, claim in claims.items())


@given(CLAIMS, st.integers(0, 40))
def test_nobody_who_wants_more_has_less_for_its_weight_than_another_could_give(
    claims: dict[str, Claim], nodes: int
) -> None:
    shares = share_nodes(claims, nodes)
    for poor, claim in claims.items():
        for rich, other in claims.items():
            if shares[poor] < claim.wanted and shares[rich] > other.nodes_min:
                assert (shares[poor] + 1) / claim.weight >= shares[rich] / other.weight - 1e-9, (poor, rich)
