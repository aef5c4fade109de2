"""The cost of the packing on cases that are hard to pack, beside plain best fit and the lower bound.

    python -m tests.benchmarks.bench_packing --seeds 1 2 3 --families EC2 gangs     # families by their beginning
    python -m tests.benchmarks.bench_packing --small 200                            # small random cases
    python -m tests.benchmarks.bench_packing --seeds 1 2 3 --no-bound               # without HiGHS
    python -m tests.benchmarks.bench_packing --seeds 1 --ray                        # beside Ray, with ray[default]

Costs are shown as a multiple of the bound by column generation (``packing_bound``; HiGHS, where ``highspy`` is
installed), small cases as a multiple of the best packing known. ``closed`` says whether no column is missing.
Seconds are CPU time of the packing alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from nodemanager.planner.packing.exact import find_dominated
from nodemanager.planner.packing.greedy import pack_best_fit
from nodemanager.planner.packing.packing import pack
from nodemanager.planner.packing.types import Item, Lot, PackingLimits, total_cost
from tests.benchmarks.packing_cases import FAMILIES, Case, fits_of, small
from tests.benchmarks.packing_ray import ray_cost

if TYPE_CHECKING:
    from tests.benchmarks.packing_bound import Bound

NO_LIMITS = PackingLimits(10**9, 10**18)
BOUND_S = 30.0  # of processor time for the bound of one case


class Considered(NamedTuple):
    """A case as the planner packs it: without the lots that are dominated."""

    items: Sequence[Item]
    lots: Sequence[Lot]
    fits: Sequence[Sequence[int]]


def considered(case: Case) -> Considered:
    """The case as the planner packs it."""
    items, lots = case.items(), case.lots()
    left_out = find_dominated(lots, [()] * len(lots))
    lots = [lot for number, lot in enumerate(lots) if number not in left_out]
    return Considered(items, lots, fits_of(items, lots))


def costs(case: Considered) -> tuple[int, int, float]:
    """What our packing costs, what plain best fit costs, and the seconds that ours took."""
    items, lots, fits = case
    begun = time.process_time()
    made = pack(items, lots, fits, NO_LIMITS)
    took_s = time.process_time() - begun
    assert not any(made.left)
    plain = pack_best_fit(items, lots, fits, by_share=False)
    assert plain is not None
    return total_cost(made.loads, lots), total_cost(plain.loads, lots), took_s


def show_families(names: list[str], seeds: list[int], *, with_bound: bool, with_ray: bool) -> None:
    """A line for each case."""
    ratios: list[float] = []
    print("family | seed | items | types | ours | best fit | Ray | bound | closed | cpu s")
    for name, draw_case in FAMILIES.items():
        if names and not name.startswith(tuple(names)):
            continue
        for seed in seeds:
            case = draw_case(Random(seed))
            seen = considered(case)
            ours, plain, took_s = costs(seen)
            sizes = f"{name} | {seed} | {len(case.kinds)} | {len(case.sizes)}"
            ray = ray_cost(case) if with_ray else None
            if not with_bound:
                of_ray = f"{ray:,}" if ray else "-"
                print(f"{sizes} | {ours:,} | {plain:,} | {of_ray} | - | - | {took_s:.3f}", flush=True)
                continue
            known = bound_of(seen, limit_s=BOUND_S, mip_s=0.0)
            of_ray = f"{ray / known.least:.4f}" if ray else "-"
            ratios.append(ours / known.least)
            print(
                f"{sizes} | {ratios[-1]:.4f} | {plain / known.least:.4f} | {of_ray} | {known.least:,.0f} | "
                f"{known.closed} | {took_s:.3f}",
                flush=True,
            )
    if ratios:
        p95 = sorted(ratios)[int(0.95 * len(ratios))]
        print(f"ours: median {statistics.median(ratios):.4f}, p95 {p95:.4f}, worst {max(ratios):.4f}")


def show_small(count: int, first: int) -> None:
    """Median, 95th percentile and worst of small random cases."""
    ratios: list[tuple[float, int]] = []
    plain_ratios: list[float] = []
    for seed in range(first, first + count):
        seen = considered(small(Random(seed)))
        ours, plain, _ = costs(seen)
        best = min(bound_of(seen, limit_s=BOUND_S, mip_s=3.0).best, ours)
        ratios.append((ours / best, seed))
        plain_ratios.append(plain / best)
    ratios.sort()
    values = [ratio for ratio, _ in ratios]
    p95 = values[int(0.95 * len(values))]
    print(f"{count} small cases: median {statistics.median(values):.4f}, p95 {p95:.4f}, worst {values[-1]:.4f}")
    print(f"best fit: median {statistics.median(plain_ratios):.4f}, worst {max(plain_ratios):.4f}")
    print("the worst seeds:", [(seed, round(ratio, 3)) for ratio, seed in ratios[-5:]])


def bound_of(case: Considered, *, limit_s: float, mip_s: float) -> Bound:
    """The bound of a case, and with ``mip_s`` the best packing known. Begins with the patterns of our packing."""
    from tests.benchmarks.packing_bound import bound  # noqa: PLC0415 - needs HiGHS

    known = [(load.lot, load.pieces) for load in pack(*case, NO_LIMITS).loads]
    return bound(*case, known=known, limit_s=limit_s, mip_s=mip_s)


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description="the cost of the packing on hard cases")
    parser.add_argument("--families", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--small", type=int, default=0)
    parser.add_argument("--no-bound", action="store_true")
    parser.add_argument("--ray", action="store_true", help="run Ray's autoscaler beside (ray[default])")
    asked = parser.parse_args()
    if asked.small:
        show_small(asked.small, asked.seeds[0])
    else:
        show_families(asked.families, asked.seeds, with_bound=not asked.no_bound, with_ray=asked.ray)


if __name__ == "__main__":
    main()
