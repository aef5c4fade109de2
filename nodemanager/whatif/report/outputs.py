"""The outputs of a study. They are checked before the runs, not after hours of them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class OutputError(Exception):
    """An output cannot be written, or not to this place. The text says what, where and why."""


class OutputClosed(OutputError):
    """The reader closed the pipe, as ``| head`` does. This is not an error of the study."""


@contextmanager
def open_output(option: str, given: str | None) -> Iterator[int | None]:
    """Open the file of an option for writing; None if the option is not given. Its old content stays until then.

    A new file is removed at the end if nothing was written to it. Raises :class:`OutputError`.
    """
    if given is None:
        yield None
        return
    path = Path(given)
    was_there = os.path.lexists(path)
    try:
        # Keep a pipe open all the time: its reader must see the end only when the study ends.
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
    """Raise :class:`OutputError` if two outputs are the same file, or an output is also an input."""
    taken: dict[tuple[int, int], str] = {}
    for what, path in inputs.items():
        try:
            found = path.stat()
        except (OSError, ValueError):
            continue  # not a file: the code that reads it reports the error
        taken[found.st_dev, found.st_ino] = f"{what} ({path})"
    for option, number in outputs.items():
        if number is None or not stat.S_ISREG((found := os.fstat(number)).st_mode):
            continue
        other = taken.setdefault((found.st_dev, found.st_ino), option)
        if other != option:
            raise OutputError(f"{option}: the same file as {other}, which would be lost: give another file")


def write(option: str, number: int, text: str) -> None:
    """Replace the content of an open file. Raises :class:`OutputError`."""
    left = memoryview(text.encode())
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            os.ftruncate(number, 0)
        while left:
            left = left[os.write(number, left) :]
    except OSError as error:
        raise OutputError(f"{option}: not all of it could be written: {_why(error)}") from error


def check_standard_output() -> None:
    """Raise :class:`OutputError` if standard output is closed."""
    if sys.stdout is None:
        raise OutputError("standard output is closed: the study has nowhere to print its results")


@contextmanager
def flushed_output(file: TextIO) -> Iterator[None]:
    """Flush everything that is printed in the block.

    Raises :class:`OutputError`, and :class:`OutputClosed` if the reader closed the pipe.
    """
    try:
        yield
        file.flush()
    except BrokenPipeError as error:
        _discard(file)
        raise OutputClosed("standard output: the reader closed it") from error
    except OSError as error:
        _discard(file)
        raise OutputError(f"standard output: not all of it could be written: {_why(error)}") from error


def _discard(file: TextIO) -> None:
    """Discard buffered output: Python would try to write it again at its exit, and print an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
