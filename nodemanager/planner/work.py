"""What is allocated: work, which is equal jobs that wait for nodes, and groups, which are nodes with equal load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeVar

from nodemanager.core.jobs import JobId, Shape
from nodemanager.core.slots import CloudName, NodeType
from nodemanager.planner.billing import SECONDS_PER_HOUR, cost_of_time, paid_s
from nodemanager.planner.frozen import replace
from nodemanager.planner.packing.types import Effort, Item
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import BatchKey
from nodemanager.planner.seating import cores_of_piece, on_different_nodes, pieces_of, slots_per_piece
from nodemanager.planner.supply import Offer

UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class Work:
    """Equal jobs, each with ``pieces_each`` pieces to place. ``runs``: (batch, its ids, begin, end), in order."""

    shape: Shape
    span_s: float
    pieces_each: int
    runs: tuple[tuple[BatchKey, Sequence[JobId], int, int], ...]

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return sum(end - begin for _, _, begin, end in self.runs)

    def job(self, number: int) -> JobId:
        """The id of the job with this number. Raises ``IndexError`` if there is none."""
        for _, ids, begin, end in self.runs:
            if number < end - begin:
                return ids[begin + number]
            number -= end - begin
        raise IndexError(number)

    def jobs_between(self, first: int, end: int) -> list[JobId]:
        """The ids of the jobs from number ``first`` to before ``end``."""
        found: list[JobId] = []
        for _, ids, begin, until in self.runs:
            if end <= 0:
                break
            found += ids[begin + max(0, first) : min(begin + end, until)]
            first -= until - begin
            end -= until - begin
        return found

    def number(self, key: BatchKey, index: int) -> int | None:
        """The number, within this work, of the job at an index of a batch; None if it is not part of it."""
        before = 0
        for batch, _, begin, end in self.runs:
            if batch == key and begin <= index < end:
                return before + index - begin
            before += end - begin
        return None

    def item(self, memory_bytes: int) -> Item:
        """The work as an item of the packing. ``memory_bytes``: the memory of each piece."""
        shape, jobs = self.shape, self.jobs
        return Item(
            pieces=jobs * self.pieces_each,
            cores=cores_of_piece(shape),
            gpus=shape.gpus_per_slot * (1 if shape.exclusive else slots_per_piece(shape)),
            memory_bytes=memory_bytes,
            per_node_max=jobs if on_different_nodes(shape) else UNBOUNDED,
            exclusive=shape.exclusive,
        )


def unplaced_work(shape: Shape, span_s: float, runs: Sequence[tuple[BatchKey, Sequence[JobId], int, int]]) -> Work:
    """The work of jobs without any placed piece."""
    return Work(shape, span_s, pieces_of(shape), tuple(runs))


def pieces_of_job(work: Work, job: int) -> range:
    if on_different_nodes(work.shape):
        return range(job, work.jobs * work.pieces_each, work.jobs)
    return range(job * work.pieces_each, (job + 1) * work.pieces_each)


@dataclass(frozen=True)  # without slots, so that ``frozen.replace`` is fast
class NodeGroup:
    """Nodes of one offer with equal load.

    ``pieces``: (number of the work, pieces on each node). ``cores``, ``gpus``, ``memory_bytes``: free on each node.
    """

    offer: int
    nodes: int
    zone: str
    pieces: tuple[tuple[int, int], ...]
    cores: int
    gpus: int
    memory_bytes: int

    def with_pieces(self, pieces: tuple[tuple[int, int], ...], works: Sequence[Work]) -> NodeGroup:
        """The same nodes with more pieces on each. ``works``: all of the allocation."""
        cores, gpus, memory_bytes = self.cores, self.gpus, self.memory_bytes
        for number, count in pieces:
            work = works[number]
            if work.shape.exclusive:
                cores = gpus = 0
                continue
            slots = count * slots_per_piece(work.shape)
            cores -= slots * max(1, work.shape.cores_per_slot)
            gpus -= slots * work.shape.gpus_per_slot
            memory_bytes -= min(memory_bytes, slots * work.shape.memory_bytes_per_slot)
        return replace(self, pieces=(*self.pieces, *pieces), cores=cores, gpus=gpus, memory_bytes=memory_bytes)


Source = NodeGroup | int  # where pieces may go: nodes that already have some, or an offer by its number


def offer_number(source: Source) -> int:
    """The number of the offer from which the nodes come."""
    return source.offer if isinstance(source, NodeGroup) else source


# --- near -------------------------------------------------------------------------------------------------
#
# Work whose data is in one cloud: its nodes are bought there, or elsewhere, and then the data costs egress.
#
# The packing knows what nodes cost, and nothing of what a piece costs on them. So such work is packed several
# times. Each time another part of it is kept at home: it gets nodes that are bought elsewhere only if those of
# the cloud of its data run out. The cheapest result counts, egress included. One of them keeps only work of
# unknown egress at home, so for the rest the result never costs more than a packing that ignores egress.


DAY_S = 86_400.0  # for so long a job without a time limit counts, and one with a longer limit
STEPS_KEPT = 300_000  # moves one by one end with so many steps left: a half
SINGLY_MAX = 8  # so many kinds of work are moved one by one, to see whether that is cheaper

Kind = tuple[Shape, float]  # a shape, and the step of the time limits
Kept = frozenset[Kind]
Cost = Callable[[Offer, float], int]
Packing = TypeVar("Packing")


@dataclass(frozen=True, slots=True)
class Home:
    """The cloud of a job's data. ``egress``: of all the data if the job runs elsewhere; None if it is unknown.

    It is in the unit of the offers' costs. If it is unknown, no saving is worth running elsewhere.
    """

    cloud: CloudName
    egress: int | None


@dataclass(frozen=True, slots=True)
class Places:
    """Where jobs want their nodes: the zone chosen for those that want one, and the home of those with data."""

    zones: Mapping[Shape, str] = field(default_factory=dict)
    homes: Mapping[Shape, Home] = field(default_factory=dict)


def homes_of(shapes: Iterable[Shape], policy: Policy, price_decimals: int) -> Mapping[Shape, Home]:
    """The homes of the shapes that have one. Empty if all nodes are in one cloud."""
    if len(policy.cloud_names) < 2:
        return {}
    return {shape: home for shape in shapes if (home := _home_of(shape, policy, price_decimals)) is not None}


def _home_of(shape: Shape, policy: Policy, price_decimals: int) -> Home | None:
    cloud, egress = policy.home_of(shape), policy.egress_of(shape)
    if cloud is None:
        return None
    return Home(cloud, None if egress is None else int(egress.scaleb(price_decimals) * SECONDS_PER_HOUR))


def kinds_of(works: Iterable[Work], homes: Mapping[Shape, Home]) -> Mapping[Kind, Work]:
    """The kinds of work that have a home, each with one work of it."""
    return {(work.shape, work.span_s): work for work in works if work.shape in homes}


def pack_cheapest(
    likely: Mapping[Kind, bool],
    homes: Mapping[Shape, Home],
    pack: Callable[[Kept], Packing | None],
    outlay: Callable[[Packing], tuple[int, int]],
    *,
    quickly: bool,
    searches: Effort,
) -> Packing | None:
    """Pack the work with each of several parts of it kept at home, and return the packing with the least outlay.

    ``likely``: the kinds that can be kept at home, and whether that is probably cheaper. ``quickly``: try
    only that part, and nothing if not even a packing that keeps none at home serves all work. ``searches``: the
    steps left, which ``pack`` takes: with none left there is one packing, and the moves one by
    one leave a half of all to others.
    """
    unpriced = frozenset(kind for kind in likely if homes[kind[0]].egress is None)
    priced = [kind for kind in likely if kind not in unpriced]
    found: dict[Kept, tuple[tuple[int, int], int, Packing]] = {}

    def attempt(kept: Kept) -> None:
        packing = pack(kept) if kept not in found else None
        if packing is not None:
            found[kept] = outlay(packing), -len(kept), packing  # of equal ones the one with more at home

    def best() -> Kept:
        return min(found, key=lambda kept: found[kept][:2])

    probable = unpriced.union(kind for kind in priced if likely[kind])
    attempt(frozenset() if quickly else unpriced)
    if not found:
        return None  # keeping more of them at home makes room for nothing
    if quickly:
        attempt(probable)
        return found[best()][2]
    for kept in (probable, unpriced.union(priced)):
        if searches.left > 0:
            attempt(kept)
    for kind in priced[:SINGLY_MAX] if len(priced) > 1 else ():
        if searches.left <= STEPS_KEPT:
            break
        attempt(best() ^ {kind})
    return found[best()][2]


def outlay(
    groups: Iterable[NodeGroup],
    works: Sequence[Work],
    offers: Sequence[Offer],
    cost: Cost,
    homes: Mapping[Shape, Home],
) -> tuple[int, int]:
    """How many pieces of unknown egress are away from home; and what bought nodes and egress cost.

    A node counts for as long as the longest job on it. Each piece of a job reads an equal part of its data.
    """
    astray = total = 0
    for group in groups:
        offer = offers[group.offer]
        if not offer.is_ordered:
            span_s = max((works[number].span_s for number, _ in group.pieces), default=0.0)
            total += group.nodes * cost(offer, min(span_s, DAY_S))
        for home, shape, count in _away(group, works, offer, homes):
            if home.egress is None:
                astray += group.nodes * count
            else:
                total += home.egress * group.nodes * count // pieces_of(shape)
    return astray, total


def _away(
    group: NodeGroup, works: Sequence[Work], offer: Offer, homes: Mapping[Shape, Home]
) -> Iterator[tuple[Home, Shape, int]]:
    """The work on a node that is away from home, and how many pieces of it."""
    for number, count in group.pieces:
        shape = works[number].shape
        home = homes.get(shape)
        if home is not None and home.cloud != offer.node_type.cloud:
            yield home, shape, count


def is_home_likely(work: Work, home: Home, costs: Iterable[tuple[CloudName, int, int]]) -> bool | None:
    """Whether it is probably cheaper to buy the nodes for this work at home; None if that cannot be done.

    ``costs``: of each offer on sale that suits it, the cloud, a node's cost, and how many pieces fit on one.
    """
    pieces, least = work.jobs * work.pieces_each, dict[bool, int]()
    for cloud, cost, each in costs:
        at_home, total = cloud == home.cloud, -(-pieces // each) * cost
        least[at_home] = min(total, least.get(at_home, total))
    if True not in least:
        return None
    return False not in least or least[True] <= least[False] + (home.egress or 0) * work.jobs


def cost_of_node(node_type: NodeType, span_s: float) -> Decimal:
    """What a node costs for a job, in the site's currency, when it is weighed against egress."""
    return cost_of_time(node_type.price_per_hour, paid_s(node_type.billing, min(span_s, DAY_S)))
