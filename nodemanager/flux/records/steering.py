"""What operators have set, as it lies in the instance's KVS: one JSON value."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nodemanager.core.nodes import LaunchId
from nodemanager.core.records import Mark, Steering
from nodemanager.flux.parse.json_fields import object_at, seconds_at, text_at, wrong_value

KEY = "node-manager.steering"
_VERSION = 1


def encode(steering: Steering) -> str:
    fields = {
        "version": _VERSION,
        "holds": _marks_encoded(steering.holds),
        "retirements": _marks_encoded(steering.retirements),
        "paused": _mark_encoded(steering.paused) if steering.paused is not None else None,
    }
    return json.dumps(fields, sort_keys=True)


def _marks_encoded(marks: Mapping[LaunchId, Mark]) -> dict[str, object]:
    return {launch: _mark_encoded(mark) for launch, mark in marks.items()}


def _mark_encoded(mark: Mark) -> dict[str, object]:
    return {"by": mark.by, "at": mark.at}


def decode(text: str) -> Steering:
    """Read the record. Raises ``ValueError`` with what is wrong; it is never read in part."""
    fields = object_at(json.loads(text), "record")
    if fields.get("version") != _VERSION:
        raise wrong_value(
            "record.version", f"{_VERSION}, which is all that this program reads", fields.get("version")
        )
    paused = fields.get("paused")
    return Steering(
        holds=_marks(fields.get("holds"), "record.holds"),
        retirements=_marks(fields.get("retirements"), "record.retirements"),
        paused=_mark(paused, "record.paused") if paused is not None else None,
    )


def _marks(value: object, place: str) -> dict[LaunchId, Mark]:
    return {LaunchId(launch): _mark(mark, f"{place}.{launch}") for launch, mark in object_at(value, place).items()}


def _mark(value: object, place: str) -> Mark:
    fields = object_at(value, place)
    return Mark(text_at(fields.get("by"), f"{place}.by"), seconds_at(fields.get("at"), f"{place}.at"))
