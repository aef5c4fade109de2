"""The nodes that ensembles ask the manager to keep."""

from __future__ import annotations

import pytest

from nodemanager.ensemble.fair_share import Claim
from nodemanager.service.floors import LAPSE_S, Floors


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def floors(time: Time) -> Floors:
    return Floors(time, nodes_max=6)


def test_claims_add_up(floors: Floors) -> None:
    assert floors.ask("a", 2) == ""
    assert floors.ask("b", 1) == ""
    assert floors.total == 3
    assert floors.ask("a", 1) == ""
    assert floors.total == 2
    assert floors.ask("a", 0) == ""
    assert floors.shares() == {"b": 1}


def test_more_than_the_site_allows_is_refused_and_changes_nothing(floors: Floors) -> None:
    floors.ask("a", 4)
    assert floors.ask("a", 7) == "nodes_max = 6"
    assert floors.total == 4


def test_more_than_its_share_is_refused_with_the_claims_of_the_others(floors: Floors) -> None:
    floors.ask("a", 5)
    why = floors.ask("b", 4)
    assert why == "its share of nodes_max = 6 is 3: a asks for 5 (weight 1), and b for 4 (weight 1)"
    assert floors.ask("b", 3) == ""
    assert floors.shares() == {"a": 3, "b": 3}
    assert floors.ask("a", 4) == "", "it may go down to more than its share"


def test_the_site_may_name_limits_and_weights(time: Time) -> None:
    floors = Floors(time, 6, {"a": Claim(0, weight=2), "b": Claim(0, nodes_max=1)})
    assert floors.ask("b", 2) == "[Ensemble b] nodes_max = 1"
    floors.ask("a", 6)
    floors.ask("c", 2)
    assert floors.shares() == {"a": 4, "c": 2}


def test_a_claim_that_is_not_repeated_lapses(floors: Floors, time: Time) -> None:
    floors.ask("a", 2)
    floors.ask("b", 1)
    time.now_s += LAPSE_S / 2
    floors.ask("b", 1)
    time.now_s += LAPSE_S / 2
    floors.lapse()
    assert floors.shares() == {"b": 1}


def test_a_request_of_another_form_is_refused(floors: Floors) -> None:
    assert floors.answer({"ensemble": "a", "nodes": 2}) == {"why": ""}
    bad: list[dict[str, object]] = [
        {},
        {"ensemble": "a", "nodes": "1"},
        {"ensemble": "a", "nodes": -1},
        {"ensemble": 5, "nodes": 1},
    ]
    for request in bad:
        assert "a request has the form" in floors.answer(request)["why"]
    assert floors.shares() == {"a": 2}
