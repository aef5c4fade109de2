"""What packing is about: pieces of work, nodes to put them on, and how many of the one go on how many of the other.

Integers throughout: cores, GPUs, bytes, and money in the site's smallest unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)  # without slots: made anew the fastest (``remade``)
class Item:
    """Pieces of work, all alike, none of which can be divided between nodes.

    ``per_node_max``: a gang's pieces lie on different nodes, so one node takes no more than there are gangs.
    ``whole``: a piece takes a node for itself; the sizes then say what the node must have at the least.
    """

    pieces: int
    cores: int
    gpus: int
    memory_bytes: int
    per_node_max: int
    exclusive: bool = False


@dataclass(frozen=True)
class Lot:
    """Nodes, all alike, and what is free on each: how many there are, and what taking one costs.

    ``price`` counts against the price cap, and ``cost`` decides. ``bought`` is false for those that are paid for.
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
    """So many nodes of a lot, with the same on each: ``pieces`` of each item, by the items' numbers."""

    lot: int
    nodes: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PackingLimits:
    nodes: int
    price: int

    def allow(self, loads: Iterable[Load], lots: Sequence[Lot]) -> bool:
        nodes = price = 0
        for load in loads:
            nodes += load.nodes if lots[load.lot].bought else 0
            price += load.nodes * lots[load.lot].price
        return nodes <= self.nodes and price <= self.price


@dataclass(frozen=True, slots=True)
class Packed:
    loads: tuple[Load, ...]
    left: tuple[int, ...]  # pieces of each item that found no place


def total_cost(loads: Iterable[Load], lots: Sequence[Lot]) -> int:
    return sum(load.nodes * lots[load.lot].cost for load in loads)


def pieces_on_empty(item: Item, lot: Lot) -> int:
    """How many pieces an empty node of the lot takes, by their sizes."""
    if item.exclusive:
        return (
            1 if lot.cores >= item.cores and lot.gpus >= item.gpus and lot.memory_bytes >= item.memory_bytes else 0
        )
    return min(item.per_node_max, pieces_that_fit(item, lot.cores, lot.gpus, lot.memory_bytes))


def pieces_that_fit(item: Item, cores: int, gpus: int, memory_bytes: int) -> int:
    """How many pieces so much takes."""
    most = cores // item.cores
    if item.gpus:
        most = min(most, gpus // item.gpus)
    if item.memory_bytes:
        most = min(most, memory_bytes // item.memory_bytes)
    return most


def dominant_share(item: Item, lot: Lot) -> float:
    """How much of an empty node a piece takes, by what it takes most of."""
    if item.exclusive:
        return 1.0
    most = item.cores / lot.cores
    if item.gpus:
        most = max(most, item.gpus / lot.gpus)
    if item.memory_bytes:
        most = max(most, item.memory_bytes / lot.memory_bytes)
    return most
