"""What a study is written to: whether it can be is found out before the runs, not after hours of them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class OutputError(Exception):
    """Something cannot be written, or not there; the text says what, where and why."""


class OutputClosed(OutputError):
    """Nobody reads on, as after ``| head``: it is no fault of anyone's."""


@contextmanager
def open_output(option: str, given: str | None) -> Iterator[int | None]:
    """The file of an option, open to be written; None where none is given. It holds what it held, until then.

    One that was not there, and that nothing came into, is gone in the end. Raises :class:`OutputError`.
    """
    if given is None:
        yield None
        return
    path = Path(given)
    was_there = os.path.lexists(path)
    try:
        # A pipe's reader is to find an end only when the study has one: it stays open all the while.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        raise OutputError(f"{option} {given}: cannot be written: {_why(error)}") from error
    try:
        yield number
    finally:
        if not was_there and not os.fstat(number).st_size:
            path.unlink(missing_ok=True)
        os.close(number)


def check_apart(outputs: Mapping[str, int | None], inputs: Mapping[str, Path]) -> None:
    """Raises :class:`OutputError` where one file is to be written twice, or is read too."""
    taken: dict[tuple[int, int], str] = {}
    for what, path in inputs.items():
        try:
            found = path.stat()
        except (OSError, ValueError):
            continue  # no file: whoever reads it says so
        taken[found.st_dev, found.st_ino] = f"{what} ({path})"
    for option, number in outputs.items():
        if number is None or not stat.S_ISREG((found := os.fstat(number)).st_mode):
            continue
        other = taken.setdefault((found.st_dev, found.st_ino), option)
        if other != option:
            raise OutputError(f"{option}: the same file as {other}, which would be lost: give another one")


def write(option: str, number: int, text: str) -> None:
    """Put a text into an open file, in place of what was there. Raises :class:`OutputError`."""
    left = memoryview(text.encode())
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            os.ftruncate(number, 0)
        while left:
            left = left[os.write(number, left) :]
    except OSError as error:
        raise OutputError(f"{option}: not all of it could be written: {_why(error)}") from error


def check_standard_output() -> None:
    """Raises :class:`OutputError` where there is none."""
    if sys.stdout is None:
        raise OutputError("standard output is closed: there is nowhere to say what the study shows")


@contextmanager
def flushed_output(file: TextIO) -> Iterator[None]:
    """What is printed there goes out, all of it.

    Raises :class:`OutputError`, and :class:`OutputClosed` where nobody reads on.
    """
    try:
        yield
        file.flush()
    except BrokenPipeError as error:
        _discard(file)
        raise OutputClosed("standard output: nobody reads on") from error
    except OSError as error:
        _discard(file)
        raise OutputError(f"standard output: not all of it could be written: {_why(error)}") from error


def _discard(file: TextIO) -> None:
    """What is still held goes nowhere: Python would try again as it ends, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
