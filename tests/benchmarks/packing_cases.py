"""Cases that are hard to pack: memory ratios of 2 to 16 GiB a core, random prices, large pieces, gangs, GPUs.

A case is work (kinds of jobs) and node types. Each family draws it from a seed, so that anybody can try others.
Memory is in MiB, prices in ten thousandths of the currency an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random

from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, Shape
from nodemanager.core.slots import Billing, NodeType, SlotName, TypeName
from nodemanager.planner.packing.types import Item, Lot, pieces_on_empty

MIB, GIB = 2**20, 2**10
PRICE_UNIT = Decimal("0.0001")
UNBOUNDED = 10**9


@dataclass(frozen=True)
class Kind:
    """Equal jobs. ``gang``: how many different nodes each wants; 0 if it is a single piece."""

    jobs: int
    cores: int
    memory_mib: int = 0
    gpus: int = 0
    gang: int = 0
    whole: bool = False

    def item(self) -> Item:
        """The jobs as an item of the packing."""
        pieces = self.jobs * max(1, self.gang)
        apart = self.jobs if self.gang else UNBOUNDED
        return Item(pieces, self.cores, self.gpus, self.memory_mib, apart, self.whole)

    def shape(self) -> Shape:
        """The request of each job."""
        return Shape(
            1, self.cores, self.gpus, self.gang or None, self.whole, memory_bytes_per_slot=self.memory_mib * MIB
        )


@dataclass(frozen=True)
class Size:
    """A node type and its price."""

    name: str
    cores: int
    memory_mib: int
    price: int
    gpus: int = 0

    def lot(self, count: int = UNBOUNDED) -> Lot:
        """So many nodes of it, as a lot of the packing."""
        return Lot(self.cores, self.gpus, self.memory_mib, count, self.price, self.price)

    def node_type(self, slots: int) -> NodeType:
        """The same as a type of a site."""
        names = tuple(SlotName(f"{self.name}-{number}") for number in range(slots))
        price = self.price * PRICE_UNIT
        memory = self.memory_mib * MIB
        return NodeType(
            TypeName(self.name), self.name, self.cores, self.gpus, memory, price, Billing(1.0, 60.0), names
        )


@dataclass(frozen=True)
class Case:
    """Work, and the node types that can take it."""

    kinds: Sequence[Kind]
    sizes: Sequence[Size]

    def items(self) -> list[Item]:
        """The work as items of the packing."""
        return [kind.item() for kind in self.kinds]

    def lots(self) -> list[Lot]:
        """The node types as lots of the packing, without limit."""
        return [size.lot() for size in self.sizes]

    def jobs(self, at: float) -> list[Job]:
        """The queue: the kinds take turns."""
        left = [kind.jobs for kind in self.kinds]
        shapes = [kind.shape() for kind in self.kinds]
        queue: list[Job] = []
        while any(left):
            for number, shape in enumerate(shapes):
                if left[number]:
                    queue.append(Job(JobId(len(queue)), JobState.SCHED, JobRequest(shape), at))
                    left[number] -= 1
        return queue


def fits_of(items: Sequence[Item], lots: Sequence[Lot]) -> list[list[int]]:
    """How many pieces of each item an empty node of each lot takes."""
    return [[pieces_on_empty(item, lot) for lot in lots] for item in items]


# --- node types -------------------------------------------------------------------------------------------


def _size(name: str, cores: int, ratio: int, price: float, gpus: int = 0) -> Size:
    return Size(name, cores, cores * ratio * GIB, max(1, round(price * 10_000)), gpus)


def ec2_like() -> list[Size]:
    """Families c, m and r with 2 to 96 cores: 24 types, priced by the core."""
    each = {"c": (2, 0.0425), "m": (4, 0.048), "r": (8, 0.063)}
    return [
        _size(f"{family}{cores}", cores, ratio, cores * price)
        for family, (ratio, price) in each.items()
        for cores in (2, 4, 8, 16, 32, 48, 64, 96)
    ]


def random_sizes(draw: Random, count: int, *, gpus: bool = False) -> list[Size]:
    """Random sizes with 2 to 16 GiB a core. Prices follow cores and memory, give or take 15 %."""
    found: list[Size] = []
    for number in range(count):
        cores = draw.choice((4, 8, 16, 32, 48, 64, 96))
        ratio = draw.choice((2, 4, 8, 16))
        cards = draw.choice((1, 2, 4, 8)) if gpus and number % 3 == 2 else 0
        fair = cores * (0.03 + 0.004 * ratio) + 0.75 * cards
        found.append(_size(f"t{number}", cores, ratio, fair * draw.uniform(0.85, 1.15), cards))
    return found


def catalogue(draw: Random, count: int = 400) -> list[Size]:
    """A provider's price list: generations of families, each dearer or larger than another."""
    found: list[Size] = []
    while len(found) < count:
        ratio, generation = draw.choice((2, 4, 8, 16)), draw.uniform(0.85, 1.35)
        for cores in (2, 4, 8, 16, 32, 48, 64, 96):
            fair = cores * (0.03 + 0.004 * ratio) * generation * draw.uniform(0.99, 1.01)
            found.append(_size(f"t{len(found)}", cores, ratio, fair))
    return found[:count]


# --- work -------------------------------------------------------------------------------------------------


def _largest(sizes: Sequence[Size]) -> Size:
    return max(sizes, key=lambda size: (size.cores, size.memory_mib))


def own_memory(draw: Random, shapes: int, jobs: int, sizes: Sequence[Size], cores: Sequence[int]) -> list[Kind]:
    """Shapes with memory of their own: every one a piece that some type takes."""
    kinds: list[Kind] = []
    for number in range(shapes):
        wants = draw.choice([it for it in cores if it <= _largest(sizes).cores])
        room = max(size.memory_mib for size in sizes if size.cores >= wants)
        memory = min(room, int(wants * draw.uniform(0.5, 16) * GIB))
        kinds.append(Kind(jobs // shapes + (number < jobs % shapes), wants, memory))
    return [kind for kind in kinds if kind.jobs]


def _classic_memory(draw: Random) -> Case:
    """Two kinds that fit one type together, and two types."""
    sizes = [Size("c16", 16, 32 * GIB, 6800), Size("r16", 16, 128 * GIB, 9700)]
    return Case([Kind(400, 12, 26 * GIB), Kind(400, 4, 30 * GIB)], sizes)


def _two_by_two(draw: Random) -> Case:
    """Two random kinds on two random types of 16 cores."""
    while True:
        low, high = draw.sample((2, 4, 8, 16), 2)
        sizes = [
            _size(f"t{ratio}", 16, ratio, 16 * (0.03 + 0.004 * ratio) * draw.uniform(0.85, 1.15))
            for ratio in (low, high)
        ]
        kinds = [
            Kind(draw.randint(50, 400), draw.randint(3, 13), draw.randint(1, 16 * max(low, high)) * GIB)
            for _ in range(2)
        ]
        if all(any(pieces_on_empty(kind.item(), size.lot()) for size in sizes) for kind in kinds):
            return Case(kinds, sizes)


def _gangs(draw: Random) -> Case:
    """6,000 jobs, gangs and whole nodes among them, on 16 types of the families c, g and r."""
    sizes = [
        _size(f"{family}{cores}", cores, ratio, cores * (0.03 + 0.004 * ratio) * draw.uniform(0.85, 1.15))
        for family, ratio in (("c", 2), ("g", 4), ("r", 8), ("x", 16))
        for cores in (8, 16, 32, 64)
    ]
    kinds = [
        Kind(draw.randint(50, 300), cores, int(cores * draw.uniform(1, 14) * GIB))
        for cores in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24)
        for _ in range(2)
    ]
    kinds += [
        Kind(draw.randint(20, 100), cores, int(cores * draw.uniform(1, 8) * GIB), gang=draw.randint(2, 16))
        for cores in (2, 4, 8, 16)
    ]
    kinds += [Kind(draw.randint(5, 40), cores, gang=draw.randint(1, 4), whole=True) for cores in (8, 16)]
    return Case(kinds, sizes)


def _shapes_500(draw: Random) -> Case:
    sizes = random_sizes(draw, 12)
    return Case(own_memory(draw, 500, 10_000, sizes, (1, 1, 2, 2, 3, 4, 6, 8, 12, 16)), sizes)


def _ec2(draw: Random) -> Case:
    sizes = ec2_like()
    return Case(own_memory(draw, 20, 4_000, sizes, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)), sizes)


def _classic_cores(draw: Random) -> Case:
    """Where first-fit-decreasing fails: four pieces that fill 96 cores only as 49 + 47 and 26 + 25 + 22 + ..."""
    return Case([Kind(100, cores) for cores in (49, 26, 25, 22)], [Size("n96", 96, 0, 46_000)])


def _six_and_five(draw: Random) -> Case:
    return Case([Kind(400, 6), Kind(400, 5)], [Size("n16", 16, 0, 7_700)])


def _gpus(draw: Random) -> Case:
    """Jobs with 1, 4 and 8 GPUs, and plain ones beside them."""
    sizes = [
        _size("g1", 8, 4, 1.2 * draw.uniform(0.9, 1.1), 1),
        _size("g4", 48, 4, 5.0 * draw.uniform(0.9, 1.1), 4),
        _size("g8", 96, 8, 11.0 * draw.uniform(0.9, 1.1), 8),
        _size("c16", 16, 4, 0.75 * draw.uniform(0.9, 1.1)),
    ]
    kinds = [
        Kind(draw.randint(20, 90), draw.randint(1, 6) * gpus, gpus * draw.randint(4, 40) * GIB, gpus)
        for gpus in (1, 1, 1, 2, 4, 4, 8)
    ]
    return Case([*kinds, Kind(200, 2, 6 * GIB), Kind(60, 5, 30 * GIB)], sizes)


def _halves(draw: Random) -> Case:
    """Pieces over and under half a node, of cores or of memory."""
    sizes = random_sizes(draw, 2)
    room = min(size.cores for size in sizes)
    kinds = [
        Kind(draw.randint(20, 200), draw.randint(max(1, room // 5), room), draw.randint(1, 2 * room) * GIB)
        for _ in range(8)
    ]
    return Case(kinds, sizes)


def _everything(draw: Random) -> Case:
    """200 kinds on 16 types: single pieces, gangs and whole nodes, some with GPUs."""
    sizes = random_sizes(draw, 16, gpus=True)
    kinds: list[Kind] = []
    while len(kinds) < 200:
        of = draw.choice(sizes)
        cores = draw.randint(1, max(1, of.cores // draw.choice((1, 2, 4, 8))))
        memory = int(min(of.memory_mib, cores * draw.uniform(0.5, 16) * GIB))
        extra = draw.random()
        gang = draw.randint(2, 8) if extra > 0.8 else 0
        cards = draw.choice((0, 1, of.gpus)) if of.gpus else 0
        kinds.append(Kind(draw.randint(1, 40), cores, memory, cards, gang, whole=extra < 0.05))
    return Case(kinds, sizes)


def _mixed_memory(draw: Random) -> Case:
    """300 kinds of up to 32 cores with memory of their own, on 24 types."""
    sizes = ec2_like()
    return Case(own_memory(draw, 300, 5_000, sizes, (1, 2, 4, 6, 8, 12, 16, 20, 24, 32)), sizes)


def _catalogue_50(draw: Random) -> Case:
    sizes = catalogue(draw)
    return Case(own_memory(draw, 50, 10_000, sizes, (1, 2, 3, 4, 6, 8, 12, 16)), sizes)


def _catalogue_500(draw: Random) -> Case:
    sizes = catalogue(draw)
    return Case(own_memory(draw, 500, 10_000, sizes, (1, 2, 3, 4, 6, 8, 12, 16)), sizes)


def _catalogue_few(draw: Random) -> Case:
    sizes = catalogue(draw)
    return Case(own_memory(draw, 9, 9, sizes, (1, 2, 3, 4, 6, 8, 12, 16)), sizes)


def small(draw: Random) -> Case:
    """5 to 60 jobs of a few shapes, now and then with GPUs, gangs and whole nodes."""
    gpus = draw.random() < 0.3
    sizes = random_sizes(draw, draw.choice((1, 2, 3, 6, 12, 24)), gpus=gpus)
    jobs = draw.randint(5, 60)
    kinds: list[Kind] = []
    while jobs > 0:
        count = min(jobs, draw.randint(1, 12))
        of = draw.choice(sizes)
        cores = draw.randint(1, of.cores)
        memory = draw.randint(0, of.memory_mib // 512) * 512
        want = draw.choice((0, 0, 1, of.gpus)) if of.gpus else 0
        extra = draw.random()
        gang = draw.randint(2, 4) if extra > 0.9 else 0
        kinds.append(Kind(count, cores, memory, want, gang, whole=extra < 0.05))
        jobs -= count
    return Case(kinds, sizes)


FAMILIES: Mapping[str, Callable[[Random], Case]] = {
    "c16 and r16": _classic_memory,
    "two kinds, two types": _two_by_two,
    "gangs": _gangs,
    "500 shapes": _shapes_500,
    "EC2-like": _ec2,
    "49/26/25/22 of 96": _classic_cores,
    "6 and 5 of 16": _six_and_five,
    "GPUs": _gpus,
    "over half a node": _halves,
    "everything": _everything,
    "EC2-like, 300 shapes": _mixed_memory,
    "400 types, 9 jobs": _catalogue_few,
    "400 types, 50 shapes": _catalogue_50,
    "400 types, 500 shapes": _catalogue_500,
}
