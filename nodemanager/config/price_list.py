"""Price lists: the prices and the hardware of a provider's sizes, from libcloud or from a file of the site's own.

A size that a list lacks, or has at 0, has no price there: libcloud's own list has zeros for sizes that cost money.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from nodemanager.config.provider import SizeHardware, provider_named, rules_of
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.notation import NotationError, format_bytes, parse_bytes
from nodemanager.core.slots import Market, Size, TypeName


class PriceTableError(Exception):
    """A price list cannot be read. The message says why."""


Prices = Mapping[str, Mapping[str, Decimal]]  # per hour, by region and size


@dataclass(frozen=True, slots=True)
class PriceTable:
    """A price list: on-demand prices per hour by region and size. ``updated``: the day they were valid."""

    source: str
    updated: date | None
    prices: Prices
    currency: str = ""  # "" if unknown
    spot_prices: Prices = field(default_factory=dict)
    hardware: Mapping[str, SizeHardware] = field(default_factory=dict)  # by size, of those that the list describes

    def price_of(self, region: str, size: str, market: Market = Market.ON_DEMAND) -> Decimal | None:
        """The price of a size on a market; None if the list has none."""
        prices = self.spot_prices if market is Market.SPOT else self.prices
        return prices.get(region, {}).get(size)

    def sizes(self, region: str) -> Iterable[str]:
        """The sizes that the list has in a region."""
        return {**self.prices.get(region, {}), **self.spot_prices.get(region, {})}


def read_bundled_table(provider: str, sizes: Mapping[str, int] | None = None) -> PriceTable:
    """Read libcloud's price list, which is as old as its release. It has no prices for some providers.

    ``sizes``: those to read, with their memory in bytes, which a size of Google's cloud is priced by. None: all
    that the provider knows.
    """
    bundled = json.loads(files("libcloud").joinpath("data/pricing.json").read_text(encoding="utf-8"))
    compute = bundled["compute"]
    by_region: dict[str, dict[str, Decimal]] = {}
    rules = provider_named(provider)
    hardware = rules.known_sizes() if sizes is None else {}
    memory_bytes = {size: it.memory_bytes for size, it in hardware.items()} if sizes is None else sizes
    for size in memory_bytes:
        for region, price in rules.listed_prices(size, memory_bytes[size], compute).items():
            by_region.setdefault(region, {})[size] = Decimal(str(price))
    updated = datetime.fromtimestamp(bundled["updated"], UTC).date()
    return PriceTable("apache-libcloud's pricing.json", updated, by_region, "USD", hardware=hardware)


def read_table(path: Path) -> PriceTable:
    """Read a price list in TOML: one section for each region, with lines ``"size" = price per hour``.

    Instead of a price, a table may give more: ``{ price = 0.68, spot = 0.25, cores = 16, gpus = 0, memory =
    "32GiB" }``. A line ``updated = 2026-11-01`` may come before the first section. Raises
    :class:`PriceTableError` with all faults.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise PriceTableError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PriceTableError(f"{path}: {error}") from error
    updated = document.pop("updated", None)
    faults = list(_faults(document))
    if updated is not None and type(updated) is not date:
        faults.insert(0, f"updated: a date such as 2026-11-01 is needed, not {updated!r}")
    if faults:
        raise PriceTableError("\n".join(f"{path}: {fault}" for fault in faults))
    rows = {region: {size: _parse_row(row) for size, row in sizes.items()} for region, sizes in document.items()}
    return PriceTable(
        str(path),
        updated,
        {
            region: {it: row.price for it, row in sizes.items() if row.price is not None}
            for region, sizes in rows.items()
        },
        spot_prices={
            region: {it: row.spot for it, row in sizes.items() if row.spot is not None}
            for region, sizes in rows.items()
        },
        hardware={it: row.hardware for sizes in rows.values() for it, row in sizes.items() if row.hardware},
    )


def _faults(document: Mapping[str, Any]) -> Iterator[str]:
    for region, sizes in document.items():
        if not isinstance(sizes, Mapping):
            yield f'{region}: a section [{region}] with lines "size" = price is needed'
            continue
        for size, row in sizes.items():
            try:
                _parse_row(row)
            except ValueError as error:
                yield f"[{region}] {size}: {error}"


class _Row(NamedTuple):
    price: Decimal | None
    spot: Decimal | None = None
    hardware: SizeHardware | None = None


def _parse_row(row: object) -> _Row:
    if not isinstance(row, Mapping):
        return _Row(_parse_price(row))
    unknown = sorted(row.keys() - {"price", "spot", "cores", "gpus", "memory"})
    if unknown:
        raise ValueError(f"no such key: {unknown[0]}; the keys are price, spot, cores, gpus and memory")
    if not row.keys() & {"price", "spot"}:
        raise ValueError("a price, or a spot price, is needed")
    price, spot = (_parse_price(row[key]) if key in row else None for key in ("price", "spot"))
    if not row.keys() & {"cores", "gpus", "memory"}:
        return _Row(price, spot)
    if not {"cores", "memory"} <= row.keys():
        raise ValueError("cores and memory must be given together")
    return _Row(price, spot, SizeHardware(_count(row["cores"]), _count(row.get("gpus", 0)), _bytes(row["memory"])))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a whole number of 0 or more is needed, not {value!r}")
    return value


def _bytes(value: object) -> int:
    try:
        return parse_bytes(value) if isinstance(value, str) else _count(value)
    except NotationError as error:
        raise ValueError(f'a size such as "32GiB" is needed, not {value!r}') from error


def _parse_price(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise ValueError(f"a price per hour is needed, not {value!r}")  # noqa: TRY004 - said with the others
    try:
        price = Decimal(value)
    except InvalidOperation:
        price = Decimal("NaN")
    if not price.is_finite() or price < 0:
        raise ValueError(f"a price per hour of 0 or more is needed, not {value}")
    return price


# --- ``sizes`` of a node type: which of the provider's sizes serve as its nodes, and at what price --------
#
# A size serves if it has at least what the slots declare. What it has beyond that is not used.


NAMED_MAX = 5  # how many sizes a message names
_WILDCARDS = frozenset("*?[")


def read_price_list(document: Document, cloud: CloudSettings) -> PriceTable | Fault:
    """Read the price list that sizes are bought by: the site's own, or libcloud's if its sizes are known."""
    known = rules_of(cloud).known_sizes()
    if cloud.price_list is None:
        return read_bundled_table(cloud.provider) if known else _NO_LIST
    try:
        table = read_table(document.file.parent / cloud.price_list)
    except PriceTableError as error:
        return document.fault("Cloud", "price_list", str(error))
    return replace(table, hardware={**known, **table.hardware})


_NO_LIST = PriceTable("no price list", None, {})


def markets_of(node: NodeSettings) -> tuple[Market, ...]:
    """The markets on which nodes of a type may be bought."""
    return (node.market,) if node.market is not None else (Market.SPOT, Market.ON_DEMAND)


def price_on(node: NodeSettings, market: Market) -> Decimal | None:
    """The price on a market that a section gives. A type for spot alone may give it as its price."""
    if market is Market.SPOT and (node.spot_price_per_hour is not None or node.market is None):
        return node.spot_price_per_hour
    return node.price_per_hour


def sizes_on_both_markets(name: TypeName, node: NodeSettings) -> tuple[Size, ...]:
    """A type's single size on both markets, the cheaper first, if it may be bought on both and has both prices."""
    prices = {market: price_on(node, market) for market in markets_of(node)}
    sizes = [Size(node.size or name, market, price) for market, price in prices.items() if price is not None]
    return tuple(sorted(sizes, key=lambda size: size.price_per_hour)) if len(sizes) > 1 else ()


class SizeExpander:
    """Expands the ``sizes`` of one node type, and collects their faults."""

    def __init__(
        self, document: Document, name: TypeName, node: NodeSettings, table: PriceTable, region: str
    ) -> None:
        self._document = document
        self._section = f"Node {name}"
        self._node = node
        self._table = table
        self._region = region
        self.faults: list[Fault] = []

    def expand(self) -> tuple[Size, ...]:
        """The sizes that serve, the cheapest first. Of equal price, the one that the site names first is first."""
        found: dict[tuple[str, Market], Size] = {}
        for pattern in self._node.sizes:
            served = self._matching(pattern) if _WILDCARDS & set(pattern) else self._named(pattern)
            for size in served:
                found.setdefault((size.name, size.market), size)
        return tuple(sorted(found.values(), key=lambda size: size.price_per_hour))

    def _named(self, name: str) -> Iterator[Size]:
        hardware = self._table.hardware.get(name)
        if hardware is not None and (lacks := self._lacks(hardware)):
            self._fault(f"{name} has {lacks}")
            return
        sizes = list(self._on_markets(name, hardware))
        if sizes:
            yield from sizes
            return
        listed = list(self._table.sizes(self._region))
        nearest = nearest_name(name, listed) if name not in listed else ""
        where = f" in {self._region}" if self._region else ""
        self._fault(
            f"{self._table.source} has no price for {name}{where}: give price_per_hour, or [Cloud] price_list",
            nearest,
        )

    def _matching(self, pattern: str) -> Iterator[Size]:
        """The sizes of a pattern that the list describes, and that have enough and a price."""
        names = [name for name in self._table.hardware if fnmatchcase(name, pattern)]
        enough = [name for name in names if not self._lacks(self._table.hardware[name])]
        sizes = [it for name in enough for it in self._on_markets(name, self._table.hardware[name], listed=True)]
        if not sizes:
            self._fault(self._why_none(pattern, names, enough))
        yield from sizes

    def _why_none(self, pattern: str, names: Sequence[str], enough: Sequence[str]) -> str:
        if not names:
            return f"{self._table.source} describes no size that matches {pattern}"
        if not enough:
            return f"no size that matches {pattern} has {self._declared()}: there are {_some(names)}"
        return f"{self._table.source} has no price for {_some(enough)} in {self._region or 'any region'}"

    def _on_markets(self, name: str, hardware: SizeHardware | None, *, listed: bool = False) -> Iterator[Size]:
        """The size on each market where it has a price. A size that the site names may have the section's price."""
        for market in markets_of(self._node):
            price = self._table.price_of(self._region, name, market) or (
                None if listed else price_on(self._node, market)
            )
            if price is not None:
                yield Size(name, market, price, *(hardware or ()))

    def _lacks(self, hardware: SizeHardware) -> str:
        """What the size has less of than the slots declare; "" if it has enough."""
        node = self._node
        pairs = (
            (hardware.cores, node.cores, f"{hardware.cores} cores"),
            (hardware.gpus, node.gpus, f"{hardware.gpus} GPUs"),
            (hardware.memory_bytes, node.memory_bytes, format_bytes(hardware.memory_bytes)),
        )
        lacks = [text for has, declared, text in pairs if has < declared]
        return f"{', '.join(lacks)}, but the slots declare {self._declared()}" if lacks else ""

    def _declared(self) -> str:
        node = self._node
        gpus = f", {node.gpus} GPUs" if node.gpus else ""
        return f"{node.cores} cores{gpus} and {format_bytes(node.memory_bytes)}"

    def _fault(self, problem: str, nearest: str = "") -> None:
        self.faults.append(self._document.fault(self._section, "sizes", problem, nearest))


def _some(names: Iterable[str]) -> str:
    """The first few names."""
    listed = list(names)
    more = f" and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else ""
    return ", ".join(listed[:NAMED_MAX]) + more
