"""Price lists: the prices and the hardware of a provider's sizes, from libcloud or from a file of the site's own.

A size that a list lacks, or has at 0, has no price there: libcloud's own list has zeros for sizes that cost money.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from nodemanager.config.provider import SizeHardware, provider_named
from nodemanager.core.notation import NotationError, parse_bytes
from nodemanager.core.slots import Market


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
