"""The types of the packing: items (pieces of work), lots (nodes to put them on), and loads (the result).

All integers: cores, GPUs, bytes, and money in the smallest unit of the site's prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MIXES = 8  # of cores and memory, in a bound of the cost


@dataclass(frozen=True)  # without slots, so that ``frozen.replace`` is fast
class Item:
    """A number of equal pieces of work. A piece cannot be split between nodes.

    ``per_node_max``: if a job's pieces need different nodes, one node takes at most one piece of each job.
    ``exclusive``: a piece takes a whole node; its sizes are then what the node must have at least.
    """

    pieces: int
    cores: int
    gpus: int
    memory_bytes: int
    per_node_max: int
    exclusive: bool = False


@dataclass(frozen=True)
class Lot:
    """A number of equal nodes, and the free resources of each.

    ``cost`` is minimised; ``price`` counts against the price limit. ``bought`` is false for nodes already paid for.
    """

    cores: int
    gpus: int
    memory_bytes: int
    count: int
    cost: int
    price: int
    bought: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """A number of nodes of a lot with equal contents. ``pieces``: (number of the item, pieces on each node)."""

    lot: int
    nodes: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """The most nodes that may be bought, and the most that they may cost per hour."""

    nodes: int
    price: int

    def allow(self, loads: Iterable[Load], lots: Sequence[Lot]) -> bool:
        """Whether loads are within the limits."""
        nodes = price = 0
        for load in loads:
            nodes += load.nodes if lots[load.lot].bought else 0
            price += load.nodes * lots[load.lot].price
        return nodes <= self.nodes and price <= self.price


NO_LIMITS = PackingLimits(10**9, 10**18)


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of a packing. ``steps``: those of its greedy packings, which no :class:`Effort` limits."""

    loads: tuple[Load, ...]
    left: tuple[int, ...]  # pieces of each item that were not placed
    steps: int = field(default=0, compare=False)


@dataclass(slots=True)
class Effort:
    """How many steps may still be taken. A step takes about a microsecond; counted, they are the same each time."""

    left: int


def total_cost(loads: Iterable[Load], lots: Sequence[Lot]) -> int:
    """The cost of all loads."""
    return sum(load.nodes * lots[load.lot].cost for load in loads)


def least_cost(items: Sequence[Item], lots: Sequence[Lot]) -> float:
    """A bound that no packing of all pieces undercuts: the work could be split between nodes at will.

    The size of work and of nodes is a mix of cores and memory; the size of all work costs at least what it costs on
    the lot whose size is cheapest. Of several mixes the one with the highest cost counts.
    """
    cores = sum(item.pieces * item.cores for item in items if not item.exclusive)
    memory = sum(item.pieces * item.memory_bytes for item in items if not item.exclusive)
    least = 0.0
    for part in range(MIXES + 1):
        of_core, of_byte = (MIXES - part) / max(1, cores), part / max(1, memory)
        sizes = [(lot.cores * of_core + lot.memory_bytes * of_byte, lot.cost) for lot in lots]
        each = min((cost / size for size, cost in sizes if size), default=0.0)
        least = max(least, each * (cores * of_core + memory * of_byte))
    return least


def pieces_on_empty(item: Item, lot: Lot) -> int:
    """How many pieces of the item fit on an empty node of the lot."""
    if item.exclusive:
        return (
            1 if lot.cores >= item.cores and lot.gpus >= item.gpus and lot.memory_bytes >= item.memory_bytes else 0
        )
    return min(item.per_node_max, pieces_that_fit(item, lot.cores, lot.gpus, lot.memory_bytes))


def pieces_that_fit(item: Item, cores: int, gpus: int, memory_bytes: int) -> int:
    """How many pieces of the item fit into these free resources."""
    most = cores // item.cores
    if item.gpus:
        most = min(most, gpus // item.gpus)
    if item.memory_bytes:
        most = min(most, memory_bytes // item.memory_bytes)
    return most


def dominant_share(item: Item, lot: Lot) -> float:
    """The dominant share of a piece: the largest part of any resource of an empty node that it takes."""
    if item.exclusive:
        return 1.0
    most = item.cores / lot.cores
    if item.gpus:
        most = max(most, item.gpus / lot.gpus)
    if item.memory_bytes:
        most = max(most, item.memory_bytes / lot.memory_bytes)
    return most
