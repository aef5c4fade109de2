"""The verbs that simulate: ``simulate`` and ``suggest``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from nodemanager.cli.parsing.exit_status import EXIT_INTERRUPTED
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb

if TYPE_CHECKING:
    from nodemanager.config.site import Site


def _simulate(parser: Parser) -> None:
    from nodemanager.whatif import command

    parser.add_argument("subject", metavar="WORKLOAD", help="a trace, a history or a model (doc/what-if.md)")
    command.add_options(parser)


def simulate(site: Site, chosen: argparse.Namespace) -> int:
    """Replay a workload under the site's policy and report cost and waiting times."""
    from nodemanager.whatif import command

    try:
        return command.simulate(site, chosen)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _suggest(parser: Parser) -> None:
    from nodemanager.whatif import suggest

    suggest.add_options(parser)


def suggest(site: Site, chosen: argparse.Namespace) -> int:
    """Replay the site's own jobs with other settings and print the three that would have saved most."""
    from nodemanager.whatif import suggest as suggest_verb

    try:
        return suggest_verb.suggest(site, chosen)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


SIMULATE = Verb(
    name="simulate",
    act=simulate,
    add_options=_simulate,
    example="poisson:jobs=1000 --sweep idle_timeout=60s..15m",
    prints_json=True,
    with_credentials=False,
)
SUGGEST = Verb(
    name="suggest",
    act=suggest,
    add_options=_suggest,
    example="--since 30d",
    prints_json=True,
    with_credentials=False,
)
