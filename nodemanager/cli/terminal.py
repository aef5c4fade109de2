"""Prints text from others on a terminal, without markup and without control characters."""

from __future__ import annotations

import errno
from typing import Any

from rich.console import Console

from nodemanager.core.notation import escape_unprintable


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error: Rich would end the process here, with its own exit status."""
        raise BrokenPipeError(errno.EPIPE, "the output was closed")


def make_console(**how: Any) -> Console:
    """Make a console that prints text literally. ``how``: options of ``rich.console.Console``.

    Drain reasons, messages of providers and reports of nodes may have brackets that are not markup.
    """
    return _Terminal(markup=False, emoji=False, highlight=False, **how)


def escape_document(document: Any) -> Any:
    """Return a JSON document with its control characters escaped, so that it cannot control a terminal."""
    match document:
        case str():
            return escape_unprintable(document)
        case list():
            return [escape_document(it) for it in document]
        case dict():
            return {escape_document(name): escape_document(value) for name, value in document.items()}
        case _:
            return document
