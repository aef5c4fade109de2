"""Time one plan, and measure the memory, for queues that one user fills to hold up everybody else.

    python -m tests.benchmarks.bench_limits            # every case
    python -m tests.benchmarks.bench_limits ranks "not hosts"

Each case runs in a process of its own, which is ended after ``LIMIT_S``. The queue is read as from Flux: each job
is a ``submit`` event with its jobspec. ``read`` is the CPU time of that and of ``observe``; ``first`` and ``again``
are plans in a row; ``RSS`` is the peak, less what the process had before. User 1000 fills the queue. User 2000
has submitted one plain job behind it: ``other`` is the reason of that job. The queues of ``hostile_queues`` have no
such user, and do not come from Flux. ``ratio`` is the CPU time of the slowest plan, each the least of ``RUNS`` in a
row, divided by the bound of ``BOUND_S``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from nodemanager.core.facts import ClaimHeld, CloudListed, RanksSeen, Tick
from nodemanager.core.jobs import JobId, QueuePolicy
from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Billing, NodeType, Rank, SlotName, TypeName
from nodemanager.flux.parse.job_journal import JobQueue
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Limits, Policy, Rules
from nodemanager.planner.snapshot import Snapshot
from tests.benchmarks import hostile_queues
from tests.paths import ROOT

NOW_S, WALL_AT = 10_000.0, 1.8e9
LIMIT_S = 150.0
BOUND_S, RUNS = 1.0, 3
FILLS, OTHER = 1000, 2000  # users

Constraints = Mapping[str, Any]


# --- the cases --------------------------------------------------------------------------------------------


def _ranks(number: int, slots: int) -> Constraints:
    chosen = random.Random(number).sample(range(1, slots + 1), 84)
    return {"ranks": [",".join(map(str, sorted(chosen)))]}


def _not_hosts(number: int, slots: int) -> Constraints:
    first, second = random.Random(number).sample(range(1, slots + 1), 2)
    return {"not": [{"hostlist": [f"n{first},n{second}"]}]}


def _properties(number: int, slots: int) -> Constraints:
    return {"or": [{"properties": [f"p{number}-{index}"]} for index in range(50_000)] + [{"properties": ["^q"]}]}


def _harmless(number: int, slots: int) -> Constraints:
    return {"properties": [f"^nobody-{number}"]}


def _all_ranks(number: int, slots: int) -> Constraints:
    return {"ranks": ["0-999999"]}


def _long_range(number: int, slots: int) -> Constraints:
    return {"hostlist": [f"n[{a * 90_000}-{a * 90_000 + 89_999}]" for a in range(10)]}


def _long_list(number: int, slots: int) -> Constraints:
    return {"hostlist": [",".join(f"n{a}" for a in range(b * 90_000, b * 90_000 + 90_000)) for b in range(10)]}


# name: jobs, slots, the most nodes, the order of the queue, the constraint of each job
CASES: Mapping[str, tuple[int, int, int, QueuePolicy, Callable[[int, int], Constraints]]] = {
    "ranks, half the jobs": (300, 300, 300, QueuePolicy.FIFO, _ranks),
    "ranks": (600, 300, 300, QueuePolicy.FIFO, _ranks),
    "ranks, limit": (600, 300, 60, QueuePolicy.FIFO, _ranks),
    "ranks, limit, backfill": (600, 300, 60, QueuePolicy.BACKFILL, _ranks),
    "not hosts": (2_000, 300, 300, QueuePolicy.FIFO, _not_hosts),
    "not hosts, backfill": (2_000, 300, 300, QueuePolicy.BACKFILL, _not_hosts),
    "not hosts, wide": (2_000, 4_000, 4_000, QueuePolicy.FIFO, _not_hosts),
    "properties": (20, 300, 300, QueuePolicy.FIFO, _properties),
    "harmless": (10_000, 300, 3_000, QueuePolicy.FIFO, _harmless),
    "harmless, backfill": (10_000, 300, 60, QueuePolicy.BACKFILL, _harmless),
    "ranks as one range": (20, 300, 300, QueuePolicy.FIFO, _all_ranks),
    "hosts as ranges": (20, 300, 300, QueuePolicy.FIFO, _long_range),
    "hosts one by one": (20, 300, 300, QueuePolicy.FIFO, _long_list),
}
ALL = (*CASES, *hostile_queues.CASES)


def _jobspec(constraints: Constraints) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}
    system = {"duration": 3600.0, **({"constraints": constraints} if constraints else {})}
    return {"resources": [slot], "tasks": [], "attributes": {"system": system}, "version": 1}


def _submit(queue: JobQueue, number: int, userid: int, constraints: Constraints) -> None:
    # Through JSON, as Flux sends it: no two jobs share a text.
    jobspec = json.loads(json.dumps(_jobspec(constraints)))
    of = {"urgency": 16, "userid": userid, "flags": 0}
    queue.apply(number, "submit", WALL_AT, of, jobspec)
    for name, context in (("validate", {}), ("depend", {}), ("priority", {"priority": 16})):
        queue.apply(number, name, WALL_AT, context)


# --- measuring --------------------------------------------------------------------------------------------


def measure_hostile(name: str) -> dict[str, Any]:
    base_mb, cpu = peak_mb(), time.process_time()
    known, policy = hostile_queues.CASES[name]()
    took = [time.process_time() - cpu]
    for _ in range(RUNS):
        cpu = time.process_time()
        counts = plan(known, policy).count_by_reason()
        took.append(time.process_time() - cpu)
    return {
        "read_s": took[0],
        "first_s": took[1],
        "again_s": min(took[2:]),
        "ratio": min(took[1:]) / BOUND_S,
        "rss_mb": peak_mb() - base_mb,
        "other": "",
        "reasons": dict(Counter(counts).most_common(3)),
    }


def measure(name: str) -> dict[str, Any]:
    jobs, slots, nodes_max, order, constraints = CASES[name]
    of_type = NodeType(
        TypeName("n"), "n", 4, 0, 2**34, Decimal("0.4"), Billing(3600.0),
        tuple(SlotName(f"n{number}") for number in range(1, slots + 1)),
    )  # fmt: skip
    policy = Policy(
        "bench", "uuid", (of_type,), limits=Limits(nodes_max, Decimal(10**6)), rules=Rules(queue_policy=order)
    )
    ranks = tuple(FluxRank(Rank(n), slot, online=False, cores=4) for n, slot in enumerate(of_type.slots, 1))
    base_mb, cpu = peak_mb(), time.process_time()
    queue = JobQueue()
    for number in range(1, jobs + 1):
        _submit(queue, number, FILLS, constraints(number, slots))
    _submit(queue, jobs + 1, OTHER, {})
    known = advance_to(Snapshot(), Tick(NOW_S, WALL_AT))
    seen = (ClaimHeld(NOW_S - 1, ()), RanksSeen(NOW_S - 1, ranks), CloudListed(NOW_S - 1, ()))
    for fact in (*seen, queue.complete(NOW_S - 1)):
        known = observe(known, fact, policy)
    known = advance_to(known, Tick(NOW_S + 60, WALL_AT + 60))
    took = [time.process_time() - cpu]
    for _ in range(RUNS):
        cpu = time.process_time()
        made = plan(known, policy)
        counts = made.count_by_reason()
        other = made.jobs[JobId(jobs + 1)]
        took.append(time.process_time() - cpu)
    return {
        "read_s": took[0],
        "first_s": took[1],
        "again_s": min(took[2:]),
        "ratio": min(took[1:]) / BOUND_S,
        "rss_mb": peak_mb() - base_mb,
        "other": other.code,
        "reasons": dict(Counter(counts).most_common(3)),
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _in_a_process(name: str) -> dict[str, Any] | str:
    command = [sys.executable, "-m", "tests.benchmarks.bench_limits", "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"no plan in {LIMIT_S:.0f} s"
    except subprocess.CalledProcessError as failed:
        return f"failed: {failed.stderr.strip().splitlines()[-1:]}"
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cases", nargs="*", help=f"the beginning of the names of cases: {', '.join(ALL)}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        print(json.dumps(measure(asked.one) if asked.one in CASES else measure_hostile(asked.one)))
        return
    head = f"{'read s':>7} {'first s':>8} {'again s':>8} {'ratio':>6} {'RSS MB':>7}"
    print(f"{'case':27} {head}  other; reasons")
    for name in ALL:
        if asked.cases and not name.startswith(tuple(asked.cases)):
            continue
        it = _in_a_process(name)
        if isinstance(it, str):
            print(f"{name:27} {it}", flush=True)
            continue
        figures = (
            f"{it['read_s']:7.2f} {it['first_s']:8.2f} {it['again_s']:8.2f} {it['ratio']:6.2f} {it['rss_mb']:7.0f}"
        )
        print(f"{name:27} {figures}  {it['other']}; {it['reasons']}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
