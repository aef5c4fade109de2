"""What others wrote, on a terminal: as it stands, and with no power over it."""

from __future__ import annotations

import errno
from typing import Any

from rich.console import Console

from nodemanager.core.notation import escape_unprintable


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process here, with a status of its own."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads on")


def make_console(**how: Any) -> Console:
    """A console to which a text is a text. ``how``: as ``rich.console.Console`` takes it.

    Reasons of drains, messages of providers, and what nodes report hold brackets that are no markup.
    """
    return _Terminal(markup=False, emoji=False, highlight=False, **how)


def escape_document(document: Any) -> Any:
    """A JSON document in which nothing steers a terminal: control characters stand as escapes."""
    match document:
        case str():
            return escape_unprintable(document)
        case list():
            return [escape_document(it) for it in document]
        case dict():
            return {escape_document(name): escape_document(value) for name, value in document.items()}
        case _:
            return document
