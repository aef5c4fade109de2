"""Delegated against direct jobs on one machine: latency, throughput, processor time, memory.

``python -m tests.benchmarks.bench_delegation``. It needs a flux on PATH. Loopback only; two or three minutes;
nothing stays behind.

The rate is measured twice: with all processors for everybody, and *apart*, with one processor for the peer and one
for home and the manager, as on two machines of one processor each.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil

from nodemanager.flux import bindings
from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually

LATENCY_JOBS = 15
BURST_JOBS = 100
BURSTS = 3
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
        """Submit jobs at once, without waiting for one before the next."""
        with bindings.connection(self._uri) as handle, ExitStack() as futures:
            spec = jobspec(command, delegated)
            sent = [futures.enter_context(handle.submit(spec, 16)) for _ in range(count)]
            return [int(future.wait(120.0).get()) for future in sent]

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


Sides = Mapping[str, psutil.Process]  # the broker here, the peer's broker, the manager


def sides_of(site: Delegating) -> Sides:
    """Find the processes by the sockets in their command lines."""
    brokers = {}
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if process.name().startswith("flux-broker") and str(site.folder) in command:
            brokers["peer" if str(site.b.directory) in command else "home"] = process
    return {**brokers, "manager": psutil.Process(site.manager.process.pid)}


def processor_ms(sides: Sides) -> dict[str, float]:
    """Return the processor time of each side so far, with that of its children, in ms."""
    spent = {}
    for name, process in sides.items():
        times = [it.cpu_times() for it in [process, *process.children(recursive=True)]]
        spent[name] = sum(it.user + it.system + it.children_user + it.children_system for it in times) * 1000
    return spent


@contextmanager
def apart(sides: Sides) -> Iterator[None]:
    """Give the peer one processor, and home and the manager another."""
    everything = os.sched_getaffinity(0)
    first, second, *_ = sorted(everything)
    _pin(sides, {name: {first} if name == "peer" else {second} for name in sides})
    yield
    _pin(sides, dict.fromkeys(sides, everything))


def _pin(sides: Sides, processors: Mapping[str, Iterable[int]]) -> None:
    for name, process in sides.items():
        for one in [process, *process.children(recursive=True)]:
            for thread in one.threads():
                os.sched_setaffinity(thread.id, processors[name])


def print_rates(what: str, home: Instance, peer: Instance, sides: Sides) -> None:
    """Print the medians of several bursts, direct and delegated by turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    spent: dict[bool, dict[str, float]] = {False: dict.fromkeys(sides, 0.0), True: dict.fromkeys(sides, 0.0)}
    for _ in range(BURSTS):
        for delegated in (False, True):
            before = processor_ms(sides)
            rates[delegated].append(jobs_per_second(home if delegated else peer, delegated=delegated))
            after = processor_ms(sides)
            for name in sides:
                spent[delegated][name] += (after[name] - before[name]) / (BURSTS * BURST_JOBS)
    direct, ours = statistics.median(rates[False]), statistics.median(rates[True])
    print(f"jobs per second, {what}: direct {direct:.1f}, delegated {ours:.1f} ({ours / direct:.0%})")
    for delegated, names in ((False, "direct"), (True, "delegated")):
        print(f"  processor ms a job, {names}: { ({name: round(ms, 1) for name, ms in spent[delegated].items()}) }")
    sys.stdout.flush()


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
        sides = sides_of(site)
        print_rates("sharing all processors", home, peer, sides)
        with apart(sides):
            print_rates("apart", home, peer, sides)
        before, after = memory_mib(site, home)
        print(f"memory of the manager: {before:.0f} MiB idle, {after:.0f} MiB with {RUNNING_JOBS} delegated jobs")


if __name__ == "__main__":
    main()
