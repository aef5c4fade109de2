"""The verb ``prices``: compare the site's prices with a price list.

The manager decides only by the site's prices; the list is a check. A size that the list lacks, or has at 0, is
reported as such. libcloud's own list has zeros for sizes that cost money, so it must never choose the cheapest.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any

from nodemanager.core.slots import Market, NodeType, TypeName

TOLERANCE = Decimal("0.01")  # of the listed price: smaller differences are rounding

_CUSTOM = re.compile(r"((?P<family>[a-z0-9]+)-)?custom-(?P<cpus>[0-9]+)-(?P<mib>[0-9]+)", re.ASCII)
_READY_MADE = re.compile(r"(?P<family>[a-z0-9]+)-[a-z]+-(?P<cpus>[0-9]+)", re.ASCII)


class PriceTableError(Exception):
    """A price list cannot be read. The message says why."""


class PriceMatch(StrEnum):
    """How a price compares with the list."""

    SAME = "same"
    DEARER = "dearer than the list"
    CHEAPER = "cheaper than the list"
    MISSING = "not in the list"
    ZERO = "0 in the list: no price"
    SPOT = "spot: in no list"


@dataclass(frozen=True, slots=True)
class PriceComparison:
    """One node type in one region. ``table_price_per_hour`` is None if the list has no credible price."""

    node_type: TypeName
    size: str
    region: str  # "" if the site names none
    market: Market
    price_per_hour: Decimal
    table_price_per_hour: Decimal | None
    match: PriceMatch

    @property
    def agrees(self) -> bool:
        return self.match in (PriceMatch.SAME, PriceMatch.SPOT)


@dataclass(frozen=True, slots=True)
class PriceTable:
    """A price list: on-demand prices per hour by region and size. ``updated``: the day they were valid."""

    source: str
    updated: date | None
    prices: Mapping[str, Mapping[str, Decimal]]
    currency: str = ""  # "" if unknown

    def price_per_hour(self, region: str, size: str) -> Decimal | None:
        return self.prices.get(region, {}).get(size)


def compare_prices(
    node_types: Sequence[NodeType], table: PriceTable, regions_of: Callable[[NodeType], Sequence[str]]
) -> tuple[PriceComparison, ...]:
    """Compare each node type's price with the list's price for its size, in each region where it is bought."""
    return tuple(
        _compare_price(node_type, region, table.price_per_hour(region, node_type.size))
        for node_type in node_types
        for region in regions_of(node_type)
    )


def _compare_price(node_type: NodeType, region: str, listed: Decimal | None) -> PriceComparison:
    ours = node_type.price_per_hour
    if node_type.market is Market.SPOT:
        verdict = PriceMatch.SPOT
    elif listed is None:
        verdict = PriceMatch.MISSING
    elif listed == 0:
        verdict, listed = PriceMatch.ZERO, None
    elif abs(ours - listed) <= TOLERANCE * listed:
        verdict = PriceMatch.SAME
    else:
        verdict = PriceMatch.DEARER if ours > listed else PriceMatch.CHEAPER
    return PriceComparison(node_type.name, node_type.size, region, node_type.market, ours, listed, verdict)


# --- price lists ------------------------------------------------------------------------------------------


def read_bundled_table(provider: str, node_types: Sequence[NodeType]) -> PriceTable:
    """Read libcloud's price list, which is as old as its release. It has no prices for some providers."""
    bundled = json.loads(files("libcloud").joinpath("data/pricing.json").read_text(encoding="utf-8"))
    compute = bundled["compute"]
    by_region: dict[str, dict[str, Decimal]] = {}
    for node_type in node_types:
        match provider:
            case "ec2":
                listed = compute["ec2_linux"].get(node_type.size, {})
            case "azure":  # listed as standardd4sv3 for Standard_D4s_v3
                listed = compute["azure_linux"].get(node_type.size.lower().replace("_", ""), {})
            case "gce":
                listed = _gce_prices(node_type, compute["gce_instances"])
            case _:
                listed = {}
        for region, price in listed.items():
            by_region.setdefault(region, {})[node_type.size] = Decimal(str(price))
    updated = datetime.fromtimestamp(bundled["updated"], UTC).date()
    return PriceTable("apache-libcloud's pricing.json", updated, by_region, "USD")


def _gce_prices(node_type: NodeType, families: Mapping[str, Any]) -> Mapping[str, Decimal]:
    """Add up the price of a GCE machine type such as n2-standard-4 by region, from its virtual CPUs and memory."""
    parts = _gce_parts(node_type)
    if parts is None:
        return {}
    family, cpus, gib = parts
    if not {"cpu", "ram"} <= families.get(family, {}).keys():
        return {}
    cpu, ram = (families[family][part]["on_demand"] for part in ("cpu", "ram"))
    return {
        region: cpus * Decimal(str(cpu[region]["price"])) + gib * Decimal(str(ram[region]["price"]))
        for region in cpu.keys() & ram.keys()
    }


def _gce_parts(node_type: NodeType) -> tuple[str, int, Decimal] | None:
    """Parse a GCE machine type into its family, virtual CPUs and memory in GiB. None for other names.

    Custom types have prices of their own and contain their memory in MiB: n2-custom-4-8192, and for N1
    custom-4-4096.
    """
    if custom := _CUSTOM.fullmatch(node_type.size):
        return f"{custom['family'] or 'n1'}_custom", int(custom["cpus"]), Decimal(custom["mib"]) / 1024
    if ready := _READY_MADE.fullmatch(node_type.size):
        return ready["family"], int(ready["cpus"]), Decimal(node_type.memory_bytes) / 2**30
    return None


def read_table(path: Path) -> PriceTable:
    """Read a price list in TOML: one section for each region, with lines ``"size" = price per hour``.

    A line ``updated = 2026-11-01`` may come before the first section. Raises :class:`PriceTableError` with all
    faults.
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
    prices = {
        region: {size: _parse_price(price) for size, price in sizes.items()} for region, sizes in document.items()
    }
    return PriceTable(str(path), updated, prices)


def _faults(document: Mapping[str, Any]) -> Iterator[str]:
    for region, sizes in document.items():
        if not isinstance(sizes, Mapping):
            yield f'{region}: a section [{region}] with lines "size" = price is needed'
            continue
        for size, price in sizes.items():
            try:
                _parse_price(price)
            except ValueError as error:
                yield f"[{region}] {size}: {error}"


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
