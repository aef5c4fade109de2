"""The command line: one verb a function."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from nodemanager import app, logs
from nodemanager.ask import verbs as ask
from nodemanager.ask.client import Client
from nodemanager.cloud.providers import cautions, cloud_factory
from nodemanager.cloud_test import CloudTest, CloudTestFailed, site_of_the_test, user_data
from nodemanager.config import ConfigError, Provider, Site, load_site, warnings
from nodemanager.flux.bindings import BindingsMissing
from nodemanager.flux.bootstrap import BootstrapError, write_bootstrap
from nodemanager.front import Front
from nodemanager.ports import CloudError
from nodemanager.prices import Compared, PriceTable, PriceTableError, bundled_table, compare, table_in

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # as argparse has it
EXIT_UNAVAILABLE = 69  # this and the next by sysexits.h
EXIT_CONFIG = 78
EXIT_INTERRUPTED = 130  # as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; give the exit status."""
    chosen = _parser().parse_intermixed_args(arguments)
    try:
        site = load_site(Path(chosen.config))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    return VERBS[chosen.verb](site, chosen)


def run(site: Site, chosen: argparse.Namespace) -> int:
    """Run the service in the foreground until SIGTERM or SIGINT."""
    del chosen
    logs.configure()
    _warn(site)
    try:
        site = app.identified(site)
        front = Front(site)
        outside = app.outside_of(site, front.status)
    except app.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    return app.serve(site, outside, front)


def check(site: Site, chosen: argparse.Namespace) -> int:
    """Read the site and say what is wrong with it, or in doubt."""
    del chosen
    _warn(site)
    slots = sum(len(node_type.slots) for node_type in site.node_types)
    print(f"{site.path}: good; {len(site.node_types)} node types, {slots} slots, mode {site.mode}")
    return EXIT_OK


def init(site: Site, chosen: argparse.Namespace) -> int:
    """Write what a stock Flux needs to be elastic."""
    if chosen.output is None:
        print("init needs --output DIR, where the bootstrap is to be written", file=sys.stderr)
        return EXIT_USAGE
    _warn(site)
    try:
        written = write_bootstrap(site, Path(chosen.output))
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(written)
    return EXIT_OK


def cloud_test(site: Site, chosen: argparse.Namespace) -> int:
    """Make one node at the provider, find it, make it again, destroy it; see it gone."""
    if site.cloud.provider is Provider.SIMULATED:
        print(f"{site.path}: [Cloud] provider = simulated: there is no account to test", file=sys.stderr)
        return EXIT_FAILED
    _warn(site)
    site = site_of_the_test(site)
    clock = app.SystemClock()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    try:
        port = cloud_factory(site, lambda _launch, _node_type: user_data(site), clock)()
        CloudTest(site, port, clock, time.sleep, _say, chosen.keep).run()
    except (CloudError, CloudTestFailed) as error:
        print(f"not passed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print("passed. Every cost is an estimate: disks, addresses and traffic are not in it")
    return EXIT_OK


def prices(site: Site, chosen: argparse.Namespace) -> int:
    """Hold the site's prices to a table; say what differs and what the table lacks."""
    region = chosen.region or _region(site)
    try:
        table = (
            table_in(Path(chosen.table))
            if chosen.table
            else bundled_table(str(site.cloud.provider), site.node_types)
        )
    except PriceTableError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    compared = compare(site.node_types, table, region)
    _print_prices(compared, table, region)
    return EXIT_OK if all(row.agrees for row in compared) else EXIT_FAILED


def _region(site: Site) -> str:
    """Where the site's prices hold. Google names it in a zone: us-central1-a is in us-central1."""
    return site.cloud.region or next((zone.rpartition("-")[0] for zone in site.cloud.zones), "")


def _print_prices(compared: Sequence[Compared], table: PriceTable, region: str) -> None:
    shown = Table("node type", "size", "market", "site", "table", box=box.SIMPLE_HEAD)
    shown.add_column("", no_wrap=True)
    for row in compared:
        listed = "-" if row.table_price_per_hour is None else f"{row.table_price_per_hour}"
        shown.add_row(row.node_type, row.size, str(row.market), f"{row.price_per_hour}", listed, str(row.verdict))
    Console().print(shown)
    of = f"of {table.updated}" if table.updated else "of no date"
    print(f"An hour, on demand. The table is {table.source} {of}, region {region or '(none)'}.")
    print("The service decides by the site's prices alone.")


def _say(line: str) -> None:
    print(line, flush=True)


def _warn(site: Site) -> None:
    for warning in (*warnings(site), *cautions(site)):
        print(f"{site.path}: warning: {warning}", file=sys.stderr)


def plan(client: Client, site: Site, chosen: argparse.Namespace, console: Console) -> None:
    """Show what would be ordered now, by the site that --config names; nothing is."""
    ask.plan(client, app.identified(site), chosen, console, policy_of=app.policy_of)


VERBS: Mapping[str, Callable[[Site, argparse.Namespace], int]] = {
    "run": run,
    "check": check,
    "init": init,
    "cloud-test": cloud_test,
    "prices": prices,
    "status": ask.asking(ask.status),
    "nodes": ask.asking(ask.nodes),
    "jobs": ask.asking(ask.jobs),
    "explain": ask.asking(ask.explain),
    "plan": ask.asking(plan),
    "events": ask.asking(ask.events),
    "report": ask.asking(ask.report),
    "hold": ask.asking(ask.hold),
    "release": ask.asking(ask.release),
    "retire": ask.asking(ask.retire),
    "pause": ask.asking(ask.pause),
    "resume": ask.asking(ask.resume),
    "reload": ask.asking(ask.reload),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flux-node-manager",
        description="Cloud nodes for a Flux instance: they come when jobs need them and leave when they stop "
        "being worth their price.",
        epilog="exit status: 0 done; 1 not done; 2 wrong use; 69 no Flux bindings, or no service; 70 a bug; "
        "77 the token is needed; 78 a fault in the site; 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('flux-node-manager')}")
    parser.add_argument(
        "verb",
        nargs="?",
        choices=VERBS,
        default="run",
        help="; ".join(f"{name}: {verb.__doc__}" for name, verb in VERBS.items()),
    )
    parser.add_argument(
        "subject",
        nargs="*",
        help="for explain: job ID, node NAME or type NAME; for hold, release, retire: the node",
    )
    parser.add_argument("--json", action="store_true", help="for verbs that ask or steer: JSON instead of tables")
    parser.add_argument("--at", metavar="TIME", help='for explain: why it was so at a time ("2h" is two hours ago)')
    parser.add_argument("--since", metavar="SPAN", help="for report: how far back (7d)")
    parser.add_argument("--follow", action="store_true", help="for events: go on with what happens")
    parser.add_argument("--config", required=True, metavar="SITE.INI", help="the site's settings")
    parser.add_argument("--keep", action="store_true", help="for cloud-test: leave the node there")
    parser.add_argument(
        "--table", metavar="TOML", help='for prices: a table of one\'s own, [REGION] and "SIZE" = price'
    )
    parser.add_argument("--region", metavar="NAME", help="for prices: the table's region, unless the site names it")
    parser.add_argument("--output", metavar="DIR", help="for init: where the bootstrap is written")
    return parser


if __name__ == "__main__":
    sys.exit(main())
