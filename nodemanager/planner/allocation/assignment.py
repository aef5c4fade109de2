"""Which job gets which node of an allocation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import NamedTuple

from nodemanager.core.jobs import JobId, NodeLoad, Shape
from nodemanager.planner.allocation.allocation import Allocation
from nodemanager.planner.allocation.work import pieces_of_job
from nodemanager.planner.scheduler.sched_simple import on_different_nodes
from nodemanager.planner.state.queue_index import BatchKey
from nodemanager.planner.supply.offers import Offer, SlotAndRank


class AssignedNode(NamedTuple):
    """One node and its load. ``pieces``: (number of the work, first piece, end of the range)."""

    place: SlotAndRank
    offer: Offer
    zone: str
    pieces: tuple[tuple[int, int, int], ...]
    load: NodeLoad


class Assignment:
    """Which job gets which node."""

    def __init__(self, allocation: Allocation) -> None:
        self._works = allocation.works
        self._offers = allocation.offers
        self._groups = allocation.groups
        free: dict[Hashable, Iterator[SlotAndRank]] = {}
        self._places: list[list[SlotAndRank]] = []
        for group in allocation.groups:
            offer = allocation.offers[group.offer]
            places = free.setdefault(group.offer if offer.pool is None else offer.pool, offer.places())
            self._places.append(list(islice(places, group.nodes)))
        self._begins: list[list[int]] = [[] for _ in allocation.works]  # by work: the first piece on each group
        self._on: list[list[tuple[int, int]]] = [
            [] for _ in allocation.works
        ]  # by work: the group, and how many pieces on each of its nodes
        begins = [0] * len(allocation.works)
        for number, group in enumerate(allocation.groups):
            for work, count in group.pieces:
                self._begins[work].append(begins[work])
                self._on[work].append((number, count))
                begins[work] += group.nodes * count
        self._numbers: dict[BatchKey, list[int]] = {}
        for number, those in enumerate(allocation.works):
            for key in dict.fromkeys(run[0] for run in those.runs):
                self._numbers.setdefault(key, []).append(number)

    def nodes(self) -> Iterator[AssignedNode]:
        """All nodes, group by group."""
        begins = [0] * len(self._works)
        works = self._works
        for group, places in zip(self._groups, self._places, strict=True):
            # One entry for each kind, also if two works are of it.
            planned: dict[tuple[Shape, float, int], int] = {}
            for work, count in group.pieces:
                kind = (works[work].shape, works[work].span_s, works[work].pieces_each)
                planned[kind] = planned.get(kind, 0) + count
            load = tuple((*kind, count) for kind, count in planned.items())
            for index, place in enumerate(places):
                pieces = tuple(
                    (work, begins[work] + index * count, begins[work] + (index + 1) * count)
                    for work, count in group.pieces
                )
                yield AssignedNode(place, self._offers[group.offer], group.zone, pieces, load)
            for work, count in group.pieces:
                begins[work] += group.nodes * count

    def jobs_on(self, node: AssignedNode, most: int) -> tuple[tuple[JobId, ...], int]:
        """The first few jobs on a node, and how many there are in all."""
        names: list[JobId] = []
        count = 0
        for number, begin, end in node.pieces:
            work = self._works[number]
            if on_different_nodes(work.shape):
                jobs = sorted(piece % work.jobs for piece in range(begin, end))
                count += len(jobs)
                names += [work.job(job) for job in jobs[:most]]
            else:
                first, last = begin // work.pieces_each, (end - 1) // work.pieces_each
                count += last - first + 1
                names += work.jobs_between(first, min(last + 1, first + most))
        return tuple(sorted(names)[:most]), count

    def pieces_on(self, node: AssignedNode) -> Iterator[tuple[JobId, Shape]]:
        """The job of each piece on a node."""
        for number, begin, end in node.pieces:
            work = self._works[number]
            gang = on_different_nodes(work.shape)
            for piece in range(begin, end):
                yield work.job(piece % work.jobs if gang else piece // work.pieces_each), work.shape

    def nodes_of(self, key: BatchKey, index: int) -> list[tuple[SlotAndRank, Offer]]:
        """The nodes of the job at an index of its batch; empty if it gets no booting or new node."""
        for number in self._numbers.get(key, ()):
            work = self._works[number]
            job = work.number(key, index)
            if job is not None:
                return list(dict.fromkeys(self._node(number, piece) for piece in pieces_of_job(work, job)))
        return []

    def _node(self, work: int, piece: int) -> tuple[SlotAndRank, Offer]:
        at = bisect_right(self._begins[work], piece) - 1
        group, count = self._on[work][at]
        place = self._places[group][(piece - self._begins[work][at]) // count]
        return place, self._offers[self._groups[group].offer]
