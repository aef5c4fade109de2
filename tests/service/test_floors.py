"""The nodes that ensembles ask the manager to keep."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.ensemble.fair_share import Claim
from nodemanager.service.ensemble_costs import DayCosts
from nodemanager.service.floors import LAPSE_S, REFUSAL_S, Floors


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
    assert floors.ask("a", 7) == "it asks for 7 nodes, and [Limits] nodes_max = 6"
    assert floors.total == 4


def test_more_than_its_share_is_refused_with_the_claims_of_the_others(floors: Floors) -> None:
    floors.ask("a", 5)
    why = floors.ask("b", 4)
    assert why == "it asks for 4 nodes, and its share of nodes_max = 6 is 3: a keeps 3 of 5 (weight 1)"
    assert floors.ask("b", 3) == ""
    assert floors.shares() == {"a": 3, "b": 3}
    assert floors.ask("a", 4) == "", "it may go down to more than its share"


def test_the_site_may_name_limits_and_weights(time: Time) -> None:
    floors = Floors(time, 6, {"a": Claim(0, weight=2), "b": Claim(0, nodes_max=1)})
    assert floors.ask("b", 2) == "it asks for 2 nodes, and [Ensemble b] nodes_max = 1"
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


# --- what it costs ----------------------------------------------------------------------------------------

DAY_AT = 20_000 * 86400.0  # midnight (UTC)


def limited(time: Time, costs: DayCosts | None = None) -> Floors:
    terms = {"a": Claim(0, per_day=Decimal(1)), "b": Claim(0)}
    return Floors(time, 6, terms, costs or DayCosts())


def pass_hours(floors: Floors, begin_at: float, hours: float, nodes: int = 3) -> float:
    """Count minute by minute what a fleet of nodes at 0.5 an hour costs; the time then."""
    for minute in range(int(hours * 60) + 1):
        floors.count_costs(begin_at + 60 * minute, Decimal("0.5") * nodes, nodes)
    return begin_at + 3600 * hours


def test_a_spent_budget_keeps_no_nodes_until_the_next_day(time: Time) -> None:
    floors = limited(time)
    floors.ask("a", 2)
    floors.ask("b", 1)
    now_at = pass_hours(floors, DAY_AT, 0.9)
    assert floors.costs.today("a") == Decimal("0.9"), "two nodes at 0.5 an hour"
    assert floors.shares() == {"a": 2, "b": 1}
    now_at = pass_hours(floors, now_at, 0.2)
    assert floors.shares() == {"a": 0, "b": 1}
    assert floors.ask("a", 2) == "", "it may repeat what it has"
    assert floors.ask("a", 3) == "its nodes have cost 1.00 today (UTC), and its per_day = 1.00"
    floors.ask("b", 0)
    pass_hours(floors, DAY_AT + 86400, 0.1, nodes=0)
    assert floors.ask("a", 3) == ""


def test_only_nodes_that_are_there_cost_something(time: Time) -> None:
    floors = limited(time)
    floors.ask("a", 4)
    floors.ask("b", 2)
    pass_hours(floors, DAY_AT, 1, nodes=3)
    assert floors.costs.today("a") == Decimal(1), "two of its four"
    floors.count_costs(DAY_AT + 7200, Decimal(0), 0)
    assert floors.costs.today("a") == Decimal(1)


def test_a_restart_goes_on_with_what_was_spent_today(time: Time, tmp_path: Path) -> None:
    file = tmp_path / "ensembles.json"
    floors = limited(time, DayCosts(file))
    floors.ask("a", 2)
    now_at = pass_hours(floors, DAY_AT, 0.5)
    again = limited(time, DayCosts(file))
    again.ask("a", 2)
    again.count_costs(now_at + 9000, Decimal("1.5"), 3)
    assert again.costs.today("a") == Decimal("0.5"), "the time without a service costs nothing here"
    again.count_costs(DAY_AT + 86400, Decimal("1.5"), 3)
    assert again.costs.today("a") < Decimal("0.02")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"day": 20000, "costs": {"a": NaN}}', '{"day": 1, "costs": 5}'])
def test_a_damaged_file_begins_with_nothing(time: Time, tmp_path: Path, text: str) -> None:
    file = tmp_path / "ensembles.json"
    file.write_text(text)
    assert DayCosts(file).today("a") == 0


def test_a_clock_that_jumps_costs_a_minute_at_most(time: Time) -> None:
    floors = limited(time)
    floors.ask("a", 2)
    for at in (DAY_AT + 50_000, DAY_AT + 100, DAY_AT + 80_000):
        floors.count_costs(at, Decimal("1.5"), 3)
    assert floors.costs.today("a") <= Decimal("0.02")


# --- for people -------------------------------------------------------------------------------------------


def test_who_waits_for_whom_is_shown_until_it_gets_its_nodes(floors: Floors, time: Time) -> None:
    floors.ask("a", 5)
    floors.ask("b", 2)
    floors.ask("b", 4)
    shown = floors.claims()["b"]
    assert (shown.wanted, shown.asked, shown.kept) == (4, 2, 2)
    assert shown.reason == because(
        Code.ENSEMBLE_SHARE, wanted=4, have=3, nodes_max=6, others="a keeps 3 of 5 (weight 1)"
    )
    floors.ask("a", 0)
    assert floors.claims()["b"].reason == because(Code.ENSEMBLE_KEEPS, node_count=2)
    floors.ask("b", 4)
    assert (floors.claims()["b"].asked, floors.claims()["b"].kept) == (4, 4)
    floors.ask("b", 9)
    time.now_s += REFUSAL_S
    floors.lapse()
    assert "b" not in floors.claims()


def test_an_ensemble_of_the_site_is_shown_before_it_asks(time: Time) -> None:
    assert limited(time).claims()["a"].reason == because(Code.ENSEMBLE_ASKS_FOR_NOTHING)
