"""What the verbs have in common that ask or steer the running service: errors and output."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nodemanager.cli.listing import Listing
from nodemanager.cli.parsing.exit_status import (
    EXIT_FAILED,
    EXIT_NO_PERMISSION,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from nodemanager.cli.terminal import escape_document, make_console, shows_unicode_ids, with_unicode_ids
from nodemanager.core.notation import NotationError, escape_unprintable, parse_fsd

if TYPE_CHECKING:  # only what shows something on a terminal loads Rich: the service does without its 4 MB
    from rich.console import Console, RenderableType

    from nodemanager.cli.service_client import Client, NotAllowed
    from nodemanager.config.site import Site

    ServiceVerb = Callable[[Client, Site, Namespace, Console], None]


def not_for_guests(why: str) -> NotAllowed:
    """Say what a user has who may not ask the service itself."""
    from nodemanager.cli.service_client import NotAllowed

    return NotAllowed(
        f"{why}. Only the owner of the Flux instance may ask the service. What every user has:\n"
        "  why your jobs wait:   flux jobs -o '{id.f58:>12} {user.nodes}'\n"
        '  one job in full:      flux python -c \'import flux; print(flux.Flux().rpc("node-manager-info.explain",'
        ' {"id": "JOBID"}).get())\'\n'
        "  how the fleet is:     flux python -c 'import flux;"
        ' print(flux.Flux().rpc("node-manager-info.status").get())\''
    )


class UsageError(Exception):
    """The command line is incomplete or wrong. The message shows the correct form."""


def with_exit_status(ask: ServiceVerb) -> Callable[[Site, Namespace], int]:
    """Wrap a verb for the command line: errors go to standard error and become an exit status."""

    def verb(site: Site, chosen: Namespace) -> int:
        from nodemanager.cli.service_client import (
            NotAllowed,
            NotTheOwner,
            RequestDeclined,
            ServiceUnreachable,
            make_client,
        )

        try:
            ask(make_client(site), site, chosen, make_console(soft_wrap=not sys.stdout.isatty()))
        except UsageError as error:
            return print_error(error, EXIT_USAGE, as_json=chosen.json)
        except RequestDeclined as error:
            return print_error(error, EXIT_FAILED, as_json=chosen.json)
        except ServiceUnreachable as error:
            return print_error(error, EXIT_UNAVAILABLE, as_json=chosen.json)
        except NotTheOwner as error:
            return print_error(not_for_guests(str(error)), EXIT_NO_PERMISSION, as_json=chosen.json)
        except NotAllowed as error:
            return print_error(error, EXIT_NO_PERMISSION, as_json=chosen.json)
        return EXIT_OK

    verb.__doc__ = ask.__doc__
    return verb


def print_error(error: Exception, status: int, *, as_json: bool) -> int:
    """Print an error on standard error, as text or as one line of JSON. Returns the exit status."""
    if as_json:
        print(json.dumps({"error": str(error), "exit_status": status}), file=sys.stderr)
        return status
    # The text may be the service's, in several lines, and contain anything.
    print(*(escape_unprintable(line) for line in str(error).split("\n")), sep="\n", file=sys.stderr)
    return status


def show(document: Any, chosen: Namespace, console: Console, shown: Callable[[Any], RenderableType]) -> None:
    """Print a document as JSON, or as ``shown`` makes it for the terminal."""
    if chosen.json:
        print(json.dumps(document, indent=2))
        return
    made = shown(readable(document))
    if isinstance(made, Listing):
        print_listing(made, chosen, console)
    else:
        console.print(made)


def print_listing(made: Listing, chosen: Namespace, console: Console) -> None:
    """Print a list as a table, or as ``-o`` and ``--no-headers`` say; then notes go to standard error."""
    if not (chosen.format or chosen.no_headers):
        console.print(made)
        return
    if chosen.format:
        lines = made.lines(chosen.format, headers=not chosen.no_headers)
        print(*lines, sep="\n", end="\n" if made.rows or not chosen.no_headers else "")
    elif made.rows:
        console.print(made.table(headers=False))
    for note in (*made.above, *made.notes):
        print(note, file=sys.stderr)


def readable(document: Any) -> Any:
    """Return a document as the terminal may show it."""
    document = escape_document(document)
    return with_unicode_ids(document) if shows_unicode_ids() else document


def parse_moment(text: str, option: str, moved_by: Callable[[float], float]) -> float:
    """Parse a time: ISO 8601 (local time by default), seconds since the epoch, or a span such as "2h" from now.

    Returns seconds since the epoch. ``moved_by`` gives the moment that lies a span in seconds from now. It is
    called only if needed. Raises ``UsageError``.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number > 1e8:
        return number
    try:
        span_s = parse_fsd(text)
    except NotationError as error:
        raise UsageError(f'{option}: "2026-11-21T14:00" or "2h" is needed, not "{text}"') from error
    return moved_by(span_s)
