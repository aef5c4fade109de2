"""Runs on the fast replay engine: totals, event log, limits, failures."""

from __future__ import annotations

import io
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from nodemanager.core.jobs import Shape
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.report.html import render_report
from nodemanager.whatif.report.terminal import print_summary
from nodemanager.whatif.study.study import Runner, Study
from nodemanager.whatif.study.variants import with_key
from nodemanager.whatif.workload.event_log import open_event_log
from nodemanager.whatif.workload.open import open_synthetic
from nodemanager.whatif.workload.workload import TraceJob, Workload
from tests.whatif.sites import a_job, a_site, a_workload, unseen

JOBS = st.lists(
    st.builds(
        a_job,
        submit_s=st.integers(0, 20_000).map(float),
        run_s=st.integers(1, 5000).map(float),
        slots=st.integers(1, 14),
    ),
    min_size=1,
    max_size=12,
).map(lambda jobs: sorted(jobs, key=lambda job: job.submit_s))
SIMULATIONS = st.sampled_from(["", "boot_failures = 0.3", "spot_reclaims_per_hour = 0.3"])


def _run(folder: Path, workload: Workload, **site: object) -> tuple[Outcome, str]:
    sink = io.StringIO()
    outcome = Runner(workload, unseen).run_production("small", a_site(folder, **site), sink)  # type: ignore[arg-type]
    return outcome, sink.getvalue()


def _cost_by_journal(text: str) -> Decimal:
    """Compute the cost from the event log alone, with an independent reading of the billing rules."""
    cost = Decimal(0)
    standing: dict[str, dict[str, Any]] = {}
    for line in map(json.loads, text.splitlines()):
        if line["what"] == "created":
            standing[line["node"]] = line
        elif line["what"] == "gone":
            born = standing.pop(line["node"])
            lived_s = max(line["at"] - born["at"], born["minimum_s"])
            windows = max(1, math.ceil(lived_s / born["window_s"]))
            cost += Decimal(born["price_per_hour"]) * Decimal(windows * born["window_s"]) / 3600
    assert not standing, "a node that no line sees gone"
    return cost


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS, st.sampled_from(["per-second", "per-minute", "hourly"]), SIMULATIONS)
def test_the_cost_is_what_the_journal_adds_up_to(jobs: list[TraceJob], billing: str, simulation: str) -> None:
    with TemporaryDirectory() as folder:
        outcome, journal = _run(
            Path(folder), a_workload(jobs), billing=billing, simulation=simulation, market="spot"
        )
    assert float(_cost_by_journal(journal)) == pytest.approx(outcome.cost, abs=1e-9)
    assert outcome.jobs == len(jobs) == outcome.jobs_served + sum(outcome.jobs_unserved.values())
    parts = outcome.cost_busy + outcome.cost_lost + outcome.cost_idle + outcome.cost_boot + outcome.cost_unused
    assert parts == pytest.approx(outcome.cost)
    assert outcome.cost_busy >= -1e-9


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS, SIMULATIONS)
def test_a_run_replayed_from_its_journal_is_the_same_to_the_byte(jobs: list[TraceJob], simulation: str) -> None:
    with TemporaryDirectory() as folder:
        first, journal = _run(Path(folder), a_workload(jobs), simulation=simulation, market="spot")
        path = Path(folder) / "run.jsonl"
        path.write_text(journal)
        again, replayed = _run(Path(folder), open_event_log(path), simulation=simulation, market="spot")
    assert replayed == journal
    assert again == first


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JOBS, st.sampled_from(["per-second", "hourly"]))
def test_no_policy_costs_less_than_the_work_itself(jobs: list[TraceJob], billing: str) -> None:
    with TemporaryDirectory() as folder:
        site = a_site(Path(folder), billing=billing)
        runner = Runner(a_workload(jobs), unseen)
        fixed, bounds = runner.run_baseline("fixed", site)
        others = [runner.run_baseline(name, site)[0] for name in ("idle-timeout", "arvados")]
        for outcome in (fixed, *others, runner.run_production("small", site)):
            assert outcome.cost >= bounds.work - 1e-6
            assert outcome.peak_nodes <= 6
    assert fixed.cost >= bounds.same_starts - 1e-6 >= bounds.work - 2e-6


def test_a_job_larger_than_the_site_is_reported_and_holds_up_nobody(tmp_path: Path) -> None:
    outcome, _ = _run(tmp_path, a_workload([a_job(0.0, slots=13, name="huge"), a_job(10.0)]))
    assert outcome.jobs_served == 1
    ((job, why),) = outcome.unserved_examples
    assert job == "huge"
    assert why == "larger than the site: needs 13 slots of 1 cores, all its slots together have 12"


def test_a_job_beyond_the_limits_is_reported_with_those_it_holds_up(tmp_path: Path) -> None:
    jobs = [a_job(0.0, slots=8, name="wide"), a_job(10.0, name="behind")]
    outcome, _ = _run(tmp_path, a_workload(jobs), nodes_max=3)
    assert outcome.jobs_served == 0
    assert outcome.unserved_examples == (("wide", "beyond_limits"), ("behind", "behind_a_stuck_job"))


def test_a_reclaimed_node_costs_its_jobs_their_time_and_they_run_again(tmp_path: Path) -> None:
    jobs = [a_job(0.0, run_s=7200.0, slots=8)]
    outcome, journal = _run(tmp_path, a_workload(jobs), simulation="spot_reclaims_per_hour = 0.2", market="spot")
    assert outcome.reclaims > 0
    assert outcome.restarts > 0
    assert outcome.jobs_served == 1
    assert '"why":"reclaimed"' in journal


def test_nodes_that_fail_to_boot_are_replaced(tmp_path: Path) -> None:
    outcome, _ = _run(tmp_path, a_workload([a_job(0.0, slots=12)]), simulation="boot_failures = 0.5")
    assert outcome.boot_failures > 0
    assert outcome.jobs_served == 1


def test_a_cloud_that_has_too_few_nodes_makes_jobs_wait(tmp_path: Path) -> None:
    jobs = [a_job(0.0, slots=4, run_s=600.0), a_job(1.0, slots=4, run_s=600.0)]
    outcome, _ = _run(tmp_path, a_workload(jobs), simulation="capacity = 2")
    assert outcome.jobs_served == 2
    assert outcome.creates_refused > 0
    assert outcome.wait_p99_s > 600


def test_the_baselines_serve_every_job_there_is_room_for(tmp_path: Path) -> None:
    workload = open_synthetic("lublin:jobs=60,seed=2,procs=12", 12)
    runner = Runner(workload, unseen)
    for name in ("fixed", "idle-timeout", "arvados"):
        outcome, _ = runner.run_baseline(name, a_site(tmp_path))
        assert outcome.jobs_served == 60
        assert not outcome.jobs_unserved


def test_an_idle_timeout_costs_ten_minutes_beyond_the_work(tmp_path: Path) -> None:
    site = a_site(tmp_path, simulation="boot_delay = 100s\nstop_delay = 20s")
    outcome, _ = Runner(a_workload([a_job(0.0, run_s=1000.0)]), unseen).run_baseline("idle-timeout", site)
    assert outcome.types["thin"].cost_idle == pytest.approx(0.30 * 600 / 3600, rel=0.02)


def test_the_wishlist_lets_a_node_go_in_its_window_only(tmp_path: Path) -> None:
    outcome, _ = Runner(a_workload([a_job(0.0, run_s=1000.0)]), unseen).run_baseline("arvados", a_site(tmp_path))
    assert 54 / 60 <= outcome.types["thin"].hours <= 1.0


def test_exclusive_jobs_are_served_whole_nodes(tmp_path: Path) -> None:
    shape = Shape(nodes=2, slots=1, cores_per_slot=1, exclusive=True)
    outcome, _ = _run(tmp_path, a_workload([TraceJob("pair", 0.0, 600.0, 0.0, shape)]))
    assert outcome.jobs_served == 1
    assert outcome.peak_nodes == 2


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_a_job_that_waits_behind_a_long_one_is_served_when_that_ends(tmp_path: Path, queue_policy: str) -> None:
    """Nothing starts for ten hours while the first job runs. The second job must not be given up."""
    long = TraceJob("long", 0.0, 36_000.0, 36_000.0, Shape(1, 1), 0)
    wide = TraceJob("wide", 10.0, 60.0, 60.0, Shape(12, 1), 0)
    outcome, _ = _run(tmp_path, a_workload([long, wide]), queue_policy=queue_policy)
    assert (outcome.jobs_served, outcome.jobs_unserved) == (2, {})


def test_a_job_that_comes_long_after_all_others_is_served(tmp_path: Path) -> None:
    jobs = [TraceJob(str(at), at, 60.0, 60.0, Shape(1, 1), 0) for at in (0.0, 90_000.0)]
    outcome, _ = _run(tmp_path, a_workload(jobs))
    assert outcome.jobs_served == 2


@pytest.mark.parametrize("lost", ["0", "0.05", "2"])
def test_nodes_that_always_stand_are_paid_for_until_the_last_job_ends(tmp_path: Path, lost: str) -> None:
    """Even if the cloud would have reclaimed them some day."""
    site = a_site(tmp_path, market="spot", simulation=f"spot_reclaims_per_hour = {lost}")
    sink = io.StringIO()
    workload = a_workload([a_job(0.0), a_job(5000.0)])
    outcome = Runner(workload, unseen).run_production("small", with_key(site, "nodes_min", "2"), sink)
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    last_s = max(line["at"] for line in lines if line["what"] == "end")
    assert outcome.jobs_served == 2
    assert outcome.cost <= 0.30 * 2 * last_s / 3600 + 0.01
    assert outcome.ended_s < last_s + 3600
    assert float(_cost_by_journal(sink.getvalue())) == pytest.approx(outcome.cost, abs=1e-9)


def test_a_cluster_that_waits_for_a_stuck_job_is_paid_for_as_long_as_jobs_came(tmp_path: Path) -> None:
    """The time until the replay gives up on a job costs no policy anything."""
    jobs = [a_job(0.0, run_s=3000.0), a_job(10.0, slots=8, name="stuck")]
    site = a_site(tmp_path, nodes_max=2)
    fixed, _ = Runner(a_workload(jobs), unseen).run_baseline("fixed", site)
    assert fixed.jobs_served == 1
    assert fixed.cost == pytest.approx(0.30 * 2 * 3100 / 3600, abs=0.02)


def test_boots_that_outlast_their_time_are_not_planned_for_without_end(tmp_path: Path) -> None:
    """A node that should have joined also gets its time to rejoin: until then the plan does not change."""
    site = a_site(tmp_path, simulation="boot_delay = 5m\n[Timing]\nboot_timeout = 1m\nrejoin_timeout = 10m")
    outcome = Runner(a_workload([a_job(0.0), a_job(100.0)]), unseen).run_production("small", site)
    assert outcome.jobs_served == 2
    assert outcome.plans < 2 * outcome.events


def test_what_reclaims_cost_a_job_is_its_wait_and_a_part_of_the_cost(tmp_path: Path) -> None:
    """A job on one of two cores: a lost run costs the whole node, because no other job ran on it."""
    outcome, journal = _run(
        tmp_path,
        a_workload([a_job(0.0, run_s=7200.0)]),
        simulation="spot_reclaims_per_hour = 1",
        market="spot",
    )
    lines = [json.loads(line) for line in journal.splitlines()]
    starts = [line["at"] for line in lines if line["what"] == "start"]
    taken_back = [line["at"] for line in lines if line["what"] == "gone" and line["why"] == "reclaimed"]
    (ended_s,) = (line["at"] for line in lines if line["what"] == "end")
    lost_s = sum(min(at_s for at_s in taken_back if at_s > start_s) - start_s for start_s in starts[:-1])
    assert outcome.restarts == len(starts) - 1 > 0
    assert outcome.lost_core_hours == pytest.approx(lost_s / 3600)
    assert outcome.cost_lost == pytest.approx(0.30 * lost_s / 3600)
    assert outcome.cost_busy == pytest.approx(0.30 * 2.0)
    assert outcome.wait_mean_s == pytest.approx(ended_s - 7200.0)
    assert outcome.slowdown_mean == pytest.approx(ended_s / 7200.0)


GPU_NODE = """
[Node gpu]
cores = 4
gpus = 2
memory = 1GiB
price_per_hour = 3.60
market = spot
billing = per-second
slots = gpu[1-4]
"""


def test_a_lost_run_on_a_shared_node_costs_its_share_of_the_cores_or_of_the_gpus(tmp_path: Path) -> None:
    """Each job holds one of the two GPUs: half of the node, although the lost one has twice the cores."""
    short = TraceJob("short", 0.0, 600.0, 0.0, Shape(slots=1, cores_per_slot=1, gpus_per_slot=1))
    long = TraceJob("long", 0.0, 20_000.0, 0.0, Shape(slots=1, cores_per_slot=2, gpus_per_slot=1))
    outcome, journal = _run(
        tmp_path, a_workload([short, long]), simulation="spot_reclaims_per_hour = 0.5\n" + GPU_NODE
    )
    lines = [json.loads(line) for line in journal.splitlines()]
    starts = [line["at"] for line in lines if line["what"] == "start" and line["job"] == "long"]
    taken_back = [line["at"] for line in lines if line["what"] == "gone" and line["why"] == "reclaimed"]
    lost_s = [min(at_s for at_s in taken_back if at_s > start_s) - start_s for start_s in starts[:-1]]
    assert sum(line["what"] == "created" for line in lines) == len(starts) > 1  # both ran on the first node
    assert lost_s[0] > 600.0
    on_shared_s = lost_s[0] * lost_s[0] / (lost_s[0] + 600.0)
    assert outcome.cost_lost == pytest.approx(3.60 * (on_shared_s + sum(lost_s[1:])) / 3600)


def test_restarted_jobs_are_shown_with_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lossy = a_site(tmp_path, simulation="spot_reclaims_per_hour = 1", market="spot")
    shown = []
    for site in (lossy, with_key(lossy, "spot_reclaims_per_hour", "0")):
        outcome = Runner(a_workload([a_job(0.0, run_s=7200.0)]), unseen).run_production("small", site)
        study = Study(site, a_workload([]), outcome)
        print_summary(study, Console(width=200))
        shown.append((capsys.readouterr().out, render_report(study)))
    for said in shown[0]:
        assert re.search(r"restarted|job restarts", said)
    assert "core-hours lost" in shown[0][1]
    assert not any(re.search(r"restarted|job restarts|core-hours lost", said) for said in shown[1])
