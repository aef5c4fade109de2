"""Computes tickets and lease keys: HMAC-SHA256 (RFC 2104) with the site key.

Neither is stored. A launch always has the same ticket, so a repeated create sends the same user-data. The ticket
store makes sure that a ticket works only once.
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
    """The site key is missing, invalid or readable by others. The text says what to do."""


class SiteKey:
    """The secret from which all tickets of a site are computed. Its ``repr`` hides it."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "SiteKey(...)"

    def ticket(self, launch: LaunchId) -> str:
        """Return the ticket in a launch's user-data: 64 hexadecimal digits."""
        return self._mac("ticket", launch)

    def batch_ticket(self, batch: str) -> str:
        """Return the ticket in the user-data of all nodes of a batch: 64 hexadecimal digits.

        It is good for nothing without the proof that its bearer is one of the batch's nodes.
        """
        return self._mac("batch", batch)

    def lease_key(self, launch: LaunchId, nonce_hash: str) -> str:
        """Return the key of the node that redeemed the ticket with this nonce: 64 hexadecimal digits."""
        return self._mac("lease", launch, nonce_hash)

    def _mac(self, *parts: str) -> str:
        # No part contains NUL, so different lists of parts give different messages.
        return hmac.new(self._key, "\0".join(parts).encode(), hashlib.sha256).hexdigest()


def equal_secrets(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def hash_nonce(nonce: str) -> str:
    """Return the hash of a client's nonce, the only form in which the service stores it."""
    return hashlib.sha256(nonce.encode()).hexdigest()


def make_site_key(path: Path) -> None:
    """Write a new site key, mode 0600. Raises ``FileExistsError``, because a key must never be overwritten."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")


def is_open_to_others(status: os.stat_result) -> bool:
    """Return whether anybody except the file's owner may read, write or execute it."""
    return bool(status.st_mode & _OTHERS)


def read_site_key(path: Path) -> SiteKey:
    """Read the site key. Raises :class:`KeyUnusableError`."""
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
        key = b""  # do not chain the exception: its text would show the key
    if len(key) != KEY_BYTES:
        raise KeyUnusableError(f"{path} must contain {2 * KEY_BYTES} hexadecimal digits, as init wrote them")
    return SiteKey(key)
