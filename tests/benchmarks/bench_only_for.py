"""What nodes with GPUs cost jobs without GPUs: ``python -m tests.benchmarks.bench_only_for [--trace KTH.swf.gz]``.

Replays 200 jobs of 1 to 32 cores on ``config/embedded.ini``, for each seed: with each rule for the GPU nodes and
several idle timeouts, beside the baselines. Each line is one point of the curve of cost and wait. With ``--trace``
also the first 2,000 jobs of that trace on ``config/kth.ini``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.slots import OnlyFor
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Runner, cost_at_wait
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Processors
from tests.paths import CONFIG
from tests.whatif.cpu_trace import write_cpu_trace

SEEDS = (1, 2, 3)
IDLE_TIMEOUTS_S = (60.0, 300.0, 1800.0)


def with_rule(site: Site, only_for: OnlyFor | None) -> Site:
    """The site with one rule for its types with GPUs."""
    types = (replace(it, only_for=only_for) if it.gpus else it for it in site.node_types)
    return replace(site, node_types=tuple(types))


def variants(site: Site) -> Iterator[tuple[str, Site]]:
    """The points of the curve."""
    for idle_s in IDLE_TIMEOUTS_S:
        policy = site.policy.model_copy(update={"idle_timeout_s": idle_s})
        yield f"default, idle_timeout {idle_s:.0f} s", replace(site, policy=policy)
    yield "only_for = any", with_rule(site, OnlyFor.ANY)
    yield "no GPU type", replace(site, node_types=tuple(it for it in site.node_types if not it.gpus))


def show(name: str, found: Outcome) -> None:
    of_types = ", ".join(f"{type_name} {it.cost:.2f}" for type_name, it in found.types.items())
    wait = f"mean wait {found.wait_mean_s / 60:7.1f} min, p95 {found.wait_p95_s / 60:7.1f} min"
    print(f"{name:28} {found.cost:9.2f}  {wait}  served {found.jobs_served}  ({of_types})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    chosen = parser.parse_args()
    site = load_site(CONFIG / "embedded.ini")
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            path = write_cpu_trace(Path(folder) / f"cpu-{seed}.swf", seed=seed)
            runner = Runner(open_workload(str(path), site, Processors.CORES), lambda _run, _jobs: None)
            print(f"seed {seed}")
            points = [(name, runner.run_production(name, it)) for name, it in variants(site)]
            for name, found in points:
                show(name, found)
            for name in ("fixed", "idle-timeout"):
                other, bounds = runner.run_baseline(name, site)
                show(name, other)
            at_wait = cost_at_wait([found for _, found in points], other)
            print(
                f"at the wait of idle-timeout: {at_wait and at_wait / other.cost}; no fleet below {bounds.work:.2f}"
            )
    if chosen.trace:
        kth = load_site(CONFIG / "kth.ini")
        runner = Runner(open_workload(str(chosen.trace), kth, Processors.CORES), lambda _run, _jobs: None, 2000)
        show("KTH, 2,000 jobs", runner.run_production("kth", kth))


if __name__ == "__main__":
    main()
