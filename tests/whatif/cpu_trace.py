"""A seeded trace of jobs that ask for cores only, as most of a newcomer's jobs do."""

from __future__ import annotations

from pathlib import Path
from random import Random


def write_cpu_trace(path: Path, *, jobs: int = 200, seed: int = 1) -> Path:
    """Write a trace (SWF): every 2 minutes a job of 1 to 32 cores and about 20 minutes."""
    draw = Random(seed)
    lines, submit_s = ["; cores only"], 0
    for number in range(1, jobs + 1):
        submit_s += int(draw.expovariate(1 / 120.0))
        cores, run_s = draw.choice([1, 2, 4, 8, 16, 32]), int(draw.lognormvariate(6.5, 1.0))
        limit_s = max(600, 2 * run_s)
        lines.append(f"{number} {submit_s} -1 {run_s} {cores} -1 -1 {cores} {limit_s} -1 1 1 1 -1 -1 -1 -1 -1")
    path.write_text("\n".join(lines) + "\n")
    return path
