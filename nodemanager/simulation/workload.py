"""The built-in workload: the submissions of one working hour on a small cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodemanager.core.jobs import HasProperty, Shape

PERIOD_S = 7200.0  # the workload repeats every two hours


@dataclass(frozen=True, slots=True)
class Submission:
    """``count`` equal jobs, submitted at ``at_s``.

    ``after`` names an earlier submission: its first job must end before these jobs start.
    """

    at_s: float
    name: str
    shape: Shape
    run_s: float
    duration_s: float
    count: int = 1
    urgency: int = 16
    after: str = ""


CORE = Shape(slots=1, cores_per_slot=1)
GANG = Shape(nodes=3, slots=1, cores_per_slot=4, exclusive=True)
LARGE = Shape(slots=1, cores_per_slot=32, constraint=HasProperty("large"))
GPU = Shape(slots=1, cores_per_slot=2, gpus_per_slot=1, constraint=HasProperty("gpu"))

BUILTIN = (
    Submission(10, "prepare", CORE, run_s=240, duration_s=600, count=3),
    Submission(15, "gang of 3", GANG, run_s=600, duration_s=1200),
    Submission(20, "evaluate", CORE, run_s=120, duration_s=300, after="gang of 3"),
    Submission(30, "held", CORE, run_s=60, duration_s=300, urgency=0),
    Submission(300, "train", GPU, run_s=900, duration_s=1800),
    Submission(700, "assemble", LARGE, run_s=500, duration_s=900),
    Submission(1200, "sweep", CORE, run_s=200, duration_s=400, count=20),
    Submission(1500, "train again", GPU, run_s=400, duration_s=900),
)


def builtin_submissions(rounds: int | None = 1) -> Iterator[tuple[float, Submission]]:
    """Yield each submission with its time in seconds, in order. Repeat every ``PERIOD_S``; for ever if None."""
    done = 0
    while rounds is None or done < rounds:
        for submission in BUILTIN:
            yield done * PERIOD_S + submission.at_s, submission
        done += 1
