"""The verb ``simulate``, from the command line to its outputs."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nodemanager.cli.main import main
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.notation import parse_fsd
from nodemanager.whatif.study.run_list import name_runs
from nodemanager.whatif.study.variants import SweepError, differences, read_sweep, with_key
from tests.paths import CONFIG
from tests.whatif.sites import a_site

SWEPT = ("nodes_max", "boot_failures", "price_per_hour_max", "idle_timeout")
WORKLOAD = "poisson:jobs=12,procs=4,run=5m"


def _simulate(*arguments: str) -> int:
    return main(["simulate", *arguments])


def test_a_study_is_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = str(a_site(tmp_path).path)
    assert _simulate(WORKLOAD, "--config", site, "--json", "--sweep", "idle_timeout=1m,10m") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["baselines"]) == {"fixed", "idle-timeout", "arvados"}
    assert list(told["swept"]) == ["idle_timeout=1m", "idle_timeout=10m"]
    assert told["swept"]["idle_timeout=1m"]["cost"] <= told["swept"]["idle_timeout=10m"]["cost"]
    assert told["main"]["jobs_served"] == 12
    assert told["bounds"]["work"] <= told["main"]["cost"]


def test_each_site_compared_has_bounds_of_its_own_if_its_prices_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = a_site(tmp_path).path
    dear, slow = site.with_name("dear.ini"), site.with_name("slow.ini")
    text = site.read_text()
    dear.write_text(text.replace("price_per_hour = 0.30", "price_per_hour = 0.90"))
    slow.write_text(text.replace("idle_timeout = 5m", "idle_timeout = 9m"))
    assert _simulate(WORKLOAD, "--config", str(site), "--json", "--compare", str(dear), str(slow)) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["compared_bounds"]) == {"dear"}
    assert told["compared_bounds"]["dear"]["work"] == pytest.approx(3 * told["bounds"]["work"])
    assert told["compared_bounds"]["dear"]["work"] <= told["compared"]["dear"]["cost"]
    assert _simulate(WORKLOAD, "--config", str(site), "--compare", str(dear)) == 0
    assert "dear: with its nodes and prices no fleet costs less than" in capsys.readouterr().out


def test_the_same_seed_tells_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for _ in range(2):
        assert _simulate(WORKLOAD, "--config", str(a_site(tmp_path).path), "--json", "--baselines", "none") == 0
        told.append(re.sub(r'"took_s": [0-9.e-]+', "", capsys.readouterr().out))
    assert told[0] == told[1]


def test_a_report_needs_nothing_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, other = tmp_path / "out.html", tmp_path / "other.ini"
    site = a_site(tmp_path)
    other.write_text(site.path.read_text().replace("per-second", "hourly"))
    arguments = ["--config", str(site.path), "--report", str(report), "--compare", str(other)]
    assert _simulate(WORKLOAD, *arguments) == 0
    page = report.read_text()
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert "[Node thin] billing" in page
    assert page.count("<svg") >= 4
    said = capsys.readouterr().out
    assert "compared with other:" in said
    assert "plans per event" in said


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        ([], 2, "required: WORKLOAD"),
        (["nowhere.swf"], 1, "nowhere.swf: cannot be read"),
        (["{empty}"], 1, "empty.swf: it has no job that can be replayed: 1 x the header says another number"),
        ([WORKLOAD, "--sweep", "idle_timeout=soon"], 1, "idle_timeout = soon"),
        ([WORKLOAD, "--sweep", "patients=1m"], 1, 'no such key "patients"'),
        ([WORKLOAD, "--baselines", "slurm"], 1, 'unknown policy "slurm"'),
        ([WORKLOAD, "--compare", "none.ini"], 78, "none.ini"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, why: str
) -> None:
    empty = tmp_path / "empty.swf"
    empty.write_text("; MaxRecords: 3\n")
    given = [it.format(empty=empty) for it in arguments]
    assert _simulate(*given, "--config", str(a_site(tmp_path).path)) == status
    assert why in capsys.readouterr().err


def test_a_sweep_goes_from_one_value_to_the_other() -> None:
    sweep = read_sweep("idle_timeout=1m..16m/5")
    assert sweep.values == ("1m", "2m", "4m", "8m", "16m")
    assert read_sweep("nodes_max=1..100/3").values == ("1", "10", "100")
    assert read_sweep("idle_timeout=30s..1h/5").values == ("30s", "1.7m", "5.5m", "18m", "1h")
    assert read_sweep("nodes_max=7..1234/2").values == ("7", "1234")
    for text in ("idle_timeout", "idle_timeout=1h..1m", "idle_timeout=1m..2m/1", "idle_timeout=a..b"):
        with pytest.raises(SweepError):
            read_sweep(text)


def test_a_sweep_of_numbers_runs_what_lies_within_its_span() -> None:
    assert read_sweep("boot_failures=0.1..0.9/5").values == ("0.1", "0.17", "0.3", "0.52", "0.9")
    assert read_sweep("spot_reclaims_per_hour=0.01..0.4/3").values == ("0.01", "0.063", "0.4")
    assert read_sweep("price_per_hour_max=1.05..1.07/3").values == ("1.05", "1.06", "1.07")
    assert read_sweep("idle_timeout=90..1h/3").values == ("90", "9.5m", "1h")
    assert read_sweep("nodes_max=101..104/4").values == ("101", "102", "103", "104")


def test_a_sweep_of_whole_numbers_that_has_fewer_than_its_steps_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = read_sweep("boot_failures_max=1..3/7")
    assert sweep.values == ("1", "2", "3")
    assert sweep.caution == "--sweep boot_failures_max=1..3/7: there are only 3 values: 1, 2, 3"
    arguments = ["--sweep", "boot_failures_max=1..3", "--baselines", "none"]
    assert _simulate(WORKLOAD, "--config", str(a_site(tmp_path).path), *arguments) == 0
    assert "there are only 3 values: 1, 2, 3" in capsys.readouterr().err


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e3), st.integers(2, 30), st.sampled_from(SWEPT))
def test_a_sweep_has_its_steps_and_rises_from_end_to_end(low: float, more: float, steps: int, key: str) -> None:
    first, last = f"{low:.9f}", f"{low + more:.9f}"
    assume(float(first) < float(last))
    sweep = read_sweep(f"{key}={first}..{last}/{steps}")
    values = [parse_fsd(value) for value in sweep.values]
    assert (sweep.values[0], sweep.values[-1]) == (first, last)
    assert all(before < after for before, after in pairwise(values))
    assert bool(sweep.caution) == (len(values) < steps)
    if key == "nodes_max":
        assert all(value.isdigit() for value in sweep.values[1:-1])


def test_a_key_of_another_value_is_the_only_difference(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    other = with_key(site, "idle_timeout", "1h")
    assert differences(site, other) == {"[Policy] idle_timeout": ("5m", "1h")}


@pytest.mark.parametrize("name", ["kth.ini", "kth-hourly.ini"])
def test_the_example_sites_are_good(name: str) -> None:
    site = load_site(CONFIG / name, {})
    assert len(site.slots) == site.limits.nodes_max == 100


@pytest.mark.parametrize("name", ["azure.ini", "openstack.ini", "ec2.ini", "gce.ini"])
def test_no_secret_of_the_cloud_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for secret in ("AZURE_CLIENT_SECRET", "OS_APPLICATION_CREDENTIAL_SECRET"):
        monkeypatch.delenv(secret, raising=False)
    site = str(CONFIG / name)
    arguments = ["--config", site, "--compare", site, "--baselines", "none", "--processes", "1", "--json"]
    assert _simulate("poisson:jobs=4,procs=2,run=5m", *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert [it["jobs_served"] for it in (told["main"], *told["compared"].values())] == [4, 4]


# --- comparing sites --------------------------------------------------------------------------------------


def _a_copy(site: Site, path: Path, was: str = "", now: str = "") -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(site.path.read_text().replace(was, now) if was else site.path.read_text())
    return str(path)


def test_sites_whose_files_have_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = a_site(tmp_path)
    others = [_a_copy(site, tmp_path / name) for name in ("o1/small.ini", "o2/small.ini", "fixed.ini", "k.ini")]
    arguments = ["--config", str(site.path), "--compare", *others, "--baselines", "fixed", "--json"]
    assert _simulate(WORKLOAD, *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["compared"]) == [*others[:3], "k"]
    assert told["main"]["policy"] == str(site.path)
    assert list(told["baselines"]) == ["fixed"]


@given(st.lists(st.sampled_from(["a/x.ini", "b/x.ini", "fixed", "fixed.ini", "k=1.ini", "y.ini"]), max_size=8))
def test_no_two_runs_have_one_name(paths: list[str]) -> None:
    others = {"fixed", "k=1"}
    names = name_runs(paths, others)
    assert len({*names, *others}) == len(paths) + len(others)


@pytest.mark.parametrize("actors", [[], ["--actors"]])
def test_a_seed_and_the_actors_are_for_all_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], actors: list[str]
) -> None:
    site = a_site(tmp_path, simulation="boot_failures = 0.4")
    other = _a_copy(site, tmp_path / "other.ini", "seed = 3", "seed = 5")
    sweep = ["--sweep", "idle_timeout=5m,10m", "--seed", "7", "--baselines", "none", "--json"]
    assert (
        _simulate("poisson:jobs=4,procs=4,run=5m", "--config", str(site.path), "--compare", other, *sweep, *actors)
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["differences"] == {"other": {}}
    same = [told["main"], told["compared"]["other"], told["swept"]["idle_timeout=5m"]]
    for outcome in same:
        del outcome["took_s"], outcome["policy"]
    assert same[0] == same[1] == same[2]


@pytest.mark.parametrize(
    ("queue_policy", "market", "simulation", "arguments", "why"),
    [
        ("backfill", "on-demand", "", [], "small: --actors .* queue_policy = backfill"),
        ("fifo", "on-demand", "", ["--compare", "{other}"], "other: --actors .* queue_policy = backfill"),
        ("fifo", "on-demand", "", ["--sweep", "queue_policy=fifo,backfill"], "=backfill: --actors"),
        ("fifo", "spot", "spot_reclaims_per_hour = 1", [], "small: --actors does not reclaim spot nodes"),
        ("fifo", "on-demand", "", ["--journal", "{out}"], "--actors does not write a journal"),
    ],
)
def test_what_the_actors_cannot_do_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    queue_policy: str,
    market: str,
    simulation: str,
    arguments: list[str],
    why: str,
) -> None:
    site = a_site(tmp_path, queue_policy=queue_policy, market=market, simulation=simulation)
    other = _a_copy(site, tmp_path / "other.ini", "= fifo", "= backfill")
    given = [it.format(other=other, out=tmp_path / "out.jsonl") for it in arguments]
    assert _simulate(WORKLOAD, "--config", str(site.path), "--actors", *given) == 1
    assert re.search(why, capsys.readouterr().err)
