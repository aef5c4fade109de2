"""Time one decision, beside the autoscaler of Ray on the same cases; its cost beside a bound; a tick; the growth.

    python -m tests.benchmarks.bench_plan                          # the planner alone
    python -m tests.benchmarks.bench_plan --ray /path/to/python    # with Ray: a Python that has ray[default]

Each measurement is made in a process of its own, so that the peak of memory is its own. A case is: jobs that wait,
node types, nodes that are up, shapes, what of each node is free, and the nodes of a gang (0: single jobs). What the
planner sees went through ``observe``; the first reading of the queue and the ranks is told apart from the decision,
as Ray's building of its request is from its own. Ray is asked for as many bundles as there are jobs, or gangs of
bundles with anti-affinity. The bound is that of the linear program in which work and nodes may be parted at will
(HiGHS, where ``highspy`` is installed): no packing costs less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from nodemanager.core.facts import ClaimHeld, CloudListed, QueueSeen, RanksSeen, Tick
from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, Shape
from nodemanager.core.nodes import CloudNode, CloudState, FluxRank, Identity, Launch, LaunchId, ProviderId
from nodemanager.core.orders import BootNode
from nodemanager.core.slots import Billing, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.brain import commit_actions, commit_asks
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Limits, Policy
from nodemanager.planner.snapshot import Snapshot
from tests.paths import ROOT

GIB = 2**30
CORES = (4, 8, 16, 32, 48, 64, 96)
NOW_S, WALL_AT = 10_000.0, 1.8e9
RAY_LIMIT_S = 60.0

Case = tuple[int, int, int, int, str, int]
CASES: Sequence[tuple[Case, float]] = (  # with the goal in seconds
    ((10_000, 10, 1_000, 5, "half", 0), 0.25),
    ((100_000, 10, 100, 5, "full", 0), 0.5),
    ((100_000, 10, 100, 500, "full", 0), 2.0),
    ((16_000, 10, 100, 5, "full", 16), 1.0),
    ((1_000_000, 10, 10_000, 5, "full", 0), 3.0),
    ((10_000, 10, 100, 500, "full", 0), 2.0),
    ((1_000, 10, 100, 500, "full", 0), 2.0),
)
HEAD = (
    *("pending", "types", "nodes", "shapes", "free", "gang", "goal s", "plan s", "cpu s", "read s", "peak MB"),
    *("bought", "price", "/ bound", "Ray s", "Ray cpu s", "Ray MB", "Ray price", "/ bound", "faster"),
)
CURVE = (100, 1_000, 10_000, 100_000, 1_000_000)


# --- the cases --------------------------------------------------------------------------------------------


def sizes(count: int) -> list[tuple[str, int, int, int]]:
    """Node types: name, cores, GPUs, bytes of memory. 4 GiB a core; every fourth has GPUs."""
    return [
        (f"t{i:02d}-c{cores}", cores, max(1, cores // 16) if i % 4 == 3 else 0, cores * 4 * GIB)
        for i, cores in ((i, CORES[i % len(CORES)]) for i in range(count))
    ]


def price(cores: int, gpus: int) -> Decimal:
    """An hour. A little for the node itself, so that two small ones cost more than one of twice the size."""
    return Decimal("0.01") + Decimal("0.048") * cores + Decimal("0.75") * gpus


def wanted(count: int) -> list[tuple[int, int]]:
    """Distinct shapes: cores, and bytes of memory. Few are alike in what they take for a core; many are not."""
    draw = random.Random(7)
    if count <= 8:
        return [(1, 2 * GIB), (2, 4 * GIB), (4, 8 * GIB), (4, 2 * GIB), (1, GIB // 2)][:count]
    found: dict[tuple[int, int], None] = {}
    while len(found) < count:
        found.setdefault((draw.choice([1, 1, 1, 2, 2, 4]), draw.randrange(64, 1024) * 2**24))
    return list(found)


def counts(jobs: int, shapes: int) -> list[int]:
    return [jobs // shapes + (number < jobs % shapes) for number in range(shapes)]


def snapshot_of(case: Case) -> tuple[Snapshot, Policy, float]:
    """What a manager knows in a case, and how long the first reading took."""
    jobs, types, up, shapes, state, gang = case
    kinds = wanted(shapes)
    of_each = counts(jobs, shapes)
    need = sum(n * max(cores, memory // (4 * GIB)) for n, (cores, memory) in zip(of_each, kinds, strict=True))
    slots = up // types + 1 + max(gang * 4, int(1.2 * need / max(CORES[:types]))) + 20
    node_types = tuple(
        NodeType(
            TypeName(name), name, cores, gpus, memory, price(cores, gpus), Billing(1.0, 60.0),
            tuple(SlotName(f"{name}-{number}") for number in range(slots)),
        )
        for name, cores, gpus, memory in sizes(types)
    )  # fmt: skip
    policy = Policy("bench", "uuid", node_types, limits=Limits(10**6, Decimal(10**8)))
    ranks = tuple(ranks_of(node_types, up, state))
    each = [Shape(1, cores, nodes=gang or None, memory_bytes_per_slot=memory) for cores, memory in kinds]
    queue = tuple(
        Job(JobId(number), JobState.SCHED, JobRequest(each[number % shapes]), WALL_AT)
        for number in range(jobs // gang if gang else jobs)
    )
    known = advance_to(Snapshot(), Tick(NOW_S, WALL_AT))
    begun = time.perf_counter()
    for fact in (
        ClaimHeld(NOW_S - 1, ()),
        RanksSeen(NOW_S - 1, ranks),
        CloudListed(NOW_S - 1, ()),
        QueueSeen(NOW_S - 1, queue, complete=True),
    ):
        known = observe(known, fact, policy)
    read_s = time.perf_counter() - begun
    return advance_to(known, Tick(NOW_S + 60, WALL_AT + 60)), policy, read_s


def ranks_of(node_types: Sequence[NodeType], up: int, state: str) -> Iterator[FluxRank]:
    number = 0
    for index, of in enumerate(node_types):
        online = up // len(node_types) + (index < up % len(node_types))
        for place, slot in enumerate(of.slots):
            number += 1
            is_up = place < online
            free = of.cores // 2 if is_up and state == "half" else 0
            yield FluxRank(Rank(number), slot, is_up, of.cores, of.gpus, free, 0, is_up, is_up)


# --- the planner ------------------------------------------------------------------------------------------


def measure_plan(case: Case, repeats: int) -> dict[str, Any]:
    base_mb = peak_mb()
    known, policy, read_s = snapshot_of(case)
    took, of_cpu = [], []
    for _ in range(repeats):
        begun, cpu = time.perf_counter(), time.process_time()
        made = plan(known, policy)
        took.append(time.perf_counter() - begun)
        of_cpu.append(time.process_time() - cpu)
    boots = Counter(action.launch.type_name for action in made.actions if isinstance(action, BootNode))
    return {
        "plan_s": statistics.median(took),
        "cpu_s": statistics.median(of_cpu),
        "read_s": read_s,
        "rss_mb": peak_mb(),
        "rss_imports_mb": base_mb,
        "nodes": sum(boots.values()),
        "price": float(sum(policy.types[name].price_per_hour * count for name, count in boots.items())),
        "served": made.count_by_reason().get("node_ordered", 0),
    }


def measure_ticks(
    nodes: int, jobs: int, changes: int, ticks: int, *, stacked: bool = False, idle: int = 0
) -> dict[str, Any]:
    """A fleet at work: each tick so many jobs end, as many begin and come, and the ranks say so.

    ``stacked``: only the highest node can leave. ``idle``: so many of the first nodes run nothing.
    """
    of = NodeType(
        TypeName("n"), "n", 8, 0, 32 * GIB, Decimal("0.4"), Billing(1.0, 60.0),
        tuple(SlotName(f"n{number}") for number in range(1, nodes + 1001)),
    )  # fmt: skip
    policy = Policy("bench", "uuid", (of,), limits=Limits(nodes, Decimal(10**6)), stacked=stacked)
    launches = [
        Launch(LaunchId(f"{slot}-1"), slot, Rank(number), of.name, "token", WALL_AT - 3600)
        for number, slot in enumerate(of.slots[:nodes], 1)
    ]
    full = [
        FluxRank(Rank(n), s, online=True, cores=8, cores_free=0, allocated=True, schedulable=True)
        for n, s in enumerate(of.slots[:nodes], 1)
    ]
    full[:idle] = [replace(rank, cores_free=8, allocated=False) for rank in full[:idle]]
    away = [FluxRank(Rank(n), s, online=False, cores=8) for n, s in enumerate(of.slots[nodes:], nodes + 1)]
    ranks = [*full, *away]
    shape = Shape(1, 8)
    running = [Job(JobId(n), JobState.RUN, JobRequest(shape, 3600.0), WALL_AT) for n in range(idle + 1, nodes + 1)]
    waiting = [
        Job(JobId(n), JobState.SCHED, JobRequest(Shape(1, 1 + n % 5)), WALL_AT) for n in range(nodes + 1, jobs + 1)
    ]
    known = advance_to(Snapshot(), Tick(NOW_S, WALL_AT))
    listed = tuple(
        CloudNode(
            ProviderId(f"i-{launch.slot}"),
            CloudState.RUNNING,
            Identity("bench", "uuid", launch.id, launch.slot, of.name),
            WALL_AT - 3600,
        )
        for launch in launches
    )
    for fact in (
        ClaimHeld(NOW_S - 1, tuple(launches)),
        CloudListed(NOW_S - 1, listed),
        RanksSeen(NOW_S - 1, tuple(ranks)),
        QueueSeen(NOW_S - 1, (*running, *waiting), complete=True),
    ):
        known = observe(known, fact, policy)
    now_s, newest, took = NOW_S, jobs, []
    for tick in range(ticks):
        now_s += 1.0
        half = changes // 2
        came = tuple(
            Job(JobId(newest + n), JobState.SCHED, JobRequest(Shape(1, 1 + n % 5)), WALL_AT)
            for n in range(1, half + 1)
        )
        ended = tuple(JobId(idle + tick * half + n) for n in range(1, half + 1))
        newest += half
        for place in range(half):
            index = idle + (tick * half + place) % (nodes - idle)
            was = ranks[index]
            ranks[index] = FluxRank(
                was.rank,
                was.host,
                online=True,
                cores=8,
                cores_free=1 - was.cores_free,
                allocated=True,
                schedulable=True,
            )
        seen = tuple(ranks)
        begun, cpu = time.perf_counter(), time.process_time()
        known = observe(known, QueueSeen(now_s - 0.1, came, ended=ended), policy)
        known = observe(known, RanksSeen(now_s - 0.1, seen), policy)
        known = advance_to(known, Tick(now_s, WALL_AT + now_s - NOW_S))
        made = plan(known, policy)
        known = commit_actions(commit_asks(known, made, policy), made, policy)
        took.append((time.perf_counter() - begun, time.process_time() - cpu))
    wall, of_cpu = zip(*took[2:], strict=True)
    return {
        "median_ms": 1e3 * statistics.median(wall),
        "cpu_ms": 1e3 * statistics.median(of_cpu),
        "ticks": ticks - 2,
    }


def bound(case: Case) -> float | None:
    """The price that no fleet can undercut, beside what is free on the nodes that are up."""
    try:
        import highspy  # noqa: PLC0415
    except ImportError:
        return None
    jobs, types, _, shapes, state, gang = case
    if gang or state != "full":
        return None
    highs = highspy.Highs()
    highs.silent()
    kinds, offers = wanted(shapes), sizes(types)
    nodes = [highs.addVariable(lb=0, obj=float(price(cores, gpus))) for _, cores, gpus, _ in offers]
    laid = [[highs.addVariable(lb=0) for _ in offers] for _ in kinds]
    for row, count in zip(laid, counts(jobs, shapes), strict=True):
        highs.addConstr(sum(row) == count)
    for place, (_, cores, _, memory) in enumerate(offers):
        highs.addConstr(sum(kinds[i][0] * row[place] for i, row in enumerate(laid)) <= cores * nodes[place])
        gib = [(kinds[i][1] / GIB) * row[place] for i, row in enumerate(laid)]
        highs.addConstr(sum(gib) <= memory / GIB * nodes[place])
    highs.minimize()
    return float(highs.getObjectiveValue())


# --- Ray --------------------------------------------------------------------------------------------------


def measure_ray(case: Case) -> dict[str, Any]:
    """One ``schedule`` of Ray's autoscaler v2 (``ray.autoscaler.v2.scheduler``), without a cluster."""
    from ray.autoscaler.v2 import schema  # noqa: PLC0415
    from ray.autoscaler.v2.instance_manager.config import (  # noqa: PLC0415
        NodeTypeConfig,
    )
    from ray.autoscaler.v2.scheduler import (  # noqa: PLC0415
        ResourceDemandScheduler,
        SchedulingRequest,
    )
    from ray.autoscaler.v2.utils import (  # noqa: PLC0415
        ResourceRequestUtil,
    )
    from ray.core.generated import (  # noqa: PLC0415
        autoscaler_pb2,
        instance_manager_pb2,
    )

    jobs, types, up, shapes, state, gang = case
    base_mb = peak_mb()
    offers = sizes(types)
    has = {
        name: {"CPU": float(cores), "memory": float(memory)} | ({"GPU": float(gpus)} if gpus else {})
        for name, cores, gpus, memory in offers
    }
    configs = {
        name: NodeTypeConfig(name=name, min_worker_nodes=0, max_worker_nodes=200_000, resources=dict(what))
        for name, what in has.items()
    }
    instances = []
    for number in range(up):
        name = offers[number % types][0]
        free = {what: (0.0 if state == "full" else size / 2) for what, size in has[name].items()}
        instances.append(
            schema.AutoscalerInstance(
                cloud_instance_id=f"c{number}",
                ray_node=autoscaler_pb2.NodeState(
                    node_id=b"n%d" % number,
                    ray_node_type_name=name,
                    total_resources=has[name],
                    available_resources=free,
                    status=autoscaler_pb2.NodeStatus.RUNNING,
                    idle_duration_ms=0,
                ),
                im_instance=instance_manager_pb2.Instance(
                    instance_id=f"i{number}",
                    instance_type=name,
                    status=instance_manager_pb2.Instance.RAY_RUNNING,
                    node_kind=instance_manager_pb2.NodeKind.WORKER,
                    node_id=f"n{number}",
                ),
            )
        )
    kinds = [{"CPU": float(cores), "memory": float(memory)} for cores, memory in wanted(shapes)]
    requests, gangs = [], []
    if gang:
        apart = ResourceRequestUtil.PlacementConstraintType.ANTI_AFFINITY
        for number in range(jobs // gang):
            bundles = [
                ResourceRequestUtil.make(kinds[number % shapes], [(apart, f"g{number}", "1")]) for _ in range(gang)
            ]
            gangs.append(autoscaler_pb2.GangResourceRequest(requests=bundles))
    else:
        for kind, count in zip(kinds, counts(jobs, shapes), strict=True):
            request = ResourceRequestUtil.make(kind)
            requests.append(autoscaler_pb2.ResourceRequestByCount(request=request, count=count))
    asked_for = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=configs,
        max_num_nodes=None,
        resource_requests=requests,
        gang_resource_requests=gangs,
        current_instances=instances,
    )
    scheduler = ResourceDemandScheduler(event_logger=None)
    begun, cpu = time.perf_counter(), time.process_time()
    reply = scheduler.schedule(asked_for)
    took_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    launched = Counter({launch.instance_type: launch.count for launch in reply.to_launch})
    of_type = {name: price(cores, gpus) for name, cores, gpus, _ in offers}
    return {
        "plan_s": took_s,
        "cpu_s": cpu_s,
        "rss_mb": peak_mb(),
        "rss_imports_mb": base_mb,
        "nodes": sum(launched.values()),
        "price": float(sum(of_type[name] * count for name, count in launched.items())),
    }


# --- running it -------------------------------------------------------------------------------------------


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(python: str, what: Sequence[str], limit_s: float) -> dict[str, Any] | None:
    """The measurement, or None where it took longer than the limit."""
    command = [python, "-m", "tests.benchmarks.bench_plan", *what]
    root = ROOT
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=True, cwd=root, env=environment
        )
    except subprocess.TimeoutExpired:
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def show(ray_python: str | None, repeats: int) -> None:
    print(" | ".join(HEAD))
    for case, goal_s in CASES:
        text = [str(part) for part in case]
        ours = in_a_process(sys.executable, ["--one", *text, "--repeats", str(repeats)], 600.0)
        assert ours is not None
        least = bound(case)
        cells = [
            *text,
            f"{goal_s:g}",
            f"{ours['plan_s']:.3f}",
            f"{ours['cpu_s']:.3f}",
            f"{ours['read_s']:.2f}",
            f"{ours['rss_mb']:.0f}",
        ]
        cells += [str(ours["nodes"]), f"{ours['price']:.2f}", f"{ours['price'] / least:.4f}" if least else "-"]
        if ray_python is not None:
            ray = in_a_process(ray_python, ["--one-ray", *text], RAY_LIMIT_S)
            cells += _beside(ray, ours, least)
        print(" | ".join(cells), flush=True)
    print("\njobs of 5 shapes, 10 types, 100 full nodes: decision in s")
    for jobs in CURVE:
        made = in_a_process(
            sys.executable, ["--one", str(jobs), "10", "100", "5", "full", "0", "--repeats", "3"], 600.0
        )
        assert made is not None
        print(f"{jobs:>9} {made['plan_s']:.4f} (cpu {made['cpu_s']:.4f})  {made['nodes']} nodes", flush=True)
    ticks = in_a_process(sys.executable, ["--ticks"], 600.0)
    print(f"\na tick with 10 changes, 5,000 nodes at work, 20,000 jobs: {ticks}")


def _beside(ray: dict[str, Any] | None, ours: dict[str, Any], least: float | None) -> list[str]:
    if ray is None:
        return [f"> {RAY_LIMIT_S:g}", "-", "-", "-", "-", f"> {RAY_LIMIT_S / ours['plan_s']:.0f} x"]
    return [
        f"{ray['plan_s']:.2f}",
        f"{ray['cpu_s']:.2f}",
        f"{ray['rss_mb']:.0f}",
        f"{ray['price']:.2f}",
        f"{ray['price'] / least:.4f}" if least else "-",
        f"{ray['plan_s'] / ours['plan_s']:.0f} x",
    ]


def _case(text: Sequence[str]) -> Case:
    jobs, types, up, shapes, state, gang = text
    return int(jobs), int(types), int(up), int(shapes), state, int(gang)


def main() -> None:
    parser = argparse.ArgumentParser(description="time one decision")
    parser.add_argument("--ray", help="a Python that has ray[default]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--one-ray", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--ticks", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure_plan(_case(given.one), given.repeats)))
    elif given.one_ray:
        print(json.dumps(measure_ray(_case(given.one_ray))))
    elif given.ticks:
        print(json.dumps(measure_ticks(5_000, 20_000, 10, 102)))
    else:
        show(given.ray, given.repeats)


if __name__ == "__main__":
    main()
