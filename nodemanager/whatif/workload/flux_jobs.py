"""A workload from Flux's own job list: the output of ``flux jobs -a --json``, or the jobs of a running instance.

Each job has ``t_submit``, ``ntasks`` and ``ncores``; a job that ran also has ``t_run`` and ``t_cleanup`` (or
``t_inactive``). ``duration`` 0 is unlimited. The list does not contain constraints, GPUs or exclusive nodes. So a
job is read as its tasks, each with its share of the cores, on any nodes. If the tasks do not share the cores
evenly, for example because the job had whole nodes, it is read as single cores. Then all its cores count, and it
fits at least where it ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from nodemanager.core.jobs import Shape
from nodemanager.core.ports import FluxError
from nodemanager.core.untrusted import read_json
from nodemanager.flux.bindings import BindingsMissing, ask, connection
from nodemanager.whatif.workload.swf import NO_LIMIT, OVERRUN, VALUE_MAX
from nodemanager.whatif.workload.workload import Oddities, TraceJob, Workload, WorkloadError

NEVER_RAN = "left out: it has not ended, or never ran"
UNREADABLE = "left out: no number of tasks or cores, or no time"
UNEVEN = "cores that its tasks do not share evenly: taken one by one, as many, wherever they are"

# The attributes of job-list.list (flux-core, job-list/list.c) that a job is read from.
ATTRIBUTES = ("t_submit", "t_run", "t_cleanup", "t_inactive", "ntasks", "ncores", "duration", "userid")
INSTANCE_TIMEOUT_S = 120.0  # for a list of all jobs that the instance remembers


_BYTES_MAX = 1 << 31


def open_flux_jobs(path: Path, file: TextIO | None = None) -> Workload:
    """Open a job list by its path, or from an open file. Raises :class:`WorkloadError`.

    The list is held in memory, because Flux lists the newest job first.
    """
    try:
        text = file.read() if file is not None else path.read_text(encoding="utf-8")
        reply = read_json(text, size_max=_BYTES_MAX, any_number=True)
        return _workload(path.name, reply)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise WorkloadError(f'{path}: not the output of "flux jobs -a --json": {error}') from error


def open_running_instance(uri: str) -> Workload:
    """Open all jobs that a running instance remembers; ``""`` is the enclosing instance.

    Raises :class:`WorkloadError`.
    """
    where = uri or "the enclosing instance (FLUX_URI)"
    try:
        with connection(uri) as handle:
            reply = ask(
                handle,
                "job-list.list",
                {"max_entries": 0, "attrs": list(ATTRIBUTES)},
                timeout_s=INSTANCE_TIMEOUT_S,
            )
        return _workload(where, reply)
    except (FluxError, BindingsMissing) as error:
        raise WorkloadError(f"flux: the jobs of {where} cannot be listed: {error}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise WorkloadError(f"flux: the answer of {where} cannot be read: {error}") from error


def _workload(name: str, reply: Any) -> Workload:
    if isinstance(reply, dict) and "jobs" not in reply and "id" in reply:
        reply = [reply]  # Flux prints a single job, requested by its id, without the list
    listed = reply["jobs"] if isinstance(reply, dict) else reply
    jobs = sorted(listed, key=_submitted_at)
    # The workload starts with the first job that ran, not with one that was cancelled long before.
    start_at = next((job.submit_s for job in _read(jobs, 0.0, Oddities())), 0.0)
    return Workload(
        name=name,
        read=partial(_read, jobs, start_at),
        start_at=start_at,
        jobs_about=len(jobs),
    )


def _submitted_at(job: Mapping[str, Any]) -> float:
    """When a job was submitted; 0 if it does not say, and then it is left out later."""
    try:
        return _measure(job["t_submit"])
    except (KeyError, TypeError, ValueError):
        return 0.0


def _measure(value: Any) -> float:
    number = float(value)
    if not 0 <= number <= VALUE_MAX:  # false for a NaN
        raise ValueError(f"{value}: not a number from 0 to {VALUE_MAX:g}")
    return number


def _read(jobs: list[Mapping[str, Any]], start_at: float, oddities: Oddities) -> Iterator[TraceJob]:
    for job in jobs:
        traced = _job(job, start_at, oddities)
        if traced is not None:
            yield traced


def _job(job: Mapping[str, Any], start_at: float, oddities: Oddities) -> TraceJob | None:
    place = f"job {job.get('id', '?')}"
    ended_at = job.get("t_cleanup", job.get("t_inactive"))
    if "t_run" not in job or not ended_at:
        oddities.note(NEVER_RAN, place)
        return None
    try:
        tasks, cores = int(_measure(job["ntasks"])), int(_measure(job["ncores"]))
        submit_s = max(0.0, _measure(job["t_submit"]) - start_at)
        run_s = max(0.0, _measure(ended_at) - _measure(job["t_run"]))
        limit_s = _measure(job.get("duration", 0.0))
        userid = int(_measure(job.get("userid", 0)))
    except (KeyError, TypeError, ValueError):
        oddities.note(UNREADABLE, place)
        return None
    if tasks < 1 or cores < 1:
        oddities.note(UNREADABLE, place)
        return None
    if not limit_s:
        oddities.note(NO_LIMIT, place)
    elif run_s > limit_s:
        oddities.note(OVERRUN, place)
        limit_s = run_s
    shape = Shape(slots=tasks, cores_per_slot=cores // tasks)
    if cores % tasks:
        oddities.note(UNEVEN, place)
        shape = Shape(slots=cores, cores_per_slot=1)
    return TraceJob(place.removeprefix("job "), submit_s, run_s, limit_s, shape, userid)
