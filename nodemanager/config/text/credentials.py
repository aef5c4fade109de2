"""``[Cloud Credentials]``: keys that depend on the provider, whose values are never printed.

Write a value as ``KEY = ${NAME}``, or as ``KEY_file = path`` with a file that only its owner can read. A value that
is not secret (a user name, an address) may be written in the site itself.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import SecretStr

from nodemanager.config.text.ini import Document, Fault, IniEntry, is_secret_key

SECTION = "Cloud Credentials"

_FILE = "_file"
_SIZE_MAX_BYTES = 65_536
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_credentials(document: Document, folder: Path) -> tuple[dict[str, SecretStr], tuple[Fault, ...]]:
    """Read the credentials by key, and their faults. Paths are relative to ``folder``."""
    credentials: dict[str, SecretStr] = {}
    faults: list[Fault] = []
    for entry in document.section(SECTION).entries.values():
        try:
            if entry.text is not None:
                credentials[entry.key.removesuffix(_FILE)] = SecretStr(_secret(entry, entry.text, document, folder))
        except ValueError as error:
            faults.append(document.fault(SECTION, entry.key, str(error)))
    return credentials, tuple(faults)


def _secret(entry: IniEntry, text: str, document: Document, folder: Path) -> str:
    key = entry.key.removesuffix(_FILE)
    if key == entry.key:
        return _inline_value(entry, text, document.file)
    if key in document.section(SECTION).entries:
        raise ValueError(f"give either {key} or {entry.key}, not both")
    return _value_in_file(folder / text)


def _inline_value(entry: IniEntry, text: str, file: Path) -> str:
    if not text:
        raise ValueError("a value is needed")
    is_literal = text == entry.written
    if is_literal and is_secret_key(entry.key) and file.stat().st_mode & _GROUP_AND_OTHERS:
        raise ValueError(
            f"others may read this file: write ${{NAME}} for an environment variable, "
            f"or {entry.key}{_FILE} = path, or chmod 600 {file}"
        )
    return text


def _value_in_file(path: Path) -> str:
    try:
        # Non-blocking, so that a pipe does not hold up the start. It is refused below.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} must be a regular file")
            if status.st_mode & _GROUP_AND_OTHERS:
                raise ValueError(f"others may read {path}: chmod 600 {path}")
            content = file.read(_SIZE_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _SIZE_MAX_BYTES:
        raise ValueError(f"{path} has more than {_SIZE_MAX_BYTES} bytes")
    try:
        secret = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be UTF-8 text") from None  # the error would show the bytes
    if not secret:
        raise ValueError(f"{path} is empty: write the secret into it")
    return secret
