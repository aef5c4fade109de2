"""What the defaults are chosen by: ``python -m tests.benchmarks.bench_defaults [--key KEY] [--only WORD]``.

Each key of a site's policy, by itself, over synthetic workloads of several loads, on nodes of one core and of
several, paid by the second and by the hour. A line a run: cost, wait and boots, and what the cost and the mean wait
are of those with the default. It takes an hour or so; a line is printed as soon as it is known.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.study.variants import differences, with_key
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Processors

SITE = """
[Site]
cluster = sweep
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = simulated
calls_in_flight_max = 32
creates_per_s = 20
creates_burst = 100
[Limits]
nodes_max = 100
price_per_hour_max = 1000
[Simulation]
seed = 1
boot_delay = 90s
stop_delay = 20s
"""
NODE = """
[Node {name}]
cores = {cores}
memory = 4GiB
price_per_hour = {price}
slots = {name}[1-{slots}]
"""
RULES = {
    "by the second": "billing = per-second\nbilling_minimum = 1m\n",
    "by the hour": "billing = hourly\n",
}
# A machine's price grows with its cores.
FLEETS = {
    "one core": (("thin", 1, "1.00", 100),),
    "several cores": (("small", 4, "4.00", 30), ("large", 16, "16.00", 10)),
}
WORKLOADS = {
    "lublin, full": "lublin:jobs=400,seed=1,procs=100",
    "lublin, half full": "lublin:jobs=600,seed=2,procs=64,speed=0.8",
    "lublin, a tenth": "lublin:jobs=800,seed=3,procs=32,speed=0.4",
    "poisson, steady": "poisson:jobs=1000,seed=4,every=90s,run=10m,procs=4",
    "poisson, gangs": "poisson:jobs=600,seed=5,every=5m,run=20m,procs=24",
    "poisson, seldom": "poisson:jobs=400,seed=6,every=20m,run=5m,procs=2",
}
KEYS: Mapping[str, tuple[str, ...]] = {
    "idle_timeout": ("1m", "2m", "5m", "10m", "20m"),
    "patience": ("0s", "1m", "5m", "15m"),
    "packing": ("spread", "walltime"),
    "settle": ("0s", "1s", "10s"),
    "probe": ("5s", "10s", "30s"),
    "idle_confirmations": ("1", "2", "4"),
    "stop_lead": ("30s", "1m", "3m"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the keys are tried."""

    name: str
    site: Site
    runner: Runner


def places(folder: Path, only: str, jobs_max: int | None) -> Iterator[Place]:
    for fleet, types in FLEETS.items():
        for rule, billing in RULES.items():
            path = folder / f"{fleet}-{rule}.ini".replace(" ", "-")
            nodes = (
                NODE.format(name=name, cores=cores, price=price, slots=slots) + billing
                for name, cores, price, slots in types
            )
            path.write_text(SITE + "".join(nodes))
            site = load_site(path, {})
            for title, workload in WORKLOADS.items():
                name = f"{title}; {fleet}, {rule}"
                if only in name:
                    opened = open_workload(workload, site, Processors.CORES)
                    yield Place(name, site, Runner(opened, lambda _run, _jobs: None, jobs_max))


def line(value: str, outcome: Outcome, usual: Outcome) -> str:
    cost, wait = outcome.cost / usual.cost, outcome.wait_mean_s / max(usual.wait_mean_s, 1e-9)
    return (
        f"{value:>9} {outcome.cost:12,.1f} {cost:7.3f} {outcome.wait_mean_s:10,.1f} s {wait:7.3f} "
        f"{outcome.wait_p95_s:10,.0f} s {outcome.boots:6,} boots {outcome.utilisation:6.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", choices=list(KEYS), action="append")
    parser.add_argument("--only", default="", metavar="WORD", help="only where it stands in the name of the place")
    parser.add_argument("--jobs", type=int)
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder:
        for place in places(Path(folder), chosen.only, chosen.jobs):
            usual = place.runner.run_production("as it is", place.site)
            print(f"\n{place.name}", line("default", usual, usual), sep="\n", flush=True)
            for key in chosen.key or KEYS:
                print(key)
                for value in KEYS[key]:
                    site = with_key(place.site, key, value)
                    same = not differences(place.site, site)
                    outcome = usual if same else place.runner.run_production(value, site)
                    print(line(value, outcome, usual), flush=True)


if __name__ == "__main__":
    main()
