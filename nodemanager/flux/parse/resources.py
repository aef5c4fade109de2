"""Ranks, read from what the instance's resource module, scheduler and overlay answer.

R is RFC 20's resource set. It may be partial, name a rank in several of its entries, and lack properties.
Whatever is malformed raises ``ValueError``, which names the place and what was found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Generic, TypeVar, cast
from xml.etree import ElementTree as ET

from nodemanager.core.drains import is_our_drain
from nodemanager.core.jobs import RankAllocation
from nodemanager.core.nodes import FluxRank
from nodemanager.core.notation import expand_hostlist, parse_idset
from nodemanager.core.slots import Hardware, Rank, SlotName, TypeName
from nodemanager.flux.parse.json_fields import list_at, object_at, seconds_at, text_at, wrong_value

LEADER = Rank(0)

T = TypeVar("T")


def read_ranks(
    resource_status: object,
    sched_resource_status: object,
    last_job_ended_at: Mapping[Rank, float],
    division: Mapping[SlotName, TypeName] | None = None,
    job_manager_stats: object = None,
) -> tuple[FluxRank, ...]:
    """Every rank but the leader, in order, from the replies of RPCs.

    ``resource_status`` answers ``resource.status``, ``sched_resource_status`` answers ``sched.resource-status``.
    ``last_job_ended_at`` is not to be changed afterwards: the next look is compared with it.
    ``division``: the node type of each slot, where it is known. ``job_manager_stats`` answers
    ``job-manager.stats-get``, for the housekeeping that runs; None: it was not asked.
    """
    look = Look().next(resource_status, sched_resource_status, last_job_ended_at, division, job_manager_stats)
    return tuple(look.ranks.values())


def read_holdings(r: object) -> tuple[tuple[RankAllocation, ...], float | None]:
    """What a job was given, by the R of its ``alloc`` event, and when that expires; None where it never does."""
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
    """The ids of the cores and GPUs that jobs and housekeeping hold, by host."""
    hosts = _ResourceStatus().next(resource_status).declared.means.hosts
    allocated = _SchedStatus().next(sched_resource_status).allocated.means
    return {hosts[rank]: (units.cores, units.gpus) for rank, units in allocated.items()}


def read_slots(resource_status: object) -> Mapping[SlotName, Rank]:
    """The rank of each slot: of every host name in R but the leader's. Two ranks of one name raise."""
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


def read_job_ends(job_list: object) -> dict[Rank, float]:
    """When the last job of each rank ended, of those jobs that a ``job-list.list`` reply still shows.

    The RPC must have asked for the attributes ``ranks`` and ``t_inactive``; jobs that lack one never ran or
    have not ended.
    """
    ends: dict[Rank, float] = {}
    for index, entry in enumerate(list_at(object_at(job_list, "job-list.list").get("jobs"), "job-list.list.jobs")):
        where = f"job-list.list.jobs[{index}]"
        job = object_at(entry, where)
        if job.get("ranks") is None or job.get("t_inactive") is None:
            continue
        ended_at = seconds_at(job["t_inactive"], f"{where}.t_inactive")
        for rank in _ranks(job["ranks"], f"{where}.ranks"):
            ends[rank] = max(ended_at, ends.get(rank, ended_at))
    return ends


def read_topology(xml: str) -> Hardware:
    """A machine by the answer to ``resource.topo-get``, which is hwloc's XML: cores and hardware threads.

    Its GPUs it shows only where hwloc was built to find them, and its memory by NUMA node, where what was added to
    a running machine is missing: neither is taken from here.
    """
    try:
        topology = ET.fromstring(xml)  # noqa: S314 - who owns a broker of ours owns the instance
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

    def joined(self, other: _Units) -> _Units:
        return _Units(self.cores | other.cores, self.gpus | other.gpus)

    def without(self, other: _Units | None) -> _Units:
        return self if other is None else _Units(self.cores - other.cores, self.gpus - other.gpus)


_NOTHING = _Units()
_UNSAID = object()


@lru_cache(maxsize=1024)
def _units(cores: frozenset[int], gpus: frozenset[int]) -> _Units:
    """Kept, so that what is equal mostly is the same object, in one look and from one to the next."""
    return _Units(cores, gpus)


# --- one look after another -------------------------------------------------------------------------------

Inventory = Mapping[Rank, _Units]


@dataclass(frozen=True, slots=True)
class _Declared:
    """R, as the resource module has it."""

    inventory: Inventory = field(default_factory=dict)
    hosts: Mapping[Rank, SlotName] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part(Generic[T]):
    """A part of a reply, and what it means: read anew only where something else is said."""

    means: T
    said: object = _UNSAID

    def again(self, said: object, read: Callable[[object, str], T], where: str) -> _Part[T]:
        return self if said == self.said else _Part(read(said, where), said)


@dataclass(frozen=True, slots=True)
class _ResourceStatus:
    declared: _Part[_Declared] = _Part(_Declared())
    online: _Part[frozenset[Rank]] = _Part(frozenset())
    drains: _Part[Mapping[Rank, str]] = _Part({})
    torpid: _Part[frozenset[Rank]] = _Part(frozenset())
    excluded: _Part[frozenset[Rank]] = _Part(frozenset())

    def next(self, reply: object) -> _ResourceStatus:
        """What ``resource.status`` says now."""
        where = "resource.status"
        status = object_at(reply, where)
        return _ResourceStatus(
            self.declared.again(status.get("R"), _read_declared, f"{where}.R"),
            self.online.again(status.get("online", ""), _ranks, f"{where}.online"),
            self.drains.again(status.get("drain", {}), _read_drains, f"{where}.drain"),
            self.torpid.again(status.get("torpid", ""), _ranks, f"{where}.torpid"),
            self.excluded.again(status.get("exclude", ""), _ranks, f"{where}.exclude"),
        )


@dataclass(frozen=True, slots=True)
class _SchedStatus:
    known: _Part[Inventory] = _Part({})
    down: _Part[Inventory] = _Part({})
    allocated: _Part[Inventory] = _Part({})  # by jobs and by housekeeping
    up: AbstractSet[Rank] = frozenset()

    def next(self, reply: object) -> _SchedStatus:
        """What ``sched.resource-status`` says now."""
        where = "sched.resource-status"
        status = object_at(reply, where)
        known = self.known.again(status.get("all"), _read_r, f"{where}.all")
        down = self.down.again(status.get("down", {}), _read_what_is, f"{where}.down")
        same = known is self.known and down is self.down
        return _SchedStatus(
            known,
            down,
            self.allocated.again(status.get("allocated", {}), _read_what_is, f"{where}.allocated"),
            self.up if same else known.means.keys() - down.means.keys(),
        )


@dataclass(frozen=True, slots=True)
class Look:
    """The ranks as one look showed them, in order, and what they were read off.

    The next one reuses each that is as it was: of thousands a few change, and whoever compares two looks compares
    what is the same object at no cost.
    """

    ranks: Mapping[Rank, FluxRank] = field(default_factory=dict)
    _seen: _ResourceStatus = field(default_factory=_ResourceStatus)
    _sched: _SchedStatus = field(default_factory=_SchedStatus)
    _ended_at: Mapping[Rank, float] = field(default_factory=dict)
    _division: Mapping[SlotName, TypeName] = field(default_factory=dict)
    _housekeeping: Mapping[Rank, float] = field(default_factory=dict)

    def next(
        self,
        resource_status: object,
        sched_resource_status: object,
        last_job_ended_at: Mapping[Rank, float],
        division: Mapping[SlotName, TypeName] | None = None,
        job_manager_stats: object = None,
    ) -> Look:
        """The look after this one, from replies as :func:`read_ranks` takes them."""
        read = Look(
            {},
            self._seen.next(resource_status),
            self._sched.next(sched_resource_status),
            last_job_ended_at,
            division if division is not None else {},
            _read_housekeeping(job_manager_stats) if job_manager_stats is not None else {},
        )
        changed = read._changed_since(self)
        if changed is None:
            inventory = read._seen.declared.means.inventory
            return replace(read, ranks={rank: read._rank(rank) for rank in sorted(inventory.keys() - {LEADER})})
        changed &= self.ranks.keys()
        if not changed:
            return replace(read, ranks=self.ranks)
        return replace(read, ranks={**self.ranks, **{rank: read._rank(rank) for rank in changed}})

    def _changed_since(self, before: Look) -> set[Rank] | None:
        """The ranks of which something is said otherwise than before; None: perhaps all, and other ones."""
        seen, was = self._seen, before._seen
        if seen.declared is not was.declared or self._division != before._division:
            return None
        sets = (
            (seen.online.means, was.online.means),
            (seen.torpid.means, was.torpid.means),
            (seen.excluded.means, was.excluded.means),
            (self._sched.up, before._sched.up),
        )
        mappings: tuple[tuple[Mapping[Rank, object], Mapping[Rank, object]], ...] = (
            (seen.drains.means, was.drains.means),
            (self._sched.allocated.means, before._sched.allocated.means),
            (self._ended_at, before._ended_at),
            (self._housekeeping, before._housekeeping),
        )
        changed: set[Rank] = set()
        for now, then in sets:
            if now is not then:
                changed |= now ^ then
        for said, once_said in mappings:
            if said is not once_said:
                changed |= _differing(said, once_said)
        return changed

    def _rank(self, rank: Rank) -> FluxRank:
        seen, sched = self._seen, self._sched
        host, units = seen.declared.means.hosts[rank], seen.declared.means.inventory[rank]
        held = sched.allocated.means.get(rank)
        online, up, drained = rank in seen.online.means, rank in sched.up, seen.drains.means.get(rank)
        torpid, excluded = rank in seen.torpid.means, rank in seen.excluded.means
        takes_jobs = online and up and drained is None and not torpid and not excluded
        free = units.without(held) if takes_jobs else _NOTHING
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
            drain_reason=drained,
            torpid=torpid,
            excluded=excluded,
            type_name=self._division.get(host),
            last_job_ended_at=self._ended_at.get(rank),
            housekeeping_since_at=self._housekeeping.get(rank),
        )


def _differing(one: Mapping[Rank, object], other: Mapping[Rank, object]) -> set[Rank]:
    """Where two mappings differ."""
    lacks = other.keys() - one.keys() if len(other) > len(one) or other.keys() != one.keys() else set()
    return lacks | {rank for rank, it in one.items() if (was := other.get(rank)) is not it and was != it}


# --- reading the replies ----------------------------------------------------------------------------------


def _read_declared(r: object, where: str) -> _Declared:
    inventory = _read_r(r, where)
    return _Declared(inventory, _hosts(r, inventory, where))


def _read_drains(value: object, where: str) -> dict[Rank, str]:
    """The reason by rank; "" where none was given. Of a drain of ours, the mark."""
    drains: dict[Rank, str] = {}
    for ranks, entry in object_at(value, where).items():
        reason = object_at(entry, f"{where}.{ranks}").get("reason")
        said = "" if reason is None else text_at(reason, f"{where}.{ranks}.reason")
        # Behind a mark of ours stands a note for people.
        mark = said.partition(" ")[0] if is_our_drain(said) else said
        drains.update(dict.fromkeys(_ranks(ranks, where), mark))
    return drains


def _read_housekeeping(reply: object) -> dict[Rank, float]:
    """Since when the oldest housekeeping of each rank runs, by ``t_start`` and ``pending`` of its runs."""
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
    """The cores and GPUs of every rank that an R names."""
    r = object_at(value, where)
    if r.get("version") != 1:
        raise wrong_value(f"{where}.version", "version 1 of R", r.get("version"))
    execution = object_at(r.get("execution"), f"{where}.execution")
    found: dict[Rank, _Units] = {}
    for index, item in enumerate(list_at(execution.get("R_lite"), f"{where}.execution.R_lite")):
        place = f"{where}.execution.R_lite[{index}]"
        entry = object_at(item, place)
        children = object_at(entry.get("children"), f"{place}.children")
        cores, gpus = (
            frozenset(_ids(children.get(kind, ""), f"{place}.children.{kind}", _unit_ids))
            for kind in ("core", "gpu")
        )
        units = _units(cores, gpus)
        for rank in _ranks(entry.get("rank"), f"{place}.rank"):
            before = found.get(rank)
            found[rank] = units if before is None else before.joined(units)
    return found


def _read_what_is(value: object, where: str) -> dict[Rank, _Units]:
    """The same of a part that may be empty: for that Fluxion says null, where sched-simple has an R of no rank."""
    return {} if value is None else _read_r(value, where)


def _hosts(value: object, ranks: Iterable[Rank], where: str) -> dict[Rank, SlotName]:
    """The host of each rank: an R's node list names them in the order of the ranks."""
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
    """The ids of cores or GPUs. Kept: the nodes of a type have the same, and a fleet has few types."""
    return frozenset(parse_idset(text))
