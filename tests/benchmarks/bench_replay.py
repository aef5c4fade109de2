"""How fast a replay is: ``python -m tests.benchmarks.bench_replay TRACE [--jobs N] [--policy NAME]``.

Prints jobs and plans a second of processor time and of the clock, plans per event, and the most memory it took.
With ``--policy fixed`` the stage runs alone, without the planner. For the memory of a long run:
``lublin:jobs=1000000,speed=0.5 --policy fixed``.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Processors
from tests.paths import CONFIG

SITE = CONFIG / "kth.ini"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="lublin:jobs=1000,seed=1")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--policy", choices=["site", *BASELINES], default="site")
    parser.add_argument("--config", type=Path, default=SITE)
    chosen = parser.parse_args()
    site = load_site(chosen.config)
    runner = Runner(open_workload(chosen.workload, site, Processors.CORES), lambda _run, _jobs: None, chosen.jobs)
    began_s = time.process_time()
    if chosen.policy == "site":
        outcome = runner.run_production("site", site)
    else:
        outcome, _ = runner.run_baseline(chosen.policy, site)
    busy_s = max(time.process_time() - began_s, 1e-9)
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{outcome.jobs} jobs, {outcome.events} events, {outcome.plans} plans; cost {outcome.cost:,.2f}")
    print(f"of processor time: {outcome.jobs / busy_s:,.0f} jobs/s, {outcome.plans / busy_s:,.0f} plans/s")
    print(
        f"of the clock: {outcome.jobs / outcome.took_s:,.0f} jobs/s, {outcome.plans / outcome.took_s:,.0f} plans/s"
    )
    print(f"{outcome.plans / max(1, outcome.events):.2f} plans per event; {most_mib:,.0f} MiB at the most")


if __name__ == "__main__":
    main()
