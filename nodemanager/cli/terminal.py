"""Prints text from others on a terminal, without markup and control characters, and job ids as Flux does."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodemanager.core.notation import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

JOB_KEYS = frozenset({"job", "jobs", "serves"})  # the fields of the service's documents that hold job ids
PIPE_COLUMNS = 10_000
_ASCII_ID = re.compile("f[1-9A-HJ-NP-Za-km-z]{1,11}", re.ASCII)


def make_console(**how: Any) -> Console:
    """Make a console that prints text literally. ``how``: options of ``rich.console.Console``.

    Drain reasons, messages of providers and reports of nodes may have brackets that are not markup. In a pipe each
    row of a table is one line, unless COLUMNS says how wide the output is.
    """
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            """Raise the error: Rich would end the process here, with its own exit status."""
            raise BrokenPipeError(errno.EPIPE, "the output was closed")

    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        how = {"width": PIPE_COLUMNS, **how}
    return Terminal(markup=False, emoji=False, highlight=False, **how)


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


def shows_unicode_ids(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to write job ids with the ƒ of RFC 19. As in Flux, the locale decides, and a variable forbids it."""
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    utf8 = all("UTF8" in name.upper().replace("-", "") for name in (locale, encoding))
    return utf8 and "FLUX_F58_FORCE_ASCII" not in environment


def with_unicode_ids(document: Any) -> Any:
    """Return a JSON document with its job ids written with ƒ, also in the sentences that name them."""
    match document:
        case list():
            return [with_unicode_ids(it) for it in document]
        case dict():
            changed = {name: _with_unicode_id(name, value) for name, value in document.items()}
            if isinstance(document.get("text"), str) and isinstance(figures := document.get("figures"), dict):
                changed["text"] = _name_jobs(document["text"], figures)
            return changed
        case _:
            return document


def _with_unicode_id(name: str, value: Any) -> Any:
    if name in JOB_KEYS and isinstance(value, str):
        return unicode_id(value)
    if name in JOB_KEYS and isinstance(value, list):
        return [unicode_id(it) if isinstance(it, str) else with_unicode_ids(it) for it in value]
    return with_unicode_ids(value)


def unicode_id(text: str) -> str:
    """Write a job id with ƒ. Any other text stays as it is."""
    return f"ƒ{text[1:]}" if _ASCII_ID.fullmatch(text) else text


def _name_jobs(text: str, figures: Mapping[str, Any]) -> str:
    """Replace the job ids that a reason's figures hold in its sentence, as whole words."""
    for name in JOB_KEYS & figures.keys():
        ids = figures[name] if isinstance(figures[name], list) else [figures[name]]
        for id_ in ids:
            if isinstance(id_, str) and _ASCII_ID.fullmatch(id_):
                text = re.sub(rf"\b{id_}\b", unicode_id(id_), text, flags=re.ASCII)
    return text
