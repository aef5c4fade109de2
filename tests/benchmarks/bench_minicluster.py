"""Time from a job's submission to the PATCH for it, and the cost of a tick with 1,000 pods.

    python -m tests.benchmarks.bench_minicluster           # the ticks alone
    python -m tests.benchmarks.bench_minicluster --live    # with a real Flux on PATH, and the default of settle

The goals: 2 s from the submission to the PATCH, and 10 ms of CPU a tick.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.bench_plan import measure_ticks
from tests.live.instance import why_no_flux
from tests.live.minicluster import LiveMiniCluster

PODS = 1_000
TICKS = 102
ROUNDS = 8
PATCH_GOAL_S = 2.0
TICK_GOAL_MS = 10.0


def patch_delays_s() -> list[float]:
    """For each of some jobs, the time from its submission, by Flux's clock, to the PATCH that adds pods for it."""
    delays = []
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        mini = LiveMiniCluster(Path(folder), settle="1s")
        try:
            mini.start()
            mini.start_manager().until_said("claimed")
            for _ in range(ROUNDS):
                before = len(mini.api.patches())
                job = mini.submit("true", nodes=2)
                mini.eventually("the job has run", lambda job=job: mini.result(job) == "COMPLETED")  # type: ignore[misc]
                submitted_at = float(mini.flux("jobs", "-ano", "{t_submit!s}", job))
                delays.append(mini.api.patches()[before].at - submitted_at)
                mini.eventually("only the lead broker is left", mini.is_small_again)
        finally:
            mini.reap()
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true")
    given = parser.parse_args()
    for name, jobs, idle in (
        ("all pods at work, 1,000 jobs wait", 2 * PODS, 0),
        ("300 idle pods below busy ones", PODS, 300),
    ):
        ticks = measure_ticks(PODS, jobs, 10, TICKS, stacked=True, idle=idle)
        print(f"a tick with {PODS} pods, {name}: {ticks['cpu_ms']:.2f} ms CPU (goal {TICK_GOAL_MS:g})")
    if not given.live:
        return
    if why_not := why_no_flux():
        raise SystemExit(why_not)
    delays = sorted(patch_delays_s())
    print(
        f"from submission to PATCH, {len(delays)} jobs: median {statistics.median(delays):.2f} s,"
        f" longest {delays[-1]:.2f} s (goal {PATCH_GOAL_S:g})"
    )


if __name__ == "__main__":
    main()
