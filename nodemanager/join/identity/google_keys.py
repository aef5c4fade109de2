"""The public keys with which Google signs identity tokens, in a file in ``material_dir``.

Google replaces them now and then. The manager, which talks to Google anyway, fetches them (RFC 7517) and replaces
the file. The join service only reads it. If a token names a key that is not in the file, the service asks for new
ones by touching another file.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from nodemanager.core.untrusted import read_json

_LIFETIME_S = 3600.0  # if Google gives none
_LIFETIME_LEAST_S, _LIFETIME_MOST_S = 600.0, 86_400.0
_MAX_AGE = re.compile(r"\bmax-age=([0-9]{1,9})\b", re.ASCII)
_KEY_BITS_LEAST = 2048
_WANTED_AGAIN_S = 10.0

Keys = Mapping[str, rsa.RSAPublicKey]  # by the key's id


class KeysUnusable(Exception):
    """There are no keys, or they have expired. The text says why."""


class GoogleKeys:
    """The file, for the manager and for the join service."""

    def __init__(self, material_dir: Path, wall_at: Callable[[], float]) -> None:
        self._path = material_dir / "google-keys.json"
        self._wanted = material_dir / "google-keys.wanted"
        self._wall_at = wall_at
        self._stamp: tuple[int, int] | None = None
        self._keys: Keys = {}
        self._fetched_at = self._expires_at = 0.0
        self._wanted_at = -_WANTED_AGAIN_S

    # --- the manager ---

    def is_due(self) -> bool:
        """Return whether to fetch the keys: half of their lifetime is over, or the join service asked for it.

        Raises ``OSError``.
        """
        try:
            self._load()
        except KeysUnusable:
            return True
        now_at = self._wall_at()
        if not self._fetched_at <= now_at < (self._fetched_at + self._expires_at) / 2:
            return True
        try:
            return self._wanted.stat().st_mtime > self._fetched_at
        except FileNotFoundError:
            return False

    def post(self, keys: Any, cache_control: str) -> None:
        """Replace the file. ``keys``: as Google sent them. Raises ``ValueError`` if they are none, ``OSError``."""
        _read_keys(keys)
        given = _MAX_AGE.search(cache_control)
        lifetime_s = min(_LIFETIME_MOST_S, max(_LIFETIME_LEAST_S, float(given[1]) if given else _LIFETIME_S))
        now_at = self._wall_at()
        document = {
            "fetched_at": now_at,
            "expires_at": now_at + lifetime_s,
            "keys": keys["keys"],
        }
        # A draft of its own for each writer: each cloud of the site has a thread that may post. Its mode is 0600.
        descriptor, draft = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(document, file)
            Path(draft).replace(self._path)
        except BaseException:
            Path(draft).unlink()
            raise

    # --- the join service ---

    def find(self, key_id: str) -> rsa.RSAPublicKey | None:
        """Return the key with this id. If there is none, ask the manager for new ones. Raises ``KeysUnusable``."""
        self._load()
        if self._wall_at() >= self._expires_at:
            raise KeysUnusable("Google's keys have expired; is a manager running?")
        if key_id not in self._keys:
            self._want()
        return self._keys.get(key_id)

    def _want(self) -> None:
        now_at = self._wall_at()
        if now_at - self._wanted_at < _WANTED_AGAIN_S:
            return
        self._wanted_at = now_at
        with suppress(OSError):  # the manager fetches new ones in time all the same
            self._wanted.touch(0o600)
            os.utime(self._wanted, (now_at, now_at))

    def _load(self) -> None:
        """Read the file again if it was replaced. Raises :class:`KeysUnusable`."""
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp == self._stamp:
                return
            document = read_json(self._path.read_text(encoding="utf-8"))
            fetched_at, expires_at = float(document["fetched_at"]), float(document["expires_at"])
            self._keys = _read_keys(document)
        except FileNotFoundError as error:
            raise KeysUnusable("the manager has not fetched Google's keys yet") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise KeysUnusable(f"{self._path} cannot be used: {error}") from error
        self._fetched_at, self._expires_at, self._stamp = fetched_at, expires_at, stamp


def _read_keys(document: Any) -> Keys:
    """Return the RSA keys of a JSON Web Key Set. Raises ``ValueError`` if it has none."""
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("no set of keys")  # noqa: TRY004 - of a document
    keys = {}
    for key in document["keys"]:
        if not isinstance(key, dict) or key.get("kty") != "RSA" or key.get("alg", "RS256") != "RS256":
            continue  # for another algorithm than that of identity tokens
        try:
            modulus, exponent = (int.from_bytes(decode_base64url(key[name]), "big") for name in ("n", "e"))
            public = rsa.RSAPublicNumbers(exponent, modulus).public_key()
            key_id = str(key["kid"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"a key without a number or an id ({type(error).__name__})") from error
        if public.key_size < _KEY_BITS_LEAST:
            raise ValueError(f"a key of {public.key_size} bits")
        keys[key_id] = public
    if not keys:
        raise ValueError("a set without an RSA key")
    return keys


def decode_base64url(text: str) -> bytes:
    """Decode a part of a token or a key: base64url without padding (RFC 7515). Raises ``ValueError``."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
