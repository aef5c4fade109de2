"""The sentences of a study, and its HTML page."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nodemanager.config.load import load_site
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.report.charts import (
    BOTTOM,
    LETTER,
    LINE,
    Group,
    Labels,
    cost_against_wait,
    format_money,
    steps,
    wait_marks,
)
from nodemanager.whatif.report.findings import compare, details, headline, sentences
from nodemanager.whatif.report.html import render_report
from nodemanager.whatif.report.terminal import print_summary
from nodemanager.whatif.study.study import CostBounds, Runner, Study, cost_at_wait, fixed_ranks, pareto_front
from nodemanager.whatif.workload.workload import Processors
from tests.whatif.sites import a_job, a_site, a_workload, unseen


def _outcome(folder: Path) -> Outcome:
    jobs = [a_job(at_s, slots=3) for at_s in (0.0, 100.0, 9000.0)]
    return Runner(a_workload(jobs), unseen).run_production("mine", a_site(folder))


# --- in words ---------------------------------------------------------------------------------------------


def test_a_policy_is_compared_by_its_cost_and_its_waits(tmp_path: Path) -> None:
    mine = replace(_outcome(tmp_path), cost=88.0, wait_mean_s=160.0, wait_p95_s=300.0)
    other = replace(mine, cost=100.0, wait_mean_s=100.0, wait_p95_s=120.0)
    assert compare(mine, other) == "12 % cheaper, mean wait 60 seconds longer, p95 wait 3 minutes longer"
    same = "mean wait the same, p95 wait the same"
    assert compare(mine, replace(mine, cost=80.0)) == f"10 % more expensive, {same}"
    assert compare(mine, replace(mine, cost=88.04)) == f"costs the same, {same}"


def test_a_small_saving_has_a_decimal(tmp_path: Path) -> None:
    mine = replace(_outcome(tmp_path), cost=99.6)
    assert compare(mine, replace(mine, cost=100.0)).startswith("0.4 % cheaper, ")
    assert compare(mine, replace(mine, cost=95.6)).startswith("4.2 % more expensive, ")


def test_a_policy_that_leaves_jobs_unserved_is_said_to_before_what_it_costs(tmp_path: Path) -> None:
    mine = _outcome(tmp_path)
    other = replace(mine, cost=1.0, jobs_served=2)
    assert compare(replace(mine, cost=2.0), other) == "serves 1 job more, for 2.00 instead of 1.00"
    assert compare(other, replace(mine, cost=2.0)) == "serves 1 job fewer, for 1.00 instead of 2.00"
    none = replace(mine, cost=0.0, jobs_served=0)
    assert compare(none, replace(none, cost=2.0)) == "neither serves a job, for 0.00 and 2.00"


def test_what_the_site_leaves_unserved_is_told_first(tmp_path: Path) -> None:
    mine = replace(_outcome(tmp_path), jobs_served=1, jobs_unserved={"beyond_limits": 2}, cost=1.0)
    study = Study(a_site(tmp_path), a_workload([]), mine)
    assert headline(study).startswith("mine leaves 2 of 3 jobs unserved. 1.00 for 1 jobs")
    study.baselines["fixed"] = replace(mine, policy="fixed", jobs_served=3, jobs_unserved={}, cost=2.0)
    assert headline(study) == (
        "mine leaves 2 of 3 jobs unserved. mine compared with fixed: serves 2 jobs fewer, for 1.00 instead of 2.00."
    )


def test_only_runs_that_serve_as_many_jobs_are_on_the_front_and_in_ratios(tmp_path: Path) -> None:
    mine = replace(_outcome(tmp_path), cost=10.0, wait_mean_s=100.0)
    idler = replace(mine, policy="idler", cost=1.0, wait_mean_s=0.0, jobs_served=1)
    none = replace(idler, cost=0.0, jobs_served=0)
    assert pareto_front([mine, idler, none]) == [mine]
    assert pareto_front([none]) == []
    other = replace(mine, policy="other", cost=20.0)
    assert cost_at_wait([mine, idler], other) == 10.0
    assert cost_at_wait([idler, none], other) is None
    study = Study(a_site(tmp_path), a_workload([]), mine, bounds=CostBounds(9.0, 8.0))
    study.baselines.update({"fixed": other, "idler": idler})
    page = render_report(study)
    assert "<td>0.500</td>" in page
    assert "<td>10.000</td>" not in page
    assert "At the mean wait of idler" not in page
    assert "this site costs 1.250 times as much" in page
    page = render_report(replace(study, main=none))
    assert "No fleet that serves the 3 jobs of the fixed cluster costs less than 8.00" in page
    assert "times as much" not in page


def test_a_sweep_of_which_no_step_serves_a_job_offers_nothing(tmp_path: Path) -> None:
    mine = _outcome(tmp_path)
    study = Study(a_site(tmp_path), a_workload([]), mine)
    study.swept["x=1"] = replace(mine, policy="x=1", jobs_served=0, cost=0.0)
    assert sentences(study) == []
    assert "<svg" in render_report(study)


def test_the_sentence_on_top_is_of_the_first_to_compare_with_and_the_others_follow(tmp_path: Path) -> None:
    mine = _outcome(tmp_path)
    study = Study(a_site(tmp_path), a_workload([]), mine)
    waits = f"mean wait {mine.wait_mean_s:.0f} seconds, p95 wait {mine.wait_p95_s:.0f} seconds"
    assert headline(study) == f"{mine.cost:,.2f} for 3 jobs, {waits}."
    study.baselines["fixed"] = replace(mine, policy="fixed", cost=mine.cost * 2)
    study.swept["idle_timeout=1m"] = replace(mine, policy="idle_timeout=1m", cost=mine.cost * 0.9)
    study.swept["idle_timeout=9m"] = replace(mine, policy="idle_timeout=9m", cost=mine.cost * 1.2)
    assert headline(study) == "mine compared with fixed: 50 % cheaper, mean wait the same, p95 wait the same."
    assert sentences(study)[1:] == [
        (
            "idle_timeout=1m, the cheapest of the sweep, compared with mine: 10 % cheaper, mean wait the same, "
            "p95 wait the same."
        )
    ]


def test_the_sentence_on_top_compares_with_every_baseline(tmp_path: Path) -> None:
    mine = replace(_outcome(tmp_path), cost=10.0)
    study = Study(a_site(tmp_path), a_workload([]), mine)
    study.baselines["fixed"] = replace(mine, policy="fixed", cost=20.0)
    study.baselines["idle-timeout"] = replace(
        mine, policy="idle-timeout", cost=8.0, wait_mean_s=mine.wait_mean_s + 9
    )
    assert headline(study) == (
        "mine costs 10.00. Compared with fixed: 50 % cheaper, mean wait the same; with idle-timeout: 25 % more "
        "expensive, mean wait 9 seconds shorter."
    )
    assert details(study) == sentences(study), "which also compare the longest waits"


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_says_what_a_type_cost_and_names_cannot_break_it(tmp_path: Path) -> None:
    mine = _outcome(tmp_path)
    study = Study(a_site(tmp_path), a_workload([]), replace(mine, policy="<b>&"))
    study.compared["x"] = replace(mine, policy="x" * 90)
    study.differences["x"] = {"[Policy] idle_timeout": ("5m", "<1m>")}
    page = render_report(study)
    assert "<b>" not in page
    assert "&lt;1m&gt;" in page
    assert re.search(r"<td>thin</td><td>on-demand</td>", page)


def test_each_bound_is_said_with_what_it_holds_for(tmp_path: Path) -> None:
    """Fleets that start some jobs earlier than the fixed cluster may cost less than the higher bound."""
    mine = replace(_outcome(tmp_path), cost=12.0)
    study = Study(a_site(tmp_path), a_workload([]), mine, bounds=CostBounds(same_starts=11.0, work=10.0))
    study.baselines["fixed"] = replace(mine, policy="fixed", cost=20.0)
    page, console = render_report(study), Console(record=True, width=200, file=StringIO())
    print_summary(study, console)
    for said, higher in (
        (page, "with every job starting as on fixed<"),
        (console.export_text(), "or less than 11.00 "),
    ):
        assert "with every job starting when it did on the fixed cluster" in said
        assert higher in said
        assert "longer than the fixed cluster" not in said
    assert "No fleet costs less than 10.00, however long jobs wait: this site costs 1.200 times as much" in page


def test_marks_are_round_and_carry_their_units() -> None:
    assert steps(0.0, 36.0, 4, least=1.0) == [0, 10, 20, 30]
    assert steps(0.0, 2.0, 4, least=1.0) == [0, 1, 2]
    assert format_money([0.0, 5000.0, 10_000.0, 15_000.0]) == ["0", "5k", "10k", "15k"]
    assert format_money([0.0, 0.5, 1.0]) == ["0", "0.5", "1"]
    assert [said for _, said in wait_marks(8.0, 200.0)] == ["10 s", "20 s", "30 s", "1 min", "2 min"]
    assert [said for _, said in wait_marks(4.33 * 3600, 4.42 * 3600)] == [
        "4.34 h",
        "4.36 h",
        "4.38 h",
        "4.4 h",
        "4.42 h",
    ]


@given(st.floats(0.0, 1e9), st.floats(1e-3, 1e9), st.sampled_from([0.0, 1.0]))
def test_marks_lie_within_at_even_distances(low: float, reach: float, least: float) -> None:
    high = low + reach
    marks = steps(low, high, least=least)
    assert len(marks) <= 6
    assert all(low - 1e-6 * high <= mark <= high * (1 + 1e-6) for mark in marks)
    if least and reach >= 10:
        assert all(mark == int(mark) for mark in marks)
    gaps = [after - before for before, after in pairwise(marks)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-3) for gap in gaps)


@given(
    st.lists(
        st.tuples(st.floats(100, 700), st.floats(40, 300), st.text("abc", min_size=1, max_size=30)), max_size=15
    )
)
def test_no_name_lies_on_another_one(points: list[tuple[float, float, str]]) -> None:
    labels = Labels((78.0, 30.0, 840.0, 374.0))
    written = [labels.write(x, y, name) for x, y, name in points]
    boxes = []
    for said in filter(None, written):
        found = re.search(r'x="([-\d.]+)" y="([-\d.]+)".*anchor="(\w+)">(\w+)<', said)
        assert found
        x, y, wide = float(found[1]), float(found[2]), len(found[4]) * LETTER
        left = {"start": x, "end": x - wide, "middle": x - wide / 2}[found[3]]
        boxes.append((left, y - LINE * 0.8, left + wide, y + LINE * 0.2))
    for one, other in combinations(boxes, 2):
        apart = max(one[0], other[0]) - min(one[2], other[2]), max(one[1], other[1]) - min(one[3], other[3])
        assert max(apart) >= -0.2  # as exact as coordinates are written
    assert all(box[0] >= 77.9 and box[2] <= 840.1 for box in boxes)


@given(
    st.floats(60, 340),
    st.floats(0.5, 280),
    st.booleans(),
    st.lists(st.tuples(st.floats(90, 830), st.floats(40, 370)), max_size=8),
)
def test_a_bound_has_its_name_by_its_own_line(
    y: float, apart: float, rises: bool, dots: list[tuple[float, float]]
) -> None:
    labels = Labels((78.0, 30.0, 840.0, 374.0))
    for at in dots:
        labels.keep_clear(*at, 5.0)
    low = min(355.0, y + apart)
    lines = [(y, "no fleet with no extra wait costs less"), (low, "no fleet costs less")]
    written = labels.write_lines(lines if rises else lines[::-1], "tick")
    for name in written:
        found = re.search(r' y="([-\d.]+)"', name)
        assert found
        top, foot = float(found[1]) - LINE * 0.8, float(found[1]) + LINE * 0.2
        own, other = (y, low) if "extra" in name else (low, y)
        gaps = {line: max(top - line, line - foot) for line in (own, other)}
        assert 2.9 < gaps[own] < 3.1  # as exact as coordinates are written
        assert gaps[other] > gaps[own]


def test_a_bound_near_nothing_has_room_for_its_name_above_the_axis(tmp_path: Path) -> None:
    run = replace(_outcome(tmp_path), cost=11.0)
    picture = cost_against_wait([Group("main", [run])], [("upper", 0.02), ("lower", 0.01)])
    found = re.search(r'y="([-\d.]+)" class="tick" text-anchor="end">lower<', picture)
    assert found
    assert float(found[1]) + LINE * 0.2 <= 420.0 - BOTTOM


def test_names_of_bounds_that_lie_close_stand_on_either_side_of_them() -> None:
    labels = Labels((78.0, 30.0, 840.0, 374.0))
    upper, lower = labels.write_lines([(200.0, "upper"), (206.0, "lower")], "tick")
    assert 'y="194.0"' in upper
    assert 'y="221.0"' in lower


# --- the fixed cluster ------------------------------------------------------------------------------------


def test_the_fixed_cluster_has_each_type_by_its_share_and_the_processors_of_the_trace(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    text = site.path.read_text()
    thick = (
        text[text.index("[Node thin]") :].replace("thin", "thick").replace("[1-6]", "[1-2]").replace("0.30", "9")
    )
    site.path.write_text(text.replace("nodes_max = 6", "nodes_max = 5") + thick)
    site = load_site(site.path, {})
    assert sorted(fixed_ranks(site, a_workload([]))) == [1, 2, 3, 4, 7]
    traced = replace(a_workload([]), processors=4)
    assert len(fixed_ranks(site, traced)) == 2
    assert len(fixed_ranks(site, replace(traced, each=Processors.NODES))) == 4
