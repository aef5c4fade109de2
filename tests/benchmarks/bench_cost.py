"""Compare the cost of a plan, a replay, a queue and an idle service with their goals.

    python -m tests.benchmarks.bench_cost                        # every row
    python -m tests.benchmarks.bench_cost --rows plan-10000 replay
    python -m tests.benchmarks.bench_cost --against DIR          # also in another checkout, with the ratios

Each row runs in processes of its own. With ``--against`` the two checkouts take turns, and the median of each
counts, so that other work on the machine changes both. ``DIR`` needs this file. Times are processor times.

- ``plan-N``: N nodes, half of them idle and half busy. Each second 5 jobs come, and the 5 before them are gone.
  ``plan`` is one decision alone. ``tick`` adds the facts before it and the commit after it.
- ``replay``, and the baselines of what-if by name: jobs shaped like those of HPC2N (see :func:`hpc2n_jobs`).
- ``pending``: a million waiting jobs with 500 shapes, read from Flux's journal one by one. ``manager`` is the
  memory of the jobs in the snapshot, ``watch`` that of the journal's reader.
- ``service``: the service with 1,000 idle nodes, from ``bench_load``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from nodemanager.config.load import load_site
from nodemanager.core.facts import ClaimHeld, CloudListed, QueueSeen, RanksSeen, Tick
from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, Shape
from nodemanager.core.nodes import CloudNode, CloudState, FluxRank, Identity, Launch, LaunchId, ProviderId
from nodemanager.core.slots import Billing, NodeType, Rank, SlotName, TypeName
from nodemanager.flux.parse.job_journal import JobQueue
from nodemanager.planner.brain import commit_actions, commit_asks
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Limits, Policy, Rules
from nodemanager.planner.snapshot import Snapshot
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, Workload, shape_for
from tests.paths import ROOT

Figures = dict[str, float]
NOW_S, WALL_AT = 10_000.0, 1.8e9
PENDING, SHAPES = 1_000_000, 500

# The row, its main figure, and the goal.
GOALS: Mapping[str, tuple[str, float]] = {
    "plan-10000": ("plan ms", 3.0),
    "plan-50000": ("plan ms", 15.0),
    "replay": ("node lives/s", 4_000.0),
    **dict.fromkeys(
        ("idle-timeout", "idle-timeout-busy", "arvados", "arvados-busy", "fixed-busy"), ("jobs/s", 5_000.0)
    ),
    "pending": ("manager MB", 200.0),
    "service": ("% of a core", 0.3),
}


# --- a plan -----------------------------------------------------------------------------------------------


def half_idle(nodes: int) -> tuple[Snapshot, Policy]:
    """What a manager knows of a fleet whose even ranks are idle, after enough looks to confirm it."""
    slots = tuple(SlotName(f"n{number}") for number in range(1, nodes + 1001))
    of = NodeType(TypeName("n"), "n", 8, 0, 2**35, Decimal("0.4"), Billing(1.0, 60.0), slots)
    policy = Policy("bench", "uuid", (of,), limits=Limits(nodes, Decimal(10**6)), rules=Rules(idle_timeout_s=1e5))
    launches = [
        Launch(LaunchId(f"{slot}-1"), slot, Rank(number), of.name, "token", WALL_AT - 3600)
        for number, slot in enumerate(slots[:nodes], 1)
    ]
    ranks = [
        FluxRank(
            Rank(number), slot, online=number <= nodes, cores=8,
            cores_free=8 if number <= nodes and number % 2 == 0 else 0,
            allocated=number <= nodes and number % 2 == 1, schedulable=number <= nodes,
        )
        for number, slot in enumerate(slots, 1)
    ]  # fmt: skip
    listed = tuple(
        CloudNode(
            ProviderId(f"i-{launch.slot}"), CloudState.RUNNING,
            Identity("bench", "uuid", launch.id, launch.slot, of.name), WALL_AT - 3600,
        )
        for launch in launches
    )  # fmt: skip
    running = tuple(
        Job(JobId(n), JobState.RUN, JobRequest(Shape(1, 8), 3600.0), WALL_AT) for n in range(1, nodes + 1, 2)
    )
    known = advance_to(Snapshot(), Tick(NOW_S, WALL_AT))
    for fact in (
        ClaimHeld(NOW_S - 9, tuple(launches)),
        CloudListed(NOW_S - 9, listed),
        RanksSeen(NOW_S - 9, tuple(ranks)),
        RanksSeen(NOW_S - 8, tuple(ranks)),
        QueueSeen(NOW_S - 9, running, complete=True),
    ):
        known = observe(known, fact, policy)
    return known, policy


def measure_plan(nodes: int) -> Figures:
    known, policy = half_idle(nodes)
    planned: list[float] = []
    ticked: list[float] = []
    for tick in range(1, 42):
        now_s = NOW_S + tick
        newest = 10**6 + 5 * tick
        came = tuple(Job(JobId(newest + n), JobState.SCHED, JobRequest(Shape(1, 1 + n)), WALL_AT) for n in range(5))
        ended = tuple(JobId(newest + n - 5) for n in range(5))
        began = time.process_time()
        known = observe(known, QueueSeen(now_s - 0.1, came, ended=ended), policy)
        known = observe(known, RanksSeen(now_s - 0.1, (), previous=known.ranks), policy)
        known = advance_to(known, Tick(now_s, WALL_AT + tick))
        asked = time.process_time()
        made = plan(known, policy)
        planned.append(time.process_time() - asked)
        known = commit_actions(commit_asks(known, made, policy), made, policy)
        ticked.append(time.process_time() - began)
        assert made.stands_still is None
        assert len(made.jobs) == 5
    return {"plan ms": 1e3 * statistics.median(planned[1:]), "tick ms": 1e3 * statistics.median(ticked[1:])}


# --- a replay ---------------------------------------------------------------------------------------------

# HPC2N's log in the Parallel Workloads Archive: 120 nodes with 2 processors each, 203,000 jobs in 42 months, half
# of one user who submits many at once. The jobs drawn here have its size and bursts, not its distributions. At
# the calm pace a job has about 20 events on the site below, and 4 nodes boot for it. At the busy pace jobs queue.
HPC2N_SITE = """
[Site]
cluster = hpc2n
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = simulated
calls_in_flight_max = 64
creates_per_s = 50
creates_burst = 200
[Limits]
nodes_max = 120
price_per_hour_max = 1000
[Policy]
queue_policy = fifo
idle_timeout = 1m
[Simulation]
seed = 1
boot_delay = 90s
stop_delay = 20s
[Node dual]
cores = 2
memory = 1GiB
price_per_hour = 1.00
billing = per-second
billing_minimum = 1m
slots = dual[1-120]
"""
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)  # processors
SIZE_WEIGHTS = (24, 10, 20, 14, 8, 10, 5, 5, 2, 2)
BURST_SHARE, BURST_MEAN = 0.25, 4.0  # how many submissions are bursts, and of how many more jobs
# The mean of the gaps between submissions; of ln run time in seconds: the mean and the deviation.
PACES: Mapping[str, tuple[float, tuple[float, float]]] = {
    "calm": (2_000.0, (7.0, 1.3)),
    "busy": (480.0, (7.8, 1.3)),
}


def hpc2n_jobs(count: int, pace: str) -> Iterator[TraceJob]:
    """Draw rigid jobs with lognormal run times, in bursts of equal jobs of one user."""
    draws = random.Random(f"hpc2n/{pace}")
    every_s, run_ln = PACES[pace]
    at_s, made = 0.0, 0
    while made < count:
        at_s += draws.expovariate(1.0 / every_s)
        bursts = draws.random() < BURST_SHARE
        jobs = 1 + (int(draws.expovariate(1.0 / BURST_MEAN)) if bursts else 0)
        (processors,) = draws.choices(SIZES, SIZE_WEIGHTS)
        userid = 2 if bursts else draws.randint(3, 257)
        for place in range(min(jobs, count - made)):
            made += 1
            run_s = max(1.0, math.floor(draws.lognormvariate(*run_ln)))
            limit_s = 600.0 * math.ceil(run_s * draws.choice((1.2, 2.0, 5.0)) / 600.0)
            shape = shape_for(processors, Processors.CORES)
            yield TraceJob(str(made), at_s + place, run_s, limit_s, shape, userid)
        at_s += jobs


def measure_replay(policy: str, jobs: int, pace: str) -> Figures:
    def read(_: Oddities) -> Iterator[TraceJob]:
        return hpc2n_jobs(jobs, pace)

    with TemporaryDirectory() as folder:
        path = Path(folder) / "hpc2n.ini"
        path.write_text(HPC2N_SITE)
        site = load_site(path, {})
    runner = Runner(Workload("hpc2n", read, jobs_about=jobs, processors=240), lambda _run, _jobs: None)
    began_s = time.process_time()
    outcome = runner.run_production(policy, site) if policy == "site" else runner.run_baseline(policy, site)[0]
    took_s = time.process_time() - began_s
    assert outcome.jobs_served == jobs
    return {
        "jobs/s": jobs / took_s,
        "node lives/s": outcome.boots / took_s,
        "plans/s": outcome.plans / took_s,
        "boots a job": outcome.boots / jobs,
        "events a job": outcome.events / jobs,
        "cost": outcome.cost,
    }


# --- a long queue -----------------------------------------------------------------------------------------


def jobspec_of(number: int) -> str:
    """A jobspec as ``flux submit`` writes it, in one of ``SHAPES`` shapes."""
    kind = number % SHAPES
    slot = {
        "type": "slot",
        "count": 1 + kind // 50,
        "label": "task",
        "with": [{"type": "core", "count": 1 + kind % 50}],
    }
    system = {
        "duration": 600.0 * (1 + kind % 7), "cwd": f"/home/user{number % 97}/run{number}",
        "environment": {"HOME": "/home"}, "constraints": {"properties": [f"p{kind % 5}"]},
    }  # fmt: skip
    tasks = [{"command": ["sh", f"run{number}.sh"], "slot": "task", "count": {"per_slot": 1}}]
    return json.dumps({"version": 1, "resources": [slot], "tasks": tasks, "attributes": {"system": system}})


def measure_pending() -> Figures:
    queue = JobQueue()
    before_mb = settled_mb()
    began = time.process_time()
    for number in range(PENDING):
        of = JobId(number * 2**24)
        submitted = {"urgency": 16, "userid": 1000 + number % 97}
        queue.apply(of, "submit", WALL_AT + number / 100, submitted, json.loads(jobspec_of(number)))
        for name, context in (("validate", {}), ("depend", {}), ("priority", {"priority": 16})):
            queue.apply(of, name, WALL_AT, context)
    watch_mb = settled_mb()
    policy = Policy("bench", "uuid", (), limits=Limits(1, Decimal(1)))
    known = observe(advance_to(Snapshot(), Tick(NOW_S, WALL_AT)), queue.complete(NOW_S - 1), policy)
    after_mb = settled_mb()
    assert len(known.jobs) == PENDING
    return {
        "manager MB": after_mb - watch_mb,
        "watch MB": watch_mb - before_mb,
        "process MB": after_mb,
        "read s": time.process_time() - began,
    }


def settled_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


# --- the service ------------------------------------------------------------------------------------------


def measure_service() -> Figures:
    from tests.benchmarks import bench_load  # noqa: PLC0415 - its imports count as memory of the other rows

    found = bench_load.in_a_process(2, 120.0, live=False)
    return {
        "% of a core": 100 * found["share"],
        "RSS MB": found["memory_mb"][-1],
        "imports MB": found["baseline_mb"],
        "plans/s": found["ticks_per_s"],
    }


ROWS: Mapping[str, Callable[[], Figures]] = {
    "plan-10000": lambda: measure_plan(10_000),
    "plan-50000": lambda: measure_plan(50_000),
    "replay": lambda: measure_replay("site", 300, "calm"),
    "idle-timeout": lambda: measure_replay("idle-timeout", 3_000, "calm"),
    "idle-timeout-busy": lambda: measure_replay("idle-timeout", 3_000, "busy"),
    "arvados": lambda: measure_replay("arvados", 3_000, "calm"),
    "arvados-busy": lambda: measure_replay("arvados", 3_000, "busy"),
    "fixed-busy": lambda: measure_replay("fixed", 20_000, "busy"),
    "pending": measure_pending,
    "service": measure_service,
}


# --- running it -------------------------------------------------------------------------------------------


def in_checkout(folder: Path, row: str) -> Figures:
    command = [sys.executable, "-m", "tests.benchmarks.bench_cost", "--one", row]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder, env=environment)
    found: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def medians(runs: Sequence[Figures]) -> Figures:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def show(rows: Sequence[str], against: Path | None, repeats: int) -> None:
    print("row | figure | goal | before | now | now / before")
    for row in rows:
        ours: list[Figures] = []
        theirs: list[Figures] = []
        for _ in range(repeats):
            theirs += [in_checkout(against, row)] if against is not None else []
            ours.append(in_checkout(ROOT, row))
        now, before = medians(ours), medians(theirs) if theirs else {}
        main, goal = GOALS[row]
        for name, value in now.items():
            was = before.get(name)
            cells = [row, name, f"{goal:g}" if name == main else ""]
            cells += [f"{was:.4g}" if was is not None else "", f"{value:.4g}"]
            cells.append(f"{value / was:.3g}" if was else "")
            print(" | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare costs with their goals")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--against", type=Path, help="another checkout, for the figures before")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", choices=list(ROWS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(ROWS[given.one]()))
    else:
        show(given.rows, given.against, given.repeats)


if __name__ == "__main__":
    main()
