"""The verbs that set an instance up: ``init`` and ``start-command``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.verbs.site_warnings import print_warnings

if TYPE_CHECKING:
    from nodemanager.config.site import Site


def _init(parser: Parser) -> None:
    from nodemanager.cloud.providers import cloud_provider
    from nodemanager.config.text.providers import PROVIDERS

    parser.add_argument(
        "--output",
        metavar="PATH",
        help="write the bootstrap of a new instance to this folder; with --provider: the site file (site.ini)",
    )
    parser.add_argument(
        "--existing",
        metavar="DIR",
        help="print what to add to the instance whose configuration is in this folder",
    )
    _nested(parser)
    site = parser.add_argument_group(
        "a first site file",
        "With --provider, ask the account what it offers, or own hosts by ssh, and write a site file. Give no "
        "--config. The keys come from the environment. On a terminal, init asks for the options that are left out.",
    )
    known = map(cloud_provider, PROVIDERS)
    providers = {it.name: it.init_options for it in known if it.init_options is not None}
    site.add_argument("--provider", choices=tuple(providers), help="the account to ask, or static for own hosts")
    site.add_argument("--cluster", metavar="NAME", help="the cluster's name (default: lab)")
    site.add_argument("--region", metavar="NAME", help="the region that the nodes run in")
    site.add_argument("--image", metavar="ID", help="the nodes' image (default: the newest of the account)")
    site.add_argument("--network", metavar="ID", help="the nodes' VPC, network or subnet")
    site.add_argument("--size", nargs="+", metavar="NAME", help="a node type for each of these sizes")
    site.add_argument("--head-address", metavar="ADDRESS", help="rank 0's address (default: this machine's)")
    for options in providers.values():
        for option, described in options:
            site.add_argument(option, **described)
    site.add_argument("--endpoint", metavar="URL", help="another server with the provider's API, for tests")


def _nested(parser: Parser) -> None:
    parser.add_argument("--nested", action="store_true", help="rank 0 will be a job of an outer Flux")


def init(site: Site, chosen: argparse.Namespace) -> int:
    """Write a first site file, or the bootstrap of an elastic instance, or print what to add to an existing one."""
    from nodemanager.config.site import JoinMethod
    from nodemanager.flux.setup.bootstrap import BootstrapError, FluxTooOld, find_bootstrap, write_bootstrap
    from nodemanager.join.key_material import MaterialError, make_material

    if chosen.existing is not None:
        return _init_existing(site, Path(chosen.existing))
    if chosen.output is None:
        chosen.usage_error("give --output DIR, the folder for the bootstrap, or --existing DIR")
    print_warnings(site, by_init=True)
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


def new_site(chosen: argparse.Namespace) -> int:
    """Write a first site file from what an account offers."""
    from nodemanager.cli.new_site.command import NewSiteError, write_new_site
    from nodemanager.cloud.common.survey import Questions, Unanswered

    if chosen.config is not None or chosen.existing is not None:
        chosen.usage_error("--provider writes a new site file, so --config and --existing do not go with it")
    try:
        write_new_site(chosen, Questions.on_terminal(), os.environ, partial(print, flush=True))
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


INIT = Verb(name="init", act=init, add_options=_init, example="--output /etc/flux-cloud")
START_COMMAND = Verb(name="start-command", act=start_command, add_options=_nested, with_credentials=False)
