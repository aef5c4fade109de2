"""Evaluate jobs' constraints (RFC 31): for one host, or for all ranks of the instance at once.

Both follow flux-core's matcher: a host's name counts as a property of that host; an empty ``AnyOf`` holds
everywhere; an empty set of hosts or ranks holds nowhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import NamedTuple, assert_never

from nodemanager.core.jobs import All, AnyOf, Constraint, HasProperty, Not, OnHosts, OnRanks
from nodemanager.core.notation import DIGITS_MAX, HostGroup, parse_hostlist, parse_idset_ranges
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.planner.frozen import lazy_property

CACHED_BYTES_MAX = 2**25  # of the matches of one :class:`Matches`; above it the cache begins again


def holds(constraint: Constraint, *, properties: AbstractSet[str], host: str, rank: int) -> bool:
    """Whether Flux would let a job with this constraint run on the host."""
    match constraint:
        case HasProperty(name):
            return name in properties or name == host
        case OnHosts(hostlists):
            return any(group.names(host) for group in _host_groups(hostlists))
        case OnRanks(idsets):
            return any(low <= rank <= high for low, high in _rank_ranges(idsets))
        case All(parts):
            return all(holds(part, properties=properties, host=host, rank=rank) for part in parts)
        case AnyOf(parts):
            return not parts or any(holds(part, properties=properties, host=host, rank=rank) for part in parts)
        case Not(part):
            return not holds(part, properties=properties, host=host, rank=rank)
        case _:
            assert_never(constraint)


class Place(NamedTuple):
    """A rank of the instance, its host and its properties."""

    rank: Rank
    host: SlotName
    properties: frozenset[str]


class Matches:
    """Which ranks satisfy which constraints. Each constraint is evaluated once, for all ranks together.

    A set of ranks is an integer: bit *n* stands for the rank with index *n*, in ascending order. The value is valid
    as long as the ranks, their hosts and their properties stay the same. ``places`` is called when the first
    constraint is evaluated.
    """

    def __init__(self, places: Callable[[], Iterable[Place]] = tuple) -> None:
        self._places = places
        self._known: dict[Constraint, int] = {}
        self.of_types: dict[TypeName, int] = {}  # the slots of each node type; empty until they are asked for

    @lazy_property
    def _tables(self) -> _Tables:
        return _Tables(self._places())

    def of(self, constraint: Constraint) -> int:
        """The ranks that satisfy a constraint."""
        found = self._known.get(constraint)
        if found is None:
            if len(self._known) >= CACHED_BYTES_MAX // (self.count // 8 + 100):
                self._known.clear()
            found = self._known[constraint] = self._tables.evaluate(constraint)
        return found

    def suits(self, constraint: Constraint, rank: Rank) -> bool:
        """Whether a rank satisfies a constraint."""
        found = self._known.get(constraint)
        if found is None:
            found = self.of(constraint)
        tables = self._tables
        return found >> tables.index.get(rank, len(tables.ranks)) & 1 == 1

    def index(self, rank: Rank) -> int:
        """The index of a rank. All unknown ranks have one index, the number of ranks: no constraint holds there."""
        return self._tables.index.get(rank, self.count)

    def mask(self, ranks: Iterable[Rank]) -> int:
        """A set of ranks, without those that are unknown."""
        bits, index_of, unknown = bytearray(self.count // 8 + 1), self._tables.index, self.count
        for rank in ranks:
            index = index_of.get(rank, unknown)
            bits[index >> 3] |= 1 << (index & 7)
        return int.from_bytes(bits, "little") & self._tables.everywhere

    @property
    def count(self) -> int:
        """How many ranks are known."""
        return len(self._tables.ranks)


class _Tables:
    """The ranks by number, host and property."""

    def __init__(self, places: Iterable[Place]) -> None:
        self.ranks: list[int] = []
        self.index: dict[int, int] = {}
        self.of_host: dict[str, int] = {}
        self.of_property: dict[str, int] = {}
        alike: dict[frozenset[str], bytearray] = {}
        in_order = sorted(places)
        for index, place in enumerate(in_order):
            self.ranks.append(place.rank)
            self.index[place.rank] = index
            self.of_host[place.host] = self.of_host.get(place.host, 0) | 1 << index
            if place.properties:
                bits = alike.setdefault(place.properties, bytearray(len(in_order) // 8 + 1))
                bits[index >> 3] |= 1 << (index & 7)
        for properties, bits in alike.items():
            for name in properties:
                self.of_property[name] = self.of_property.get(name, 0) | int.from_bytes(bits, "little")
        self.everywhere = (1 << len(self.ranks)) - 1

    def evaluate(self, constraint: Constraint) -> int:
        """The ranks that satisfy a constraint."""
        match constraint:
            case HasProperty(name):
                return self.of_property.get(name, 0) | self.of_host.get(name, 0)
            case OnHosts(hostlists):
                return self._on_hosts(hostlists)
            case OnRanks(idsets):
                return self._on_ranks(idsets)
            case All(parts):
                found = self.everywhere
                for part in parts:
                    found &= self.evaluate(part)
                return found
            case AnyOf(parts):
                found = 0 if parts else self.everywhere
                for part in parts:
                    found |= self.evaluate(part)
                return found
            case Not(part):
                return self.everywhere ^ self.evaluate(part)
            case _:
                assert_never(constraint)

    def _on_ranks(self, idsets: Iterable[str]) -> int:
        found = 0
        for low, high in _read_ranges(idsets):
            first, end = bisect_left(self.ranks, low), bisect_right(self.ranks, high)
            found |= (1 << end) - (1 << first) if first < end else 0
        return found

    def _on_hosts(self, hostlists: Iterable[str]) -> int:
        found = 0
        for group in _read_groups(hostlists):
            if group.entry.host_count <= len(self.of_host):
                for host in group.entry.hosts():
                    found |= self.of_host.get(host, 0)
            else:
                for host, bits in self.of_host.items():
                    found |= bits if group.names(host) else 0
        return found


def alike(masks: Iterable[int], of: int) -> Mapping[int, tuple[int, ...]]:
    """For each bit of ``of``, a key that is equal for bits that are in the same ``masks``. All others have ()."""
    keys: dict[int, list[int]] = {}
    for number, mask in enumerate(masks):
        inside = mask & of
        if inside.bit_count() * 2 > of.bit_count():
            inside = of ^ inside  # those outside tell the bits apart just as well, and are fewer
        for index in bits_of(inside):
            keys.setdefault(index, []).append(number)
    return {index: tuple(numbers) for index, numbers in keys.items()}


def bits_of(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    found: list[int] = []
    for index, byte in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
        if byte:
            found += [8 * index + bit for bit in range(8) if byte >> bit & 1]
    return found


class _Group:
    """An entry of a host list, prepared to be compared with many hosts."""

    def __init__(self, entry: HostGroup) -> None:
        self.entry = entry
        # By the least number of digits: the ranges, disjoint and ascending, as their lowest and highest numbers.
        self._by_width: dict[int, tuple[list[int], list[int]]] = {}
        for low, high, width in sorted(entry.ranges):
            lows, highs = self._by_width.setdefault(width, ([], []))
            if highs and low <= highs[-1]:
                highs[-1] = max(high, highs[-1])
            else:
                lows.append(low)
                highs.append(high)

    def names(self, host: str) -> bool:
        """Whether the entry names the host."""
        prefix, suffix = self.entry.prefix, self.entry.suffix
        if not self._by_width:
            return host == prefix
        if not (host.startswith(prefix) and host.endswith(suffix)):
            return False
        digits = host[len(prefix) : len(host) - len(suffix)]
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= DIGITS_MAX):
            return False
        number = int(digits)
        for width, (lows, highs) in self._by_width.items():
            at = bisect_right(lows, number) - 1
            if at >= 0 and number <= highs[at] and f"{number:0{width}d}" == digits:
                return True
        return False


def _read_groups(hostlists: Iterable[str]) -> list[_Group]:
    return [_Group(entry) for text in hostlists for entry in parse_hostlist(text)]


def _read_ranges(idsets: Iterable[str]) -> list[tuple[int, int]]:
    return [bounds for text in idsets for bounds in parse_idset_ranges(text)]


# One constraint is usually evaluated for many hosts in a row.
_host_groups = lru_cache(maxsize=8)(_read_groups)
_rank_ranges = lru_cache(maxsize=8)(_read_ranges)
