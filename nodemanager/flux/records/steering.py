"""The record of operators' settings in the instance's KVS: one JSON value."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nodemanager.core.nodes import LaunchId
from nodemanager.core.records import Mark, Steering
from nodemanager.core.untrusted import read_json
from nodemanager.flux.parse.json_fields import object_at, seconds_at, text_at, wrong_value

KEY = "node-manager.steering"
_VERSION = 1


def encode(steering: Steering) -> str:
    """Write the operators' settings as their record."""
    fields: dict[str, object] = {
        "version": _VERSION,
        "holds": _encode_marks(steering.holds),
        "retirements": _encode_marks(steering.retirements),
        "paused": _encode_mark(steering.paused) if steering.paused is not None else None,
    }
    if steering.replacements:  # else it stays as an older manager would write it
        fields["replacements"] = _encode_marks(steering.replacements)
    return json.dumps(fields, sort_keys=True)


def _encode_marks(marks: Mapping[LaunchId, Mark]) -> dict[str, object]:
    return {launch: _encode_mark(mark) for launch, mark in marks.items()}


def _encode_mark(mark: Mark) -> dict[str, object]:
    fields: dict[str, object] = {"by": mark.by, "at": mark.at}
    if mark.why:  # else it stays as an older manager would write it
        fields["why"] = mark.why
    if mark.until_at is not None:
        fields["until_at"] = mark.until_at
    return fields


def decode(text: str) -> Steering:
    """Read the record. Raises ``ValueError`` if any part of it is wrong."""
    fields = object_at(read_json(text), "record")
    if fields.get("version") != _VERSION:
        raise wrong_value("record.version", f"{_VERSION}, the only one this program reads,", fields.get("version"))
    paused = fields.get("paused")
    return Steering(
        holds=_decode_marks(fields.get("holds"), "record.holds"),
        retirements=_decode_marks(fields.get("retirements"), "record.retirements"),
        paused=_decode_mark(paused, "record.paused") if paused is not None else None,
        replacements=_decode_marks(fields.get("replacements", {}), "record.replacements"),
    )


def _decode_marks(value: object, place: str) -> dict[LaunchId, Mark]:
    marks = object_at(value, place)
    return {LaunchId(launch): _decode_mark(mark, f"{place}.{launch}") for launch, mark in marks.items()}


def _decode_mark(value: object, place: str) -> Mark:
    fields = object_at(value, place)
    until = fields.get("until_at")
    return Mark(
        text_at(fields.get("by"), f"{place}.by"),
        seconds_at(fields.get("at"), f"{place}.at"),
        text_at(fields.get("why", ""), f"{place}.why"),
        seconds_at(until, f"{place}.until_at") if until is not None else None,
    )
