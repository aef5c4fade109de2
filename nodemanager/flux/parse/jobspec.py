"""Jobspecs (RFC 14, RFC 25) read into jobs, as far as they say where a job fits.

Read as flux-core's default scheduler reads them, so that what is bought is what it will use: the resources are
walked from the top, the last node, slot, core and gpu entry on the way count, whatever stands above a node
(a slot too) multiplies the nodes, and any other type of resource is passed over. Those others come back as
``unheeded``: the job asks for them and no scheduler looks.

What a job may say to us alone stands in ``attributes.system.node-manager``, as ``flux submit
--setattr=node-manager.memory=16GiB --setattr=node-manager.one-zone`` puts it there: the memory of each slot, that
its nodes be made in one zone, and (``requeue``) that it be submitted once more should its node be taken back by the
provider. Memory is read from the resources too, where an entry with a unit stands in the slot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.jobs import Job, JobId, JobState, Shape, UnreadableJob
from nodemanager.core.notation import NotationError, parse_bytes, parse_job_id
from nodemanager.flux.parse.constraint import read_constraint
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, shorten, text_at, wrong_value

COUNT_MAX = 2**31 - 1  # as in flux-core, where a count is a C int
DEPTH_MAX = 100  # of nested resources: flux-core's own bound

WHY_MAX = 500  # characters: a user's jobspec is not to fill the log either

OUR_ATTRIBUTES = "node-manager"  # of attributes.system: what a job says to us alone
REQUEUED_FROM = "requeued-from"  # of a job that we submitted once more: its first life's id
_SYSTEM_READ = ("duration", "queue", "constraints", OUR_ATTRIBUTES)  # of attributes.system

# RFC 14 gives a resource a unit and leaves open which there are. "GB" is 10⁹ to some and 2³⁰ to others: the larger
# is taken, so that a node which is bought has enough for both.
_UNIT_BYTES = {
    unit: 2**power
    for power, units in ((0, "B"), (10, "K KB KiB"), (20, "M MB MiB"), (30, "G GB GiB"), (40, "T TB TiB"))
    for unit in units.split()
}

# RFC 45: "2-8", "2+", "2-8:2:*"; or an idset (RFC 22): "4", "1,4,7-9". Either may stand in brackets.
_RANGE = re.compile(r"([0-9]{1,10})(?:\+|-([0-9]{1,10}))(?::[0-9]{1,10}(?::[+*^])?)?", re.ASCII)
_IDSET = re.compile(r"[0-9]{1,10}(?:-[0-9]{1,10})?(?:,[0-9]{1,10}(?:-[0-9]{1,10})?)*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+", re.ASCII)


def read_job(
    job_id: JobId,
    jobspec: object,
    *,
    state: JobState,
    submitted_at: float,
    urgency: int,
    priority: int,
    userid: int,
) -> Job | UnreadableJob:
    """The job that a jobspec and the job's events describe. Never raises, whatever the jobspec holds."""
    try:
        spec = object_at(jobspec, "jobspec")
        resources = _read_resources(spec)
        system = _system(spec)
        wish = _read_wish(system)
        return Job(
            id=job_id,
            state=state,
            shape=_shape(resources, system, wish),
            submitted_at=submitted_at,
            urgency=urgency,
            priority=priority,
            duration_s=_read_duration_s(spec, system),
            queue=text_at(system.get("queue", ""), "attributes.system.queue"),
            userid=userid,
            unheeded=tuple(sorted(resources.others | wish.unheeded)),
            requeue=wish.requeue,
            requeued_from=wish.requeued_from,
        )
    except ValueError as error:
        return UnreadableJob(job_id, str(error)[:WHY_MAX])


def trim_jobspec(jobspec: object) -> object:
    """The jobspec without what is never read here: a queue of batch scripts would fill the memory."""
    if not isinstance(jobspec, Mapping):
        return jobspec
    kept = {key: jobspec[key] for key in ("version", "resources", "attributes") if key in jobspec}
    attributes = kept.get("attributes")
    if isinstance(attributes, Mapping) and isinstance(system := attributes.get("system"), Mapping):
        kept["attributes"] = {"system": {key: system[key] for key in _SYSTEM_READ if key in system}}
    return kept


def with_updates(jobspec: object, updates: object) -> Mapping[str, Any]:
    """The jobspec after a ``jobspec-update`` event (RFC 21), whose context maps dotted paths to new values.

    Objects missing on the way are made. Raises ``ValueError`` for a path that leads through anything else.
    """
    updated = object_at(jobspec, "jobspec")
    for path, value in object_at(updates, "updates").items():
        keys = path.split(".")
        if not all(keys) or len(keys) > DEPTH_MAX:
            raise wrong_value("updates", "a path such as attributes.system.duration", path)
        updated = _with_value(updated, keys, value)
    return updated


def _with_value(inside: object, keys: list[str], value: object) -> dict[str, Any]:
    """The object with the value at the end of the keys; nothing is changed in place."""
    changed = dict(object_at(inside, f"updates, before {shorten('.'.join(keys))}"))
    key, *rest = keys
    changed[key] = _with_value(changed.get(key, {}), rest, value) if rest else value
    return changed


def read_shape(jobspec: Mapping[str, Any]) -> Shape:
    """What the job asks of nodes. Raises ``ValueError``, which names the place in the jobspec."""
    system = _system(jobspec)
    return _shape(_read_resources(jobspec), system, _read_wish(system))


# --- resources --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Resources:
    """What the walk has met so far."""

    nodes: int | None = None
    slots: int | None = None
    cores: int | None = None
    gpus: int = 0
    exclusive: bool = False
    memory_bytes: int = 0  # of each slot
    others: set[str] = field(default_factory=set)


def _read_resources(spec: Mapping[str, Any]) -> _Resources:
    found = _Resources()
    _walk(spec.get("resources"), "resources", 1, 0, found)
    return found


def _walk(entries: object, where: str, above: int, depth: int, found: _Resources, in_slot: int = 0) -> None:
    """Take in one level. ``above`` is how often it is there, by the counts over it; ``in_slot``, in one slot."""
    if depth > DEPTH_MAX:
        raise ValueError(f"{shorten(where)}: resources nest deeper than {DEPTH_MAX} levels")
    for index, entry in enumerate(list_at(entries, where)):
        place = f"{where}[{index}]"
        vertex = object_at(entry, place)
        of_type = text_at(vertex.get("type"), f"{place}.type")
        count = _least(vertex.get("count"), f"{place}.count")
        below = _take(of_type, count, above, bool(vertex.get("exclusive")), found)
        if below > COUNT_MAX:
            raise ValueError(f"{shorten(place)}: more than {COUNT_MAX} in all")
        if of_type == "memory":
            found.memory_bytes = in_slot * count * _unit_bytes(vertex.get("unit"))
        if vertex.get("with") is not None:
            inside = 1 if of_type == "slot" else in_slot * count
            _walk(vertex["with"], f"{place}.with", below, depth + 1, found, inside)


def _unit_bytes(unit: object) -> int:
    """0 where a unit is not known, or not given: then how much is meant is not known either."""
    return _UNIT_BYTES.get(unit, 0) if isinstance(unit, str) else 0


def _take(of_type: str, count: int, above: int, exclusive: bool, found: _Resources) -> int:
    """Take in one entry; return what multiplies the nodes under it."""
    match of_type:
        case "node":
            found.nodes = above * count
            found.exclusive = found.exclusive or exclusive
            return above
        case "slot":
            found.slots = count
            found.exclusive = found.exclusive or exclusive
        case "core":
            found.cores = count
        case "gpu":
            found.gpus = count
        case _:
            found.others.add(of_type)
    return above * count


def _shape(found: _Resources, system: Mapping[str, Any], wish: _Wish) -> Shape:
    nodes, slots, cores = found.nodes, found.slots, found.cores
    if slots is None:
        raise ValueError("resources: a slot is needed, and there is none")
    if cores is None and not found.exclusive:
        raise ValueError("resources: a core is needed in the slot, and there is none")
    if nodes is not None and nodes > COUNT_MAX:
        raise ValueError(f"resources: more than {COUNT_MAX} nodes")
    if found.exclusive and nodes is None:
        # Exclusive means whole nodes, so each slot gets one to itself.
        nodes, slots = slots, 1
    return Shape(
        slots=slots,
        cores_per_slot=1 if cores is None else cores,
        gpus_per_slot=found.gpus,
        nodes=nodes,
        exclusive=found.exclusive,
        constraint=read_constraint(system.get("constraints"), "attributes.system.constraints"),
        memory_bytes_per_slot=max(found.memory_bytes, wish.memory_bytes),
        one_zone=wish.one_zone,
    )


def _least(count: object, where: str) -> int:
    """The least value of a count: a number, a range as an object (RFC 14) or as text (RFC 45)."""
    least: object = count
    if isinstance(count, Mapping):
        least = _least_of_range(count.get("min"), count.get("max"))
    elif isinstance(count, str):
        least = _least_of_text(count)
    if not isinstance(least, int) or isinstance(least, bool) or not 1 <= least <= COUNT_MAX:
        raise wrong_value(where, f'a count from 1 to {COUNT_MAX} or a range such as {{"min": 2}} or "2-8"', count)
    return least


def _least_of_range(low: object, high: object) -> int | None:
    if not isinstance(low, int) or isinstance(low, bool):
        return None
    return low if high is None or (isinstance(high, int) and high >= low) else None


def _least_of_text(text: str) -> int | None:
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    bounds = _RANGE.fullmatch(inner)
    if bounds is not None:
        low, high = bounds.groups()
        return _least_of_range(int(low), None if high is None else int(high))
    if _IDSET.fullmatch(inner) is None:
        return None
    return min(int(number) for number in _NUMBER.findall(inner))


# --- attributes -------------------------------------------------------------------------------------------


def _system(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    attributes = object_at(spec.get("attributes", {}), "attributes")
    return object_at(attributes.get("system", {}), "attributes.system")


def _read_duration_s(spec: Mapping[str, Any], system: Mapping[str, Any]) -> float:
    """Seconds, 0 for unlimited. Version 1 of the jobspec must say it."""
    if "duration" not in system and spec.get("version") != 1:
        return 0.0
    return seconds_at(system.get("duration"), "attributes.system.duration")


_WISHES = ("memory", "one-zone", "requeue", REQUEUED_FROM)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a job says to us alone. ``unheeded``: what of it no scheduler knows."""

    memory_bytes: int = 0  # of each slot
    one_zone: bool = False
    requeue: bool = False
    requeued_from: JobId | None = None

    @property
    def unheeded(self) -> set[str]:
        return {name for name, asked in (("memory", self.memory_bytes), ("one-zone", self.one_zone)) if asked}


def _read_wish(system: Mapping[str, Any]) -> _Wish:
    """A key that is not known is refused: one that is misspelt would be passed over without a word."""
    where = f"attributes.system.{OUR_ATTRIBUTES}"
    wish = object_at(system.get(OUR_ATTRIBUTES, {}), where)
    unknown = next((key for key in wish if key not in _WISHES), None)
    if unknown is not None:
        raise ValueError(f"{where}: no key {shorten(repr(unknown))}; known are {', '.join(_WISHES)}")
    memory, one_zone = wish.get("memory", "0B"), wish.get("one-zone", 0)
    if not isinstance(memory, str):
        raise wrong_value(f"{where}.memory", 'the size of each slot, such as "16GiB"', memory)
    if one_zone not in (0, 1):
        raise wrong_value(f"{where}.one-zone", "1 (which is what --setattr gives it) or 0", one_zone)
    if (requeue := wish.get("requeue", 0)) not in (0, 1):
        raise wrong_value(f"{where}.requeue", "1 (which is what --setattr gives it) or 0", requeue)
    former = text_at(wish.get(REQUEUED_FROM, ""), f"{where}.{REQUEUED_FROM}")
    try:
        former_id = JobId(parse_job_id(former)) if former else None
        return _Wish(parse_bytes(memory), bool(one_zone), bool(requeue), former_id)
    except NotationError as error:
        raise ValueError(f"{where}.memory: {error}") from error
