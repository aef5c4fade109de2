"""The recording of a real instance, in order of time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.paths import DATA

ELASTIC, FLUXION = "elastic-instance.jsonl", "fluxion-rpc.jsonl"


@cache
def lines(of: str = ELASTIC) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in (DATA / of).read_text().splitlines())


def replies(of: str = ELASTIC) -> dict[str, dict[str, Any]]:
    """The answer of each RPC at each labelled moment: label -> topic -> reply."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines(of):
        if line["kind"] == "rpc":
            found.setdefault(line["label"], {})[line["topic"]] = line["response"]
    return found


def job_events() -> Iterator[dict[str, Any]]:
    return (line for line in lines() if line["kind"] == "job-event")
