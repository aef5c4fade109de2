"""The resources of a simulated instance, and which of them a job gets: as flux-core's sched-simple does it.

Worst fit: the rank with the most free cores first, then the most free GPUs, then the lowest rank (flux-core
0.88, ``flux.resource.Rv1Pool``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nodemanager.core.notation import compress_hostlist
from nodemanager.simulation.flux.jobspec import Count, Request, matches
from nodemanager.simulation.flux.resource_set import (
    Grant,
    R,
    RankResources,
    declared_resources,
    format_R,
    held_grant,
    lowest_bits,
    ranks_by_property,
)


class ResourcesBusy(Exception):
    """What is asked for is taken, down or drained."""


class Infeasible(Exception):
    """No rank that the instance has, up or down, will ever satisfy this. The text is Flux's own."""


class Pool:
    """All ranks but the leader's."""

    def __init__(self, rooms: Sequence[RankResources]) -> None:
        self.ranks = {room.rank: room for room in rooms}
        # Grows whenever something that was not to be had may be now.
        self.generation = 0
        self._closed = False
        self._eligible: dict[str, tuple[RankResources, ...]] = {"": tuple(rooms)}

    def set_up(self, rank: int, *, up: bool) -> None:
        if up and not self.ranks[rank].up:
            self.generation += 1
        self.ranks[rank].up = up

    def set_closed(self, *, closed: bool) -> None:
        """Closed, there is no scheduler: nothing is given out."""
        self._closed = closed
        self.generation += 1

    def add(self, room: RankResources) -> None:
        self.ranks[room.rank] = room
        self._eligible = {"": tuple(self.ranks.values())}
        self.generation += 1

    def retype(self, rank: int, cores: int, gpus: int, properties: frozenset[str]) -> None:
        """Declare anew what a rank has. Nobody may hold anything of it."""
        self.ranks[rank].declare(cores, gpus, properties)
        self._eligible = {"": self._eligible[""]}
        self.generation += 1

    def allocate(self, request: Request) -> tuple[Grant, ...]:
        """Take what the request asks for; raise NotNow or Never, with nothing taken, if that cannot be."""
        if self._closed:
            raise ResourcesBusy
        rooms = self._candidates(request)
        nodes = request.nodes
        grants = _fit_slots(rooms, request) if nodes is None else _fit_nodes(rooms, request, nodes)
        if grants is None:
            self._check_feasible(request)
            raise ResourcesBusy
        for grant in grants:
            self.ranks[grant.rank].take(grant)
        return grants

    def free(self, grant: Grant) -> None:
        self.ranks[grant.rank].give_back(grant)
        self.generation += 1

    def _candidates(self, request: Request) -> list[RankResources]:
        cores, gpus, exclusive = request.cores_per_slot, request.gpus_per_slot, request.exclusive
        rooms = [
            room
            for room in self._matching(request.constraint)
            if room.up and room.cores_left >= (room.cores if exclusive else cores) and room.gpus_left >= gpus
        ]
        # The sort is stable: among equals the lowest rank comes first.
        rooms.sort(key=lambda room: (-room.cores_left, -room.gpus_left))
        return rooms

    def _matching(self, constraint: str) -> tuple[RankResources, ...]:
        eligible = self._eligible.get(constraint)
        if eligible is None:
            wanted = json.loads(constraint)
            eligible = tuple(
                room for room in self.ranks.values() if matches(wanted, room.rank, room.host, room.properties)
            )
            self._eligible[constraint] = eligible
        return eligible

    def _check_feasible(self, request: Request) -> None:
        rooms = self._matching(request.constraint)
        if request.exclusive:
            _check_exclusive(rooms, request)
        elif request.nodes is not None:
            _check_nodes(rooms, request, request.nodes.least)
        else:
            _check_slots(rooms, request)

    # --- as R (RFC 20) ---

    def all_R(self) -> R:  # noqa: N802 - R is the name of the format
        rooms = self.ranks.values()
        resources = declared_resources(rooms)
        execution = resources["execution"]
        execution["nodelist"] = [compress_hostlist(room.host for room in rooms)]
        execution["properties"] = ranks_by_property(rooms)
        return resources

    def allocated_R(self) -> R:  # noqa: N802
        """Whatever some job or its housekeeping holds."""
        held = [held_grant(room) for room in self.ranks.values()]
        held = [grant for grant in held if grant.cores or grant.gpus]
        resources = format_R(held)
        if properties := ranks_by_property(self.ranks[grant.rank] for grant in held):
            resources["execution"]["properties"] = properties
        return resources

    def down_R(self) -> R:  # noqa: N802
        """The ranks that take no job: offline or drained."""
        return declared_resources(room for room in self.ranks.values() if not room.up)

    def job_R(self, grants: Sequence[Grant], request: Request, started_at: float) -> R:  # noqa: N802
        """What a job was given. ``started_at``: seconds since the epoch."""
        rooms = [self.ranks[grant.rank] for grant in grants]
        resources = format_R(grants)
        execution = resources["execution"]
        execution["starttime"] = started_at
        execution["expiration"] = started_at + request.duration_s if request.duration_s else 0.0
        execution["nslots"] = _count_slots(grants, request)
        execution["nodelist"] = [compress_hostlist(room.host for room in rooms)]
        if properties := ranks_by_property(rooms):
            execution["properties"] = properties
        return resources


def _fit_nodes(rooms: Sequence[RankResources], request: Request, nodes: Count) -> tuple[Grant, ...] | None:
    """The same number of slots on each of several nodes, up to the range's end; None if the least fails."""
    cores, gpus = request.slots.least * request.cores_per_slot, request.slots.least * request.gpus_per_slot
    grants: list[Grant] = []
    for room in rooms:
        if len(grants) == nodes.most:
            break
        if request.exclusive:
            grants.append(Grant(room.rank, room.cores_free, room.gpus_free))
        elif room.cores_left >= cores and room.gpus_left >= gpus:
            grants.append(Grant(room.rank, lowest_bits(room.cores_free, cores), lowest_bits(room.gpus_free, gpus)))
    return _in_rank_order(grants) if len(grants) >= nodes.least else None


def _fit_slots(rooms: Sequence[RankResources], request: Request) -> tuple[Grant, ...] | None:
    """Slots wherever they are, each whole on one node, up to the range's end; None if the least fails."""
    cores, gpus, most = request.cores_per_slot, request.gpus_per_slot, request.slots.most
    grants: list[Grant] = []
    taken = 0
    for room in rooms:
        if taken == most:
            break
        slots = room.cores_left // cores
        if gpus:
            slots = min(slots, room.gpus_left // gpus)
        if most is not None:
            slots = min(slots, most - taken)
        grants.append(
            Grant(room.rank, lowest_bits(room.cores_free, slots * cores), lowest_bits(room.gpus_free, slots * gpus))
        )
        taken += slots
    return _in_rank_order(grants) if taken >= request.slots.least else None


def _in_rank_order(grants: list[Grant]) -> tuple[Grant, ...]:
    grants.sort(key=lambda grant: grant.rank)
    return tuple(grants)


def _count_slots(grants: Sequence[Grant], request: Request) -> int:
    if request.nodes is not None:
        return len(grants) * request.slots.least
    return sum(grant.cores.bit_count() for grant in grants) // request.cores_per_slot


def _check_exclusive(rooms: Sequence[RankResources], request: Request) -> None:
    need = request.nodes.least if request.nodes is not None else 1
    eligible = sum(room.cores >= request.cores_per_slot and room.gpus >= request.gpus_per_slot for room in rooms)
    if eligible < need:
        raise Infeasible(f"unsatisfiable request: need {need} exclusive node(s), only {eligible} eligible")


def _check_nodes(rooms: Sequence[RankResources], request: Request, need: int) -> None:
    cores, gpus = request.slots.least * request.cores_per_slot, request.slots.least * request.gpus_per_slot
    eligible = sum(room.cores >= cores and room.gpus >= gpus for room in rooms)
    if eligible < need:
        and_gpus = f" and {gpus} GPUs" if gpus else ""
        raise Infeasible(
            f"unsatisfiable request: need {need} node(s) with {cores} cores{and_gpus} each, "
            f"only {eligible} eligible"
        )


def _check_slots(rooms: Sequence[RankResources], request: Request) -> None:
    need, cores, gpus = request.slots.least, request.cores_per_slot, request.gpus_per_slot
    slots = sum(room.cores // cores for room in rooms)
    if slots < need:
        total = sum(room.cores for room in rooms)
        raise Infeasible(
            f"unsatisfiable request: need {need} slot(s) of {cores} core(s), "
            f"only {slots} such slot(s) available (total cores: {total})"
        )
    if gpus:
        slots = sum(min(room.cores // cores, room.gpus // gpus) for room in rooms)
        if slots < need:
            total = sum(room.gpus for room in rooms)
            raise Infeasible(
                f"unsatisfiable request: need {need} slot(s) with {gpus} GPU(s) each, "
                f"only {slots} available (total GPUs: {total})"
            )
