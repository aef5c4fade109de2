"""Write the jobspec (RFC 14, RFC 25) of one job of an ensemble."""

from __future__ import annotations

import math
from typing import Any

from nodemanager.ensemble.file.model import JobSet

# Attributes of the user's part of the jobspec. The first is also ensemble-python's.
GROUP = "group"
RUN = "ensemble"
KEY = "member"


def make_jobspec(jobs: JobSet, run: str, key: str, folder: str) -> dict[str, Any]:
    """Return the jobspec of one job. ``folder``: where it runs if the file names no workdir."""
    per_node = math.ceil(jobs.tasks / jobs.nodes)
    slot = {"type": "slot", "count": per_node, "label": "task", "with": [{"type": "core", "count": jobs.cores}]}
    if jobs.gpus:
        slot["with"] = [{"type": "core", "count": jobs.cores}, {"type": "gpu", "count": jobs.gpus}]
    node: dict[str, Any] = {"type": "node", "count": jobs.nodes, "with": [slot]}
    if jobs.exclusive:
        node["exclusive"] = True
    tasks = {"total": jobs.tasks} if jobs.tasks % jobs.nodes else {"per_slot": 1}
    system: dict[str, Any] = {"duration": jobs.duration_s, "cwd": jobs.workdir or folder}
    if jobs.queue:
        system["queue"] = jobs.queue
    if jobs.requires:
        system["constraints"] = {"properties": jobs.requires.split(",")}
    return {
        "version": 1,
        "resources": [node],
        "tasks": [{"command": [*_environment(jobs), *jobs.command], "slot": "task", "count": tasks}],
        "attributes": {"system": system, "user": {GROUP: jobs.group, RUN: run, KEY: key}},
    }


def _environment(jobs: JobSet) -> list[str]:
    # A jobspec's own environment would replace the broker's, in which the jobs of an ensemble run.
    return ["env", *(f"{name}={value}" for name, value in jobs.environment.items())] if jobs.environment else []
