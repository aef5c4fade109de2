"""The resource pool of a simulated instance. It chooses a job's ranks as flux-core's sched-simple does.

Worst fit: first the rank with the most free cores, then the most free GPUs, then the lowest rank number (flux-core
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
    """The requested resources are allocated, down or drained."""


class Infeasible(Exception):
    """The instance's ranks, up or down, can never satisfy the request. The text is Flux's own."""


class Pool:
    """All ranks except rank 0."""

    def __init__(self, entries: Sequence[RankResources]) -> None:
        self.ranks = {entry.rank: entry for entry in entries}
        # Grows whenever a request that failed before may succeed now.
        self.generation = 0
        self._closed = False
        self._eligible: dict[str, tuple[RankResources, ...]] = {"": tuple(entries)}

    def set_up(self, rank: int, *, up: bool) -> None:
        if up and not self.ranks[rank].up:
            self.generation += 1
        self.ranks[rank].up = up

    def set_closed(self, *, closed: bool) -> None:
        """Close or open the pool. While it is closed there is no scheduler, and nothing is allocated."""
        self._closed = closed
        self.generation += 1

    def add(self, entry: RankResources) -> None:
        self.ranks[entry.rank] = entry
        self._eligible = {"": tuple(self.ranks.values())}
        self.generation += 1

    def retype(self, rank: int, cores: int, gpus: int, properties: frozenset[str]) -> None:
        """Declare other resources for a rank. No job may hold any of its resources."""
        self.ranks[rank].declare(cores, gpus, properties)
        self._eligible = {"": self._eligible[""]}
        self.generation += 1

    def allocate(self, request: Request) -> tuple[Grant, ...]:
        """Allocate a request. Raises ResourcesBusy or Infeasible, and then allocates nothing."""
        if self._closed:
            raise ResourcesBusy
        entries = self._candidates(request)
        nodes = request.nodes
        grants = _fit_slots(entries, request) if nodes is None else _fit_nodes(entries, request, nodes)
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
        entries = [
            entry
            for entry in self._matching(request.constraint)
            if entry.up and entry.cores_left >= (entry.cores if exclusive else cores) and entry.gpus_left >= gpus
        ]
        # The sort is stable: among equal ranks the lowest number stays first.
        entries.sort(key=lambda entry: (-entry.cores_left, -entry.gpus_left))
        return entries

    def _matching(self, constraint: str) -> tuple[RankResources, ...]:
        eligible = self._eligible.get(constraint)
        if eligible is None:
            wanted = json.loads(constraint)
            eligible = tuple(
                entry for entry in self.ranks.values() if matches(wanted, entry.rank, entry.host, entry.properties)
            )
            self._eligible[constraint] = eligible
        return eligible

    def _check_feasible(self, request: Request) -> None:
        entries = self._matching(request.constraint)
        if request.exclusive:
            _check_exclusive(entries, request)
        elif request.nodes is not None:
            _check_nodes(entries, request, request.nodes.least)
        else:
            _check_slots(entries, request)

    # --- as R (RFC 20) ---

    def all_R(self) -> R:  # noqa: N802 - R is the name of the format
        entries = self.ranks.values()
        resources = declared_resources(entries)
        execution = resources["execution"]
        execution["nodelist"] = [compress_hostlist(entry.host for entry in entries)]
        execution["properties"] = ranks_by_property(entries)
        return resources

    def allocated_R(self) -> R:  # noqa: N802
        """The resources that jobs and their housekeeping hold."""
        held = [held_grant(entry) for entry in self.ranks.values()]
        held = [grant for grant in held if grant.cores or grant.gpus]
        resources = format_R(held)
        if properties := ranks_by_property(self.ranks[grant.rank] for grant in held):
            resources["execution"]["properties"] = properties
        return resources

    def down_R(self) -> R:  # noqa: N802
        """The ranks that take no job: offline or drained."""
        return declared_resources(entry for entry in self.ranks.values() if not entry.up)

    def job_R(self, grants: Sequence[Grant], request: Request, started_at: float) -> R:  # noqa: N802
        """The resources of one job. ``started_at``: seconds since the epoch."""
        entries = [self.ranks[grant.rank] for grant in grants]
        resources = format_R(grants)
        execution = resources["execution"]
        execution["starttime"] = started_at
        execution["expiration"] = started_at + request.duration_s if request.duration_s else 0.0
        execution["nslots"] = _count_slots(grants, request)
        execution["nodelist"] = [compress_hostlist(entry.host for entry in entries)]
        if properties := ranks_by_property(entries):
            execution["properties"] = properties
        return resources


def _fit_nodes(entries: Sequence[RankResources], request: Request, nodes: Count) -> tuple[Grant, ...] | None:
    """Fit the same number of slots on each of several nodes, up to the maximum; None below the minimum."""
    cores, gpus = request.slots.least * request.cores_per_slot, request.slots.least * request.gpus_per_slot
    grants: list[Grant] = []
    for entry in entries:
        if len(grants) == nodes.most:
            break
        if request.exclusive:
            grants.append(Grant(entry.rank, entry.cores_free, entry.gpus_free))
        elif entry.cores_left >= cores and entry.gpus_left >= gpus:
            grants.append(
                Grant(entry.rank, lowest_bits(entry.cores_free, cores), lowest_bits(entry.gpus_free, gpus))
            )
    return _in_rank_order(grants) if len(grants) >= nodes.least else None


def _fit_slots(entries: Sequence[RankResources], request: Request) -> tuple[Grant, ...] | None:
    """Fit slots on any nodes, each slot on one node, up to the maximum; None below the minimum."""
    cores, gpus, most = request.cores_per_slot, request.gpus_per_slot, request.slots.most
    grants: list[Grant] = []
    taken = 0
    for entry in entries:
        if taken == most:
            break
        slots = entry.cores_left // cores
        if gpus:
            slots = min(slots, entry.gpus_left // gpus)
        if most is not None:
            slots = min(slots, most - taken)
        grants.append(
            Grant(
                entry.rank, lowest_bits(entry.cores_free, slots * cores), lowest_bits(entry.gpus_free, slots * gpus)
            )
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


def _check_exclusive(entries: Sequence[RankResources], request: Request) -> None:
    need = request.nodes.least if request.nodes is not None else 1
    eligible = sum(
        entry.cores >= request.cores_per_slot and entry.gpus >= request.gpus_per_slot for entry in entries
    )
    if eligible < need:
        raise Infeasible(f"unsatisfiable request: need {need} exclusive node(s), only {eligible} eligible")


def _check_nodes(entries: Sequence[RankResources], request: Request, need: int) -> None:
    cores, gpus = request.slots.least * request.cores_per_slot, request.slots.least * request.gpus_per_slot
    eligible = sum(entry.cores >= cores and entry.gpus >= gpus for entry in entries)
    if eligible < need:
        and_gpus = f" and {gpus} GPUs" if gpus else ""
        raise Infeasible(
            f"unsatisfiable request: need {need} node(s) with {cores} cores{and_gpus} each, "
            f"only {eligible} eligible"
        )


def _check_slots(entries: Sequence[RankResources], request: Request) -> None:
    need, cores, gpus = request.slots.least, request.cores_per_slot, request.gpus_per_slot
    slots = sum(entry.cores // cores for entry in entries)
    if slots < need:
        total = sum(entry.cores for entry in entries)
        raise Infeasible(
            f"unsatisfiable request: need {need} slot(s) of {cores} core(s), "
            f"only {slots} such slot(s) available (total cores: {total})"
        )
    if gpus:
        slots = sum(min(entry.cores // cores, entry.gpus // gpus) for entry in entries)
        if slots < need:
            total = sum(entry.gpus for entry in entries)
            raise Infeasible(
                f"unsatisfiable request: need {need} slot(s) with {gpus} GPU(s) each, "
                f"only {slots} available (total GPUs: {total})"
            )
