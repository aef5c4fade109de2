"""Read jobspecs (RFC 14, RFC 25) into jobs, as far as they decide where a job fits.

The resources are read as flux-core's default scheduler reads them, so that the manager buys what the scheduler will
use. The walk begins at the top. The last node, slot, core and gpu entry on the way counts, everything above a node
(also a slot) multiplies the nodes, and other resource types are skipped. The job lists those in ``unheeded``,
because no scheduler respects them.

A job can make requests to the manager alone in ``attributes.system.node-manager``, for example with ``flux submit
--setattr=node-manager.memory=16GiB --setattr=node-manager.one-zone``: the memory of each slot, all nodes in one
zone, nodes near its data (``near``, ``data``), and ``requeue``, to be submitted again if the provider takes back
its node. Memory is also read from a resource entry with a unit inside the slot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, Near, RankAllocation, Shape, UnreadableJob
from nodemanager.core.notation import NotationError, escape_unprintable, parse_bytes, parse_job_id
from nodemanager.core.slots import CloudName
from nodemanager.delegation.jobspec import (
    DATA,
    DELEGATE,
    MARKER,
    NEAR,
    OUR_ATTRIBUTES,
    PATIENCE,
    read_patience_s,
    read_target,
)
from nodemanager.flux.parse.constraint import read_constraint
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, shorten, text_at, wrong_value

QUEUE_NAME_MAX = 256
MEMORY_BYTES_MAX = 2**63 - 1
COUNT_MAX = 2**31 - 1  # as in flux-core, where a count is a C int
DEPTH_MAX = 100  # of nested resources, the limit of flux-core

WHY_MAX = 500  # characters, so that a user's jobspec cannot fill the log

# Limits for the jobspecs that are kept, so that no user can fill the memory. Sizes are estimates, in bytes.
JOBSPEC_BYTES_MAX = 2**18
PLAIN_BYTES = 2**12  # a jobspec up to this size counts nothing for its user: there may be a million of them
USER_BYTES_MAX = 2**25
ALL_BYTES_MAX = 2**27

REQUEUED_FROM = "requeued-from"  # of a job that we submitted again: the id of the first job
_WAITING = frozenset({JobState.PRIORITY, JobState.SCHED})
_SYSTEM_READ = ("duration", "queue", "constraints", DELEGATE, OUR_ATTRIBUTES)  # of attributes.system

# RFC 14 gives a resource a unit but defines none. "GB" means 10⁹ to some people and 2³⁰ to others. The larger
# counts, so that a node that is bought has enough for both.
_UNIT_BYTES = {
    unit: 2**power
    for power, units in ((0, "B"), (10, "K KB KiB"), (20, "M MB MiB"), (30, "G GB GiB"), (40, "T TB TiB"))
    for unit in units.split()
}

# RFC 45: "2-8", "2+", "2-8:2:*"; or an idset (RFC 22): "4", "1,4,7-9". Both may have brackets around them.
_RANGE = re.compile(r"([0-9]{1,10})(?:\+|-([0-9]{1,10}))(?::[0-9]{1,10}(?::[+*^])?)?", re.ASCII)
_IDSET = re.compile(r"[0-9]{1,10}(?:-[0-9]{1,10})?(?:,[0-9]{1,10}(?:-[0-9]{1,10})?)*", re.ASCII)
_NUMBER = re.compile(r"[0-9]+", re.ASCII)

Run = tuple[tuple[RankAllocation, ...], float | None, float | None]  # allocations, ends_at and began_at of a job
NOT_RUN: Run = ((), None, None)


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
    """Read a job from its jobspec and the values of its events. Never raises, whatever the jobspec contains."""
    if isinstance(jobspec, DroppedJobspec):
        return UnreadableJob(job_id, jobspec.why, userid=userid)
    request = try_request(jobspec)
    if isinstance(request, Unread):
        return UnreadableJob(job_id, request.why, userid=userid, set_aside=request.set_aside)
    return Job(job_id, shown_state(state, request), request, submitted_at, urgency, priority, userid)


def shown_state(state: JobState, request: JobRequest) -> JobState:
    """The state of a job for the planner. The copy of a delegated job needs nodes, elsewhere: it only shows it."""
    return JobState.DEPEND if request.delegated_to and state in _WAITING else state


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a jobspec cannot be read, as one printable text. ``set_aside``: because this program fails on it."""

    why: str
    set_aside: bool = False


def try_request(jobspec: object) -> JobRequest | Unread:
    """Read what a jobspec asks for; or return why it cannot be read. Never raises."""
    try:
        return read_request(jobspec)
    except ValueError as error:
        return Unread(escape_unprintable(str(error)[:WHY_MAX]))
    except Exception as error:  # noqa: BLE001 - doc/decisions/0038: a user's jobspec must not end the service
        return Unread(escape_unprintable(f"{type(error).__name__}: {error}"[:WHY_MAX]), set_aside=True)


def read_request(jobspec: object) -> JobRequest:
    """Read what a jobspec asks for. Raises ``ValueError`` with the place in the jobspec."""
    spec = object_at(jobspec, "jobspec")
    resources = _read_resources(spec)
    system = _system(spec)
    wish = _read_our_attributes(system)
    return JobRequest(
        shape=_shape(resources, system, wish),
        duration_s=_read_duration_s(spec, system),
        queue=_read_queue(system),
        unheeded=tuple(sorted({*map(_shown, resources.others), *wish.unheeded})),
        requeue=wish.requeue,
        requeued_from=wish.requeued_from,
        patience_s=read_patience_s(system),
        near_fault=wish.near_fault,
        delegated_to=_shown(read_target(spec)),
    )


def _shown(text: str) -> str:
    """A user's text, so that it can be shown anywhere."""
    return shorten(escape_unprintable(text))


@dataclass(frozen=True, slots=True)
class DroppedJobspec:
    """Stands for a jobspec that was too large to be kept."""

    why: str


def trim_jobspec(jobspec: object) -> object:
    """Remove the parts of a jobspec that are never read here: a queue of batch scripts would fill the memory.

    If the rest is still too large, only the reason is kept.
    """
    if not isinstance(jobspec, Mapping):
        return jobspec
    kept = {key: jobspec[key] for key in ("version", "resources", "attributes") if key in jobspec}
    attributes = kept.get("attributes")
    if isinstance(attributes, Mapping) and isinstance(system := attributes.get("system"), Mapping):
        kept["attributes"] = {"system": {key: system[key] for key in _SYSTEM_READ if key in system}}
    if size_bytes(kept) > JOBSPEC_BYTES_MAX:
        why = f"jobspec: its resources and attributes take more than {JOBSPEC_BYTES_MAX // 1024} KiB"
        return DroppedJobspec(f"{why}: write its constraint with ranges, such as hosts:node[1-100]")
    return kept


def size_bytes(value: object) -> int:
    """Estimate the memory of a JSON value. Values above ``JOBSPEC_BYTES_MAX`` are not measured to the end."""
    size, rest = 0, [value]
    while rest and size <= JOBSPEC_BYTES_MAX:
        item = rest.pop()
        if isinstance(item, str):
            size += 56 + len(item)
        elif isinstance(item, Mapping):
            size += 232 + 16 * len(item)
            rest += item.values()
            rest += item
        elif isinstance(item, list):
            size += 56 + 8 * len(item)
            rest += item
        else:
            size += 32
    return size


def with_updates(jobspec: object, updates: object) -> Mapping[str, Any]:
    """Apply a ``jobspec-update`` event (RFC 21), whose context maps dotted paths to new values.

    Missing objects on a path are created. Raises ``ValueError`` if a path leads through something else.
    """
    if isinstance(jobspec, DroppedJobspec):
        raise ValueError(jobspec.why)  # noqa: TRY004 - the job is unreadable, as after any other ValueError
    updated = object_at(jobspec, "jobspec")
    for path, value in object_at(updates, "updates").items():
        keys = path.split(".")
        if not all(keys) or len(keys) > DEPTH_MAX:
            raise wrong_value("updates", "a path such as attributes.system.duration", path)
        updated = _with_value(updated, keys, value)
    return updated


def _with_value(inside: object, keys: list[str], value: object) -> dict[str, Any]:
    """Return a copy of the object with the value at the path ``keys``."""
    changed = dict(object_at(inside, f"updates, before {shorten('.'.join(keys))}"))
    key, *rest = keys
    changed[key] = _with_value(changed.get(key, {}), rest, value) if rest else value
    return changed


def read_shape(jobspec: Mapping[str, Any]) -> Shape:
    """Read the job's resource request. Raises ``ValueError`` with the place in the jobspec."""
    system = _system(jobspec)
    return _shape(_read_resources(jobspec), system, _read_our_attributes(system))


# --- resources --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Resources:
    """The resources that the walk has read so far."""

    nodes: int | None = None
    slots: int | None = None
    cores: int | None = None
    gpus: int = 0
    exclusive: bool = False
    memory_bytes: int = 0  # of each slot
    others: set[str] = field(default_factory=set)


def _read_resources(spec: Mapping[str, Any]) -> _Resources:
    found = _Resources()
    _read_level(spec.get("resources"), "resources", 1, 0, found)
    return found


def _read_level(entries: object, where: str, above: int, depth: int, found: _Resources, in_slot: int = 0) -> None:
    """Read one level. ``above``: how often it occurs, by the counts above it; ``in_slot``: how often per slot."""
    if depth > DEPTH_MAX:
        raise ValueError(f"{shorten(where)}: resources nest deeper than {DEPTH_MAX} levels")
    for index, entry in enumerate(list_at(entries, where)):
        place = f"{where}[{index}]"
        vertex = object_at(entry, place)
        of_type = text_at(vertex.get("type"), f"{place}.type")
        count = _least_count(vertex.get("count"), f"{place}.count")
        below = _read_entry(of_type, count, above, bool(vertex.get("exclusive")), found)
        if below > COUNT_MAX:
            raise ValueError(f"{shorten(place)}: more than {COUNT_MAX} in all")
        if of_type == "memory":
            found.memory_bytes = in_slot * count * _unit_bytes(vertex.get("unit"))
        if vertex.get("with") is not None:
            inside = 1 if of_type == "slot" else in_slot * count
            _read_level(vertex["with"], f"{place}.with", below, depth + 1, found, inside)


def _unit_bytes(unit: object) -> int:
    """Return the bytes of a unit; 0 if it is unknown or missing, because then the amount is unknown."""
    return _UNIT_BYTES.get(unit, 0) if isinstance(unit, str) else 0


def _read_entry(of_type: str, count: int, above: int, exclusive: bool, found: _Resources) -> int:
    """Read one entry; return the count by which it multiplies the nodes below it."""
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


def _shape(found: _Resources, system: Mapping[str, Any], wish: _OurAttributes) -> Shape:
    nodes, slots, cores = found.nodes, found.slots, found.cores
    if slots is None:
        raise ValueError("resources: a slot is needed, but there is none")
    if cores is None and not found.exclusive:
        raise ValueError("resources: a core is needed in the slot, but there is none")
    if nodes is not None and nodes > COUNT_MAX:
        raise ValueError(f"resources: more than {COUNT_MAX} nodes")
    if max(found.memory_bytes, wish.memory_bytes) > MEMORY_BYTES_MAX:
        raise ValueError(f"memory: more than {MEMORY_BYTES_MAX} bytes for each slot")
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
        near=wish.near,
    )


def _least_count(count: object, where: str) -> int:
    """Read the lowest value of a count: a number, or a range as an object (RFC 14) or as text (RFC 45)."""
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
    """Read the duration in seconds; 0 is unlimited. Version 1 of the jobspec must give it."""
    if "duration" not in system and spec.get("version") != 1:
        return 0.0
    return seconds_at(system.get("duration"), "attributes.system.duration")


def _read_queue(system: Mapping[str, Any]) -> str:
    where = "attributes.system.queue"
    queue = text_at(system.get("queue", ""), where)
    if not queue.isprintable() or len(queue) > QUEUE_NAME_MAX:
        raise wrong_value(where, f"the name of a queue, of at most {QUEUE_NAME_MAX} printable characters", queue)
    return queue


_OUR_KEYS = ("memory", "one-zone", NEAR, DATA, "requeue", REQUEUED_FROM, PATIENCE, MARKER)


@dataclass(frozen=True, slots=True)
class _OurAttributes:
    """A job's requests to the manager. ``unheeded``: those that no scheduler respects."""

    memory_bytes: int = 0  # of each slot
    one_zone: bool = False
    requeue: bool = False
    requeued_from: JobId | None = None
    near: Near | None = None
    near_fault: str = ""

    @property
    def unheeded(self) -> set[str]:
        asked = ("memory", self.memory_bytes), ("one-zone", self.one_zone), (NEAR, self.near)
        return {name for name, wish in asked if wish}


def _read_our_attributes(system: Mapping[str, Any]) -> _OurAttributes:
    """Read a job's requests to the manager. Raises for an unknown key, which may be a misspelt one."""
    where = f"attributes.system.{OUR_ATTRIBUTES}"
    wish = object_at(system.get(OUR_ATTRIBUTES, {}), where)
    unknown = next((key for key in wish if key not in _OUR_KEYS), None)
    if unknown is not None:
        raise ValueError(f"{where}: no such key {shorten(repr(unknown))}; the keys are {', '.join(_OUR_KEYS)}")
    memory, one_zone = wish.get("memory", "0B"), wish.get("one-zone", 0)
    if not isinstance(memory, str):
        raise wrong_value(f"{where}.memory", 'the size of each slot, such as "16GiB"', memory)
    if one_zone not in (0, 1):
        raise wrong_value(f"{where}.one-zone", "1 (the value that --setattr gives it) or 0", one_zone)
    if (requeue := wish.get("requeue", 0)) not in (0, 1):
        raise wrong_value(f"{where}.requeue", "1 (the value that --setattr gives it) or 0", requeue)
    former = text_at(wish.get(REQUEUED_FROM, ""), f"{where}.{REQUEUED_FROM}")
    place = f"{where}.{REQUEUED_FROM}"
    try:
        former_id = JobId(parse_job_id(former)) if former else None
        place = f"{where}.memory"
        return _OurAttributes(parse_bytes(memory), bool(one_zone), bool(requeue), former_id, *read_near(wish))
    except NotationError as error:
        raise ValueError(f"{place}: {error}") from error


# --- read where a job's data is: ``node-manager.near`` and ``node-manager.data`` of its attributes --------
#
# An attribute that cannot be read does not refuse the job. It counts as if it were not there, and ``explain job``
# says why. Whether the site has a cloud of that name is known to the planner only.


NAME_MAX = 64  # characters
SIZE_TEXT_MAX = 40
DATA_BYTES_MAX = 2**60
DATA_BITS = 6  # sizes differ in these leading bits only: jobs of similar sizes are planned together
FAULT_MAX = 200  # characters


def read_near(wish: Mapping[str, Any]) -> tuple[Near | None, str]:
    """Read the cloud of a job's data and the data's size, and what is wrong with them ("" if nothing is)."""
    cloud, data = wish.get(NEAR), wish.get(DATA)
    if cloud is None:
        return None, "data: there is no near, which names the cloud of the data" if data is not None else ""
    if not isinstance(cloud, str) or not 0 < len(cloud) <= NAME_MAX or not cloud.isprintable():
        return None, _fault(wrong_value(NEAR, f"the name of a cloud, of at most {NAME_MAX} characters", cloud))
    near = Near(CloudName(cloud))
    try:
        return (near if data is None else Near(near.cloud, _read_size(data))), ""
    except ValueError as error:
        return near, _fault(error)


def _read_size(data: object) -> int:
    """Read a size, in bytes, rounded up by at most 3 %."""
    if not isinstance(data, str) or len(data) > SIZE_TEXT_MAX:
        raise wrong_value(DATA, 'how much the job reads, such as "200GiB"', data)
    try:
        size_bytes = parse_bytes(data)
    except ValueError as error:
        raise ValueError(f"{DATA}: {error}") from error
    if not 0 < size_bytes <= DATA_BYTES_MAX:
        raise wrong_value(DATA, "a size from 1 to 2^60 bytes", data)
    step = 1 << max(0, size_bytes.bit_length() - DATA_BITS)
    return -(-size_bytes // step) * step


def _fault(error: ValueError) -> str:
    return escape_unprintable(str(error))[:FAULT_MAX]
