"""Tickets and lease keys: HMAC-SHA256 (RFC 2104) under the site's key.

Both are computed, never stored: the same launch has the same ticket for ever, so its user-data is the same at every
try of its create. That a ticket works once is for the ledger to remember.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from nodemanager.core.nodes import LaunchId

KEY_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyUnusableError(Exception):
    """The site's key is not there, not a key, or not secret; the text says what to do."""


class SiteKey:
    """The secret that all tickets of a site are made with. It shows itself nowhere."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "SiteKey(...)"

    def ticket(self, launch: LaunchId) -> str:
        """What the user-data of a launch carries, as 64 hexadecimal digits."""
        return self._mac("ticket", launch)

    def lease_key(self, launch: LaunchId, nonce_hash: str) -> str:
        """What the node that redeemed the ticket shows from then on. Another nonce would have another one."""
        return self._mac("lease", launch, nonce_hash)

    def _mac(self, *parts: str) -> str:
        # NUL stands in none of them, so no two lists of parts make the same message.
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def equal_secrets(one: str, other: str) -> bool:
    """Compare two secrets without telling by the time it takes how far they agree."""
    return hmac.compare_digest(one.encode(), other.encode())


def hash_nonce(nonce: str) -> str:
    """All that is kept of a client's nonce."""
    return hashlib.sha256(nonce.encode()).hexdigest()


def make_site_key(path: Path) -> None:
    """Write a new key, readable for its owner only. Raises ``FileExistsError``: a key is never overwritten."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")


def is_open_to_others(status: os.stat_result) -> bool:
    """Whether anybody but its owner may read or write a file that holds a secret."""
    return bool(status.st_mode & _OTHERS)


def read_site_key(path: Path) -> SiteKey:
    """Raises :class:`KeyUnusableError`."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            if is_open_to_others(os.fstat(file.fileno())):
                raise KeyUnusableError(f"others may read {path}: chmod 600 {path}")
            text = file.read(2 * KEY_BYTES + 2).strip()
    except OSError as error:
        raise KeyUnusableError(
            f"{path} cannot be read ({error.strerror}): run flux-node-manager init with [Flux] join = service"
        ) from error
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""  # the error would show what was read
    if len(key) != KEY_BYTES:
        raise KeyUnusableError(f"{path} must hold {2 * KEY_BYTES} hexadecimal digits, as init wrote them")
    return SiteKey(key)
