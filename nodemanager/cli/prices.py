"""Compare the site's prices with a price list, for ``prices`` and ``check --online``.

The manager decides only by the site's prices; the list is a check. A size that the list lacks, or has at 0, is
reported as such. libcloud's own list has zeros for sizes that cost money, so it must never choose the cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from nodemanager.config.price_list import PriceTable, read_bundled_table
from nodemanager.config.site import Site
from nodemanager.core.slots import Market, NodeType, TypeName

TOLERANCE = Decimal("0.01")  # of the listed price: smaller differences are rounding


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


def bundled_prices(site: Site) -> PriceTable:
    """Read the price list that comes with this program, for the site's provider."""
    sizes = {size.size: size.memory_bytes for it in site.node_types for size in it.by_size()}
    return read_bundled_table(site.cloud.provider, sizes)


def compare_site_prices(site: Site, table: PriceTable, named: Sequence[str] = ()) -> Sequence[PriceComparison]:
    """``named``: the regions to look in; if there are none, those of each node type."""
    return compare_prices(site.node_types, table, lambda it: named or site.rules.regions(site.cloud, it.zones))


def compare_prices(
    node_types: Sequence[NodeType], table: PriceTable, regions_of: Callable[[NodeType], Sequence[str]]
) -> tuple[PriceComparison, ...]:
    """Compare the price of each node type, as each of its sizes, with the list's in each region of the type."""
    return tuple(
        _compare_price(size, region, table.price_of(region, size.size, size.market))
        for node_type in node_types
        for size in node_type.by_size()
        for region in regions_of(node_type)
    )


def _compare_price(node_type: NodeType, region: str, listed: Decimal | None) -> PriceComparison:
    ours = node_type.price_per_hour
    if listed is None and node_type.market is Market.SPOT:
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
