"""What Ray's autoscaler v2 buys in a case: one ``schedule`` without a cluster. Needs ``ray[default]``."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from multiprocessing.connection import Connection

from tests.benchmarks.packing_cases import MIB, Case

LIMIT_S = 60.0


def preload() -> None:
    """Load Ray here, so that the process of each case need not."""
    import ray.autoscaler.v2.scheduler  # noqa: F401, PLC0415


def ray_cost(case: Case) -> int | None:
    """The cost of the nodes that Ray launches; None if it takes over a minute, or cannot ask for whole nodes."""
    if any(kind.whole for kind in case.kinds):
        return None
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_schedule, args=(case, theirs))
    process.start()
    theirs.close()
    try:
        return int(ours.recv()) if ours.poll(LIMIT_S) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def _schedule(case: Case, answer: Connection) -> None:
    from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig  # noqa: PLC0415
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest  # noqa: PLC0415
    from ray.autoscaler.v2.utils import ResourceRequestUtil  # noqa: PLC0415
    from ray.core.generated import autoscaler_pb2  # noqa: PLC0415

    def resources(cores: int, memory_mib: int, gpus: int) -> dict[str, float]:
        has = {"CPU": float(cores), "memory": float(memory_mib * MIB), "GPU": float(gpus)}
        return {name: amount for name, amount in has.items() if amount}

    types = {
        size.name: NodeTypeConfig(
            name=size.name,
            min_worker_nodes=0,
            max_worker_nodes=200_000,
            resources=resources(size.cores, size.memory_mib, size.gpus),
        )
        for size in case.sizes
    }
    apart = ResourceRequestUtil.PlacementConstraintType.ANTI_AFFINITY
    single, gangs = [], []
    for number, kind in enumerate(case.kinds):
        wants = resources(kind.cores, kind.memory_mib, kind.gpus)
        if not kind.gang:
            request = ResourceRequestUtil.make(wants)
            single.append(autoscaler_pb2.ResourceRequestByCount(request=request, count=kind.jobs))
            continue
        for job in range(kind.jobs):
            bundle = ResourceRequestUtil.make(wants, [(apart, f"g{number}-{job}", "1")])
            gangs.append(autoscaler_pb2.GangResourceRequest(requests=[bundle] * kind.gang))
    asked = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=types,
        max_num_nodes=None,
        resource_requests=single,
        gang_resource_requests=gangs,
        current_instances=[],
    )
    reply = ResourceDemandScheduler(event_logger=None).schedule(asked)
    bought = Counter({launch.instance_type: launch.count for launch in reply.to_launch})
    prices = {size.name: size.price for size in case.sizes}
    if reply.infeasible_resource_requests or reply.infeasible_gang_resource_requests:
        return
    answer.send(sum(prices[name] * count for name, count in bought.items()))
