"""Delegated against direct jobs on one machine: latency, throughput, memory.

``python -m tests.benchmarks.bench_delegation``. It needs a flux on PATH. Loopback only; a minute or two; nothing
stays behind.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import psutil

from nodemanager.flux import bindings
from nodemanager.flux.submit import submit
from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually

LATENCY_JOBS = 15
BURST_JOBS = 100
RUNNING_JOBS = 1000


def jobspec(command: list[str], delegated: bool) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}
    system: dict[str, Any] = {"duration": 0, "cwd": "/", "environment": {"PATH": "/bin:/usr/bin"}}
    if delegated:
        system["dependencies"] = [{"scheme": "delegate", "value": "b"}]
    return {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": command, "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": system},
    }


class Instance:
    """Submits to one instance, and reads when jobs started and ended."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def submit(self, count: int, command: list[str], *, delegated: bool) -> list[int]:
        with bindings.connection(self._uri) as handle:
            return [submit(handle, jobspec(command, delegated), timeout_s=60.0) for _ in range(count)]

    def moments(self, jobs: list[int]) -> list[dict[str, float]]:
        with bindings.connection(self._uri) as handle:
            return [self._moments_of(handle, job) for job in jobs]

    def _moments_of(self, handle: Any, job: int) -> dict[str, float]:
        found: dict[str, float] = {}

        def is_whole() -> bool:  # Flux writes eventlogs in batches
            lookup = {"id": job, "keys": ["eventlog"], "flags": 0}
            lines = bindings.ask(handle, "job-info.lookup", lookup, timeout_s=60.0)["eventlog"].splitlines()
            found.update({event["name"]: event["timestamp"] for event in map(json.loads, lines)})
            return "clean" in found

        eventually("its eventlog is whole", is_whole)
        return found

    def active(self) -> int:
        with bindings.connection(self._uri) as handle:
            return int(bindings.ask(handle, "job-manager.stats-get", timeout_s=60.0)["active_jobs"])


def latency(instance: Instance, *, delegated: bool) -> tuple[float, float]:
    """Return the medians of submit to start and submit to clean, in seconds, of jobs that run one by one."""
    found = []
    for _ in range(LATENCY_JOBS):
        jobs = instance.submit(1, ["true"], delegated=delegated)
        eventually("it ends", lambda: not instance.active(), within_s=60)
        found += instance.moments(jobs)
    starts = [it["start"] - it["submit"] for it in found]
    ends = [it["clean"] - it["submit"] for it in found]
    return statistics.median(starts), statistics.median(ends)


def jobs_per_second(instance: Instance, *, delegated: bool) -> float:
    began_s = time.monotonic()
    instance.submit(BURST_JOBS, ["true"], delegated=delegated)
    eventually("all end", lambda: not instance.active(), within_s=300)
    return BURST_JOBS / (time.monotonic() - began_s)


def memory_mib(site: Delegating, home: Instance) -> tuple[float, float]:
    """Return the manager's memory without jobs and with ``RUNNING_JOBS`` that wait or run at the peer."""
    process = psutil.Process(site.manager.process.pid)
    before = process.memory_info().rss
    home.submit(RUNNING_JOBS, ["sleep", "600"], delegated=True)
    eventually("all are there", lambda: len(site.copies()) >= RUNNING_JOBS, within_s=300)
    after = process.memory_info().rss
    site.flux("cancel", "--all")
    return before / 2**20, after / 2**20


def main() -> None:
    with delegating() as site:
        home, peer = Instance(site.elastic.site.flux.uri), Instance(site.b.uri)
        home.submit(1, ["true"], delegated=True)
        eventually("warm", lambda: not home.active(), within_s=60)
        direct, ours = latency(peer, delegated=False), latency(home, delegated=True)
        print(f"submit to start: direct {direct[0] * 1000:.0f} ms, delegated {ours[0] * 1000:.0f} ms")
        print(f"submit to end:   direct {direct[1] * 1000:.0f} ms, delegated {ours[1] * 1000:.0f} ms")
        rates = jobs_per_second(peer, delegated=False), jobs_per_second(home, delegated=True)
        print(f"jobs per second: direct {rates[0]:.1f}, delegated {rates[1]:.1f}")
        sys.stdout.flush()
        before, after = memory_mib(site, home)
        print(f"memory of the manager: {before:.0f} MiB idle, {after:.0f} MiB with {RUNNING_JOBS} delegated jobs")


if __name__ == "__main__":
    main()
