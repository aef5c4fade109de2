"""How fast a burst of jobs gets its nodes from a provider that limits creates as EC2 or Google does.

    python -m tests.benchmarks.bench_batches [NODES...]

Production actors in virtual time (``burst_world``). Boots take no time; a create call takes 0.5 to 1.5 s.

``ordered``: from the submission until the provider has accepted the creates of all nodes. ``joined``: until the
manager knows all of them to be up. ``CPU``: this machine's until then, for the manager and
the simulated world together; virtual time does not pass meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from nodemanager.config.provider import EC2_INSTANCES_PER_S, provider_named
from nodemanager.config.site import (
    BATCHES_AT_ONCE,
    BATCHES_PER_S,
    INSTANCES_AT_ONCE,
)
from nodemanager.planner.policy import Calls
from nodemanager.simulation.time.world import World
from tests.benchmarks.burst_world import Burst
from tests.cloud.ec2.moto_faults import InstanceBucket

AT_ONCE = 500
HOUR_S = 3600.0
ROW = "{:<34} {:>6} {:>10} {:>10} {:>7} {:>10} {:>10} {:>8}"


def main(counts: list[int]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(ROW.format("", "nodes", "ordered", "joined", "creates", "throttled", "destroys", "CPU"))
    for nodes in counts:
        ours = Calls(
            creates_per_s=EC2_INSTANCES_PER_S,
            creates_burst=INSTANCES_AT_ONCE,
            nodes_per_create=AT_ONCE,
            nodes_per_destroy=AT_ONCE,
            create_calls_per_s=BATCHES_PER_S,
            create_calls_burst=BATCHES_AT_ONCE,
        )
        raised = replace(ours, creates_per_s=20.0, creates_burst=10_000)
        if nodes <= INSTANCES_AT_ONCE:
            _measure("EC2's default buckets", nodes, ours, INSTANCES_AT_ONCE)
            _measure("the same, a call for each node", nodes, Calls(), INSTANCES_AT_ONCE)
        _measure("buckets of 10,000", nodes, raised, 10_000)
        google = replace(ours, creates_per_s=provider_named("gce").batch_creates_per_s, nodes_per_destroy=1)
        _measure_with("Google's 20 requests a second", nodes, google, _google_bucket)


def _google_bucket(world: World) -> InstanceBucket:
    """Google counts requests that create, and not their instances."""
    most = provider_named("gce").batch_creates_per_s
    return InstanceBucket(lambda: world.now_s, float("inf"), requests_size=most, requests_refill_per_s=most)


def _measure(name: str, nodes: int, calls: Calls, bucket_size: int) -> None:
    _measure_with(name, nodes, calls, lambda world: InstanceBucket(lambda: world.now_s, float(bucket_size)))


def _measure_with(name: str, nodes: int, calls: Calls, bucket: Callable[[World], InstanceBucket]) -> None:
    burst = Burst(nodes, calls, bucket)
    submitted_s = burst.submit()
    began_s = time.process_time()
    ordered_s = burst.until(lambda: burst.count_ordered() >= nodes, HOUR_S) - submitted_s
    joined_s = burst.until(lambda: burst.count_joined() >= nodes, HOUR_S) - submitted_s
    cpu_s = time.process_time() - began_s
    creates, throttled = len(burst.provider.ordered), burst.provider.bucket.throttled
    burst.until(lambda: burst.count_standing() == 0, HOUR_S, step_s=5.0)
    times = f"{ordered_s:.1f} s", f"{joined_s:.1f} s"
    print(
        ROW.format(name, nodes, *times, creates, throttled, burst.provider.destroy_calls, f"{cpu_s:.1f} s"),
        flush=True,
    )


if __name__ == "__main__":
    main([int(it) for it in sys.argv[1:]] or [1_000, 4_000])
