"""The tokens of the web interface: the owner's, made if its file is missing, and the named ones of a team.

Each is a secret in a file that only the owner of the service can read.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nodemanager.config.text.settings import NAME, NAME_ALLOWED

SECRET_LENGTH_MIN = 24  # characters; `openssl rand -hex 16` prints 32
TOKENS_SIZE_MAX = 1 << 20


class TokenError(Exception):
    """The token cannot be read or made. The message says why and what to do."""


class NoTokenFile(TokenError):
    """There is no file with the token."""


class Role(StrEnum):
    """What the bearer of a named token may do."""

    VIEW = "view"  # see everything, single jobs too
    OPERATE = "operate"  # also steer


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token of one operator."""

    name: str
    role: Role
    secret: str


def read_or_make_token(path: Path) -> str:
    """Read the token, or make one. Raises ``TokenError``."""
    try:
        return read_token(path)
    except NoTokenFile:
        pass
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TokenError(f"{path}: the token cannot be written: {error}") from error
    try:
        # Others can never read it, and a token that another process has just made is never overwritten.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise TokenError(f"{path}: the token cannot be written: {error.strerror}") from error
    made = secrets.token_urlsafe(32)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(made + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # the disk is full
        path.unlink(missing_ok=True)
        raise TokenError(f"{path}: the token cannot be written: {error.strerror}") from error
    return made


def read_token(path: Path) -> str:
    """Read the token. Raises ``TokenError``, also if other users may read the file."""
    try:
        text, is_private = _read(path, 1024)
    except FileNotFoundError as error:
        raise NoTokenFile(f"{path}: no token found: is the service running with this site?") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{path}: the token cannot be read: {error}") from error
    if not is_private:
        raise TokenError(
            f"{path}: other users may read the token: chmod 600 {path}; if it was read, remove it, and the service"
            " makes a new one"
        )
    text = text.strip()
    if not text:
        raise TokenError(f"{path}: the file is empty: remove it, and the service makes a new token")
    return text


def _read(path: Path, size_max: int) -> tuple[str, bool]:
    """Read a file's text, and whether only its owner may read it."""
    with path.open(encoding="ascii") as file:
        return file.read(size_max), not stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077


# --- the named tokens -------------------------------------------------------------------------------------


def read_named_tokens(path: Path) -> tuple[NamedToken, ...]:
    """Read a team's tokens: one ``NAME ROLE TOKEN`` a line; ``#`` begins a comment.

    Raises ``TokenError``, which names every fault, and never a secret.
    """
    try:
        text, is_private = _read(path, TOKENS_SIZE_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{path}: the tokens cannot be read: {error}") from error
    faults = [] if is_private else [f"{path}: other users may read the tokens: chmod 600 {path}, and replace them"]
    tokens: list[NamedToken] = []
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            if fault := next(_line_faults(words, tokens), None):
                faults.append(f"{path}, line {number}: {fault}")
            else:
                tokens.append(NamedToken(words[0], Role(words[1]), words[2]))
    if faults:
        raise TokenError("\n".join(faults))
    return tuple(tokens)


def _line_faults(words: list[str], earlier: Iterable[NamedToken]) -> Iterator[str]:
    if len(words) != 3:
        yield f"NAME ROLE TOKEN is needed, not {len(words)} words"
        return
    name, role, secret = words
    if not NAME.fullmatch(name):
        yield f"a name is {NAME_ALLOWED}"
    if role not in set(Role):
        yield f"the role is {' or '.join(Role)}, not {role!r}"
    if len(secret) < SECRET_LENGTH_MIN:
        yield f"a token has at least {SECRET_LENGTH_MIN} characters, for example of: openssl rand -hex 16"
    for it in earlier:
        if it.name == name:
            yield f"{name} has a token already"
        if secrets.compare_digest(it.secret, secret):
            yield f"{it.name} has the same token"
