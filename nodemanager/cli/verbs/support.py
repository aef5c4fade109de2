"""The verb ``support-bundle``: what somebody who helps needs, in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_OK
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.verbs.service_call import print_error


def _support_bundle(parser: Parser) -> None:
    parser.add_argument("--output", metavar="FILE", help="the file to write (default: named after the time, here)")
    parser.add_argument("--log", metavar="FILE", help="the service's log (default: systemd's journal of its unit)")


def support_bundle(site_file: Path, chosen: argparse.Namespace) -> int:
    """Write one file for whoever helps you: site, check, status, decisions, log, versions. It has no secrets."""
    from nodemanager.cli.support import BundleError, write_bundle

    output = Path(chosen.output) if chosen.output else None
    try:
        written = write_bundle(site_file, output, Path(chosen.log) if chosen.log else None)
    except BundleError as error:
        return print_error(error, EXIT_FAILED, as_json=False)
    print(f"Written: {written}. Look through it before you send it: it names hosts, users and jobs.")
    return EXIT_OK


SUPPORT_BUNDLE = Verb(
    name="support-bundle",
    act=support_bundle,
    add_options=_support_bundle,
    example="--log /var/log/flux-node-manager.log",
    takes_file=True,
)
