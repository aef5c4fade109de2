"""The verbs that change how many nodes an instance can have: ``slots``, ``resize`` and ``expand``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from nodemanager.cli import listing
from nodemanager.cli.listing import Listing
from nodemanager.cli.parsing.exit_status import EXIT_OK
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb, positive
from nodemanager.cli.terminal import make_console
from nodemanager.cli.verbs.failures import report_failure
from nodemanager.cli.verbs.service_call import print_listing

if TYPE_CHECKING:
    from nodemanager.config.site import Site


def _slots(parser: Parser) -> None:
    parser.add_argument("--slots", nargs="+", metavar="TYPE=N", help="give each node type this number of slots")


def slots(site: Site, chosen: argparse.Namespace) -> int:
    """Show how many slots each node type has, or change that while jobs run."""
    from nodemanager.cli import slots as slot_verbs
    from nodemanager.core.ports import FluxError
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service.assembly.cluster import NotInitialised

    if site.flux.simulated:
        problem = f"{site.path}: [Flux] uri = simulated: there is no instance to ask"
        return report_failure(slot_verbs.SlotsError(problem), as_json=chosen.json)
    try:
        instance = slot_verbs.SlotsClient(site)
        if chosen.slots:
            answer = instance.change(slot_verbs.parse_counts(chosen.slots))
            if answer.why:
                return report_failure(
                    slot_verbs.SlotsError(f"Nothing was changed: {answer.why}"), as_json=chosen.json
                )
            moved = ", ".join(f"{slot} is of type {name} now" for slot, name in answer.moves.items())
            if not chosen.json:
                print(moved or "Nothing to change.")
        rows = instance.rows()
        if chosen.json:
            print(json.dumps({"types": [asdict(row) for row in rows]}, indent=2))
        else:
            console = make_console(soft_wrap=not sys.stdout.isatty())
            print_listing(Listing(listing.SLOTS, [row.cells for row in rows]), chosen, console)
    except (BindingsMissing, NotInitialised, slot_verbs.SlotsError, FluxError) as error:
        return report_failure(error, as_json=chosen.json)
    return EXIT_OK


def _resize(parser: Parser) -> None:
    parser.add_argument(
        "--slots", nargs="+", required=True, metavar="TYPE=N", help="the new number of slots of each node type"
    )
    parser.add_argument("--force", action="store_true", help="resize even if jobs run; they are lost")
    parser.add_argument(
        "--i-restart-it", action="store_true", help="you or your supervisor start rank 0 when it ends"
    )


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
    except (BindingsMissing, slot_verbs.SlotsError, resize_verb.ResizeError) as error:
        return report_failure(error)
    print("The instance has its new slots.")
    return EXIT_OK


def _expand(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOBID", help="the outer job that runs the instance")
    parser.add_argument(
        "-N", dest="nodes", type=positive, required=True, metavar="COUNT", help="the number of nodes to add"
    )


def expand(site: Site, chosen: argparse.Namespace) -> int:
    """Add nodes of the outer Flux to an instance that runs there as a job."""
    from nodemanager.core.ports import FluxError
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.flux.setup import expand as expand_verb
    from nodemanager.flux.setup.bootstrap import BootstrapError
    from nodemanager.service.assembly.cluster import NotInitialised, with_cluster_uuid
    from nodemanager.service.assembly.ports import SystemClock

    try:
        site = with_cluster_uuid(site)
        job, slots_taken = expand_verb.expand(site, chosen.job, chosen.nodes, SystemClock())
    except (BindingsMissing, NotInitialised, expand_verb.ExpandError, FluxError, BootstrapError) as error:
        return report_failure(error)
    print(f"Job {job} provides {', '.join(slots_taken)}. To remove them, run flux cancel {job}.")
    return EXIT_OK


SLOTS = Verb(
    name="slots",
    act=slots,
    add_options=_slots,
    example="--slots large=8 gpu=2",
    prints_json=True,
    columns=listing.SLOTS,
)
RESIZE = Verb(name="resize", act=resize, add_options=_resize, example="--slots large=64")
EXPAND = Verb(name="expand", act=expand, add_options=_expand, example="f23Abc -N 2")
