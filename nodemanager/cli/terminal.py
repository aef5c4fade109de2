"""What others wrote, on a terminal: as it stands, and with no power over it."""

from __future__ import annotations

import errno
from typing import Any

from rich.console import Console

from nodemanager.core.notation import printable


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process here, with a status of its own."""
        raise BrokenPipeError(errno.EPIPE, "nobody reads on")


def terminal(**how: Any) -> Console:
    """A console to which a text is a text. ``how``: as ``rich.console.Console`` takes it.

    Reasons of drains, messages of providers, and what nodes report hold brackets that are no markup.
    """
    return _Terminal(markup=False, emoji=False, highlight=False, **how)


def escaped(document: Any) -> Any:
    """A JSON document in which nothing steers a terminal: control characters stand as escapes."""
    match document:
        case str():
            return printable(document)
        case list():
            return [escaped(it) for it in document]
        case dict():
            return {escaped(name): escaped(value) for name, value in document.items()}
        case _:
            return document
