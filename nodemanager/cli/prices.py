"""What the site says its nodes cost, beside a table of prices: what differs, and what no table knows.

The manager decides by the site's prices alone. A table only checks them, and one that is silent, or says 0, says
so: libcloud's own has zeros for sizes that cost money, and a chooser of the cheapest would pick just those.
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

TOLERANCE = Decimal("0.01")  # of the table's price: less is rounding

_CUSTOM = re.compile(r"((?P<family>[a-z0-9]+)-)?custom-(?P<cpus>[0-9]+)-(?P<mib>[0-9]+)", re.ASCII)
_READY_MADE = re.compile(r"(?P<family>[a-z0-9]+)-[a-z]+-(?P<cpus>[0-9]+)", re.ASCII)


class PriceTableError(Exception):
    """A table of prices that cannot be read, and why."""


class PriceMatch(StrEnum):
    SAME = "same"
    DEARER = "dearer than the table"
    CHEAPER = "cheaper than the table"
    MISSING = "not in the table"
    ZERO = "0 in the table: no price"
    SPOT = "spot: in no table"


@dataclass(frozen=True, slots=True)
class PriceComparison:
    """One node type in one region. ``table_price_per_hour`` is None where the table has none to be believed."""

    node_type: TypeName
    size: str
    region: str  # "" where the site names none
    market: Market
    price_per_hour: Decimal
    table_price_per_hour: Decimal | None
    match: PriceMatch

    @property
    def agrees(self) -> bool:
        return self.match in (PriceMatch.SAME, PriceMatch.SPOT)


@dataclass(frozen=True, slots=True)
class PriceTable:
    """On-demand prices per hour, by region and size, with the day on which they were true."""

    source: str
    updated: date | None
    prices: Mapping[str, Mapping[str, Decimal]]
    currency: str = ""  # "" where the table does not say

    def price_per_hour(self, region: str, size: str) -> Decimal | None:
        return self.prices.get(region, {}).get(size)


def compare_prices(
    node_types: Sequence[NodeType], table: PriceTable, regions_of: Callable[[NodeType], Sequence[str]]
) -> tuple[PriceComparison, ...]:
    """Each node type's price beside the table's for its size, in each of the regions where it is bought."""
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


# --- tables -----------------------------------------------------------------------------------------------


def read_bundled_table(provider: str, node_types: Sequence[NodeType]) -> PriceTable:
    """The table that libcloud brings, as old as its release. A provider that it does not list has no prices."""
    bundled = json.loads(files("libcloud").joinpath("data/pricing.json").read_text(encoding="utf-8"))
    compute = bundled["compute"]
    by_region: dict[str, dict[str, Decimal]] = {}
    for node_type in node_types:
        match provider:
            case "ec2":
                listed = compute["ec2_linux"].get(node_type.size, {})
            case "azure":  # Standard_D4s_v3 stands there as standardd4sv3
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
    """What a GCE machine type such as n2-standard-4 costs by region: its virtual CPUs and its memory."""
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
    """The family in the table, the virtual CPUs and the memory in GiB; None for a machine type made otherwise.

    Custom types have prices of their own and name their memory, in MiB: n2-custom-4-8192, and N1's custom-4-4096.
    """
    if custom := _CUSTOM.fullmatch(node_type.size):
        return f"{custom['family'] or 'n1'}_custom", int(custom["cpus"]), Decimal(custom["mib"]) / 1024
    if ready := _READY_MADE.fullmatch(node_type.size):
        return ready["family"], int(ready["cpus"]), Decimal(node_type.memory_bytes) / 2**30
    return None


def read_table(path: Path) -> PriceTable:
    """A table of one's own: TOML, a section a region, in it ``"size" = price per hour``.

    ``updated = 2026-11-01`` may stand before the first section. Raises :class:`PriceTableError` with all that
    is wrong.
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
