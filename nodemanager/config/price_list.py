"""Price lists: the prices and the hardware of a provider's sizes, from libcloud or from a file of the site's own.

A size that a list lacks, or has at 0, has no price there: libcloud's own list has zeros for sizes that cost money.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

from nodemanager.core.notation import NotationError, parse_bytes
from nodemanager.core.slots import Market

_CUSTOM = re.compile(r"((?P<family>[a-z0-9]+)-)?custom-(?P<cpus>[0-9]+)-(?P<mib>[0-9]+)", re.ASCII)
_READY_MADE = re.compile(r"(?P<family>[a-z0-9]+)-[a-z]+-(?P<cpus>[0-9]+)", re.ASCII)
_MIB = 2**20


class PriceTableError(Exception):
    """A price list cannot be read. The message says why."""


class SizeHardware(NamedTuple):
    """What a size has. ``cores``: as the provider counts them, which may be hardware threads."""

    cores: int
    gpus: int
    memory_bytes: int


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
    that the list itself names and describes, which are EC2's.
    """
    bundled = json.loads(files("libcloud").joinpath("data/pricing.json").read_text(encoding="utf-8"))
    compute = bundled["compute"]
    by_region: dict[str, dict[str, Decimal]] = {}
    hardware = ec2_hardware() if provider == "ec2" and sizes is None else {}
    for size in hardware if sizes is None else sizes:
        match provider:
            case "ec2":
                listed = compute["ec2_linux"].get(size, {})
            case "azure":  # listed as standardd4sv3 for Standard_D4s_v3
                listed = compute["azure_linux"].get(size.lower().replace("_", ""), {})
            case "gce":
                listed = _gce_prices(size, (sizes or {})[size], compute["gce_instances"])
            case _:
                listed = {}
        for region, price in listed.items():
            by_region.setdefault(region, {})[size] = Decimal(str(price))
    updated = datetime.fromtimestamp(bundled["updated"], UTC).date()
    return PriceTable("apache-libcloud's pricing.json", updated, by_region, "USD", hardware=hardware)


def ec2_hardware() -> Mapping[str, SizeHardware]:
    """What EC2's instance types have, by libcloud's table. ``cores`` are virtual CPUs."""
    # Only its table is used, as with ``pricing.json``. Loading it takes 0.1 s, and few sites need it.
    module = import_module("libcloud.compute.constants.ec2_instance_types")
    types = cast("Mapping[str, Mapping[str, Any]]", module.INSTANCE_TYPES)
    return {
        name: SizeHardware(int(it["extra"]["vcpu"]), int(it["extra"].get("gpu", 0)), int(it["ram"]) * _MIB)
        for name, it in types.items()
        if it["extra"].get("vcpu", "").isdecimal() and it["extra"].get("gpu", "0").isdecimal()
    }


def _gce_prices(size: str, memory_bytes: int, families: Mapping[str, Any]) -> Mapping[str, Decimal]:
    """Add up the price of a GCE machine type such as n2-standard-4 by region, from its virtual CPUs and memory."""
    parts = _gce_parts(size, memory_bytes)
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


def _gce_parts(size: str, memory_bytes: int) -> tuple[str, int, Decimal] | None:
    """Parse a GCE machine type into its family, virtual CPUs and memory in GiB. None for other names.

    Custom types have prices of their own and contain their memory in MiB: n2-custom-4-8192, and for N1
    custom-4-4096.
    """
    if custom := _CUSTOM.fullmatch(size):
        return f"{custom['family'] or 'n1'}_custom", int(custom["cpus"]), Decimal(custom["mib"]) / 1024
    if ready := _READY_MADE.fullmatch(size):
        return ready["family"], int(ready["cpus"]), Decimal(memory_bytes) / 2**30
    return None


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
