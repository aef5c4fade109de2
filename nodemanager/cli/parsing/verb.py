"""A verb of the command line: what it does, its options and its example."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from nodemanager.cli.listing import Column, read_format
from nodemanager.cli.parsing.parser import Parser

PROGRAM = "flux-node-manager"
SITE = "--config site.ini"

AddOptions = Callable[[Parser], None]


def _no_options(parser: Parser) -> None:
    del parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb. ``example``: the command line after it, without ``--config``.

    ``act`` takes the site, or its file if ``takes_file``, and the parsed command line; without ``has_site`` only
    the latter. It returns the exit status.
    Its docstring is the verb's help.
    """

    name: str
    act: Callable[..., int]
    add_options: AddOptions = _no_options
    example: str = ""
    prints_json: bool = False
    columns: Sequence[Column] = ()  # of the list that it prints
    has_site: bool = True
    takes_file: bool = False  # works on a site with faults too
    with_credentials: bool = True  # the site's cloud credentials are needed
    is_service: bool = False  # prints nothing
    for_guests: bool = False  # there is another way for users who may not read the site


def add_verbs(
    parser: Parser, groups: Mapping[str, Sequence[Verb]], hidden: Verb, given: Sequence[str] | None
) -> None:
    """Add a parser for each verb, grouped by the titles of --help.

    ``hidden``: a verb for programs, which --help does not list.
    ``given``: the words of the command line; None for all. The options of a verb that is not among them are left
    out, because those of ``simulate`` take long to import.
    """
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    parser.groups = {title: [verb.name for verb in verbs] for title, verbs in groups.items()}
    # Without a help text argparse does not list it.
    unlisted = parsers.add_parser(hidden.name)
    hidden.add_options(unlisted)
    _add_config(unlisted)
    for verb in chain.from_iterable(groups.values()):
        meaning = verb.act.__doc__ or ""
        its = parsers.add_parser(verb.name, help=meaning.rstrip("."), description=meaning, epilog=_example(verb))
        if verb.has_site:
            _add_config(its)
        if verb.prints_json:
            add_json(its)
        if verb.columns:
            _add_format(its, verb.columns)
        if given is None or verb.name in given:
            verb.add_options(its)
        its.set_defaults(usage_error=its.error)
    parser.set_defaults(verb="run", json=False, format=None, no_headers=False, usage_error=parser.error)


def _add_config(parser: Parser) -> None:
    # The top parser takes it too, before the verb. Its value stays if the verb's is not given.
    parser.add_argument("--config", default=argparse.SUPPRESS, metavar="SITE.INI", help="the site file")


def add_json(parser: Parser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_format(parser: Parser, columns: Sequence[Column]) -> None:
    keys = [it.key for it in columns]
    parser.add_argument(
        "-o",
        "--format",
        metavar="FORMAT",
        type=read_format(columns),
        help="print each row in this format of Python, such as "
        f"'{{{keys[0]}:<12}} {{{keys[1]}}}'; the columns are {', '.join(keys)}",
    )
    parser.add_argument("-n", "--no-headers", action="store_true", help="print the rows only")


def _example(verb: Verb) -> str:
    site = f" {SITE}" if verb.has_site else ""
    return f"example:\n  {PROGRAM} {verb.name}{site} {verb.example}".rstrip()


def positive(text: str) -> int:
    """Parse the value of an option that counts something."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}": give a whole number of 1 or more')
    return int(text)
