"""Jobspecs that no sane user writes: valid ones in which a few values are replaced by odd ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any

DEEP = 60
LONG = 100_000
NODE_MANAGER = "attributes.system.node-manager"
REPLACED_MAX = 3

ODD_TEXTS: Sequence[str] = (
    "",
    " ",
    "x",
    "oops",
    "\x00",
    "a\nb",
    "\x1b[2J",
    "\u202egnp",
    "\u00e9\u4e2d\U0001f600",
    "\ud800",
    "{why}",
    "%s",
    "<script>alert(1)</script>",
    "'; drop table jobs; --",
    "1-3",
    "2+",
    "[1,5]",
    "3-1",
    "9" * 5000,
    "a" * LONG,
)
ODD_NUMBERS: Sequence[Any] = (
    *(True, False, 0, 1, -1, 7, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400),
    *(0.5, 1.0, -0.0, 1e-300, 1e15, 1e308, float("inf"), float("nan")),
)


def _deep_list() -> Any:
    value: Any = 1
    for _ in range(DEEP):
        value = [value]
    return value


def _deep_object() -> Any:
    value: Any = 1
    for _ in range(DEEP):
        value = {"not": [value]}
    return value


ODD_VALUES: Sequence[Callable[[Random], Any]] = (
    lambda _: None,
    lambda draws: draws.choice(ODD_TEXTS),
    lambda draws: draws.choice(ODD_NUMBERS),
    lambda _: [],
    lambda _: {},
    lambda draws: [draws.choice(ODD_TEXTS), draws.choice(ODD_NUMBERS)],
    lambda draws: {draws.choice(ODD_TEXTS): draws.choice(ODD_NUMBERS)},
    lambda draws: {"min": draws.choice(ODD_NUMBERS), "max": draws.choice(ODD_NUMBERS), "operator": "+"},
    lambda _: _deep_list(),
    lambda _: _deep_object(),
    lambda _: ["x"] * 3000,
    lambda draws: {f"key{number}": draws.choice(ODD_NUMBERS) for number in range(300)},
)


def _odd(draws: Random) -> Any:
    return draws.choice(ODD_VALUES)(draws)


def _constraint(draws: Random, depth: int = 0) -> Any:
    if depth > 3 or draws.random() < 0.1:
        return _odd(draws)
    operator = draws.choice(["properties", "hostlist", "ranks", "and", "or", "not", "xor"])
    if operator in {"and", "or", "not", "xor"}:
        return {operator: [_constraint(draws, depth + 1) for _ in range(draws.choice([0, 1, 2, 3]))]}
    texts = [
        "cloud",
        "^cloud",
        "cloud[1-99999]",
        "cloud1",
        "0-99999999",
        "0-99999999999",
        "1",
        "[1-",
        "-1",
        *ODD_TEXTS,
    ]
    return {operator: [draws.choice(texts) for _ in range(draws.choice([0, 1, 1, 2, 300]))]}


def _resources(draws: Random, depth: int = 0) -> Any:
    """Vertices of any type, count and nesting; some are what the scheduler knows."""
    if depth > 4 or draws.random() < 0.05:
        return _odd(draws)
    counts = [1, 1, 2, 3, 2**31 - 1, "1-5", "2+", {"min": 1}, {"min": 2, "max": 9}, "[1-3,7]"]
    vertices: list[Any] = []
    for _ in range(draws.choice([1, 1, 1, 2, 3])):
        vertex: dict[str, Any] = {
            "type": draws.choice(
                ["node", "slot", "slot", "core", "core", "gpu", "memory", "socket", *ODD_TEXTS[:8]]
            ),
            "count": draws.choice(counts) if draws.random() < 0.8 else _odd(draws),
        }
        for key, values in (
            ("unit", ["GB", "TB", "B", 1]),
            ("exclusive", [True, False, "yes", 1]),
            ("label", ["t"]),
        ):
            if draws.random() < 0.3:
                vertex[key] = draws.choice(values)
        if draws.random() < 0.7:
            vertex["with"] = _resources(draws, depth + 1)
        vertices.append(vertex)
    return vertices


def _memory(draws: Random) -> Any:
    return draws.choice(["16GiB", "0B", "1B", "999999999999999TiB", "0.5B", "1.5GiB", "16GB", "-1GiB"])


# Where a value is replaced, and what is put there at times instead of any odd value.
PLACES: Mapping[str, Callable[[Random], Any]] = {
    "version": _odd,
    "resources": _resources,
    "resources.0.type": lambda draws: draws.choice(["node", "core", "gpu", "rack", "memory"]),
    "resources.0.count": lambda draws: draws.choice([2**31 - 1, 10**6, 50, "1-5", "2+", {"min": 2}]),
    "resources.0.exclusive": _odd,
    "resources.0.unit": _odd,
    "resources.0.with": _resources,
    "resources.0.with.0.count": lambda draws: draws.choice([2**31 - 1, 10**6, 50, "1-5", "2+", {"min": 2}]),
    "resources.0.with.0.with": _resources,
    "tasks": _odd,
    "attributes": _odd,
    "attributes.user": _odd,
    "attributes.user.group": _odd,
    "attributes.system": _odd,
    "attributes.system.duration": lambda draws: draws.choice([0, 0.001, 1e15, 3600, 1e300]),
    "attributes.system.queue": lambda draws: draws.choice(["", "batch", *ODD_TEXTS]),
    "attributes.system.constraints": _constraint,
    "attributes.system.dependencies": lambda draws: [{"scheme": "afterany", "value": draws.choice(ODD_TEXTS)}],
    "attributes.system.cwd": _odd,
    "attributes.system.environment": lambda _: {f"V{number}": "x" * 1000 for number in range(300)},
    "attributes.system.job.name": lambda draws: draws.choice(ODD_TEXTS),
    "attributes.system.shell.options": _odd,
    "attributes.system.alloc-bypass.R": _odd,
    "attributes.system.delegate": lambda draws: draws.choice(["any", "local:///x", "ssh://[", "http://x", "b"]),
    NODE_MANAGER: _odd,
    f"{NODE_MANAGER}.memory": _memory,
    f"{NODE_MANAGER}.one-zone": lambda draws: draws.choice([1, 0, "maybe"]),
    f"{NODE_MANAGER}.requeue": lambda draws: draws.choice([1, 0, {"a": 1}]),
    f"{NODE_MANAGER}.requeued-from": lambda draws: draws.choice(["1", "f1", "zzz", "18446744073709551615"]),
    f"{NODE_MANAGER}.near": lambda draws: draws.choice(["default", "failing", "sound", "moon"]),
    f"{NODE_MANAGER}.data": lambda draws: draws.choice(["200GiB", "999999999999999TiB", "0B"]),
    f"{NODE_MANAGER}.patience": lambda draws: draws.choice([0, 60, 1e15, -1]),
    f"{NODE_MANAGER}.delegated-from": lambda draws: draws.choice(["a/1/2.0", "a/x/y", "//", f"a/{'9' * 5000}/1"]),
    f"{NODE_MANAGER}.mem": _odd,
}
# The requests that ended the service when they were written this way.
NAMED: Sequence[tuple[str, Any]] = (
    (f"{NODE_MANAGER}.memory", "oops"),
    (f"{NODE_MANAGER}.requeue", {"a": 1}),
    (f"{NODE_MANAGER}.one-zone", "maybe"),
    (f"{NODE_MANAGER}.requeued-from", "zzz"),
    (NODE_MANAGER, 7),
)


def plain_jobspec() -> dict[str, Any]:
    """A jobspec (V1) of one core, as ``flux submit`` writes it."""
    slot = {"type": "slot", "count": 1, "with": [{"type": "core", "count": 1}], "label": "task"}
    return {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 60.0, "cwd": "/", "environment": {}}},
    }


def odd_jobspec(draws: Random) -> Any:
    """Draw a jobspec. Most can be read in part; a few are no objects at all."""
    if draws.random() < 0.02:
        return _odd(draws)
    jobspec = plain_jobspec()
    if draws.random() < 0.1:
        place, value = draws.choice(NAMED)
        return replaced(jobspec, place, value)
    for _ in range(draws.randint(1, REPLACED_MAX)):
        place = draws.choice(list(PLACES))
        value = PLACES[place](draws) if draws.random() < 0.6 else _odd(draws)
        jobspec = replaced(jobspec, place, value)
    return jobspec


def replaced(jobspec: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """The jobspec with another value at a dotted place; the same if the place is no longer there."""
    changed = deepcopy(jobspec)
    inside: Any = changed
    *path, last = place.split(".")
    for key in path:
        if isinstance(inside, list) and key.isdigit() and int(key) < len(inside):
            inside = inside[int(key)]
        elif isinstance(inside, dict):
            inside = inside.setdefault(key, {})
        else:
            return jobspec
    if isinstance(inside, dict):
        inside[last] = value
    elif isinstance(inside, list) and last.isdigit() and int(last) < len(inside):
        inside[int(last)] = value
    return changed
