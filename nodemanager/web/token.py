"""The operator's token: a secret in a file that only its owner can read. It is made if the file is missing."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path


class TokenError(Exception):
    """The token cannot be read or made. The message says why and what to do."""


def read_or_make_token(path: Path) -> str:
    """Read the token, or make one. Raises ``TokenError``."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Others can never read it, and a token that another process has just made is never overwritten.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise TokenError(f"{path}: the token cannot be written: {error.strerror}") from error
    made = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(made + "\n")
    return made


def read_token(path: Path) -> str:
    """Read the token. Raises ``TokenError``, also if other users may read the file."""
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024).strip()
    except FileNotFoundError as error:
        raise TokenError(f"{path}: no token found: is the service running with this site?") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{path}: the token cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise TokenError(
            f"{path}: other users may read the token: chmod 600 {path}; if it was read, remove it and restart"
        )
    if not text:
        raise TokenError(f"{path}: the file is empty: remove it, and the next start makes a new token")
    return text
