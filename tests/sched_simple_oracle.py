"""A second reading of Flux's sched-simple, slow and plain, to compare ours with.

It shares no code with ``planner/seating.py``: it reads the jobspec itself and tries slot by slot.
``tests/live/test_sched_simple.py`` compares it with flux-core's own pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class OracleRank:
    """A rank that is up. ``cores`` and ``gpus`` are declared, the others are free."""

    rank: int
    cores: int
    gpus: int
    free_cores: int
    free_gpus: int


def granted(jobspec: Mapping[str, Any], ranks: Sequence[OracleRank]) -> dict[int, tuple[int, int]] | None:
    """The cores and GPUs that the job gets of each rank; None if it has to wait. Counts only, no ranges."""
    wanted = {"node": 0, "slot": 0, "core": 0, "gpu": 0}
    exclusive = _read(jobspec["resources"], wanted)
    if exclusive and not wanted["node"]:
        wanted["node"], wanted["slot"] = wanted["slot"], 1
    grants: dict[int, tuple[int, int]] = {}
    slots_left, nodes_left = wanted["slot"], wanted["node"]
    for it in sorted(ranks, key=lambda it: (it.free_cores, it.free_gpus, -it.rank), reverse=True):
        slots = wanted["slot"]
        if wanted["node"]:
            fits = _is_whole(it, wanted) if exclusive else _holds(it, slots, wanted)
            if nodes_left and fits:
                need = slots * wanted["core"], slots * wanted["gpu"]
                grants[it.rank] = (it.free_cores, it.free_gpus) if exclusive else need
                nodes_left -= 1
            continue
        slots = 0
        while slots < slots_left and _holds(it, slots + 1, wanted):
            slots += 1
        if slots:
            grants[it.rank] = slots * wanted["core"], slots * wanted["gpu"]
            slots_left -= slots
    return grants if (nodes_left == 0 if wanted["node"] else slots_left == 0) else None


def _read(resources: Sequence[Mapping[str, Any]], wanted: dict[str, int]) -> bool:
    exclusive = False
    for vertex in resources:
        wanted[vertex["type"]] = vertex["count"]
        exclusive |= bool(vertex.get("exclusive"))
        exclusive |= _read(vertex.get("with", ()), wanted)
    return exclusive


def _is_whole(rank: OracleRank, wanted: Mapping[str, int]) -> bool:
    return rank.free_cores == rank.cores and rank.free_gpus >= wanted["gpu"]


def _holds(rank: OracleRank, slots: int, wanted: Mapping[str, int]) -> bool:
    return rank.free_cores >= slots * wanted["core"] and rank.free_gpus >= slots * wanted["gpu"]
