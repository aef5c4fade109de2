"""The command line: finds the verb, reads its site and runs it. ``VERBS`` says where each verb is.

Each verb imports what it needs only when it runs: everything together would take a second, and as much memory as
the service itself.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodemanager.cli.ensemble.verb import ENSEMBLE
from nodemanager.cli.in_job import verbs as in_job
from nodemanager.cli.parsing.exit_status import (
    EXIT_CLOSED,
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_PERMISSION,
    EXIT_OK,
    EXIT_USAGE,
)
from nodemanager.cli.parsing.parser import Parser, WrongUse
from nodemanager.cli.parsing.verb import PROGRAM, Verb, add_verbs
from nodemanager.cli.verbs import asking, check, cloud, init, joining, run, slots, steering, support, what_if
from nodemanager.cli.verbs.service_call import not_for_guests, print_error

DENIED = os.strerror(errno.EACCES)
WRITE_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

GROUPS: Mapping[str, Sequence[Verb]] = {  # as --help lists them
    "look": (
        asking.STATUS,
        asking.TOP,
        asking.NODES,
        asking.JOBS,
        asking.PEERS,
        asking.EXPLAIN,
        asking.PLAN,
        asking.EVENTS,
        asking.REPORT,
    ),
    "steer": (
        steering.HOLD,
        steering.RELEASE,
        steering.RETIRE,
        steering.PAUSE,
        steering.RESUME,
        steering.RELOAD,
        slots.SLOTS,
        slots.RESIZE,
        slots.EXPAND,
    ),
    "set up": (
        init.INIT,
        check.CHECK,
        init.START_COMMAND,
        run.RUN,
        cloud.CLOUD_TEST,
        cloud.PRICES,
        joining.JOIN_SERVICE,
        joining.ROTATE_CERT,
        support.SUPPORT_BUNDLE,
    ),
    "what if": (what_if.SIMULATE, what_if.SUGGEST),
    "in jobs": (ENSEMBLE, in_job.DATA_SAFE, in_job.RELEASE_IDLE),
}
VERBS: Mapping[str, Verb] = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}


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
    if list(given) == ["--version"]:  # without the parsers of all verbs
        _print_version()
        return EXIT_OK
    try:
        return _run_chosen(make_parser(given).parse_args(given))
    except WrongUse as error:
        status = print_error(error, EXIT_USAGE, as_json="--json" in given)
        if "--json" not in given:
            print(error.read_on, file=sys.stderr)
        return status


def _run_chosen(chosen: argparse.Namespace) -> int:
    verb = {**VERBS, asking.NAMES.name: asking.NAMES}[chosen.verb]
    if sys.stdout is None and not verb.is_service:
        print("standard output is closed", file=sys.stderr)
        return EXIT_FAILED
    if not verb.has_site:
        if chosen.config is not None:
            chosen.usage_error(f"{verb.name} takes no --config")
        return verb.act(chosen)
    if verb is init.INIT and chosen.provider is not None:
        return init.new_site(chosen)
    if chosen.config is None:
        chosen.usage_error("give the site file: --config SITE.INI")
    if verb.takes_file:
        return verb.act(Path(chosen.config), chosen)
    from nodemanager.config.load import load_site
    from nodemanager.config.site import ConfigError

    try:
        site = load_site(Path(chosen.config), with_credentials=verb.with_credentials)
    except ConfigError as error:
        if verb.for_guests and any(it.problem.endswith(DENIED) for it in error.faults):
            return print_error(not_for_guests(str(error)), EXIT_NO_PERMISSION, as_json=chosen.json)
        return print_error(error, EXIT_CONFIG, as_json=chosen.json)
    from nodemanager.core.reason_text import use_currency
    from nodemanager.flux.bindings import use_bridge

    use_bridge(site.flux.bridge)
    use_currency(site.currency)
    return verb.act(site, chosen)


class _Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        _print_version()
        parser.exit()


def _print_version() -> None:
    from importlib.metadata import version  # as long as the rest of the start

    print(PROGRAM, version(PROGRAM))


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
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    parser.add_argument(
        "--config",
        metavar="SITE.INI",
        help="the site file, which the verbs need that work on a site",
    )
    add_verbs(parser, GROUPS, asking.NAMES, given)
    return parser


if __name__ == "__main__":
    sys.exit(main())
