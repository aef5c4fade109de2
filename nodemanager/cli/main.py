"""The command line: each verb is a function that imports what it needs.

Importing everything for all verbs would take a second, and as much memory as the service itself.
"""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from nodemanager.cli import service_verbs
from nodemanager.cli.parsing.options import NAMES_VERB, PROGRAM, add_verbs
from nodemanager.cli.parsing.parser import Parser, WrongUse
from nodemanager.cli.service_client import Client, ServiceUnreachable, make_client
from nodemanager.config.site import ConfigError, JoinMethod, Provider, Site, load_site, site_warnings
from nodemanager.core.notation import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

    from nodemanager.cli.prices import PriceComparison
    from nodemanager.config.price_list import PriceTable
    from nodemanager.core.nodes import Launch
    from nodemanager.core.ports import CloudPort
    from nodemanager.core.slots import NodeType
    from nodemanager.service.floors import Floors
    from nodemanager.service.outputs import Outputs
    from nodemanager.service.service import Companion

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # as argparse has it
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE and EX_CONFIG (sysexits.h)
EXIT_CONFIG = 78
DENIED = os.strerror(errno.EACCES)
EXIT_INTERRUPTED = 130  # as shells report SIGINT, and SIGPIPE below
EXIT_CLOSED = 141
WRITE_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
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
        print(f"the output is incomplete: {error.strerror}", file=sys.stderr)
    # Or else Python would flush again at its exit, and complain.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _run_verb(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        return _run_chosen(make_parser(given).parse_args(given))
    except WrongUse as error:
        as_json = "--json" in given
        if not as_json:
            print(error.usage, end="", file=sys.stderr)
        return service_verbs.print_error(error, EXIT_USAGE, as_json=as_json)


def _run_chosen(chosen: argparse.Namespace) -> int:
    if sys.stdout is None and chosen.verb not in SERVING:
        print("standard output is closed", file=sys.stderr)
        return EXIT_FAILED
    if chosen.verb in WITHOUT_SITE:
        if chosen.config is not None:
            chosen.usage_error(f"{chosen.verb} takes no --config")
        return WITHOUT_SITE[chosen.verb](None, chosen)
    if chosen.verb == "init" and chosen.provider is not None:
        return new_site(chosen)
    if chosen.config is None:
        chosen.usage_error("give the site file: --config SITE.INI")
    try:
        # The join service must not have the cloud's credentials, and simulate and suggest do not need them.
        site = load_site(Path(chosen.config), with_credentials=chosen.verb not in WITHOUT_CREDENTIALS)
    except ConfigError as error:
        if chosen.verb in service_verbs.GUESTS_ASK and any(it.problem.endswith(DENIED) for it in error.faults):
            guest = service_verbs.not_for_guests(str(error))
            return service_verbs.print_error(guest, service_verbs.EXIT_NO_PERMISSION, as_json=chosen.json)
        return service_verbs.print_error(error, EXIT_CONFIG, as_json=chosen.json)
    from nodemanager.flux.bindings import use_bridge

    use_bridge(site.flux.bridge)
    return (names if chosen.verb == NAMES_VERB else VERBS[chosen.verb])(site, chosen)


def load_structlog_without_rich() -> None:
    """Keep Rich out of the service: 4 MB. Structlog loads it if it can, for tracebacks that we do not show."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # how Python says that there is no such module
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def run(site: Site, chosen: argparse.Namespace) -> int:
    """Run the service in the foreground until SIGTERM or SIGINT."""
    load_structlog_without_rich()
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service import logs, service
    from nodemanager.service.outputs import Outputs

    del chosen
    logs.configure()
    _print_warnings(site)
    try:
        site = service.with_cluster_uuid(site)
        service.record_cluster_name(site)
        outputs = Outputs(site)
        floors, companions = _ensembles(site, outputs)
        ports = service.make_ports(site, outputs.info, floors.answer)
    except service.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except service.NodesCannotJoin as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    return service.serve(site, ports, outputs, floors, companions)


def _ensembles(site: Site, outputs: Outputs) -> tuple[Floors, list[Companion]]:
    """Return what keeps nodes for ensembles, and what runs those of the site and serves those elsewhere."""
    from nodemanager.service.ensemble_costs import COSTS_FILE, DayCosts
    from nodemanager.service.floors import Floors

    floors = Floors(time.monotonic, site.limits.nodes_max, costs=DayCosts(site.state_dir / COSTS_FILE))
    companions: list[Companion] = []
    may_run = site.acts and not site.flux.simulated
    # Only sites that use them pay for these modules.
    if site.ensembles:
        from nodemanager.service.ensembles import Ensembles, terms_of

        floors.terms = terms_of(site)
        companions += [Ensembles(site, outputs.board.show_ensemble, outputs.record_ensemble)] if may_run else []
    if may_run and site.web.grpc_listen != "off":
        from nodemanager.service.members import MembersService

        companions.append(MembersService(site))
    return floors, companions


def check(site: Site, chosen: argparse.Namespace) -> int:
    """Check the site file and print its faults and warnings."""
    from nodemanager.flux.setup.bootstrap import FluxTooOld, gpu_warning
    from nodemanager.flux.setup.existing import delegation_faults
    from nodemanager.join.user_data import POWEROFF_EFFECTS

    _print_warnings(site)
    try:
        warning = gpu_warning(site)
    except FluxTooOld as error:
        print(f"{site.path}: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    if warning:
        print(f"{site.path}: warning: {warning}", file=sys.stderr)
    if not site.flux.simulated:
        providers = dict.fromkeys(part.cloud.provider for part in site.by_cloud.values())
        print(*(f"{site.path}: note: {POWEROFF_EFFECTS[it]}" for it in providers), sep="\n")
    slots = sum(len(node_type.slots) for node_type in site.node_types)
    if slots > site.limits.nodes_max:
        print(
            f"{site.path}: {slots} slots, but nodes_max = {site.limits.nodes_max}: a job for more than"
            f" {site.limits.nodes_max} nodes can never run"
        )
    undelegated = (f"{site.path}: no job can be delegated: {fault}" for fault in delegation_faults(site))
    if faults := (*_ensemble_faults(site), *_grpc_faults(site), *_token_faults(site), *undelegated):
        print(*faults, sep="\n", file=sys.stderr)
        return EXIT_CONFIG
    types = f"{len(site.node_types)} node type{'s' if len(site.node_types) != 1 else ''}"
    print(f"{site.path}: good; {types}, {slots} slots, mode {site.mode_text}")
    return _check_online(site) if chosen.online else EXIT_OK


def _check_online(site: Site) -> int:
    from nodemanager.cli.cloud_test import make_test_site, user_data
    from nodemanager.cli.online.checks import check_cloud, check_flux
    from nodemanager.cloud.common.findings import Finding, Verdict
    from nodemanager.cloud.preflight import check_creates
    from nodemanager.cloud.providers import cloud_factory
    from nodemanager.service import service

    try:
        site = service.with_cluster_uuid(site)
    except service.NotInitialised:
        site = make_test_site(site)  # nothing of the cluster exists yet
    clock = service.SystemClock()

    def of_cloud(part: Site) -> Iterator[Finding]:
        def script(_launch: Launch, _node_type: NodeType) -> str:
            return user_data(part)

        def make_port() -> CloudPort:
            return cloud_factory(part, script, clock, service.size_service(part))()

        prices = _compare_prices(part, _bundled_prices(part))
        return check_cloud(part, make_port, lambda: check_creates(part, script, clock), prices)

    parts = site.by_cloud
    is_good = True
    for name, findings in (*((name, of_cloud(part)) for name, part in parts.items()), ("", check_flux(site))):
        for finding in findings:
            where = f"cloud {name}: " if name and len(parts) > 1 else ""
            print(where + escape_unprintable(str(finding)), flush=True)
            is_good = is_good and finding.verdict is not Verdict.FAULT
    return EXIT_OK if is_good else EXIT_FAILED


def _ensemble_faults(site: Site) -> list[str]:
    if not site.ensembles:
        return []
    from nodemanager.service.ensembles import EnsembleFileError, read_assignment

    faults = []
    for name, settings in site.ensembles.items():
        try:
            read_assignment(name, settings)
        except EnsembleFileError as error:
            faults.append(str(error))
    return faults


def _grpc_faults(site: Site) -> list[str]:
    key = "[Web] grpc_listen" if site.web.grpc_listen != "off" else "[Cloud] service" if site.cloud.service else ""
    if not key:
        return []
    from nodemanager.web.grpc.messages import GrpcMissing, load_grpc

    try:
        load_grpc()
    except GrpcMissing as error:
        return [f"{site.path}: {key}: {error}"]
    return []


def _token_faults(site: Site) -> list[str]:
    if site.web.tokens_file is None:
        return []
    from nodemanager.web.state.token import TokenError, read_named_tokens

    try:
        read_named_tokens(site.web.tokens_file)
    except TokenError as error:
        return [f"[Web] tokens_file: {line}" for line in str(error).splitlines()]
    return []


def init(site: Site, chosen: argparse.Namespace) -> int:
    """Write a first site file, or the bootstrap of an elastic instance, or print what to add to an existing one."""
    from nodemanager.flux.setup.bootstrap import BootstrapError, FluxTooOld, find_bootstrap, write_bootstrap
    from nodemanager.join.key_material import MaterialError, make_material

    if chosen.existing is not None:
        return _init_existing(site, Path(chosen.existing))
    if chosen.output is None:
        chosen.usage_error("give --output DIR, the folder for the bootstrap, or --existing DIR")
    _print_warnings(site)
    output = Path(os.path.abspath(chosen.output))  # noqa: PTH100 - removes "..", but does not resolve links
    joins_by_service = site.flux.join is JoinMethod.SERVICE
    try:
        if (found := find_bootstrap(site, output, nested=chosen.nested)) is not None:
            print(found)
        # An existing bootstrap is kept, for example of an instance whose nodes joined by directory so far.
        elif not (joins_by_service and output == site.flux.bootstrap_dir and output.is_dir()):
            print(write_bootstrap(site, output, nested=chosen.nested))
        if joins_by_service:
            pin = make_material(site, output)
            print(f"Written: {site.join.material_dir}, for the join service. Its fingerprint is {pin}.")
            print(f"Start the join service with\n  flux-node-manager join-service --config {site.path}")
    except FluxTooOld as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (BootstrapError, MaterialError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def new_site(chosen: argparse.Namespace) -> int:
    """Write a first site file from what an account offers."""
    from nodemanager.cli.new_site.command import NewSiteError, write_new_site
    from nodemanager.cli.new_site.questions import Questions, Unanswered

    if chosen.config is not None or chosen.existing is not None:
        chosen.usage_error("--provider writes a new site file, so --config and --existing do not go with it")
    try:
        write_new_site(chosen, Questions.on_terminal(), os.environ, _print_now)
    except Unanswered as error:
        chosen.usage_error(str(error))
    except NewSiteError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def start_command(site: Site, chosen: argparse.Namespace) -> int:
    """Print the command that starts rank 0 from bootstrap_dir."""
    from nodemanager.flux.setup import bootstrap

    folder = site.flux.bootstrap_dir
    if site.flux.simulated or not (folder / "conf.d").is_dir() or not (folder / "state").is_dir():
        print(f"{folder}, bootstrap_dir of {site.path}, was not written by init: run init first", file=sys.stderr)
        return EXIT_FAILED
    make_command = bootstrap.nested_command if chosen.nested else bootstrap.start_command
    try:
        print(shlex.join(make_command(site, folder, bootstrap.find_flux())))
    except bootstrap.BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def join_service(site: Site, chosen: argparse.Namespace) -> int:
    """Run the join service, which admits nodes by their tickets, until SIGTERM or SIGINT."""
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
    """Replace the certificate that the brokers share. Restart rank 0 for it to take effect."""
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
    """Test the provider with one node: create it, find it, repeat the create, terminate it."""
    from nodemanager.cli.cloud_test import CloudTest, CloudTestFailed, make_test_site, user_data
    from nodemanager.cloud.providers import cloud_factory
    from nodemanager.core.ports import CloudError
    from nodemanager.service import service

    if (chosen_site := _site_of_cloud(site, chosen.cloud)) is None:
        return EXIT_CONFIG
    site = chosen_site
    if site.cloud.provider is Provider.SIMULATED:
        print(f"{site.path}: [Cloud] provider = simulated: there is no account to test", file=sys.stderr)
        return EXIT_FAILED
    _print_warnings(site)
    site = make_test_site(site)
    clock = service.SystemClock()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM cleans up like Ctrl-C
    try:
        sizes = service.size_service(site)
        port = cloud_factory(site, lambda _launch, _node_type: user_data(site), clock, sizes)()
        CloudTest(site, port, clock, time.sleep, _print_now, chosen.keep).run()
    except (CloudError, CloudTestFailed) as error:
        print(f"failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print("passed. All costs are estimates without disks, addresses and traffic")
    return EXIT_OK


def prices(site: Site, chosen: argparse.Namespace) -> int:
    """Compare the site's prices with a price list."""
    from nodemanager.config.price_list import PriceTableError, read_table

    if (chosen_site := _site_of_cloud(site, chosen.cloud)) is None:
        return EXIT_CONFIG
    site = chosen_site
    try:
        table = read_table(Path(chosen.table)) if chosen.table else _bundled_prices(site)
    except PriceTableError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    compared = _compare_prices(site, table, (chosen.region,) if chosen.region else ())
    _print_prices(compared, table)
    return EXIT_OK if all(row.agrees for row in compared) else EXIT_FAILED


def _site_of_cloud(site: Site, name: str) -> Site | None:
    """The site as if the named cloud were its only one. Prints what is wrong and returns None if it has none."""
    parts = {str(cloud): part for cloud, part in site.by_cloud.items()}
    if not name and len(parts) == 1:
        return next(iter(parts.values()))
    if name not in parts:
        print(f"{site.path}: give --cloud NAME, with one of {', '.join(parts)}", file=sys.stderr)
    return parts.get(name)


def _bundled_prices(site: Site) -> PriceTable:
    from nodemanager.config.price_list import read_bundled_table

    sizes = {size.size: size.memory_bytes for it in site.node_types for size in it.by_size()}
    return read_bundled_table(str(site.cloud.provider), sizes)


def _compare_prices(site: Site, table: PriceTable, named: Sequence[str] = ()) -> Sequence[PriceComparison]:
    """``named``: the regions to look in; if there are none, those of each node type."""
    from nodemanager.cli.prices import compare_prices
    from nodemanager.config.sizes import regions_of

    return compare_prices(site.node_types, table, lambda it: named or regions_of(site.cloud, it.zones))


def _print_prices(compared: Sequence[PriceComparison], table: PriceTable) -> None:
    from rich import box
    from rich.table import Table

    from nodemanager.cli.terminal import make_console

    regions = list(dict.fromkeys(row.region for row in compared))
    shown = Table(box=box.SIMPLE_HEAD)
    # On a narrow terminal too, names to look up and figures must not be wrapped.
    for title in ("node type", "size", *(["region"] if len(regions) > 1 else []), "market", "site", "list", ""):
        shown.add_column(title, no_wrap=title not in {"node type", ""}, overflow="fold")
    for row in compared:
        listed = "-" if row.table_price_per_hour is None else f"{round(row.table_price_per_hour, 5).normalize():f}"
        where = [row.region] if len(regions) > 1 else []
        prices = f"{row.price_per_hour}", listed, str(row.match)
        shown.add_row(row.node_type, row.size, *where, str(row.market), *prices)
    make_console().print(shown)
    date = f"of {table.updated}" if table.updated else "without a date"
    place = f"region {regions[0] or '(none)'}" if len(regions) == 1 else f"regions {', '.join(regions)}"
    currency = f" in {table.currency}," if table.currency else ""
    print(f"Prices per hour, on demand. The price list is {table.source} {date},{currency} {place}.")
    print("The service decides only by the site's prices.")


def _print_now(line: str) -> None:
    print(line, flush=True)


def _init_existing(site: Site, folder: Path) -> int:
    from nodemanager.flux.setup.bootstrap import BootstrapError, ensure_uuid
    from nodemanager.flux.setup.existing import propose, write_frobnicator

    try:
        proposal = propose(site, folder.absolute())
        cluster_uuid = ensure_uuid(site)
        if site.delegates:
            write_frobnicator(site)
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"# Cluster {site.cluster}, {cluster_uuid}.")
    print(proposal, end="")
    return EXIT_OK


def slots(site: Site, chosen: argparse.Namespace) -> int:
    """Show how many slots each node type has, or change that while jobs run."""
    from nodemanager.cli import slots as slot_verbs
    from nodemanager.core.ports import FluxError
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service import service

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
            print(moved or "Nothing to change.")
        print(slot_verbs.HEADER, *instance.rows(), sep="\n")
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except service.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except (slot_verbs.SlotsError, FluxError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def resize(site: Site, chosen: argparse.Namespace) -> int:
    """Give the instance more slots. Rank 0 restarts once."""
    from nodemanager.cli import resize as resize_verb
    from nodemanager.cli import slots as slot_verbs
    from nodemanager.flux.bindings import BindingsMissing

    try:
        counts = slot_verbs.parse_counts(chosen.slots)
        resizing = resize_verb.plan_resize(site, counts)
        print(resizing, flush=True)
        say = partial(print, flush=True)
        resize_verb.resize(site, resizing, say, force=chosen.force, restarted=chosen.i_restart_it)
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except (slot_verbs.SlotsError, resize_verb.ResizeError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print("The instance has its new slots.")
    return EXIT_OK


def expand(site: Site, chosen: argparse.Namespace) -> int:
    """Add nodes of the outer Flux to an instance that runs there as a job."""
    from nodemanager.core.ports import FluxError
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.flux.setup import expand as expand_verb
    from nodemanager.flux.setup.bootstrap import BootstrapError
    from nodemanager.service import service

    try:
        site = service.with_cluster_uuid(site)
        job, slots_taken = expand_verb.expand(site, chosen.job, chosen.nodes, service.SystemClock())
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    except service.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except (expand_verb.ExpandError, FluxError, BootstrapError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"Job {job} provides {', '.join(slots_taken)}. To remove them, run flux cancel {job}.")
    return EXIT_OK


def _print_warnings(site: Site) -> None:
    from nodemanager.cloud.providers import provider_warnings
    from nodemanager.flux.setup.bootstrap import guest_warnings

    for warning in (*site_warnings(site), *provider_warnings(site), *guest_warnings(site)):
        print(f"{site.path}: warning: {warning}", file=sys.stderr)


def plan(client: Client, site: Site, chosen: argparse.Namespace, console: Console) -> None:
    """Show what would be ordered now with the site that --config names. Nothing is ordered."""
    from nodemanager.service import service

    service_verbs.plan(client, service.with_cluster_uuid(site), chosen, console, policy_of=service.policy_of)


def top(site: Site, chosen: argparse.Namespace) -> int:
    """Show nodes, waiting jobs and events live, with keys to explain, hold, retire and pause."""
    from nodemanager.cli.top.command import NoTerminal, run_top

    try:
        run_top(make_client(site))
    except NoTerminal as error:
        chosen.usage_error(str(error))
    except ServiceUnreachable as error:
        return service_verbs.print_error(error, EXIT_UNAVAILABLE, as_json=False)
    return EXIT_OK


def chaos(site: Site | None, chosen: argparse.Namespace) -> int:
    """Run the service among simulated faults, once per seed, and report broken rules."""
    from nodemanager.chaos import command as chaos_verb

    del site
    return chaos_verb.chaos(chosen)


def ensemble(site: Site | None, chosen: argparse.Namespace) -> int:
    """Run jobs by the rules of an ensemble.yaml, on any Flux instance of your own."""
    from nodemanager.cli.ensemble import command

    del site
    return command.ensemble(chosen)


def data_safe(site: Site | None, chosen: argparse.Namespace) -> int:
    """Say that the data of a job was copied off its nodes, from housekeeping or an epilog."""
    from nodemanager.cli.in_job import command

    del site
    return command.data_safe(chosen)


def release_idle(site: Site | None, chosen: argparse.Namespace) -> int:
    """Give idle nodes of a batch job's own instance back before the job ends."""
    from nodemanager.cli.in_job import command

    del site
    return command.release_idle(chosen)


def simulate(site: Site, chosen: argparse.Namespace) -> int:
    """Replay a workload under the site's policy and report cost and waiting times."""
    from nodemanager.whatif import command

    try:
        return command.simulate(site, chosen)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def suggest(site: Site, chosen: argparse.Namespace) -> int:
    """Replay the site's own jobs with other settings and print the three that would have saved most."""
    from nodemanager.whatif import suggest as suggest_verb

    try:
        return suggest_verb.suggest(site, chosen)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


VERBS: Mapping[str, Callable[[Site, argparse.Namespace], int]] = {
    "run": run,
    "check": check,
    "init": init,
    "start-command": start_command,
    "cloud-test": cloud_test,
    "prices": prices,
    "join-service": join_service,
    "rotate-cert": rotate_cert,
    "simulate": simulate,
    "suggest": suggest,
    "chaos": chaos,
    "ensemble": ensemble,
    "data-safe": data_safe,
    "release-idle": release_idle,
    "slots": slots,
    "resize": resize,
    "expand": expand,
    "status": service_verbs.with_exit_status(service_verbs.status),
    "top": top,
    "nodes": service_verbs.with_exit_status(service_verbs.nodes),
    "jobs": service_verbs.with_exit_status(service_verbs.jobs),
    "peers": service_verbs.with_exit_status(service_verbs.peers),
    "explain": service_verbs.with_exit_status(service_verbs.explain),
    "plan": service_verbs.with_exit_status(plan),
    "events": service_verbs.with_exit_status(service_verbs.events),
    "report": service_verbs.with_exit_status(service_verbs.report),
    "hold": service_verbs.with_exit_status(service_verbs.hold),
    "release": service_verbs.with_exit_status(service_verbs.release),
    "retire": service_verbs.with_exit_status(service_verbs.retire),
    "pause": service_verbs.with_exit_status(service_verbs.pause),
    "resume": service_verbs.with_exit_status(service_verbs.resume),
    "reload": service_verbs.with_exit_status(service_verbs.reload),
}
WITHOUT_SITE: Mapping[str, Callable[[None, argparse.Namespace], int]] = {
    "chaos": chaos,
    "ensemble": ensemble,
    "data-safe": data_safe,
    "release-idle": release_idle,
}
names = service_verbs.with_exit_status(service_verbs.names)
SERVING = frozenset({"run", "join-service"})  # they print nothing
WITHOUT_CREDENTIALS = frozenset({"join-service", "rotate-cert", "simulate", "start-command", "suggest"})

ROTATED_TEXT = """\
Replaced: {certificate}. Running brokers keep the old certificate until they end.
Now restart rank 0 at a time when running jobs may end. A clean shutdown keeps the queue.
Nodes that joined through the join service fetch the new certificate before they restart their brokers. A node that
boots before rank 0 is back waits, and then joins by itself."""


def make_parser(given: Sequence[str] | None = None) -> Parser:
    """Make the parser of the command line. ``given``: its words; None for the options of all verbs."""
    parser = Parser(
        prog=PROGRAM,
        description="Provide cloud nodes for a Flux instance: buy them when jobs need them, and terminate them "
        "when they are no longer worth their price. Without a verb, run the service.",
        epilog="exit status: 0 success; 1 failure; 2 usage error; 69 no matching Flux bindings, or no service; "
        "70 a bug; 77 the token is required; 78 a fault in the site; 130 interrupted; 141 output closed; "
        "143 ended by SIGTERM",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version(PROGRAM)}")
    parser.add_argument(
        "--config",
        metavar="SITE.INI",
        help="the site file, which the verbs need that work on a site",
    )
    add_verbs(parser, {name: verb.__doc__ or "" for name, verb in VERBS.items()}, given)
    return parser


if __name__ == "__main__":
    sys.exit(main())
