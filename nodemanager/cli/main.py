"""The command line: one verb a function, which imports what it needs.

All that any verb needs takes a second to import, and as much memory as the service itself.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from nodemanager.cli import service_verbs as ask
from nodemanager.cli.service_client import Client
from nodemanager.config.site import ConfigError, JoinMethod, Provider, Site, load_site, site_warnings

if TYPE_CHECKING:
    from nodemanager.cli.prices import PriceComparison, PriceTable

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # as argparse has it
EXIT_UNAVAILABLE = 69  # this and the next by sysexits.h
EXIT_CONFIG = 78
EXIT_INTERRUPTED = 130  # as shells have it, and the next of one that SIGPIPE ended
EXIT_CLOSED = 141
WRITE_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; give the exit status."""
    try:
        try:
            status = _run_verb(arguments)
        except KeyboardInterrupt:
            status = EXIT_INTERRUPTED
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in WRITE_ERRORS or error.filename is not None or sys.stdout is None:
            raise
        _discard_stdout(error)
        return EXIT_CLOSED if isinstance(error, BrokenPipeError) else EXIT_FAILED
    return status


def _discard_stdout(error: OSError) -> None:
    if not isinstance(error, BrokenPipeError):
        print(f"not all that was to be said could be written: {error.strerror}", file=sys.stderr)
    # Python would try again as it ends, and complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run_verb(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    parser = _parser(simulates=any(it in SIMULATING or it == "-h" or it.startswith("--h") for it in given))
    chosen = parser.parse_intermixed_args(arguments)
    if chosen.subjects and chosen.verb not in SUBJECTS:
        parser.error(f"{chosen.verb} takes no argument: {' '.join(chosen.subjects)}")
    chosen.subject = chosen.subjects[0] if chosen.subjects else None
    if sys.stdout is None and chosen.verb not in SERVING:
        print("standard output is closed: there is nowhere to say anything", file=sys.stderr)
        return EXIT_FAILED
    if chosen.verb in WITHOUT_SITE:
        return WITHOUT_SITE[chosen.verb](None, chosen)
    if chosen.config is None:
        parser.error("the following arguments are required: --config")
    try:
        # Who lets nodes in is not to know what the cloud asks for, and who only asks what if has no need to.
        site = load_site(Path(chosen.config), with_credentials=chosen.verb not in WITHOUT_CREDENTIALS)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    return VERBS[chosen.verb](site, chosen)


def run(site: Site, chosen: argparse.Namespace) -> int:
    """Run the service in the foreground until SIGTERM or SIGINT."""
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service import logs
    from nodemanager.service import service as app
    from nodemanager.service.outputs import Outputs

    del chosen
    logs.configure()
    _print_warnings(site)
    try:
        site = app.with_cluster_uuid(site)
        app.record_cluster_name(site)
        front = Outputs(site)
        outside = app.make_ports(site, front.status)
    except app.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except app.NodesCannotJoin as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    return app.serve(site, outside, front)


def check(site: Site, chosen: argparse.Namespace) -> int:
    """Read the site and say what is wrong with it, or in doubt."""
    from nodemanager.join.checks import POWEROFF_EFFECTS, multi_user_refusal

    del chosen
    _print_warnings(site)
    if site.flux.join is JoinMethod.SERVICE and (why := multi_user_refusal(site)):
        print(f"{site.path}: {why}", file=sys.stderr)
        return EXIT_CONFIG
    if not site.flux.simulated:
        print(f"{site.path}: {POWEROFF_EFFECTS[site.cloud.provider]}")
    slots = sum(len(node_type.slots) for node_type in site.node_types)
    print(f"{site.path}: good; {len(site.node_types)} node types, {slots} slots, mode {site.mode_text}")
    return EXIT_OK


def init(site: Site, chosen: argparse.Namespace) -> int:
    """Write what a stock Flux needs to be elastic, or say what to add to one that is there."""
    from nodemanager.flux.setup.bootstrap import BootstrapError, write_bootstrap
    from nodemanager.join.key_material import MaterialError, make_material

    if chosen.existing is not None:
        return _init_existing(site, Path(chosen.existing))
    if chosen.output is None:
        print("init needs --output DIR, where the bootstrap is to be written", file=sys.stderr)
        return EXIT_USAGE
    _print_warnings(site)
    output = Path(os.path.abspath(chosen.output))  # noqa: PTH100 - without "..", and a link stays what it is
    joins_by_service = site.flux.join is JoinMethod.SERVICE
    try:
        # An instance whose nodes joined by directory goes on as it is, and gets what the service needs.
        if not (joins_by_service and output == site.flux.bootstrap_dir and output.is_dir()):
            print(write_bootstrap(site, output, nested=chosen.nested))
        if joins_by_service:
            pin = make_material(site, output)
            print(f"Written: {site.join.material_dir}, for the join service, whose fingerprint is {pin}.")
            print(f"Start the join service with\n  flux-node-manager join-service --config {site.path}")
    except (BootstrapError, MaterialError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def join_service(site: Site, chosen: argparse.Namespace) -> int:
    """Let nodes in by their tickets, in the foreground until SIGTERM or SIGINT."""
    import asyncio

    from nodemanager.join import server
    from nodemanager.service import logs

    del chosen
    logs.configure()
    try:
        asyncio.run(server.serve(site))
    except server.ServiceNotReady as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    return EXIT_OK


def rotate_cert(site: Site, chosen: argparse.Namespace) -> int:
    """Replace the certificate that the brokers share; it takes effect with a planned restart of rank 0."""
    from nodemanager.join.key_material import MaterialError, rotate_curve_certificate

    del chosen
    try:
        rotate_curve_certificate(site)
    except MaterialError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(ROTATED_TEXT.format(certificate=site.flux.bootstrap_dir / "curve.cert"))
    return EXIT_OK


def cloud_test(site: Site, chosen: argparse.Namespace) -> int:
    """Make one node at the provider, find it, make it again, destroy it; see it gone."""
    from nodemanager.cli.cloud_test import CloudTest, CloudTestFailed, make_test_site, user_data
    from nodemanager.cloud.providers import cloud_factory
    from nodemanager.core.ports import CloudError
    from nodemanager.service import service as app

    if site.cloud.provider is Provider.SIMULATED:
        print(f"{site.path}: [Cloud] provider = simulated: there is no account to test", file=sys.stderr)
        return EXIT_FAILED
    _print_warnings(site)
    site = make_test_site(site)
    clock = app.SystemClock()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up, as Ctrl-C does
    try:
        port = cloud_factory(site, lambda _launch, _node_type: user_data(site), clock)()
        CloudTest(site, port, clock, time.sleep, _print_now, chosen.keep).run()
    except (CloudError, CloudTestFailed) as error:
        print(f"not passed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print("passed. Every cost is an estimate: disks, addresses and traffic are not in it")
    return EXIT_OK


def prices(site: Site, chosen: argparse.Namespace) -> int:
    """Hold the site's prices to a table; say what differs and what the table lacks."""
    from nodemanager.cli.prices import PriceTableError, compare_prices, read_bundled_table, read_table

    try:
        table = (
            read_table(Path(chosen.table))
            if chosen.table
            else read_bundled_table(str(site.cloud.provider), site.node_types)
        )
    except PriceTableError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    named = (chosen.region,) if chosen.region else ()
    compared = compare_prices(site.node_types, table, lambda node_type: named or _regions(site, node_type.zones))
    _print_prices(compared, table)
    return EXIT_OK if all(row.agrees for row in compared) else EXIT_FAILED


def _regions(site: Site, zones: Sequence[str]) -> tuple[str, ...]:
    """Where a node type of these zones is bought. Of Google a zone names its region: us-central1-a."""
    if site.cloud.provider is not Provider.GCE:
        return (site.cloud.region,)
    return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in zones))


def _print_prices(compared: Sequence[PriceComparison], table: PriceTable) -> None:
    from rich import box
    from rich.table import Table

    from nodemanager.cli.terminal import make_console

    regions = list(dict.fromkeys(row.region for row in compared))
    shown = Table(box=box.SIMPLE_HEAD)
    # What a row is looked up by, and figures, stay whole on a narrow terminal too.
    for title in ("node type", "size", *(["region"] if len(regions) > 1 else []), "market", "site", "table", ""):
        shown.add_column(title, no_wrap=title not in {"node type", ""}, overflow="fold")
    for row in compared:
        listed = "-" if row.table_price_per_hour is None else f"{round(row.table_price_per_hour, 5).normalize():f}"
        where = [row.region] if len(regions) > 1 else []
        prices = f"{row.price_per_hour}", listed, str(row.match)
        shown.add_row(row.node_type, row.size, *where, str(row.market), *prices)
    make_console().print(shown)
    of = f"of {table.updated}" if table.updated else "of no date"
    place = f"region {regions[0] or '(none)'}" if len(regions) == 1 else f"regions {', '.join(regions)}"
    currency = f" in {table.currency}," if table.currency else ""
    print(f"An hour, on demand. The table is {table.source} {of},{currency} {place}.")
    print("The service decides by the site's prices alone.")


def _print_now(line: str) -> None:
    print(line, flush=True)


def _init_existing(site: Site, folder: Path) -> int:
    from nodemanager.flux.setup.bootstrap import BootstrapError, ensure_uuid
    from nodemanager.flux.setup.existing import propose

    try:
        proposal = propose(site, folder.absolute())
        cluster_uuid = ensure_uuid(site)
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"# Cluster {site.cluster}, {cluster_uuid}.")
    print(proposal, end="")
    return EXIT_OK


def slots(site: Site, chosen: argparse.Namespace) -> int:
    """Show how the slots are divided among the node types, or divide them otherwise while jobs run."""
    from nodemanager.cli import slots as slot_verbs
    from nodemanager.core.ports import FluxError
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service import service as app

    if site.flux.simulated:
        print(f"{site.path}: [Flux] uri = simulated: there is no instance to ask", file=sys.stderr)
        return EXIT_FAILED
    try:
        instance = slot_verbs.SlotsClient(site)
        if chosen.slots:
            answer = instance.change(slot_verbs.parse_counts(chosen.slots))
            if answer.why:
                print(f"Nothing was changed: {answer.why}", file=sys.stderr)
                return EXIT_FAILED
            moved = ", ".join(f"{slot} is of type {name} now" for slot, name in answer.moves.items())
            print(moved or "It is so already.")
        print(slot_verbs.HEADER, *instance.rows(), sep="\n")
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except app.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except (slot_verbs.SlotsError, FluxError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def resize(site: Site, chosen: argparse.Namespace) -> int:
    """Give the instance more slots, for which rank 0 restarts once."""
    from nodemanager.cli import resize as resize_verb
    from nodemanager.cli import slots as slot_verbs
    from nodemanager.flux.bindings import BindingsMissing

    try:
        counts = slot_verbs.parse_counts(chosen.slots or ())
        if not counts:
            print("resize needs --slots TYPE=N: a node type, and how many slots it is to have", file=sys.stderr)
            return EXIT_USAGE
        resizing = resize_verb.plan_resize(site, counts)
        print(resizing, flush=True)
        resize_verb.resize(site, resizing, lambda text: print(text, flush=True), force=chosen.force)
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (slot_verbs.SlotsError, resize_verb.ResizeError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print("The instance has its new slots.")
    return EXIT_OK


def expand(site: Site, chosen: argparse.Namespace) -> int:
    """Give an instance that is a job of the enclosing Flux more nodes of that one, as another job."""
    from nodemanager.core.ports import FluxError
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.flux.setup import expand as expand_verb
    from nodemanager.flux.setup.bootstrap import BootstrapError
    from nodemanager.service import service as app

    if not chosen.subject or not chosen.nodes:
        print("expand needs JOBID and -N COUNT: the job that the instance is, and how many nodes", file=sys.stderr)
        return EXIT_USAGE
    try:
        site = app.with_cluster_uuid(site)
        job, slots_taken = expand_verb.expand(site, chosen.subject, chosen.nodes, app.SystemClock())
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except app.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except (expand_verb.ExpandError, FluxError, BootstrapError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"{job} brings {', '.join(slots_taken)}; flux cancel {job} takes them away again.")
    return EXIT_OK


def _print_warnings(site: Site) -> None:
    from nodemanager.cloud.providers import provider_warnings

    for warning in (*site_warnings(site), *provider_warnings(site)):
        print(f"{site.path}: warning: {warning}", file=sys.stderr)


def plan(client: Client, site: Site, chosen: argparse.Namespace, console: Console) -> None:
    """Show what would be ordered now, by the site that --config names; nothing is."""
    from nodemanager.service import service as app

    ask.plan(client, app.with_cluster_uuid(site), chosen, console, policy_of=app.policy_of)


def chaos(site: Site | None, chosen: argparse.Namespace) -> int:
    """Let everything go wrong in a simulated world, by seeds, and see whether a rule breaks (no --config)."""
    from nodemanager.chaos import command as chaos_verb

    del site
    return chaos_verb.chaos(chosen)


def simulate(site: Site, chosen: argparse.Namespace) -> int:
    """Replay a workload under this site's policy, and see cost and wait."""
    from nodemanager.whatif import command

    try:
        return command.simulate(site, chosen)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


VERBS: Mapping[str, Callable[[Site, argparse.Namespace], int]] = {
    "run": run,
    "check": check,
    "init": init,
    "cloud-test": cloud_test,
    "prices": prices,
    "join-service": join_service,
    "rotate-cert": rotate_cert,
    "simulate": simulate,
    "chaos": chaos,
    "slots": slots,
    "resize": resize,
    "expand": expand,
    "status": ask.with_exit_status(ask.status),
    "nodes": ask.with_exit_status(ask.nodes),
    "jobs": ask.with_exit_status(ask.jobs),
    "explain": ask.with_exit_status(ask.explain),
    "plan": ask.with_exit_status(plan),
    "events": ask.with_exit_status(ask.events),
    "report": ask.with_exit_status(ask.report),
    "hold": ask.with_exit_status(ask.hold),
    "release": ask.with_exit_status(ask.release),
    "retire": ask.with_exit_status(ask.retire),
    "pause": ask.with_exit_status(ask.pause),
    "resume": ask.with_exit_status(ask.resume),
    "reload": ask.with_exit_status(ask.reload),
}
SUBJECTS: Mapping[str, str] = {  # what these verbs are about
    "simulate": "WORKLOAD, a trace, a history, or a model (doc/what-if.md)",
    "expand": "JOBID, the instance's job",
    "explain": "job ID, node NAME or type NAME",
    "hold": "NODE, by its slot or its launch",
    "release": "NODE",
    "retire": "NODE",
}
WITHOUT_SITE: Mapping[str, Callable[[None, argparse.Namespace], int]] = {"chaos": chaos}
SERVING = frozenset({"run", "join-service"})  # they print nothing
SIMULATING = frozenset({"simulate", "chaos"})  # their options are theirs alone, and long to import
WITHOUT_CREDENTIALS = frozenset({"join-service", "rotate-cert", "simulate"})

ROTATED_TEXT = """\
Replaced: {certificate}. Brokers that run keep the former one until they end.
Now restart rank 0, when running jobs may end: stop it in good order (the queue is kept) and start it again.
Nodes that joined by the service fetch the new one before they start their brokers again. Until rank 0 is back
with it, a node that boots waits, and then joins by itself."""


def _parser(*, simulates: bool = True) -> argparse.ArgumentParser:
    """``simulates``: with the options of the verbs that do."""
    parser = argparse.ArgumentParser(
        prog="flux-node-manager",
        description="Cloud nodes for a Flux instance: they come when jobs need them and leave when they stop "
        "being worth their price.",
        epilog="exit status: 0 done; 1 not done; 2 wrong use; 69 no Flux bindings that fit, or no service; "
        "70 a bug; 77 the token is needed; 78 a fault in the site; 130 interrupted; 141 nobody reads on; "
        "143 ended by SIGTERM",
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
        "subjects",
        nargs="*",
        metavar="SUBJECT",
        help="; ".join(f"for {verb}: {subject}" for verb, subject in SUBJECTS.items()),
    )
    parser.add_argument("--json", action="store_true", help="for verbs that show something: JSON instead of tables")
    parser.add_argument("--at", metavar="TIME", help='for explain: why it was so at a time ("2h" is two hours ago)')
    parser.add_argument("--since", metavar="SPAN", help="for report: how far back (7d)")
    parser.add_argument("--follow", action="store_true", help="for events: go on with what happens")
    parser.add_argument("--config", metavar="SITE.INI", help="the site's settings: every verb but chaos needs them")
    parser.add_argument("--keep", action="store_true", help="for cloud-test: leave the node there")
    parser.add_argument(
        "--table", metavar="TOML", help='for prices: a table of one\'s own, [REGION] and "SIZE" = price'
    )
    parser.add_argument("--region", metavar="NAME", help="for prices: the table's region, unless the site names it")
    parser.add_argument("--output", metavar="DIR", help="for init: where the bootstrap is written")
    parser.add_argument("--nested", action="store_true", help="for init: rank 0 is to be a job of an outer Flux")
    parser.add_argument("-N", dest="nodes", type=int, metavar="COUNT", help="for expand: how many nodes")
    parser.add_argument(
        "--existing", metavar="DIR", help="for init: the configuration of an instance that is there"
    )
    parser.add_argument(
        "--slots",
        nargs="+",
        metavar="TYPE=N",
        help="for slots, resize: how many slots these types are to have",
    )
    parser.add_argument("--force", action="store_true", help="for resize: though jobs run, which end")
    if simulates:
        _add_simulating(parser)
    return parser


def _add_simulating(parser: argparse.ArgumentParser) -> None:
    from nodemanager.chaos import command as chaos_verb
    from nodemanager.whatif import command

    command.add_options(parser)
    chaos_verb.add_options(parser)


if __name__ == "__main__":
    sys.exit(main())
