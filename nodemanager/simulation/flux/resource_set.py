"""The resources of a simulated instance, and their form as R (RFC 20).

The cores of a rank are the bits of one integer, and so are its GPUs: allocating and freeing is one operation each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nodemanager.core.notation import format_idset

R = Mapping[str, Any]


@dataclass(slots=True)
class RankResources:
    """A rank's cores and GPUs: those that R declares, and those that are free."""

    rank: int
    host: str
    cores: int
    gpus: int
    properties: frozenset[str]
    up: bool = False
    cores_free: int = field(init=False)  # bits
    gpus_free: int = field(init=False)
    # The number of free cores and GPUs, kept because every allocation reads them.
    cores_left: int = field(init=False)
    gpus_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.declare(self.cores, self.gpus, self.properties)

    def declare(self, cores: int, gpus: int, properties: frozenset[str]) -> None:
        """Replace the resources. All of the new ones are free."""
        self.cores, self.gpus, self.properties = cores, gpus, properties
        self.cores_free, self.cores_left = (1 << self.cores) - 1, self.cores
        self.gpus_free, self.gpus_left = (1 << self.gpus) - 1, self.gpus

    def take(self, grant: Grant) -> None:
        self._set_free(self.cores_free & ~grant.cores, self.gpus_free & ~grant.gpus)

    def give_back(self, grant: Grant) -> None:
        self._set_free(self.cores_free | grant.cores, self.gpus_free | grant.gpus)

    def _set_free(self, cores_free: int, gpus_free: int) -> None:
        self.cores_free, self.cores_left = cores_free, cores_free.bit_count()
        self.gpus_free, self.gpus_left = gpus_free, gpus_free.bit_count()


@dataclass(frozen=True, slots=True)
class Grant:
    """The cores and GPUs of one rank that one job holds."""

    rank: int
    cores: int  # bits
    gpus: int  # bits


def declared_resources(entries: Iterable[RankResources]) -> dict[str, Any]:
    """Return the R of all declared resources of the ranks, allocated or not."""
    return format_R([Grant(entry.rank, (1 << entry.cores) - 1, (1 << entry.gpus) - 1) for entry in entries])


def format_R(grants: Iterable[Grant]) -> dict[str, Any]:  # noqa: N802
    """Write R (RFC 20). Ranks with the same cores and GPUs share an entry."""
    ranks_by_content: dict[tuple[int, int], list[int]] = {}
    for grant in grants:
        ranks_by_content.setdefault((grant.cores, grant.gpus), []).append(grant.rank)
    entries = sorted(ranks_by_content.items(), key=lambda entry: min(entry[1]))
    return {
        "version": 1,
        "execution": {
            "R_lite": [
                {"rank": format_idset(ranks), "children": _children(cores, gpus)}
                for (cores, gpus), ranks in entries
            ],
            "starttime": 0.0,
            "expiration": 0.0,
        },
    }


def ranks_by_property(entries: Iterable[RankResources]) -> dict[str, str]:
    """Return the ranks of each property as an id set, sorted by property."""
    ranks: dict[str, list[int]] = {}
    for entry in entries:
        for name in sorted(entry.properties):
            ranks.setdefault(name, []).append(entry.rank)
    return {name: format_idset(ranks[name]) for name in sorted(ranks)}


def format_summary(grants: Sequence[Grant]) -> str:
    """Format the scheduler's annotation: ``rank[1-2]/core[0-3] rank5/core[0-7],gpu[0-1]``."""
    ranks_by_content: dict[str, list[int]] = {}
    for grant in grants:
        content = f"core{_bracket(_format_bits(grant.cores))}"
        if grant.gpus:
            content += f",gpu{_bracket(_format_bits(grant.gpus))}"
        ranks_by_content.setdefault(content, []).append(grant.rank)
    return " ".join(f"rank{_bracket(format_idset(ranks))}/{content}" for content, ranks in ranks_by_content.items())


def held_grant(entry: RankResources) -> Grant:
    """Return the allocated part of a rank's resources."""
    return Grant(
        entry.rank, ((1 << entry.cores) - 1) & ~entry.cores_free, ((1 << entry.gpus) - 1) & ~entry.gpus_free
    )


def _children(cores: int, gpus: int) -> dict[str, str]:
    children = {"core": _format_bits(cores)}
    if gpus:
        children["gpu"] = _format_bits(gpus)
    return children


def _bracket(ids: str) -> str:
    return ids if ids.isdigit() else f"[{ids}]"


@lru_cache(maxsize=4096)
def _format_bits(bits: int) -> str:
    return format_idset(number for number in range(bits.bit_length()) if bits >> number & 1)


@lru_cache(maxsize=4096)
def lowest_bits(bits: int, count: int) -> int:
    """Return the lowest ``count`` set bits of ``bits``."""
    taken = 0
    for _ in range(count):
        lowest = bits & -bits
        taken |= lowest
        bits &= ~lowest
    return taken
