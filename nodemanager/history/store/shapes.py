"""Job shapes as JSON values and back, for the history file, which outlives the program version that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, Near, Not, OnHosts, OnRanks, Shape
from nodemanager.core.notation import parse_hostlist, parse_idset_ranges
from nodemanager.core.slots import CloudName


def shape_to_json(shape: Shape) -> dict[str, Any]:
    """Write a shape; members with their default value are left out."""
    written: dict[str, Any] = {"slots": shape.slots, "cores_per_slot": shape.cores_per_slot}
    if shape.gpus_per_slot:
        written["gpus_per_slot"] = shape.gpus_per_slot
    if shape.nodes is not None:
        written["nodes"] = shape.nodes
    if shape.exclusive:
        written["exclusive"] = True
    if shape.memory_bytes_per_slot:
        written["memory_bytes_per_slot"] = shape.memory_bytes_per_slot
    if shape.one_zone:
        written["one_zone"] = True
    if shape.near is not None:
        written["near"] = [shape.near.cloud, shape.near.data_bytes]
    if shape.constraint != ANYWHERE:
        written["constraint"] = _constraint_to_json(shape.constraint)
    return written


def shape_from_json(written: Mapping[str, Any]) -> Shape:
    """Read what ``shape_to_json`` wrote. Raises ``ValueError`` or ``TypeError`` if it is something else."""
    fields = dict(written)
    constraint = _constraint_from_json(fields.pop("constraint")) if "constraint" in fields else ANYWHERE
    if "near" in fields:
        cloud, data_bytes = fields.pop("near")
        fields["near"] = Near(CloudName(str(cloud)), int(data_bytes))
    return Shape(constraint=constraint, **fields)


def _constraint_to_json(constraint: Constraint) -> list[Any]:
    match constraint:
        case HasProperty(name):
            return ["property", name]
        case OnHosts(hostlists):
            return ["hosts", *hostlists]
        case OnRanks(idsets):
            return ["ranks", *idsets]
        case All(parts):
            return ["all", *map(_constraint_to_json, parts)]
        case AnyOf(parts):
            return ["any", *map(_constraint_to_json, parts)]
        case Not(part):
            return ["not", _constraint_to_json(part)]


def _constraint_from_json(written: list[Any]) -> Constraint:
    kind, *rest = written
    match kind:
        case "property":
            return HasProperty(rest[0])
        case "hosts":
            return OnHosts(tuple(map(_hostlist, rest)))
        case "ranks":
            return OnRanks(tuple(map(_idset, rest)))
        case "all":
            return All(tuple(map(_constraint_from_json, rest)))
        case "any":
            return AnyOf(tuple(map(_constraint_from_json, rest)))
        case "not":
            return Not(_constraint_from_json(rest[0]))
        case _:
            raise ValueError(f"unknown constraint: {kind}")


def _hostlist(written: str) -> str:
    """A host list as text. Earlier versions wrote each host as a text of its own."""
    parse_hostlist(written)
    return written


def _idset(written: str | int) -> str:
    """An id set as text. Earlier versions wrote each rank as a number."""
    text = str(written)
    parse_idset_ranges(text)
    return text
