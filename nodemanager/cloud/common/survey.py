"""What an account offers: the values from which ``init --provider`` writes a first site file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class OfferedImage:
    """An image. ``architecture``: "" if the provider does not say."""

    id: str
    name: str
    created: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class OfferedNetwork:
    """A network, as a site names it.

    ``subnets``: one (zone, subnet) for each zone. ``security_group``: its default. ``addresses``: as 10.0.0.0/20.
    """

    id: str
    name: str = ""
    subnets: tuple[tuple[str, str], ...] = ()
    security_group: str = ""
    addresses: str = ""


@dataclass(frozen=True, slots=True)
class OfferedSize:
    """A size. ``cores``: physical ones, if the provider tells. ``price_per_hour``: None if no list has it.

    ``note``: what a person must judge, such as devices that may be GPUs.
    """

    name: str
    cores: int
    gpus: int
    memory_bytes: int
    price_per_hour: Decimal | None
    architectures: frozenset[str] = frozenset()
    note: str = ""

    def runs(self, image: OfferedImage | None) -> bool:
        """Whether an image can boot on it."""
        return image is None or not image.architecture or image.architecture in self.architectures


@dataclass(frozen=True, slots=True)
class Survey:
    """One region of an account. Every list has the entry first that a new site should name."""

    region: str
    regions: tuple[str, ...]
    zones: tuple[str, ...]
    images: tuple[OfferedImage, ...]
    networks: tuple[OfferedNetwork, ...]
    sizes: tuple[OfferedSize, ...]
    security_groups: tuple[str, ...] = ()  # if they belong to the project, and not to a network
    unusual_sizes: tuple[OfferedSize, ...] = ()  # never proposed, but used if somebody names one; ``note`` says why


def typical_sizes(sizes: Sequence[OfferedSize]) -> tuple[OfferedSize, ...]:
    """The cheapest size with 2 cores or more, and the cheapest with 16 or more. Without prices: the smallest.

    Each has 1 GiB a core or more, and neither GPUs nor other devices.
    """
    chosen: list[OfferedSize] = []
    usual = [it for it in sizes if not it.gpus and not it.note and it.memory_bytes >= it.cores * _GIB]
    for cores in (2, 16):
        enough = [size for size in usual if size.cores >= cores]
        priced = [size for size in enough if size.price_per_hour is not None]
        if best := min(priced or enough, key=_cost, default=None):
            chosen.append(best)
    return tuple(dict.fromkeys(chosen)) or tuple(sorted(sizes, key=_cost)[:1])


def _cost(size: OfferedSize) -> tuple[Decimal, int, int, str]:
    return (size.price_per_hour or Decimal(0), size.cores, size.memory_bytes, size.name)


def cost_per_core(size: OfferedSize) -> tuple[bool, Decimal, int, str]:
    """Sorts sizes: the cheapest per core first, those without a price last, the smallest first."""
    price = size.price_per_hour
    return (price is None, (price or Decimal(0)) / max(1, size.cores), size.cores, size.name)
