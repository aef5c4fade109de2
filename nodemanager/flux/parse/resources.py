"""Read the ranks from the answers of the instance's resource module, scheduler and job manager.

R is RFC 20's resource set. It may be partial, name a rank in several of its entries, and lack properties. A
malformed answer raises ``ValueError`` with the place and the value found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast
from xml.etree import ElementTree as ET

from nodemanager.core.drains import is_our_drain
from nodemanager.core.jobs import RankAllocation
from nodemanager.core.nodes import FluxRank
from nodemanager.core.notation import expand_hostlist, parse_idset
from nodemanager.core.slots import Hardware, Rank, SlotName, TypeName
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, text_at, wrong_value

LEADER = Rank(0)
# A short text can name very many. An R may name a rank in several entries.
UNITS_MAX = 1 << 14  # cores, or GPUs, of one rank
RANKS_MAX = 1_000_000  # of all entries of one R
JOINED_MAX = 10_000_000  # cores and GPUs that are joined for ranks in several entries of one R

T = TypeVar("T")


def read_ranks(
    resource_status: object,
    sched_resource_status: object,
    last_job_ended_at: Mapping[Rank, float],
    slot_types: Mapping[SlotName, TypeName] | None = None,
    job_manager_stats: object = None,
) -> tuple[FluxRank, ...]:
    """Read every rank, in order, from the answers of RPCs; the leader only if Flux runs jobs on it.

    ``resource_status`` is the answer of ``resource.status``, ``sched_resource_status`` of
    ``sched.resource-status``, ``job_manager_stats`` of ``job-manager.stats-get`` (for the running housekeeping;
    None: not asked). ``slot_types`` is the known node type of each slot. Do not change ``last_job_ended_at``
    afterwards: the next look compares with it.
    """
    look = Look().next(resource_status, sched_resource_status, last_job_ended_at, slot_types, job_manager_stats)
    return tuple(look.ranks.values())


def read_holdings(r: object) -> tuple[tuple[RankAllocation, ...], float | None]:
    """Read a job's allocation and its expiry from the R of its ``alloc`` event; None if it never expires."""
    held = _read_r(r, "R")
    execution = object_at(object_at(r, "R").get("execution"), "R.execution")
    expires_at = seconds_at(execution.get("expiration", 0.0), "R.execution.expiration")
    holdings = tuple(
        RankAllocation(rank, len(units.cores), len(units.gpus)) for rank, units in sorted(held.items())
    )
    return holdings, expires_at or None


def held_units(
    resource_status: object, sched_resource_status: object
) -> dict[SlotName, tuple[frozenset[int], frozenset[int]]]:
    """Read the ids of the cores and GPUs that jobs and housekeeping hold, by host."""
    hosts = _ResourceStatus().next(resource_status).declared.value.hosts
    allocated = _SchedStatus().next(sched_resource_status).allocated.value
    return {hosts[rank]: (units.cores, units.gpus) for rank, units in allocated.items()}


def count_free(sched_resource_status: object) -> dict[str, int]:
    """Count the ranks that are up, those of them without any allocation, and the cores of both kinds."""
    status = _SchedStatus().next(sched_resource_status)
    known, allocated = status.known.value, status.allocated.value
    cores = {rank: known[rank].cores for rank in status.up}
    taken = {rank: allocated[rank].cores if rank in allocated else frozenset() for rank in cores}
    return {
        "node_cores_free": sum(len(cores[rank] - taken[rank]) for rank in cores),
        "node_cores_up": sum(map(len, cores.values())),
        "node_up_count": len(cores),
        "node_free_count": sum(rank not in allocated for rank in cores),
    }


def read_slots(resource_status: object) -> Mapping[SlotName, Rank]:
    """Read the rank of each slot, that is of each host name in R but the leader's. Duplicate names raise."""
    r = object_at(resource_status, "resource.status").get("R")
    slots: dict[SlotName, Rank] = {}
    for rank, host in _hosts(r, _read_r(r, "resource.status.R"), "resource.status.R").items():
        if rank == LEADER:
            continue
        if host in slots:
            raise ValueError(
                f"resource.status.R: ranks {slots[host]} and {rank} are both {host}; a slot is one rank"
            )
        slots[host] = rank
    return slots


def listed_jobs(job_list: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each job in the answer of ``job-list.list``, with its place for messages. Raises ``ValueError``."""
    for index, entry in enumerate(list_at(object_at(job_list, "job-list.list").get("jobs"), "job-list.list.jobs")):
        where = f"job-list.list.jobs[{index}]"
        yield where, object_at(entry, where)


def read_job_ends(job_list: object) -> dict[Rank, float]:
    """Read when the last job of each rank ended, among the jobs in the answer of ``job-list.list``.

    The request must include the attributes ``ranks`` and ``t_inactive``. Jobs that lack one of them never ran or
    have not ended.
    """
    ends: dict[Rank, float] = {}
    for where, job in listed_jobs(job_list):
        if job.get("ranks") is None or job.get("t_inactive") is None:
            continue
        ended_at = seconds_at(job["t_inactive"], f"{where}.t_inactive")
        for rank in _ranks(job["ranks"], f"{where}.ranks"):
            ends[rank] = max(ended_at, ends.get(rank, ended_at))
    return ends


def read_topology(xml: str) -> Hardware:
    """Read a machine's cores and hardware threads from the answer of ``resource.topo-get``, hwloc's XML.

    GPUs and memory are not read: hwloc shows GPUs only if it was built to find them, and it misses memory that was
    added while the machine runs.
    """
    try:
        topology = ET.fromstring(xml)  # noqa: S314 - an owner of one of our brokers already owns the instance
    except ET.ParseError as fault:
        raise ValueError(f"resource.topo-get: hwloc's XML is needed: {fault}") from fault
    objects = [element.get("type") for element in topology.iter("object")]
    threads = objects.count("PU")
    if not threads:
        raise ValueError("resource.topo-get: no PU in it")
    return Hardware(cores=objects.count("Core") or threads, threads=threads)


# --- the replies ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Units:
    """The ids of a rank's cores and GPUs."""

    cores: frozenset[int] = frozenset()
    gpus: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        return len(self.cores) + len(self.gpus)

    def joined(self, other: _Units) -> _Units:
        return _Units(self.cores | other.cores, self.gpus | other.gpus)

    def without(self, other: _Units | None) -> _Units:
        return self if other is None else _Units(self.cores - other.cores, self.gpus - other.gpus)


_NO_UNITS = _Units()
_NOT_READ = object()


@lru_cache(maxsize=1024)
def _units(cores: frozenset[int], gpus: frozenset[int]) -> _Units:
    """Make units, cached so that equal units are mostly the same object, within a look and between looks."""
    return _Units(cores, gpus)


# --- one look after another -------------------------------------------------------------------------------

Inventory = Mapping[Rank, _Units]


@dataclass(frozen=True, slots=True)
class _Declared:
    """R of the resource module."""

    inventory: Inventory = field(default_factory=dict)
    hosts: Mapping[Rank, SlotName] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ParsedPart(Generic[T]):
    """A part of an answer with its parsed value, which is parsed again only if the answer changes."""

    value: T
    source: object = _NOT_READ

    def reread(self, source: object, read: Callable[[object, str], T], where: str) -> _ParsedPart[T]:
        return self if source == self.source else _ParsedPart(read(source, where), source)


@dataclass(frozen=True, slots=True)
class _Drain:
    reason: str
    at: float | None  # None if the manager drained the rank, or if Flux does not say


@dataclass(frozen=True, slots=True)
class _ResourceStatus:
    declared: _ParsedPart[_Declared] = _ParsedPart(_Declared())
    online: _ParsedPart[frozenset[Rank]] = _ParsedPart(frozenset())
    drains: _ParsedPart[Mapping[Rank, _Drain]] = _ParsedPart({})
    torpid: _ParsedPart[frozenset[Rank]] = _ParsedPart(frozenset())
    excluded: _ParsedPart[frozenset[Rank]] = _ParsedPart(frozenset())

    def next(self, reply: object) -> _ResourceStatus:
        """Read the next answer of ``resource.status``."""
        where = "resource.status"
        status = object_at(reply, where)
        return _ResourceStatus(
            self.declared.reread(status.get("R"), _read_declared, f"{where}.R"),
            self.online.reread(status.get("online", ""), _ranks, f"{where}.online"),
            self.drains.reread(status.get("drain"), _read_drains, f"{where}.drain"),
            self.torpid.reread(status.get("torpid", ""), _ranks, f"{where}.torpid"),
            self.excluded.reread(status.get("exclude", ""), _ranks, f"{where}.exclude"),
        )


@dataclass(frozen=True, slots=True)
class _SchedStatus:
    known: _ParsedPart[Inventory] = _ParsedPart({})
    down: _ParsedPart[Inventory] = _ParsedPart({})
    allocated: _ParsedPart[Inventory] = _ParsedPart({})  # by jobs and by housekeeping
    up: AbstractSet[Rank] = frozenset()

    def next(self, reply: object) -> _SchedStatus:
        """Read the next answer of ``sched.resource-status``."""
        where = "sched.resource-status"
        status = object_at(reply, where)
        known = self.known.reread(status.get("all"), _read_r, f"{where}.all")
        down = self.down.reread(status.get("down", {}), _read_r_or_null, f"{where}.down")
        same = known is self.known and down is self.down
        return _SchedStatus(
            known,
            down,
            self.allocated.reread(status.get("allocated", {}), _read_r_or_null, f"{where}.allocated"),
            self.up if same else known.value.keys() - down.value.keys(),
        )


@dataclass(frozen=True, slots=True)
class Look:
    """The ranks in order, as one look showed them, and the answers from which they were read.

    The next look reuses the objects of unchanged ranks. Of thousands only a few change, and comparing an object
    with itself costs nothing.
    """

    ranks: Mapping[Rank, FluxRank] = field(default_factory=dict)
    _seen: _ResourceStatus = field(default_factory=_ResourceStatus)
    _sched: _SchedStatus = field(default_factory=_SchedStatus)
    _ended_at: Mapping[Rank, float] = field(default_factory=dict)
    _slot_types: Mapping[SlotName, TypeName] = field(default_factory=dict)
    _housekeeping: Mapping[Rank, float] = field(default_factory=dict)

    def next(
        self,
        resource_status: object,
        sched_resource_status: object,
        last_job_ended_at: Mapping[Rank, float],
        slot_types: Mapping[SlotName, TypeName] | None = None,
        job_manager_stats: object = None,
    ) -> Look:
        """Make the look after this one, from the arguments of :func:`read_ranks`."""
        read = Look(
            {},
            self._seen.next(resource_status),
            self._sched.next(sched_resource_status),
            last_job_ended_at,
            slot_types if slot_types is not None else {},
            _read_housekeeping(job_manager_stats) if job_manager_stats is not None else {},
        )
        changed = read._changed_since(self)
        if changed is None:
            inventory = read._seen.declared.value.inventory
            hidden = read._seen.excluded.value & {LEADER}
            return replace(read, ranks={rank: read._rank(rank) for rank in sorted(inventory.keys() - hidden)})
        changed &= self.ranks.keys()
        if not changed:
            return replace(read, ranks=self.ranks)
        return replace(read, ranks={**self.ranks, **{rank: read._rank(rank) for rank in changed}})

    def _changed_since(self, before: Look) -> set[Rank] | None:
        """Find the ranks whose answers differ; None if any rank may differ, and ranks may be new or missing."""
        seen, was = self._seen, before._seen
        leader_changed = LEADER in seen.excluded.value ^ was.excluded.value
        if seen.declared is not was.declared or self._slot_types != before._slot_types or leader_changed:
            return None
        sets = (
            (seen.online.value, was.online.value),
            (seen.torpid.value, was.torpid.value),
            (seen.excluded.value, was.excluded.value),
            (self._sched.up, before._sched.up),
        )
        mappings: tuple[tuple[Mapping[Rank, object], Mapping[Rank, object]], ...] = (
            (seen.drains.value, was.drains.value),
            (self._sched.allocated.value, before._sched.allocated.value),
            (self._ended_at, before._ended_at),
            (self._housekeeping, before._housekeeping),
        )
        changed: set[Rank] = set()
        for now, then in sets:
            if now is not then:
                changed |= now ^ then
        for values, values_then in mappings:
            if values is not values_then:
                changed |= _differing_ranks(values, values_then)
        return changed

    def _rank(self, rank: Rank) -> FluxRank:
        seen, sched = self._seen, self._sched
        host, units = seen.declared.value.hosts[rank], seen.declared.value.inventory[rank]
        held = sched.allocated.value.get(rank)
        online, up, drained = rank in seen.online.value, rank in sched.up, seen.drains.value.get(rank)
        torpid, excluded = rank in seen.torpid.value, rank in seen.excluded.value
        takes_jobs = online and up and drained is None and not torpid and not excluded
        free = units.without(held) if takes_jobs else _NO_UNITS
        return FluxRank(
            rank=rank,
            host=host,
            online=online,
            cores=len(units.cores),
            gpus=len(units.gpus),
            cores_free=len(free.cores),
            gpus_free=len(free.gpus),
            allocated=held is not None,
            schedulable=up,
            drain_reason=drained.reason if drained is not None else None,
            drained_at=drained.at if drained is not None else None,
            torpid=torpid,
            excluded=excluded,
            type_name=self._slot_types.get(host),
            last_job_ended_at=self._ended_at.get(rank),
            housekeeping_since_at=self._housekeeping.get(rank),
        )


def _differing_ranks(one: Mapping[Rank, object], other: Mapping[Rank, object]) -> set[Rank]:
    """Find the ranks in which two mappings differ."""
    lacks = other.keys() - one.keys() if len(other) > len(one) or other.keys() != one.keys() else set()
    return lacks | {rank for rank, it in one.items() if (was := other.get(rank)) is not it and was != it}


# --- reading the replies ----------------------------------------------------------------------------------


def _read_declared(r: object, where: str) -> _Declared:
    inventory = _read_r(r, where)
    return _Declared(inventory, _hosts(r, inventory, where))


def _read_drains(value: object, where: str) -> dict[Rank, _Drain]:
    """Read the drain of each drained rank; the reason "" if none was given. Of our own, only its first word."""
    drains: dict[Rank, _Drain] = {}
    for ranks, entry in object_at(value, where).items():
        drained = object_at(entry, f"{where}.{ranks}")
        reason, at = drained.get("reason"), drained.get("timestamp")
        full = "" if reason is None else text_at(reason, f"{where}.{ranks}.reason")
        if is_our_drain(full):  # our own reasons end with a note for people
            drain = _Drain(full.partition(" ")[0], None)
        else:
            drain = _Drain(full, None if at is None else seconds_at(at, f"{where}.{ranks}.timestamp"))
        drains.update(dict.fromkeys(_ranks(ranks, where), drain))
    return drains


def _read_housekeeping(reply: object) -> dict[Rank, float]:
    """Read when the oldest housekeeping of each rank began, from ``t_start`` and ``pending`` of each run."""
    where = "job-manager.stats-get.housekeeping.running"
    housekeeping = object_at(reply, "job-manager.stats-get").get("housekeeping")
    running = object_at(object_at(housekeeping, "job-manager.stats-get.housekeeping").get("running"), where)
    since: dict[Rank, float] = {}
    for job, entry in running.items():
        fields = object_at(entry, f"{where}.{job}")
        started_at = seconds_at(fields.get("t_start"), f"{where}.{job}.t_start")
        for rank in _ranks(fields.get("pending"), f"{where}.{job}.pending"):
            since[rank] = min(started_at, since.get(rank, started_at))
    return since


# --- R (RFC 20) -------------------------------------------------------------------------------------------


def _read_r(value: object, where: str) -> dict[Rank, _Units]:
    """Read the cores and GPUs of every rank in an R."""
    r = object_at(value, where)
    if r.get("version") != 1:
        raise wrong_value(f"{where}.version", "version 1 of R", r.get("version"))
    execution = object_at(r.get("execution"), f"{where}.execution")
    found: dict[Rank, _Units] = {}
    listed = joined = 0
    for index, item in enumerate(list_at(execution.get("R_lite"), f"{where}.execution.R_lite")):
        place = f"{where}.execution.R_lite[{index}]"
        entry = object_at(item, place)
        children = object_at(entry.get("children"), f"{place}.children")
        cores, gpus = (
            frozenset(_ids(children.get(kind, ""), f"{place}.children.{kind}", _unit_ids))
            for kind in ("core", "gpu")
        )
        units = _units(cores, gpus)
        ranks = _ranks(entry.get("rank"), f"{place}.rank")
        listed += len(ranks)
        if listed > RANKS_MAX:
            raise ValueError(f"{place}.rank: more than {RANKS_MAX} ranks in all entries")
        for rank in ranks:
            before = found.get(rank)
            if before is None:
                found[rank] = units
                continue
            joined += before.count + units.count
            if joined > JOINED_MAX:
                raise ValueError(f"{place}.rank: more than {JOINED_MAX} cores and GPUs of ranks that occur twice")
            found[rank] = before.joined(units)
    return found


def _read_r_or_null(value: object, where: str) -> dict[Rank, _Units]:
    """Read an R that may be empty. For an empty one Fluxion sends null, and sched-simple an R without ranks."""
    return {} if value is None else _read_r(value, where)


def _hosts(value: object, ranks: Iterable[Rank], where: str) -> dict[Rank, SlotName]:
    """Read the host of each rank: an R's node list names the hosts in the order of the ranks."""
    execution = object_at(object_at(value, where).get("execution"), f"{where}.execution")
    place = f"{where}.execution.nodelist"
    hosts: list[str] = []
    for item in list_at(execution.get("nodelist"), place):
        text = text_at(item, place)
        try:
            hosts.extend(expand_hostlist(text))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    ordered = sorted(ranks)
    if len(hosts) != len(ordered):
        raise ValueError(f"{place}: {len(hosts)} hosts for {len(ordered)} ranks")
    return {rank: SlotName(host) for rank, host in zip(ordered, hosts, strict=True)}


def _ranks(value: object, where: str) -> frozenset[Rank]:
    return cast("frozenset[Rank]", frozenset(_ids(value, where, parse_idset)))  # 10,000 calls of Rank cost 1 ms


def _ids(value: object, where: str, parse: Callable[[str], Iterable[int]]) -> Iterable[int]:
    text = text_at(value, where)
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@lru_cache(maxsize=256)
def _unit_ids(text: str) -> frozenset[int]:
    """Read the ids of cores or GPUs. Cached, because all nodes of a type have the same ids."""
    return frozenset(parse_idset(text, UNITS_MAX))
