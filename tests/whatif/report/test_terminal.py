"""The terminal output: no figure is cut, and every name is printed literally."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.report.findings import shorten
from nodemanager.whatif.report.terminal import print_summary, progress_bar
from nodemanager.whatif.study.study import Runner, Study
from tests.whatif.sites import a_job, a_site, a_workload, unseen

NAMED = "/srv/sites/of/the/cluster/in/the/cellar/one[/b]/site.ini"
OTHER = "/srv/sites/of/the/cluster/in/the/cellar/two[/b]/site.ini"
FIGURES = ("1,234,567.89", "1.000", "4.4 h", "12.5 h", "87%", "31415", "926", "53")


def _study(folder: Path, policy: str = NAMED) -> Study:
    played = Runner(a_workload([a_job(0.0)]), unseen).run_production(policy, a_site(folder))
    outcome = replace(
        played, cost=1234567.89, wait_mean_s=15851.0, wait_p95_s=45000.0, utilisation=0.87, boots=31415,
        peak_nodes=926, jobs_unserved={"waits": 53},
    )  # fmt: skip
    study = Study(a_site(folder), replace(a_workload([]), name="jobs[nov].json"), outcome)
    study.compared[OTHER] = replace(outcome, policy=OTHER)
    study.oddities.note("left out: odd", "job [red]7")
    return study


def _shown(study: Study, width: int, *, terminal: bool) -> list[str]:
    said = io.StringIO()
    print_summary(study, Console(file=said, width=width, force_terminal=terminal, color_system=None))
    return said.getvalue().splitlines()


def _rows(lines: list[str]) -> list[str]:
    return [line for line in lines if "1,234,567.89" in line]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_figure_is_cut(tmp_path: Path, width: int, *, terminal: bool) -> None:
    rows = _rows(_shown(_study(tmp_path), width, terminal=terminal))
    assert len(rows) == 2
    for row in rows:
        assert row.split()[1:] == " ".join(FIGURES).split()


def test_a_terminal_shows_the_end_of_a_name_in_the_room_that_figures_leave(tmp_path: Path) -> None:
    one, two = _rows(_shown(_study(tmp_path), 100, terminal=True))
    assert len(one.rstrip()) <= 100
    assert one.split()[0].startswith("…")
    assert one.split()[0].endswith("one[/b]/site.ini")
    assert two.split()[0].endswith("two[/b]/site.ini")


def test_what_is_no_terminal_shows_names_whole(tmp_path: Path) -> None:
    one, two = _rows(_shown(_study(tmp_path), 80, terminal=False))
    assert (one.split()[0], two.split()[0]) == (NAMED, OTHER)


def test_a_broken_rule_is_shown_as_a_fault_of_the_manager(tmp_path: Path) -> None:
    study = _study(tmp_path)
    study.main = replace(study.main, broken=("idle: thin is idle for 9 s",))
    assert "a fault of the manager: idle: thin is idle for 9 s" in _shown(study, 100, terminal=False)


def test_names_are_no_markup(tmp_path: Path) -> None:
    said = " ".join("\n".join(_shown(_study(tmp_path), 200, terminal=True)).split())
    assert f"{NAMED} compared with {OTHER}: costs the same" in said
    assert "jobs[nov].json, " in said
    assert "1 x left out: odd (job [red]7)" in said


def test_the_bar_of_a_run_bears_its_name(tmp_path: Path) -> None:
    said = io.StringIO()
    outcome: Outcome = _study(tmp_path, "x[/b]").main
    with progress_bar(Console(file=said, width=100, force_terminal=True, color_system=None), 64) as shown:
        shown("x[/b]", 64)
        shown.done(outcome)
    assert "x[/b]" in said.getvalue()


def test_a_name_keeps_its_end() -> None:
    assert shorten("idle_timeout=1m", 20) == "idle_timeout=1m"
    assert shorten("idle_timeout=10m", 8) == "…out=10m"
