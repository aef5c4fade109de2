"""The verb ``suggest``: which settings it finds, what it leaves out, and the diff that it prints."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.cli.main import main
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.history.store.schema import migrate
from nodemanager.history.store.shapes import shape_to_json
from nodemanager.whatif.replay.result import Outcome, build_outcome
from nodemanager.whatif.replay.totals import RunTotals
from nodemanager.whatif.study.suggestion import Advice, Runs, advise, changes_to_try
from nodemanager.whatif.workload.open import open_synthetic
from nodemanager.whatif.workload.workload import Oddities
from tests.whatif.sites import a_site

JOBS = 150


def a_history(site: Site, *, began_s_ago: float = 86_400.0, jobs: int = JOBS) -> None:
    """Write the history of jobs that come about every five minutes and run for one."""
    site.state_dir.mkdir(exist_ok=True)
    began_at = time.time() - began_s_ago
    with closing(sqlite3.connect(site.state_dir / "journal.sqlite")) as connection:
        migrate(connection)
        with connection:
            for job in open_synthetic(f"poisson:jobs={jobs},every=5m,run=1m,seed=4", 12).read(Oddities()):
                submitted_at = began_at + job.submit_s
                times = submitted_at, submitted_at + 1.0, submitted_at + 1.0 + job.run_s
                shape = json.dumps(shape_to_json(job.shape))
                row = (job.name, *times, job.limit_s, 1, "", shape)
                connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def wasteful(folder: Path) -> Site:
    """A site that keeps idle nodes much longer than its jobs are worth."""
    site = a_site(folder)
    site.path.write_text(site.path.read_text().replace("idle_timeout = 5m", "idle_timeout = 40m  "))
    return load_site(site.path, {})


def test_a_long_idle_timeout_is_found_and_the_diff_applies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = wasteful(tmp_path)
    a_history(site)
    wanted = ["suggest", "--config", str(site.path), "--longer-wait", "2m", "--processes", "1"]
    assert main(wanted) == 0
    told = capsys.readouterr().out
    assert "[Policy] idle_timeout = " in told
    assert "as the site is" in told
    assert main([*wanted, "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    first = as_json["suggested"][0]
    assert first["key"] == "idle_timeout"
    assert first["alone"]["cost"] < as_json["before"]["cost"] - as_json["noise"]
    assert first["alone"]["wait_mean_s"] <= as_json["before"]["wait_mean_s"] + 120.0
    assert as_json["jobs"] == JOBS
    if shutil.which("patch"):
        subprocess.run(["patch", "-p0", "-s", str(site.path)], input=told, text=True, check=True)
        assert load_site(site.path, {}).policy.idle_timeout_s < site.policy.idle_timeout_s


def test_jobs_may_be_made_to_wait_no_longer_than_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every shorter idle timeout lets some job wait for a boot, so nothing is left to suggest."""
    site = wasteful(tmp_path)
    a_history(site)
    assert main(["suggest", "--config", str(site.path), "--longer-wait", "0s", "--processes", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Nothing to suggest" in printed.err


@pytest.mark.parametrize(
    ("jobs", "given", "status", "why"),
    [
        (0, [], 1, "not a journal with jobs"),
        (20, [], 1, "only 20 jobs were submitted in the last 30d"),
        (JOBS, ["--since", "1m"], 1, "only 0 jobs were submitted in the last 1m"),
        (JOBS, ["--since", "soon"], 2, '"soon"'),
        (JOBS, ["--jobs", "10"], 2, "needs at least 100 jobs"),
    ],
)
def test_too_few_jobs_or_a_wrong_option_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: int, given: list[str], status: int, why: str
) -> None:
    site = a_site(tmp_path)
    if jobs:
        a_history(site, jobs=jobs)
    assert main(["suggest", "--config", str(site.path), *given]) == status
    assert why in capsys.readouterr().err


# --- the search, on figures made up for it -----------------------------------------------------------------

NOTHING = build_outcome("", RunTotals(), events=0, plans=0, took_s=0.0)


def an_outcome(cost: float, wait_s: float = 10.0, served: int = 100) -> Outcome:
    return replace(NOTHING, cost=cost, wait_mean_s=wait_s, jobs_served=served)


def measured(price: Callable[[Site], Outcome], varies: float = 0.0) -> Callable[[Runs], Sequence[Outcome]]:
    """A study whose outcomes are said by the site. ``varies``: by how much each further seed costs more."""

    def measure(runs: Runs) -> Sequence[Outcome]:
        outcomes = [(site, price(site)) for _, site in runs]
        return [replace(it, cost=it.cost + varies * (site.simulation.seed - 3)) for site, it in outcomes]

    return measure


def keys(advice: Advice) -> Mapping[str, str]:
    return {it.change.key: it.change.value for it in advice.suggested}


def by_setting(site: Site) -> Outcome:
    saved = 20 * site.policy.consolidate + (10 if site.policy.idle_timeout_s == 60 else 0)
    return an_outcome(100.0 - saved)


def test_the_best_comes_first_and_settings_add_up(tmp_path: Path) -> None:
    advice = advise(a_site(tmp_path), measured(by_setting), 30.0)
    assert list(keys(advice).items()) == [("consolidate", "yes"), ("idle_timeout", "1m")]
    assert [it.together.cost for it in advice.suggested] == [80.0, 70.0]
    assert advice.tried == len(list(changes_to_try(a_site(tmp_path))))


def test_a_gain_within_noise_is_none(tmp_path: Path) -> None:
    """The site's own cost differs by 24 between the seeds, which is more than either setting saves."""
    advice = advise(a_site(tmp_path), measured(by_setting, varies=12.0), 30.0)
    assert advice.noise == pytest.approx(24.0)
    assert not advice.suggested


def test_a_setting_that_adds_nothing_to_a_better_one_is_left_out(tmp_path: Path) -> None:
    def price(site: Site) -> Outcome:
        return an_outcome(100.0 - max(20 * site.policy.consolidate, 10 * (site.policy.idle_timeout_s == 60)))

    assert keys(advise(a_site(tmp_path), measured(price), 30.0)) == {"consolidate": "yes"}


@pytest.mark.parametrize("outcome", [an_outcome(50.0, served=99), an_outcome(50.0, wait_s=41.0)])
def test_cheaper_by_serving_less_or_later_does_not_count(tmp_path: Path, outcome: Outcome) -> None:
    advice = advise(
        a_site(tmp_path), measured(lambda site: outcome if site.policy.consolidate else an_outcome(100.0)), 30.0
    )
    assert not advice.suggested


def test_nodes_kept_without_need_are_tried_too(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    site.path.write_text(
        site.path.read_text()
        .replace("[Policy]", "nodes_min = 4\n[Policy]")
        .replace("cores = 2", "cores = 2\nspares = 1")
    )
    tried = [str(it) for it in changes_to_try(load_site(site.path, {}))]
    assert {"[Limits] nodes_min = 0", "[Limits] nodes_min = 2", "[Node thin] spares = 0"} <= set(tried)
