"""Which nodes serve the demand: those that are there, those that come, and the cheapest that can be had.

Jobs are taken in Flux's order, first fit. A job gets all the nodes it asks for or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from itertools import chain

from nodemanager.fleet.constraints import holds
from nodemanager.fleet.demand import Demand
from nodemanager.model import Job, JobId, NodeType, Rank, Reason, Shape, SlotName, TypeName, because

Place = tuple[SlotName, Rank]


class Standing(IntEnum):
    """How soon a node can take a job; in this order they are filled."""

    UP = 0
    DRAINING = 1  # to be kept after all
    COMING = 2
    NEW = 3  # to be bought


@dataclass(slots=True)
class Bin:
    """What is free on one node while jobs are laid out."""

    slot: SlotName
    rank: Rank
    properties: frozenset[str]
    cores: int
    gpus: int
    standing: Standing
    node_type: NodeType | None = None
    whole: bool = True  # nothing runs on it, nothing is laid on it
    serves: list[JobId] = field(default_factory=list)

    def room(self, shape: Shape) -> int:
        """How many slots of the shape fit, as the scheduler counts.

        A job that takes nodes whole starts on any free node with the cores of one slot, however many it asks for.
        """
        if shape.exclusive and not self.whole:
            return 0
        if shape.exclusive and shape.nodes is not None:
            return shape.slots if self.cores >= shape.cores_per_slot and self.gpus >= shape.gpus_per_slot else 0
        by_cores = self.cores // max(1, shape.cores_per_slot)
        return min(by_cores, self.gpus // shape.gpus_per_slot) if shape.gpus_per_slot else by_cores

    def suits(self, shape: Shape) -> bool:
        return holds(shape.constraint, properties=self.properties, host=self.slot, rank=self.rank)

    def take(self, shape: Shape, slots: int, job: JobId) -> None:
        self.whole = False
        self.serves.append(job)
        if shape.exclusive:
            self.cores = self.gpus = 0
        else:
            self.cores -= slots * shape.cores_per_slot
            self.gpus -= slots * shape.gpus_per_slot


@dataclass(slots=True)
class Market:
    """What may be bought: free slots by type, within the limits that are left.

    A slot that is free in a moment is taken when no other of its type is left: that is waited for, where a dearer
    type would else be bought.
    """

    node_types: Sequence[NodeType]
    free_slots: Mapping[TypeName, dict[Place, None]]  # an ordered set each
    soon_free_slots: Mapping[TypeName, dict[Place, None]]  # theirs is a lease that is being ended
    all_slots: Mapping[TypeName, Sequence[Place]]
    blocked: Mapping[TypeName, Reason]
    nodes_left: int
    nodes_max: int
    price_left: Decimal
    price_per_hour_max: Decimal
    _fitting: dict[tuple[TypeName, Shape], list[Place]] = field(default_factory=dict)

    def buy(self, shape: Shape, want: int) -> list[Bin] | Reason:
        """As many nodes as bring ``want`` nodes, or slots where the shape asks for slots; or why not."""
        bought: list[Bin] = []
        obstacles: list[Reason] = []
        for node_type in self._by_preference(shape):
            want -= self._buy_of(node_type, shape, want, bought, obstacles)
            if want <= 0:
                return bought
        for bin_ in bought:
            self._give_back(bin_)
        return self._never(shape) or obstacles[0]

    def _by_preference(self, shape: Shape) -> list[NodeType]:
        """The cheapest first; those on which it would start, and yet be cramped, last."""
        return sorted(self.node_types, key=lambda it: (bool(_lacks_size(it, shape)), *_cheapest(it)))

    def _never(self, shape: Shape) -> Reason | None:
        """Why the job could not be served by a fleet that serves nothing else; None if it could."""
        want = shape.slots if shape.nodes is None else shape.nodes
        nodes, price = 0, Decimal(0)
        for node_type in self._by_preference(shape):
            for place in self._places(node_type, shape):
                if want > 0:
                    want -= 1 if shape.nodes is not None else fresh_bin(node_type, place, Standing.NEW).room(shape)
                    nodes += 1
                    price += node_type.price_per_hour
        if nodes == 0:
            return self._infeasible(shape)
        if want > 0:
            return because("too_few_slots", slots=nodes, short=want)
        if nodes > self.nodes_max or price > self.price_per_hour_max:
            return because(
                "beyond_limits",
                nodes=nodes,
                nodes_max=self.nodes_max,
                price_per_hour=price,
                price_per_hour_max=self.price_per_hour_max,
            )
        return None

    def _buy_of(
        self, node_type: NodeType, shape: Shape, want: int, bought: list[Bin], obstacles: list[Reason]
    ) -> int:
        fitting = self._places(node_type, shape)
        if not fitting:
            return 0
        got = 0
        slots = (self.free_slots[node_type.name], self.soon_free_slots[node_type.name])
        free = (place for free_ones in slots for place in fitting if place in free_ones)
        while got < want:
            place = next(free, None)
            obstacle = self._obstacle(node_type, len(fitting), want - got, place is not None)
            if place is None or obstacle is not None:
                obstacles += [obstacle] if obstacle is not None else []
                break
            bin_ = self._take(node_type, place)
            bought.append(bin_)
            got += 1 if shape.nodes is not None else bin_.room(shape)
        return got

    def _places(self, node_type: NodeType, shape: Shape) -> list[Place]:
        """The slots of a type on which the shape could ever run."""
        key = (node_type.name, shape)
        if key not in self._fitting:
            places = self.all_slots[node_type.name]
            self._fitting[key] = [place for place in places if _fits(node_type, place, shape)]
        return self._fitting[key]

    def _obstacle(self, node_type: NodeType, slots: int, short: int, has_free: bool) -> Reason | None:
        name = node_type.name
        if name in self.blocked:
            return self.blocked[name]
        if not has_free:
            return because("no_free_slot", node_type=name, slots=slots, short=short)
        if self.nodes_left <= 0:
            return because("nodes_max", node_type=name, short=short, nodes_max=self.nodes_max)
        if node_type.price_per_hour > self.price_left:
            return because(
                "price_per_hour_max",
                node_type=name,
                price_per_hour=node_type.price_per_hour,
                left=self.price_left,
                price_per_hour_max=self.price_per_hour_max,
            )
        return None

    def _take(self, node_type: NodeType, place: Place) -> Bin:
        free_now = place in self.free_slots[node_type.name]
        del (self.free_slots if free_now else self.soon_free_slots)[node_type.name][place]
        self.nodes_left -= 1
        self.price_left -= node_type.price_per_hour
        return fresh_bin(node_type, place, Standing.NEW if free_now else Standing.COMING)

    def _give_back(self, bin_: Bin) -> None:
        assert bin_.node_type is not None  # noqa: S101 - what was bought has a type
        slots = self.free_slots if bin_.standing is Standing.NEW else self.soon_free_slots
        slots[bin_.node_type.name][bin_.slot, bin_.rank] = None
        self.nodes_left += 1
        self.price_left += bin_.node_type.price_per_hour

    def _infeasible(self, shape: Shape) -> Reason:
        """No type could ever serve it: name the one that comes nearest, and what it lacks."""
        nearest = max(self.node_types, key=lambda it: (-len(_lacks(it, shape)), it.cores), default=None)
        if nearest is None:
            return because("no_type_fits")
        return because("no_type_fits", nearest=nearest.name, lacks=_lacks(nearest, shape))

    def cheapest(self) -> Bin | Reason:
        """Any one node, the cheapest: to keep the least number up."""
        obstacle: Reason = because("no_node_type")
        for node_type in sorted(self.node_types, key=_cheapest):
            place = next(chain(self.free_slots[node_type.name], self.soon_free_slots[node_type.name]), None)
            in_the_way = self._obstacle(node_type, len(self.all_slots[node_type.name]), 1, place is not None)
            if place is not None and in_the_way is None:
                return self._take(node_type, place)
            obstacle = in_the_way or obstacle
        return obstacle


@dataclass(frozen=True, slots=True)
class Packing:
    """Where every waiting job would run: ``placed``, or the first thing in its way: ``unplaced``."""

    placed: Mapping[JobId, tuple[Bin, ...]]
    unplaced: Mapping[JobId, Reason]
    bins: Sequence[Bin]


def fresh_bin(node_type: NodeType, place: Place, standing: Standing) -> Bin:
    """A node of the type with nothing on it."""
    name, rank = place
    return Bin(name, rank, node_type.properties, node_type.cores, node_type.gpus, standing, node_type)


@dataclass(slots=True)
class _Floor:
    """The bins while jobs are laid out; for each shape those that may still take it, and what stands in its way."""

    bins: list[Bin]
    market: Market
    candidates: dict[Shape, list[Bin]] = field(default_factory=dict)
    obstacles: dict[Shape, Reason] = field(default_factory=dict)

    def place(self, job: Job) -> tuple[Bin, ...] | Reason:
        shape = job.shape
        if shape in self.obstacles:
            return self.obstacles[shape]  # room only shrinks: equal jobs meet the same obstacle
        chosen, short = self._choose(shape)
        if short > 0:
            bought = self.market.buy(shape, short)
            if isinstance(bought, Reason):
                self.obstacles[shape] = bought
                return bought
            self._add(bought)
            chosen, _ = self._choose(shape)
        for bin_, slots in chosen:
            bin_.take(shape, slots, job.id)
        return tuple(bin_ for bin_, _ in chosen)

    def _add(self, bought: list[Bin]) -> None:
        self.bins += bought
        for shape, candidates in self.candidates.items():
            candidates += [bin_ for bin_ in bought if bin_.suits(shape)]

    def _choose(self, shape: Shape) -> tuple[list[tuple[Bin, int]], int]:
        """The first that serve one job, with the slots each takes; and how many nodes or slots are short.

        Those passed over for want of room are not looked at again: the work is by bins and jobs, not their product.
        """
        if shape not in self.candidates:
            self.candidates[shape] = [bin_ for bin_ in self.bins if bin_.suits(shape)]
        candidates = self.candidates[shape]
        short = shape.slots if shape.nodes is None else shape.nodes
        chosen: list[tuple[Bin, int]] = []
        passed = 0
        while short > 0 and passed < len(candidates):
            bin_ = candidates[passed]
            passed += 1
            room = bin_.room(shape)
            if room >= least_room(shape):
                chosen.append((bin_, shape.slots if shape.nodes is not None else min(short, room)))
                short -= 1 if shape.nodes is not None else chosen[-1][1]
        if passed > len(chosen):
            candidates[:passed] = [bin_ for bin_, _ in chosen]
        return chosen, short


def least_room(shape: Shape) -> int:
    """The slots that a node must have room for to be of any use."""
    return shape.slots if shape.nodes is not None else 1


def pack(demand: Demand, bins: Iterable[Bin], market: Market) -> Packing:
    """Lay the demand out on what there is, and buy what is short."""
    floor = _Floor(sorted(bins, key=lambda bin_: (bin_.standing, bin_.whole, bin_.rank)), market)
    placed: dict[JobId, tuple[Bin, ...]] = {}
    unplaced: dict[JobId, Reason] = {}
    for job in demand.jobs:
        place = floor.place(job)
        if isinstance(place, Reason):
            unplaced[job.id] = place
        else:
            placed[job.id] = place
    return Packing(placed, unplaced, floor.bins)


def _cheapest(node_type: NodeType) -> tuple[Decimal, int, str]:
    return node_type.price_per_hour, node_type.cores, node_type.name


def _fits(node_type: NodeType, place: Place, shape: Shape) -> bool:
    bin_ = fresh_bin(node_type, place, Standing.NEW)
    return bin_.room(shape) >= least_room(shape) and bin_.suits(shape)


def _lacks(node_type: NodeType, shape: Shape) -> tuple[str, ...]:
    return _lacks_size(node_type, shape) or ("constraint: not met by any of its slots",)


def _lacks_size(node_type: NodeType, shape: Shape) -> tuple[str, ...]:
    slots = least_room(shape)
    lacks = []
    if node_type.cores < slots * shape.cores_per_slot:
        lacks.append(f"cores: has {node_type.cores}, needs {slots * shape.cores_per_slot}")
    if node_type.gpus < slots * shape.gpus_per_slot:
        lacks.append(f"gpus: has {node_type.gpus}, needs {slots * shape.gpus_per_slot}")
    return tuple(lacks)
