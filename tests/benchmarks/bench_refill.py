"""What it saves not to refill dear nodes: GPU jobs now and then, and a stream of small jobs that any node can run.

    python -m tests.benchmarks.bench_refill

The simple scheduler gives the small jobs the node with the most free cores: often a GPU node whose GPUs no job
uses any more. Each row of the table is one replay by the production code. ``--jobs`` counts the small jobs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from nodemanager.config.load import load_site
from nodemanager.core.jobs import Shape
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.workload import Oddities, TraceJob, Workload

SITE = """
[Site]
cluster = refill
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = simulated
[Limits]
nodes_max = 40
price_per_hour_max = 100
[Policy]
idle_timeout = 5m
{policy}
[Disruption]
max = 25%
[Simulation]
boot_delay = 90s
[Node cpu]
cores = 16
memory = 64GiB
price_per_hour = 0.60
billing = per-second
slots = cpu[1-30]
[Node gpu]
cores = 16
gpus = 4
memory = 64GiB
price_per_hour = 3.00
billing = per-second
slots = gpu[1-10]
properties = gpu
"""
RULES: Mapping[str, str] = {
    "consolidate = no": "",
    "consolidate = yes": "consolidate = yes",
    "consolidate = yes, patience = 2m": "consolidate = yes\npatience = 2m",
    "patience = 2m": "patience = 2m",
}
# Seconds between two small jobs, and between two GPU jobs.
WORKLOADS: Mapping[str, tuple[float, float]] = {
    "steady stream, a GPU job an hour": (10.0, 3600.0),
    "thin stream, a GPU job an hour": (60.0, 3600.0),
    "steady stream, a GPU job in 10 min": (10.0, 600.0),
    "no GPU jobs": (10.0, float("inf")),
}


def jobs(small: int, every_s: float, gpu_every_s: float, oddities: Oddities) -> Iterator[TraceJob]:
    """Small jobs of 1 to 4 cores and about 5 minutes, and GPU jobs of 10 minutes, by one fixed draw."""
    del oddities
    draws, at_s, next_gpu_s, number = Random(24), 0.0, 0.0, 0
    for _ in range(small):
        at_s += draws.expovariate(1 / every_s)
        while next_gpu_s <= at_s and gpu_every_s < float("inf"):
            number += 1
            yield TraceJob(f"gpu{number}", next_gpu_s, 600.0, 1200.0, Shape(1, 4, gpus_per_slot=4))
            next_gpu_s += gpu_every_s
        number += 1
        yield TraceJob(f"cpu{number}", at_s, draws.uniform(60, 540), 900.0, Shape(1, draws.choice((1, 1, 2, 4))))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help="small jobs of each workload")
    chosen = parser.parse_args(arguments)
    print("| workload | rule | cost | mean wait, 95 % | jobs |")
    print("| --- | --- | --- | --- | --- |")
    with TemporaryDirectory() as directory:
        path = Path(directory) / "site.ini"
        for name, (every_s, gpu_every_s) in WORKLOADS.items():
            workload = Workload(name, partial(jobs, chosen.jobs, every_s, gpu_every_s))
            for rule, policy in RULES.items():
                path.write_text(SITE.format(policy=policy), encoding="utf-8")
                of = Runner(workload, lambda _run, _jobs: None).run_production(rule, load_site(path, {}))
                waits = f"{of.wait_mean_s:.1f} s, {of.wait_p95_s:.0f} s"
                print(f"| {name} | {rule} | {of.cost:.2f} | {waits} | {of.jobs_served} |", flush=True)


if __name__ == "__main__":
    main()
