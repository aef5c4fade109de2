"""Jobs without GPUs on a site that has a dear type with GPUs: what they pay for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.core.slots import OnlyFor
from nodemanager.whatif.replay.baselines import IDLE_TIMEOUT_S
from nodemanager.whatif.report.findings import details, headline, misused_nodes
from nodemanager.whatif.study.study import Runner, Study, cost_at_wait
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Processors
from tests.paths import CONFIG
from tests.whatif.cpu_trace import write_cpu_trace
from tests.whatif.sites import unseen

SEED = 2


def test_jobs_without_gpus_cost_no_more_than_with_an_idle_timeout(tmp_path: Path) -> None:
    """At the wait of the baseline at most 1.05 times its cost. If the GPU nodes serve all jobs, over 1.5 times."""
    site = load_site(CONFIG / "embedded.ini")
    path = write_cpu_trace(tmp_path / "cpu.swf", seed=SEED)
    workload = open_workload(str(path), site, Processors.CORES)
    runner = Runner(workload, unseen)
    waits = (site.policy.model_copy(update={"idle_timeout_s": idle_s}) for idle_s in (300.0, 1800.0))
    points = [runner.run_production("site", replace(site, policy=policy)) for policy in waits]
    baseline, _ = runner.run_baseline("idle-timeout", site)
    assert all(point.types.keys() == {"small", "large"} for point in points), "no GPU node is bought"
    at_wait = cost_at_wait(points, baseline)
    assert at_wait is not None
    assert at_wait <= 1.05 * baseline.cost
    assert all(misused_nodes(point) == [] for point in points)

    types = tuple(replace(it, only_for=OnlyFor.ANY) for it in site.node_types)
    for_all = runner.run_production("for all", replace(site, node_types=types))
    gpu = for_all.types["gpu"]
    assert for_all.cost > 1.5 * baseline.cost
    assert (gpu.misused, gpu.cost_misused) == (gpu.nodes, gpu.cost), "no job of the trace asks for GPUs"
    assert misused_nodes(for_all) == [f"{gpu.nodes} gpu nodes for {gpu.cost:.2f} ran only jobs without GPUs."]

    study = Study(site, workload, for_all)
    study.baselines.update({"idle-timeout": baseline, "fixed": runner.run_baseline("fixed", site)[0]})
    assert "with idle-timeout: " in headline(study)
    assert "with fixed: " in headline(study)
    assert details(study)[-1] == misused_nodes(for_all)[0]


def test_over_several_traces_and_boot_times_they_cost_as_much(tmp_path: Path) -> None:
    """A single run says little: in trace 1 the last job runs for six hours on four cores.

    In three of ten runs Flux starts it on an hourly node of 32 cores, because that has the most free. That costs
    7 of 47, for the baseline too.
    """
    site, own, baseline = load_site(CONFIG / "embedded.ini"), [], []
    policy = site.policy.model_copy(update={"idle_timeout_s": IDLE_TIMEOUT_S})
    for trace in (0, 1, 2):
        path = write_cpu_trace(tmp_path / f"cpu-{trace}.swf", seed=trace)
        runner = Runner(open_workload(str(path), site, Processors.CORES), unseen)
        for seed in (1, 2, 3, 4):
            drawn = replace(site, policy=policy, simulation=site.simulation.model_copy(update={"seed": seed}))
            own.append(runner.run_production("site", drawn))
            baseline.append(runner.run_baseline("idle-timeout", drawn)[0])
    assert sum(it.cost for it in own) <= 1.05 * sum(it.cost for it in baseline)
    assert sum(it.wait_mean_s for it in own) <= 1.05 * sum(it.wait_mean_s for it in baseline)
