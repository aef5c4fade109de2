"""The verbs that change how many nodes an instance can have: ``slots``, ``resize`` and ``expand``."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_OK
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb, positive
from nodemanager.cli.verbs.failures import report_failure
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
    except (BindingsMissing, NotInitialised, slot_verbs.SlotsError, FluxError) as error:
        return report_failure(error)
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


SLOTS = Verb(name="slots", act=slots, add_options=_slots, example="--slots large=8 gpu=2")
RESIZE = Verb(name="resize", act=resize, add_options=_resize, example="--slots large=64")
EXPAND = Verb(name="expand", act=expand, add_options=_expand, example="f23Abc -N 2")
