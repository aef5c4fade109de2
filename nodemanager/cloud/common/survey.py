"""What an account offers: the values from which ``init --provider`` writes a first site file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class OfferedImage:
    """An image. ``architecture``: "" if the provider does not say."""

    id: str
    name: str
    created: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class OfferedNetwork:
    """A network. ``subnets``: one (zone, subnet) for each zone, where a site names them. ``group``: its default."""

    id: str
    name: str = ""
    subnets: tuple[tuple[str, str], ...] = ()
    security_group: str = ""


@dataclass(frozen=True, slots=True)
class OfferedSize:
    """A size. ``cores``: physical ones, if the provider tells. ``price_per_hour``: None if no list has it."""

    name: str
    cores: int
    gpus: int
    memory_bytes: int
    price_per_hour: Decimal | None
    architectures: frozenset[str] = frozenset()

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


def typical_sizes(sizes: Sequence[OfferedSize]) -> tuple[OfferedSize, ...]:
    """The cheapest size with 2 cores or more, and the cheapest with 16 or more. Without prices: the smallest."""
    chosen: list[OfferedSize] = []
    for cores in (2, 16):
        enough = [size for size in sizes if size.cores >= cores and not size.gpus]
        priced = [size for size in enough if size.price_per_hour is not None]
        if best := min(priced or enough, key=_cost, default=None):
            chosen.append(best)
    return tuple(dict.fromkeys(chosen)) or tuple(sorted(sizes, key=_cost)[:1])


def _cost(size: OfferedSize) -> tuple[Decimal, int, int, str]:
    return (size.price_per_hour or Decimal(0), size.cores, size.memory_bytes, size.name)
