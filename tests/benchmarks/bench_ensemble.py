"""Measure the engine of ensembles: 10,000 jobs in 100 groups, with 50 metric rules that are checked at each event.

Run it by hand: ``python -m tests.benchmarks.bench_ensemble``. With ``--real [JOBS_OF_A_GROUP]`` it runs them on the
enclosing Flux instance, and then submits as many by ``flux submit``.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nodemanager.ensemble.engine import Engine
from nodemanager.ensemble.file.schema import read_ensemble
from nodemanager.ensemble.inputs import Begun, Input, JobEvent, read_inputs, write_inputs

GROUPS, JOBS_OF_GROUP, METRIC_RULES = 100, 100, 50
EVENTS = ("submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean")


def text(jobs_of_group: int = JOBS_OF_GROUP) -> str:
    """An ensemble whose metric rules never match, so that all of them are checked at every event."""
    jobs = [f"  - {{name: g{n}, command: 'true', count: {jobs_of_group}}}" for n in range(GROUPS)]
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


def measure_real(jobs_of_group: int) -> None:
    """Run the ensemble on the enclosing instance."""
    file = Path(tempfile.mkdtemp(prefix="bench-ensemble-")) / "bench.yaml"
    file.write_text(text(jobs_of_group))
    began_at = time.time()
    run = subprocess.Popen(
        [sys.executable, "-m", "nodemanager", "ensemble", "run", str(file), "--json", "--until-done"],
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(run.pid, 0)
    ended_at = time.time()
    times = sorted(float(it) for it in ask("jobs", "-a", "-n", "-c0", "-o", "{t_inactive}").split())
    events = len(ask("job", "eventlog", ask("jobs", "-a", "-n", "-c1", "-o", "{id}")).splitlines())
    jobs, took_s, cpu_s = len(times), times[-1] - began_at, used.ru_utime + used.ru_stime
    print(f"{jobs} jobs of {events} events in {took_s:.0f} s until the last has ended: {jobs / took_s:.1f} jobs/s")
    print(f"status {status}; the run ended {ended_at - times[-1]:.1f} s later, its start-up and end included")
    print(f"{cpu_s:.1f} s of processor time: {jobs * events / cpu_s:.0f} events per second of it")
    print(f"memory of the process at most {used.ru_maxrss / 1024:.0f} MB", flush=True)
    began_s = time.perf_counter()
    ask("submit", "--quiet", f"--cc=1-{jobs}", "true")
    submitted_s = time.perf_counter() - began_s
    ask("queue", "drain")
    all_s = time.perf_counter() - began_s
    print(f"flux submit --cc: {jobs / submitted_s:.0f} jobs/s submitted, all ended after {all_s:.0f} s")


def ask(*command: str) -> str:
    return subprocess.run(["flux", *command], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    if sys.argv[1:2] == ["--real"]:
        measure_real(int(sys.argv[2]) if sys.argv[2:] else JOBS_OF_GROUP)
        return
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
