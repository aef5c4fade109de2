"""The resource pool of a simulated instance. It chooses a job's ranks as flux-core's sched-simple does.

The rule is ``planner/seating.py``. Here are the cores and GPUs by number, the ranges of RFC 14, and
Flux's own texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nodemanager.core.notation import compress_hostlist
from nodemanager.planner.seating import pieces_in_theory, pieces_that_fit, preference, resources_held
from nodemanager.simulation.flux.jobspec import Request, matches
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
        grants = _fit(self._candidates(request), request)
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
        """The ranks that are up and may serve a request, the preferred one first."""
        entries = [entry for entry in self._matching(request.constraint) if entry.up and entry.cores_left]
        entries.sort(key=lambda entry: preference(entry.cores_left, entry.gpus_left, entry.rank))
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


def _fit(entries: Sequence[RankResources], request: Request) -> tuple[Grant, ...] | None:
    """Fit pieces on the ranks, in this order, up to the maximum; None below the minimum."""
    shape, most = request.shape, request.pieces.most
    grants: list[Grant] = []
    taken = 0
    for entry in entries:
        if taken == most:
            break
        free = entry.cores_left, entry.gpus_left
        fit = pieces_that_fit(shape, *free, is_empty=entry.cores_left == entry.cores)
        pieces = fit if most is None else min(fit, most - taken)
        if pieces:
            cores, gpus = resources_held(shape, pieces, *free)
            grants.append(
                Grant(entry.rank, lowest_bits(entry.cores_free, cores), lowest_bits(entry.gpus_free, gpus))
            )
            taken += pieces
    return _in_rank_order(grants) if taken >= request.pieces.least else None


def _in_rank_order(grants: list[Grant]) -> tuple[Grant, ...]:
    grants.sort(key=lambda grant: grant.rank)
    return tuple(grants)


def _count_slots(grants: Sequence[Grant], request: Request) -> int:
    if request.nodes is not None:
        return len(grants) * request.slots.least
    return sum(grant.cores.bit_count() for grant in grants) // request.cores_per_slot


def _pieces_in_theory(entries: Sequence[RankResources], request: Request) -> int:
    return sum(pieces_in_theory(request.shape, entry.cores, entry.gpus) for entry in entries)


def _check_exclusive(entries: Sequence[RankResources], request: Request) -> None:
    need = request.nodes.least if request.nodes is not None else 1
    eligible = _pieces_in_theory(entries, request)
    if eligible < need:
        raise Infeasible(f"unsatisfiable request: need {need} exclusive node(s), only {eligible} eligible")


def _check_nodes(entries: Sequence[RankResources], request: Request, need: int) -> None:
    cores, gpus = request.slots.least * request.cores_per_slot, request.slots.least * request.gpus_per_slot
    eligible = _pieces_in_theory(entries, request)
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
        slots = _pieces_in_theory(entries, request)
        if slots < need:
            total = sum(entry.gpus for entry in entries)
            raise Infeasible(
                f"unsatisfiable request: need {need} slot(s) with {gpus} GPU(s) each, "
                f"only {slots} available (total GPUs: {total})"
            )
