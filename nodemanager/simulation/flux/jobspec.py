"""Reads a jobspec's resource request as flux-core's sched-simple does (RFC 14, 25, 31).

This parser is independent of the node manager's own. If the two differ, the simulation shows it: a job waits while
nodes are idle, or nodes are provisioned for a job that never starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from nodemanager.core.jobs import All, AnyOf, Constraint, HasProperty, Not, OnHosts, OnRanks, Shape
from nodemanager.core.notation import expand_hostlist, format_bytes, parse_idset
from nodemanager.delegation.jobspec import DATA, NEAR, OUR_ATTRIBUTES

Jobspec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Count:
    """A number, or a range without an upper end if ``most`` is None (RFC 14)."""

    least: int
    most: int | None


class DependencyScheme(StrEnum):
    """The dependency schemes that the simulated Flux supports."""

    ANY = "afterany"
    TIME = "begin-time"  # in the simulation that time never comes


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency on another job, whose F58 id is ``value``, or on a time."""

    scheme: DependencyScheme
    value: str

    @property
    def description(self) -> str:
        if self.scheme is DependencyScheme.TIME:
            return f"begin-time={float(self.value):.3f}"
        return f"after-finish={self.value}"


@dataclass(frozen=True)
class Request:
    """A job's resource request.

    If ``nodes`` is None, the slots may be on any nodes; if not, ``slots`` is the number on each node.
    ``constraint`` is the RFC 31 object as JSON text, "" if there is none: equal texts need to be matched only once.
    """

    nodes: Count | None
    slots: Count
    cores_per_slot: int
    gpus_per_slot: int
    exclusive: bool
    constraint: str
    duration_s: float  # 0 is unlimited
    queue: str  # "" is the anonymous queue
    dependencies: tuple[Dependency, ...]
    requeue: bool  # it asks the node manager to submit it again if its node is reclaimed

    @property
    def pieces(self) -> Count:
        """How many pieces it asks for: nodes, or slots on any nodes."""
        return self.slots if self.nodes is None else self.nodes

    @cached_property
    def shape(self) -> Shape:
        """What it asks for at least, without its constraint."""
        nodes = None if self.nodes is None else self.nodes.least
        return Shape(self.slots.least, self.cores_per_slot, self.gpus_per_slot, nodes, self.exclusive)


def read_request(jobspec: Jobspec) -> Request:
    """Read a jobspec. Raises ValueError for one that the ingest would reject."""
    counts: dict[str, Count] = {}
    exclusive = _count_vertices(jobspec["resources"], counts)
    if "slot" not in counts or "core" not in counts:
        raise ValueError("the jobspec names no slot, or no core in it")
    system = jobspec["attributes"]["system"]
    nodes, slots = counts.get("node"), counts["slot"]
    if exclusive and nodes is None:
        # Exclusive use is by node: if the jobspec names no node, each slot gets a node of its own.
        nodes, slots = slots, Count(1, 1)
    constraint = system.get("constraints")
    return Request(
        nodes=nodes,
        slots=slots,
        cores_per_slot=counts["core"].least,
        gpus_per_slot=counts["gpu"].least if "gpu" in counts else 0,
        exclusive=exclusive,
        constraint=json.dumps(constraint, sort_keys=True) if constraint else "",
        duration_s=float(system["duration"]),
        queue=system.get("queue", ""),
        dependencies=tuple(_read_dependency(dependency) for dependency in system.get("dependencies", ())),
        requeue=bool(system.get(OUR_ATTRIBUTES, {}).get("requeue")),
    )


def _count_vertices(vertices: Sequence[Mapping[str, Any]], counts: dict[str, Count], above: int = 1) -> bool:
    """Add the count of each resource type to ``counts``; return whether a node or slot is exclusive.

    ``above``: the product of the counts of the levels above. It multiplies nodes only.
    """
    exclusive = False
    for vertex in vertices:
        kind, count = vertex["type"], _count(vertex.get("count", 1))
        if kind == "node":
            most = None if count.most is None else count.most * above
            counts[kind], below = Count(count.least * above, most), above
        else:
            counts[kind], below = count, above * count.least
        exclusive |= kind in ("node", "slot") and bool(vertex.get("exclusive", False))
        exclusive |= _count_vertices(vertex.get("with", ()), counts, below)
    return exclusive


def _count(spec: int | str | Mapping[str, Any]) -> Count:
    if isinstance(spec, int):
        return Count(spec, spec)
    if isinstance(spec, Mapping):
        return Count(int(spec["min"]), int(spec["max"]) if "max" in spec else None)
    text = spec.strip("[]").partition(":")[0]
    if text.endswith("+"):
        return Count(int(text[:-1]), None)
    ids = parse_idset(text)
    return Count(ids[0], ids[-1])


def _read_dependency(dependency: Mapping[str, Any]) -> Dependency:
    try:
        scheme = DependencyScheme(dependency["scheme"])
    except ValueError:
        known = " and ".join(DependencyScheme)
        raise ValueError(f"dependency scheme {dependency['scheme']!r}: the simulated Flux knows {known}") from None
    return Dependency(scheme, str(dependency["value"]))


def matches(constraint: Mapping[str, Any], rank: int, host: str, properties: frozenset[str]) -> bool:
    """Whether a rank satisfies an RFC 31 object, which holds one operator."""
    match next(iter(constraint.items())):
        case ("properties", names):
            return all(name[1:] not in properties if name.startswith("^") else name in properties for name in names)
        case ("hostlist", lists):
            return any(host in expand_hostlist(hosts) for hosts in lists)
        case ("ranks", idsets):
            return any(rank in parse_idset(ids) for ids in idsets)
        case ("and", parts):
            return all(matches(part, rank, host, properties) for part in parts)
        case ("or", parts):
            return any(matches(part, rank, host, properties) for part in parts)
        case ("not", parts):
            return not matches(parts[0], rank, host, properties)
        case (operator, _):
            raise ValueError(f"constraint operator {operator!r} is not in RFC 31")


# --- writing a jobspec for a shape ------------------------------------------------------------------------


def write_jobspec(
    shape: Shape,
    *,
    duration_s: float = 0.0,
    queue: str = "",
    after: Sequence[str] = (),
    requeue: bool = False,
    name: str = "true",
) -> Jobspec:
    """Write the jobspec (V1) that ``flux submit`` would write for a shape."""
    slot: dict[str, Any] = {"type": "slot", "count": shape.slots, "with": _slot_content(shape), "label": "task"}
    resources = slot
    if shape.nodes is not None:
        resources = {"type": "node", "count": shape.nodes, "with": [slot]}
    if shape.exclusive:
        resources["exclusive"] = True
    system: dict[str, Any] = {"duration": duration_s, "cwd": "/home/flux"}
    if shape.constraint != All(()):
        system["constraints"] = _write_constraint(shape.constraint)
    if queue:
        system["queue"] = queue
    if after:
        system["dependencies"] = [{"scheme": DependencyScheme.ANY, "value": job} for job in after]
    ours: dict[str, Any] = {"requeue": 1} if requeue else {}
    if shape.near is not None:
        ours[NEAR] = str(shape.near.cloud)
        if shape.near.data_bytes:
            ours[DATA] = format_bytes(shape.near.data_bytes)
    if ours:
        system[OUR_ATTRIBUTES] = ours
    return {
        "resources": [resources],
        "tasks": [{"command": [name], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": system},
        "version": 1,
    }


def _slot_content(shape: Shape) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = [{"type": "core", "count": shape.cores_per_slot}]
    if shape.gpus_per_slot:
        content.append({"type": "gpu", "count": shape.gpus_per_slot})
    return content


def _write_constraint(constraint: Constraint) -> dict[str, Any]:
    match constraint:
        case HasProperty(name):
            return {"properties": [name]}
        case OnHosts(hostlists):
            return {"hostlist": list(hostlists)}
        case OnRanks(idsets):
            return {"ranks": list(idsets)}
        case All(parts):
            return {"and": [_write_constraint(part) for part in parts]}
        case AnyOf(parts):
            return {"or": [_write_constraint(part) for part in parts]}
        case Not(part):
            return {"not": [_write_constraint(part)]}
