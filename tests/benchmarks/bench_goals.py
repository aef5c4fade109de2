"""All figures of the packing in one run: cost beside bound, plain best fit and Ray, then the time of whole plans.

    python -m tests.benchmarks.bench_goals                          # ours alone
    python -m tests.benchmarks.bench_goals --ray --before DIR       # beside Ray (ray[default]) and another checkout

Costs are multiples of the best lower bound known: of column generation (``exact`` if it closed for every seed), or
of a linear program that may split work and nodes at will, whichever is higher. The worst of the seeds counts. After
its first case of a family that takes Ray over a minute, Ray is not asked for the others. Seconds are of processor
time, with the garbage collection of the service. ``highspy`` is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from nodemanager.core.facts import ClaimHeld, CloudListed, QueueSeen, RanksSeen, Tick
from nodemanager.core.nodes import FluxRank
from nodemanager.core.orders import BootNode
from nodemanager.core.slots import Rank
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Limits, Policy
from nodemanager.planner.snapshot import Snapshot
from nodemanager.service.service import GC_THRESHOLD
from tests.benchmarks import bench_plan
from tests.benchmarks.bench_packing import bound_of, considered, costs
from tests.benchmarks.packing_cases import FAMILIES, PRICE_UNIT, Case, small
from tests.benchmarks.packing_ray import preload, ray_cost
from tests.paths import ROOT

SEEDS, SMALL = (1, 2), 200
BOUND_S, MIP_S = 5.0, 3.0
SLOTS = 400  # of each type, in the timed plans of catalogues
PLAN_REPEATS = 3
ABOVE = 1.0 + 1e-9
CATALOGUES = ("400 types, 9 jobs", "400 types, 500 shapes")
MANY: bench_plan.Case = (100_000, 10, 100, 2_000, "full", 0)

# Runs this module with the package of another checkout: the first path is searched for ``nodemanager`` only.
FOREIGN = (
    "import sys; sys.path[0] = sys.argv[1]; import nodemanager; sys.path[0] = sys.argv[2]; del sys.argv[1:3];"
    " from tests.benchmarks.bench_goals import main; main()"
)


class _How(NamedTuple):
    """What the command line says about each case. ``before``: another checkout."""

    seeds: Sequence[int]
    before: Path | None
    with_ray: bool
    processes: int


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description="all figures of the packing in one run")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--small", type=int, default=SMALL, help="so many small random cases")
    parser.add_argument("--families", nargs="*", default=[], help="families by their beginning")
    parser.add_argument("--ray", action="store_true", help="run Ray's autoscaler beside (ray[default])")
    parser.add_argument("--before", type=Path, help="another checkout, to compare with")
    parser.add_argument("--processes", type=int, default=2, help="look at so many cases at once")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    gc.set_threshold(GC_THRESHOLD)
    if asked.measure:
        print(json.dumps(_measure(asked.measure, asked.seeds)))
        return
    if asked.ray:
        preload()
    how = _How(asked.seeds, asked.before, asked.ray, asked.processes)
    names = [name for name in FAMILIES if not asked.families or name.startswith(tuple(asked.families))]
    above = _show_families(names, how)
    if asked.small:
        above += _show_small(asked.small, how)
    if asked.ray:
        print(f"\nabove Ray's price: {above} cases", flush=True)
    if not asked.families:
        _show_times(asked.before)


# --- cost -------------------------------------------------------------------------------------------------


def _show_families(names: Sequence[str], how: _How) -> int:
    """A line for each family, the worst of the seeds. Returns in how many cases we cost more than Ray."""
    print("case | seeds | bound | before | now | best fit | Ray | cpu s before | cpu s now", flush=True)
    above = 0
    with ProcessPoolExecutor(how.processes) as pool:
        for cells, more in pool.map(_family_row, names, repeat(how)):
            print(" | ".join(cells), flush=True)
            above += more
    return above


def _family_row(name: str, how: _How) -> tuple[list[str], int]:
    """The cells of a family, and in how many of its cases we cost more than Ray."""
    old = _elsewhere(how.before, name, how.seeds)
    ratios: dict[str, list[float]] = {"before": [], "now": [], "best fit": [], "Ray": []}
    took: list[float] = []
    exact, ray_answers, ray_text, above = True, how.with_ray, "-", 0
    for number, seed in enumerate(how.seeds):
        case = FAMILIES[name](Random(seed))
        seen = considered(case)
        cost, plain, took_s = costs(seen)
        known = bound_of(seen, limit_s=BOUND_S, mip_s=0.0)
        exact = exact and known.closed
        took.append(took_s)
        ratios["now"].append(cost / known.least)
        ratios["best fit"].append(plain / known.least)
        if old:
            ratios["before"].append(old[number][0] / known.least)
        if not ray_answers or any(kind.whole for kind in case.kinds):
            continue
        theirs = ray_cost(case)
        if theirs is None:
            ray_answers, ray_text = False, "over 60 s"
        else:
            ratios["Ray"].append(theirs / known.least)
            above += cost > theirs * ABOVE
    worst = {what: f"{max(found):.3f}" if found else "-" for what, found in ratios.items()}
    of_ray = worst["Ray"] if ratios["Ray"] else ray_text
    cells = [name, str(len(how.seeds)), "exact" if exact else "at least", worst["before"], worst["now"]]
    was = f"{max(it[2] for it in old):.3f}" if old else "-"
    return [*cells, worst["best fit"], of_ray, was, f"{max(took):.3f}"], above


def _show_small(count: int, how: _How) -> int:
    """Small random cases beside the best packing known. Returns in how many we cost more than Ray."""
    seeds = range(1, count + 1)
    old = _elsewhere(how.before, "small", seeds)
    ratios: dict[str, list[float]] = {"before": [], "now": [], "best fit": [], "Ray": []}
    above = 0
    with ProcessPoolExecutor(how.processes) as pool:
        for number, found in enumerate(pool.map(_small_costs, seeds, repeat(how.with_ray), chunksize=5)):
            if old:
                found["before"] = old[number][0]
            best = min(found.values())
            for what, costs_of in ratios.items():
                if what in found:
                    costs_of.append(found[what] / best)
            above += found["now"] > found.get("Ray", float("inf")) * ABOVE
    print(f"\n{count} small cases of 5 to 60 jobs / best known | cases | median | p95 | worst")
    for what, values in ratios.items():
        if values:
            p95 = sorted(values)[int(0.95 * len(values))]
            print(f"{what} | {len(values)} | {statistics.median(values):.3f} | {p95:.3f} | {max(values):.3f}")
    return above


def _small_costs(seed: int, with_ray: bool) -> dict[str, float]:
    case = small(Random(seed))
    seen = considered(case)
    cost, plain, _ = costs(seen)
    found = {
        "now": float(cost),
        "best fit": float(plain),
        "best": bound_of(seen, limit_s=BOUND_S, mip_s=MIP_S).best,
    }
    theirs = ray_cost(case) if with_ray else None
    return found if theirs is None else {**found, "Ray": float(theirs)}


# --- time -------------------------------------------------------------------------------------------------


def _show_times(before: Path | None) -> None:
    """The processor time of whole plans: catalogues, many shapes, and every row of ``bench_plan``."""
    print("\nplans | before, cpu s | now, cpu s | bought before | bought now | price before | price now")
    for what in (*CATALOGUES, *(" ".join(map(str, case)) for case in (MANY, *(it for it, _ in bench_plan.CASES)))):
        old = _elsewhere(before, f"plan {what}", ())
        now = _elsewhere(ROOT, f"plan {what}", ())
        was = old or {"cpu_s": float("nan"), "nodes": "-", "price": float("nan")}
        print(
            f"{what} | {was['cpu_s']:.3f} | {now['cpu_s']:.3f} | {was['nodes']} | {now['nodes']} | "
            f"{was['price']:.2f} | {now['price']:.2f}",
            flush=True,
        )


def _time_plan(what: str) -> dict[str, Any]:
    if what not in CATALOGUES:
        jobs, types, up, shapes, state, gang = what.split()
        return bench_plan.measure_plan(
            (int(jobs), int(types), int(up), int(shapes), state, int(gang)), PLAN_REPEATS
        )
    known, policy = _snapshot_of(FAMILIES[what](Random(SEEDS[0])))
    took: list[float] = []
    for _ in range(PLAN_REPEATS):
        begun = time.process_time()
        made = plan(known, policy)
        took.append(time.process_time() - begun)
    boots = Counter(action.launch.type_name for action in made.actions if isinstance(action, BootNode))
    price = sum(policy.types[name].price_per_hour * count for name, count in boots.items())
    return {"cpu_s": statistics.median(took), "nodes": sum(boots.values()), "price": float(price)}


def _snapshot_of(case: Case) -> tuple[Snapshot, Policy]:
    """A site with these node types, no node up, and all jobs of the case waiting."""
    node_types = tuple(size.node_type(SLOTS) for size in case.sizes)
    policy = Policy("bench", "uuid", node_types, limits=Limits(10**6, 10**12 * PRICE_UNIT))
    slots = [(of, slot) for of in node_types for slot in of.slots]
    ranks = tuple(
        FluxRank(Rank(number), slot, online=False, cores=of.cores, gpus=of.gpus)
        for number, (of, slot) in enumerate(slots, 1)
    )
    now_s, wall_at = bench_plan.NOW_S, bench_plan.WALL_AT
    known = advance_to(Snapshot(), Tick(now_s, wall_at))
    for fact in (
        ClaimHeld(now_s - 1, ()),
        RanksSeen(now_s - 1, ranks),
        CloudListed(now_s - 1, ()),
        QueueSeen(now_s - 1, tuple(case.jobs(wall_at)), complete=True),
    ):
        known = observe(known, fact, policy)
    return advance_to(known, Tick(now_s + 60, wall_at + 60)), policy


# --- in a process of its own ------------------------------------------------------------------------------


def _elsewhere(checkout: Path | None, what: str, seeds: Sequence[int]) -> Any:
    """A measurement with the package of a checkout; None without one."""
    if checkout is None:
        return None
    command = [sys.executable, "-c", FOREIGN, str(checkout.resolve()), str(ROOT), "--measure", what]
    done = subprocess.run(
        [*command, "--seeds", *map(str, seeds)], capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode:
        raise SystemExit(f"{what} failed with {checkout}: {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _measure(what: str, seeds: Sequence[int]) -> object:
    if what.startswith("plan "):
        return _time_plan(what.removeprefix("plan "))
    draw_case = small if what == "small" else FAMILIES[what]
    return [costs(considered(draw_case(Random(seed)))) for seed in seeds]


if __name__ == "__main__":
    main()
