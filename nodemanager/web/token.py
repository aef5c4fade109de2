"""The token of those who steer: a secret in a file that only its owner can read, made where it is missing."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path


class TokenError(Exception):
    """The token cannot be had; says why, and what to do."""


def read_or_make_token(path: Path) -> str:
    """Read the token, or make one. Raises ``TokenError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Never a moment readable by others, and never over one that another process has just made.
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
    """Raises ``TokenError``, also where others may read it."""
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024).strip()
    except FileNotFoundError as error:
        raise TokenError(f"{path}: there is no token: does the service run, by this site?") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{path}: the token cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise TokenError(f"{path}: others may read the token: chmod 600 {path}, and have it made anew if they did")
    if not text:
        raise TokenError(f"{path}: the file is empty: remove it, and it is made anew at the next start")
    return text
