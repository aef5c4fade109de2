"""The command line: one verb a function."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from nodemanager import app, logs
from nodemanager import resize as resize_verb
from nodemanager import slots as slot_verbs
from nodemanager.config import ConfigError, Site, load_site, warnings
from nodemanager.flux import expand as expand_verb
from nodemanager.flux.bindings import BindingsMissing
from nodemanager.flux.bootstrap import BootstrapError, keep_uuid, write_bootstrap
from nodemanager.flux.existing import propose
from nodemanager.ports import FluxError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # as argparse has it
EXIT_UNAVAILABLE = 69  # this and the next by sysexits.h
EXIT_CONFIG = 78


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; give the exit status."""
    chosen = _parser().parse_args(arguments)
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
        outside = app.outside_of(site)
    except app.NotInitialised as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except BindingsMissing as error:
        print(error, file=sys.stderr)
        return EXIT_UNAVAILABLE
    return app.serve(site, outside)


def check(site: Site, chosen: argparse.Namespace) -> int:
    """Read the site and say what is wrong with it, or in doubt."""
    del chosen
    _warn(site)
    slots = sum(len(node_type.slots) for node_type in site.node_types)
    print(f"{site.path}: good; {len(site.node_types)} node types, {slots} slots, mode {site.mode}")
    return EXIT_OK


def init(site: Site, chosen: argparse.Namespace) -> int:
    """Write what a stock Flux needs to be elastic, or say what to add to one that is there."""
    if chosen.existing is not None:
        return _init_existing(site, Path(chosen.existing))
    if chosen.output is None:
        print("init needs --output DIR, where the bootstrap is to be written", file=sys.stderr)
        return EXIT_USAGE
    _warn(site)
    try:
        written = write_bootstrap(site, Path(chosen.output), nested=chosen.nested)
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(written)
    return EXIT_OK


def _init_existing(site: Site, folder: Path) -> int:
    try:
        proposal = propose(site, folder.absolute())
        cluster_uuid = keep_uuid(site)
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"# Cluster {site.cluster}, {cluster_uuid}.")
    print(proposal, end="")
    return EXIT_OK


def slots(site: Site, chosen: argparse.Namespace) -> int:
    """Show how the slots are divided among the node types, or divide them otherwise while jobs run."""
    if site.flux.simulated:
        print(f"{site.path}: [Flux] uri = simulated: there is no instance to ask", file=sys.stderr)
        return EXIT_FAILED
    try:
        instance = slot_verbs.Instance(site)
        if chosen.slots:
            answer = instance.change(slot_verbs.counts_of(chosen.slots))
            if answer.why:
                print(f"Nothing was changed: {answer.why}", file=sys.stderr)
                return EXIT_FAILED
            moved = ", ".join(f"{slot} is of type {name} now" for slot, name in answer.moves.items())
            print(moved or "It is so already.")
        print(slot_verbs.HEAD, *instance.rows(), sep="\n")
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
    try:
        counts = slot_verbs.counts_of(chosen.slots or ())
        if not counts:
            print("resize needs --slots TYPE=N: a node type, and how many slots it is to have", file=sys.stderr)
            return EXIT_USAGE
        resizing = resize_verb.prepare(site, counts)
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
    if not chosen.job or not chosen.nodes:
        print("expand needs JOBID and -N COUNT: the job that the instance is, and how many nodes", file=sys.stderr)
        return EXIT_USAGE
    try:
        site = app.identified(site)
        job, slots_taken = expand_verb.expand(site, chosen.job, chosen.nodes, app.SystemClock())
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


def _warn(site: Site) -> None:
    for warning in warnings(site):
        print(f"{site.path}: warning: {warning}", file=sys.stderr)


VERBS: Mapping[str, Callable[[Site, argparse.Namespace], int]] = {
    "run": run,
    "check": check,
    "init": init,
    "slots": slots,
    "resize": resize,
    "expand": expand,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flux-node-manager",
        description="Cloud nodes for a Flux instance: they come when jobs need them and leave when they stop "
        "being worth their price.",
        epilog="exit status: 0 done; 1 not done; 2 wrong use; 69 no Flux bindings; 70 a bug; "
        "78 a fault in the site",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('flux-node-manager')}")
    parser.add_argument(
        "verb",
        nargs="?",
        choices=VERBS,
        default="run",
        help="; ".join(f"{name}: {verb.__doc__}" for name, verb in VERBS.items()),
    )
    parser.add_argument("job", nargs="?", metavar="JOBID", help="for expand: the job that the instance runs as")
    parser.add_argument("--config", required=True, metavar="SITE.INI", help="the site's settings")
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
