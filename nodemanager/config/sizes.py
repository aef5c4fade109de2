"""Expand ``sizes`` of a node type: which of the provider's sizes serve as its nodes, and at what price.

A size serves if it has at least what the slots declare. What it has beyond that is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fnmatch import fnmatchcase

from nodemanager.config.price_list import (
    PriceTable,
    PriceTableError,
    read_bundled_table,
    read_table,
)
from nodemanager.config.provider import SizeHardware, rules_of
from nodemanager.config.text.ini import Document, Fault, nearest_name
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.notation import format_bytes
from nodemanager.core.slots import Market, Size, TypeName

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
