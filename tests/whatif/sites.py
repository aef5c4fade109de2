"""A small site and small workloads to replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.jobs import Shape
from nodemanager.whatif.workload.workload import Oddities, TraceJob, Workload

SITE = """
[Site]
cluster = small
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = simulated
[Limits]
nodes_max = {nodes_max}
price_per_hour_max = 20
[Policy]
queue_policy = {queue_policy}
idle_timeout = 5m
[Simulation]
seed = 3
{simulation}
[Node thin]
cores = 2
memory = 4GiB
price_per_hour = 0.30
billing = {billing}
market = {market}
slots = thin[1-6]
"""


def a_site(
    folder: Path,
    *,
    billing: str = "per-second",
    nodes_max: int = 6,
    queue_policy: str = "fifo",
    market: str = "on-demand",
    simulation: str = "",
) -> Site:
    path = folder / "small.ini"
    path.write_text(
        SITE.format(
            billing=billing,
            nodes_max=nodes_max,
            queue_policy=queue_policy,
            market=market,
            simulation=simulation,
        )
    )
    return load_site(path, {})


def a_workload(jobs: Sequence[TraceJob], start_at: float = 1_000_000.0) -> Workload:
    def read(oddities: Oddities) -> list[TraceJob]:
        del oddities
        return list(jobs)

    return Workload("made up", lambda oddities: iter(read(oddities)), start_at, len(jobs))


def a_job(
    submit_s: float, *, run_s: float = 600.0, slots: int = 1, limit_s: float = 0.0, name: str = ""
) -> TraceJob:
    return TraceJob(name or f"at {submit_s:g}", submit_s, run_s, limit_s, Shape(slots=slots, cores_per_slot=1))


def unseen(run: str, jobs: int) -> None:
    """Ignore progress."""
