"""Measure the engine of ensembles: 10,000 jobs in 100 groups, with 50 metric rules that are checked at each event.

Run it by hand: ``python -m tests.benchmarks.bench_ensemble``.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

from nodemanager.ensemble.engine import Engine
from nodemanager.ensemble.file.schema import read_ensemble
from nodemanager.ensemble.inputs import Begun, Input, JobEvent, read_inputs, write_inputs

GROUPS, JOBS_OF_GROUP, METRIC_RULES = 100, 100, 50
EVENTS = ("submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean")


def text() -> str:
    """An ensemble whose metric rules never match, so that all of them are checked at every event."""
    jobs = [f"  - {{name: g{n}, command: 'true', count: {JOBS_OF_GROUP}}}" for n in range(GROUPS)]
    starts = [f"  - {{trigger: start, action: {{name: submit, label: g{n}}}}}" for n in range(GROUPS)]
    metrics = [
        f'  - {{trigger: metric, name: {statistic}.g{n}-duration, when: "> 1e6", action: {{name: terminate}}}}'
        for n in range(METRIC_RULES)
        for statistic in [("mean", "iqr", "mad", "variance", "p95")[n % 5]]
    ]
    return "\n".join(["jobs:", *jobs, "rules:", *starts, *metrics])


def inputs() -> Iterator[Input]:
    """All jobs at one time: each event of every job before the next event."""
    yield Begun(0.0)
    for step, name in enumerate(EVENTS):
        for group in range(GROUPS):
            for index in range(JOBS_OF_GROUP):
                job = group * JOBS_OF_GROUP + index + 1
                key = f"{group + 1}.1.{group}.{index}" if name == "submit" else ""
                yield JobEvent(job, name, step * 100 + job / 1000, group=f"g{group}" if key else "", key=key)


def main() -> None:
    engine = Engine(read_ensemble(text())[0])
    began_s, log_bytes, count = time.perf_counter(), 0, 0
    for it in inputs():
        line = write_inputs([it])
        log_bytes += len(line)
        engine.take(read_inputs(line)[0])
        count += 1
    took_s = time.perf_counter() - began_s
    finished = sum(engine.metrics.counts(group)["finished"] for group in engine.ensemble.groups)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{finished} jobs, {count} events, {METRIC_RULES} metric rules: {count / took_s:.0f} events/s with the log"
    )
    print(f"log {log_bytes / 2**20:.1f} MiB, memory of the process at most {memory_mb:.0f} MB")


if __name__ == "__main__":
    main()
