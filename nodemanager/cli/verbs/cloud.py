"""The verbs that test a site's account: ``cloud-test`` and ``prices``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodemanager.cli import listing
from nodemanager.cli.listing import Listing
from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.terminal import make_console
from nodemanager.cli.verbs.service_call import print_error, print_listing
from nodemanager.cli.verbs.site_warnings import print_warnings

if TYPE_CHECKING:
    from nodemanager.cli.prices import PriceComparison
    from nodemanager.config.price_list import PriceTable
    from nodemanager.config.site import Site


def _cloud_test(parser: Parser) -> None:
    parser.add_argument("--keep", action="store_true", help="keep the node, which then costs money")
    parser.add_argument("--cloud", metavar="NAME", default="", help="test this one of the site's clouds")


def cloud_test(site: Site, chosen: argparse.Namespace) -> int:
    """Test the provider with one node: create it, find it, repeat the create, terminate it."""
    from nodemanager.cli.cloud_test import CloudTest, CloudTestFailed, make_test_site, user_data
    from nodemanager.cloud.providers import cloud_factory
    from nodemanager.core.ports import CloudError
    from nodemanager.service.assembly.ports import SystemClock, size_service

    if (chosen_site := _site_of_cloud(site, chosen.cloud)) is None:
        return EXIT_CONFIG
    site = chosen_site
    if site.rules.is_simulated:
        section = site.cloud_section.section
        print(f"{site.path}: [{section}] provider = simulated: there is no account to test", file=sys.stderr)
        return EXIT_FAILED
    print_warnings(site)
    site = make_test_site(site)
    clock = SystemClock()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM cleans up like Ctrl-C
    try:
        sizes = size_service(site)
        port = cloud_factory(site, lambda _launch, _node_type: user_data(site), clock, sizes)()
        CloudTest(site, port, clock, time.sleep, partial(print, flush=True), chosen.keep).run()
    except (CloudError, CloudTestFailed) as error:
        print(f"failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print("passed. All costs are estimates without disks, addresses and traffic")
    return EXIT_OK


def _prices(parser: Parser) -> None:
    parser.add_argument(
        "--table", metavar="TOML", help='read your own price list, with "SIZE" = price under each [REGION]'
    )
    parser.add_argument(
        "--region", metavar="NAME", help="use this region of the price list, if the site does not name it"
    )
    parser.add_argument("--cloud", metavar="NAME", default="", help="compare this one of the site's clouds")


def prices(site: Site, chosen: argparse.Namespace) -> int:
    """Compare the site's prices with a price list."""
    from nodemanager.cli.prices import bundled_prices, compare_site_prices
    from nodemanager.config.price_list import PriceTableError, read_table

    if (chosen_site := _site_of_cloud(site, chosen.cloud)) is None:
        return EXIT_CONFIG
    site = chosen_site
    try:
        table = read_table(Path(chosen.table)) if chosen.table else bundled_prices(site)
    except PriceTableError as error:
        return print_error(error, EXIT_FAILED, as_json=chosen.json)
    compared = compare_site_prices(site, table, (chosen.region,) if chosen.region else ())
    _print_prices(compared, table, chosen)
    return EXIT_OK if all(row.agrees for row in compared) else EXIT_FAILED


def _site_of_cloud(site: Site, name: str) -> Site | None:
    """The site as if the named cloud were its only one. None, and an error is printed, if it has no such cloud."""
    parts = {str(cloud): part for cloud, part in site.by_cloud.items()}
    if not name and len(parts) == 1:
        return next(iter(parts.values()))
    if name not in parts:
        print(f"{site.path}: give --cloud NAME, with one of {', '.join(parts)}", file=sys.stderr)
    return parts.get(name)


def _print_prices(compared: Sequence[PriceComparison], table: PriceTable, chosen: argparse.Namespace) -> None:
    regions = list(dict.fromkeys(row.region for row in compared))
    rows = [
        {
            "node_type": row.node_type,
            "size": row.size,
            "region": row.region,
            "market": str(row.market),
            "site": f"{row.price_per_hour}",
            "list": "-" if row.table_price_per_hour is None else _listed(row.table_price_per_hour),
            "result": str(row.match),
        }
        for row in compared
    ]
    if chosen.json:
        of_list = {"source": table.source, "updated": str(table.updated or ""), "currency": table.currency}
        numbers = [
            {
                "site": float(it.price_per_hour),
                "list": float(listed) if (listed := it.table_price_per_hour) else None,
            }
            for it in compared
        ]
        prices = [row | number for row, number in zip(rows, numbers, strict=True)]
        print(json.dumps({"price_list": of_list, "prices": prices}, indent=2))
        return
    date = f"of {table.updated}" if table.updated else "without a date"
    place = f"region {regions[0] or '(none)'}" if len(regions) == 1 else f"regions {', '.join(regions)}"
    currency = f" in {table.currency}," if table.currency else ""
    notes = (
        f"Prices per hour, on demand. The price list is {table.source} {date},{currency} {place}.",
        "The service decides only by the site's prices.",
    )
    hidden = () if len(regions) > 1 else ("region",)
    print_listing(Listing(listing.PRICES, rows, notes, hidden=hidden), chosen, make_console())


def _listed(price: Decimal) -> str:
    return f"{round(price, 5).normalize():f}"


CLOUD_TEST = Verb(name="cloud-test", act=cloud_test, add_options=_cloud_test)
PRICES = Verb(
    name="prices",
    act=prices,
    add_options=_prices,
    example="--table prices.toml --region eu-central-1",
    prints_json=True,
    columns=listing.PRICES,
)
