"""Compare what each part of upkeep saves, and what jobs then wait, on at least six workloads each.

    python -m tests.benchmarks.bench_upkeep                                   # all
    python -m tests.benchmarks.bench_upkeep --jobs 500 --workloads steady bursts
    python -m tests.benchmarks.bench_upkeep --seeds 1 2 3 --parts consolidation
    python -m tests.benchmarks.bench_upkeep --workloads --trace KTH-SP2-1996-2.1-cln.swf.gz

It prints a Markdown table: the site without the part, with it, and the difference. Each row is one replay by the
production code, as ``simulate`` does it. Two rows are no part of the manager. ``best packing`` is what a fleet
would cost that seats each job on the fullest node with room for it, starts nodes at once, never makes a job wait,
and keeps an empty node for as long as a boot takes. ``clairvoyant`` is a lower bound: no fleet costs less that
starts every job when 60 nodes would that are always up, even if it knows all jobs and moves them while they run
(``whatif/replay/lower_bounds``). The jobs of the workloads whose name begins with ``narrowing`` use only their
first node towards their end. Early release is compared on them.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, Workload

CORES, BOOT_S, PRICE_PER_HOUR = 16, 90.0, 0.60
SITE = """
[Site]
cluster = upkeep
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = simulated
[Limits]
nodes_max = 60
price_per_hour_max = 100
[Policy]
idle_timeout = 5m
{policy}
[Simulation]
boot_delay = 90s
[Node cpu]
cores = 16
memory = 64GiB
price_per_hour = 0.60
billing = per-second
slots = cpu[1-60]
{node}
"""
# What each part adds to the site.
PARTS: Mapping[str, Mapping[str, str]] = {
    "consolidation": {"policy": "consolidate = yes\n[Disruption]\nmax = 25%"},
    "schedule": {"policy": "[Schedule night]\nwhen = Mon-Sun 20:00-08:00\nidle_timeout = 1m"},
    "prepaid": {"node": "prepaid = 4"},
    "early release": {"policy": "early_release = yes"},
}
WORKLOADS: Mapping[str, str] = {
    "steady": "steady:jobs={jobs},seed={seed},every=5s,run=4m",
    "bursts": "bursts:jobs={jobs},seed={seed},every=5s,run=4m",
    "daily": "daily:jobs={jobs},seed={seed},every=12s,run=5m",
    "poisson, one core": "poisson:jobs={jobs},seed={seed},every=20s,run=10m,procs=1",
    "poisson, gangs": "poisson:jobs={jobs},seed={seed},every=90s,run=10m,procs=64",
    "lublin": "lublin:jobs={jobs},seed={seed},procs=320,speed=4",
    "narrowing, 4 nodes": "narrowing:jobs={jobs},seed={seed},every=2m,run=20m,procs=4",
    "narrowing, 8 nodes": "narrowing:jobs={jobs},seed={seed},every=3m,run=20m,procs=8",
    "narrowing, 16 nodes": "narrowing:jobs={jobs},seed={seed},every=6m,run=20m,procs=16",
    "narrowing, busy": "narrowing:jobs={jobs},seed={seed},every=1m,run=10m,procs=8",
    "narrowing, short": "narrowing:jobs={jobs},seed={seed},every=1m,run=5m,procs=8",
    "narrowing, rare": "narrowing:jobs={jobs},seed={seed},every=30m,run=1h,procs=8",
}
NARROWS = "narrowing"


def a_site(folder: Path, changes: Mapping[str, str]) -> Site:
    path = folder / "site.ini"
    path.write_text(SITE.format(**{"policy": "", "node": "", **changes}), encoding="utf-8")
    return load_site(path, {})


def best_packing(jobs: Iterator[TraceJob], keep_s: float) -> float | None:
    """What the best packing costs; None if a job needs more than one node."""
    free: dict[int, int] = {}
    begun_s: dict[int, float] = {}
    empty_s: dict[int, float] = {}
    ends: list[tuple[float, int, int]] = []
    lived_s, last = 0.0, 0
    for job in jobs:
        cores = (job.shape.nodes or 1) * job.shape.slots * job.shape.cores_per_slot
        if cores > CORES:
            return None
        _end_jobs(ends, free, empty_s, job.submit_s)
        for node in [node for node, at_s in empty_s.items() if at_s + keep_s <= job.submit_s]:
            lived_s += empty_s.pop(node) + keep_s - begun_s[node]
            del free[node]
        fitting = [(room, node) for node, room in free.items() if room >= cores]
        if fitting:
            node = min(fitting)[1]
        else:
            node = last = last + 1
            free[node], begun_s[node] = CORES, job.submit_s
        empty_s.pop(node, None)
        free[node] -= cores
        heapq.heappush(ends, (job.submit_s + job.run_s, node, cores))
    _end_jobs(ends, free, empty_s, float("inf"))
    lived_s += sum(at_s + keep_s - begun_s[node] for node, at_s in empty_s.items())
    return lived_s / 3600 * PRICE_PER_HOUR


def _end_jobs(
    ends: list[tuple[float, int, int]], free: dict[int, int], empty_s: dict[int, float], until_s: float
) -> None:
    while ends and ends[0][0] <= until_s:
        at_s, node, cores = heapq.heappop(ends)
        free[node] += cores
        if free[node] == CORES:
            empty_s[node] = at_s


def row(name: str, part: str, before: Outcome, after: Outcome) -> str:
    def waits(of: Outcome) -> str:
        return f"{of.wait_mean_s:.1f} s, {of.wait_p95_s:.0f} s"

    if not after.serves_as_many(before):
        return f"| {name} | {part} | serves {after.jobs_served} of {before.jobs_served} jobs | | | |"
    boots = f"{before.boots}, {after.boots}"
    return f"| {name} | {part} | {costs(before.cost, after.cost)} | {waits(before)} | {waits(after)} | {boots} |"


def costs(before: float, after: float) -> str:
    return f"{before:.2f}, {after:.2f} ({(after / before - 1) * 100:+.1f} %)"


def rows(name: str, workload: Workload, folder: Path, jobs: int, parts: Sequence[str]) -> Iterator[str]:
    runner = Runner(workload, lambda _run, _jobs: None, jobs)
    before = runner.run_production("before", a_site(folder, {}))
    narrows = name.startswith(NARROWS)
    for part in parts:
        if narrows or part != "early release":
            yield row(name, part, before, runner.run_production(part, a_site(folder, PARTS[part])))
    if narrows or "consolidation" not in parts:
        return
    best = best_packing(islice(workload.read(Oddities()), jobs), BOOT_S)
    if best is not None:
        yield f"| {name} | best packing | {costs(before.cost, best)} | | 0 s | |"
        fixed, bounds = runner.run_baseline("fixed", a_site(folder, {}))
        waits = f"{fixed.wait_mean_s:.1f} s, {fixed.wait_p95_s:.0f} s"
        yield f"| {name} | clairvoyant | {costs(before.cost, bounds.same_starts)} | | {waits} | |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help="of each workload (default: 2000)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1], metavar="N", help="of the workloads (default: 1)"
    )
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    parser.add_argument("--trace", type=Path, metavar="SWF", help="also the first jobs of this trace")
    chosen = parser.parse_args(arguments)
    print("| workload | part | cost without, with | mean wait and 95 % without | with | boots without, with |")
    print("| --- | --- | --- | --- | --- | --- |")
    with TemporaryDirectory() as directory:
        site = a_site(Path(directory), {})
        texts = {
            name + (f", seed {seed}" if len(chosen.seeds) > 1 else ""): WORKLOADS[name].format(
                jobs=chosen.jobs, seed=seed
            )
            for name in chosen.workloads
            for seed in chosen.seeds
        }
        texts |= {chosen.trace.name.split("-")[0]: str(chosen.trace)} if chosen.trace else {}
        for name, text in texts.items():
            workload = open_workload(text, site, Processors.CORES)
            for line in rows(name, workload, Path(directory), chosen.jobs, chosen.parts):
                print(line, flush=True)


if __name__ == "__main__":
    main()
