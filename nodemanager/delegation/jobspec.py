"""The jobspec of a copy, and the marker that leads from a copy back to our job.

Sources: RFC 14 and RFC 25 (jobspec), RFC 26 (dependencies).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import Needs
from nodemanager.delegation.jobs import read_number

COUNT_MAX = 2**31 - 1  # of one resource, as in flux-core
DELEGATE = "delegate"  # the attribute that the frobnicator makes of the dependency
OUR_ATTRIBUTES = "node-manager"  # the key of attributes.system for requests to the manager
MARKER = "delegated-from"  # within OUR_ATTRIBUTES, in the copy
PATIENCE = "patience"  # within OUR_ATTRIBUTES, in our job
_OF_THE_PROXY = (DELEGATE, "alloc-bypass", "dependencies")
NEAR, DATA = "near", "data"  # within OUR_ATTRIBUTES: a cloud of our site, which a peer lacks


@dataclass(frozen=True, slots=True)
class Marker:
    """Which job a copy belongs to. The time tells apart jobs of instances that were made anew with the same ids."""

    cluster_uuid: str
    job: JobId
    submitted_at: float

    def encode(self) -> str:
        """Write it as ``UUID/JOB/TIME``, with the job's id in decimal."""
        return f"{self.cluster_uuid}/{self.job}/{self.submitted_at:.6f}"


def read_marker(jobspec: object) -> Marker | None:
    """Read the marker of a jobspec; None if it has none that can be read."""
    ours = _at(jobspec, "attributes", "system", OUR_ATTRIBUTES)
    text = ours.get(MARKER) if isinstance(ours, Mapping) else None
    if not isinstance(text, str):
        return None
    cluster_uuid, _, rest = text.partition("/")
    job, _, submitted_at = rest.partition("/")
    try:
        return Marker(cluster_uuid, JobId(int(job)), float(submitted_at))
    except ValueError:
        return None


def read_target(jobspec: object) -> str:
    """Read where our job is to run; "" if it is not a delegated job."""
    target = _at(jobspec, "attributes", "system", DELEGATE)
    return target if isinstance(target, str) else ""


def read_pretended_resources(jobspec: object) -> object:
    """Read the resource set (RFC 20) that a proxy pretends to have; None if it has none."""
    return _at(jobspec, "attributes", "system", "alloc-bypass", "R")


def read_duration_s(jobspec: object) -> float:
    """Read the time limit; 0 if there is none."""
    return read_number(_at(jobspec, "attributes", "system", "duration")) or 0.0


def copy_jobspec(original: Mapping[str, Any], marker: Marker) -> dict[str, Any]:
    """Make the copy's jobspec from the jobspec that the user submitted, before our instance changed it."""
    attributes = dict(original.get("attributes") or {})
    system = dict(attributes.get("system") or {})
    for key in _OF_THE_PROXY:
        system.pop(key, None)
    ours = system.get(OUR_ATTRIBUTES)
    kept = {key: it for key, it in ours.items() if key not in (NEAR, DATA)} if isinstance(ours, Mapping) else {}
    system[OUR_ATTRIBUTES] = {**kept, MARKER: marker.encode()}
    return {**original, "attributes": {**attributes, "system": system}}


def without_queue(jobspec: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the queue, for a peer that has no queues."""
    attributes = jobspec["attributes"]
    system = {key: value for key, value in attributes["system"].items() if key != "queue"}
    return {**jobspec, "attributes": {**attributes, "system": system}}


def fit_question(copy: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what decides whether a job fits, so that equal jobs ask a peer the same question."""
    system = copy["attributes"]["system"]
    kept = {key: system[key] for key in ("constraints", "queue", "duration") if key in system}
    kept.setdefault("duration", 0)
    tasks = [{**task, "command": ["true"]} for task in copy.get("tasks", [])]
    return {
        "version": copy.get("version", 1),
        "resources": copy["resources"],
        "tasks": tasks,
        "attributes": {"system": kept},
    }


def read_patience_s(system: object) -> float:
    """Read from ``attributes.system`` how long a job may wait for a cheaper way to run."""
    return read_number(_at(system, OUR_ATTRIBUTES, PATIENCE)) or 0.0


def read_needs(original: Mapping[str, Any]) -> Needs:
    """Read what a job needs. Raises ``ValueError`` if the jobspec cannot be read."""
    system = _at(original, "attributes", "system")
    queue = system.get("queue") if isinstance(system, Mapping) else None
    resources = original.get("resources")
    if not isinstance(resources, list):
        raise ValueError("resources: a list is needed")  # noqa: TRY004 - as other faults of a jobspec
    nodes, cores, gpus = 0, 0, 0
    for resource in resources:
        counted = _count(resource)
        nodes, cores, gpus = nodes + counted["node"], cores + counted["core"], gpus + counted["gpu"]
    return Needs(
        cores=cores,
        nodes=max(1, nodes),
        gpus=gpus,
        duration_s=read_duration_s(original),
        queue=queue if isinstance(queue, str) else "",
        patience_s=read_patience_s(system),
    )


def read_cores(jobspec: object) -> int:
    """Read how many cores a job asks for; 0 if the jobspec cannot be read."""
    try:
        return read_needs(jobspec).cores if isinstance(jobspec, Mapping) else 0
    except (ValueError, TypeError, ArithmeticError):
        return 0


def _count(resource: object) -> dict[str, int]:
    """Count the nodes, cores and GPUs below one entry of ``resources``, each range by its lowest value."""
    if not isinstance(resource, Mapping):
        raise ValueError("resources: an object is needed")  # noqa: TRY004
    count = resource.get("count")
    if isinstance(count, Mapping):
        count = count.get("min", 1)
    if isinstance(count, str):
        count = re.split(r"[-:,+]", count)[0]
    many = int(count) if count is not None else 1
    if not 0 <= many <= COUNT_MAX:
        raise ValueError(f"resources: a count from 0 to {COUNT_MAX} is needed")
    kind = str(resource.get("type", ""))
    total = {"node": 0, "core": 0, "gpu": 0}
    if kind in total:
        total[kind] = many
    inners = resource.get("with") or []
    if not isinstance(inners, list):
        raise ValueError("resources: with must be a list")  # noqa: TRY004
    for inner in inners:
        for name, found in _count(inner).items():
            total[name] += many * found
    return total


def _at(value: object, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
