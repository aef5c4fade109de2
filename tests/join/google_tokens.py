"""Identity tokens as Google signs them, by keys of the tests in the role of Google's."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from nodemanager.core.slots import DEFAULT_CLOUD, CloudName
from nodemanager.join.flux_node_join import google_audience
from nodemanager.join.identity.google import GoogleIdentities, GoogleNodes
from nodemanager.join.identity.google_keys import GoogleKeys
from tests.join.identities import signer

NOW_AT = 1_800_000_000.0
PROJECT, ACCOUNT = "lab", "nodes@lab.iam.gserviceaccount.com"
NODES = GoogleNodes(PROJECT, ACCOUNT)
ZONE = "europe-west3-a"
PIN = "f0" * 32
PURPOSE = "19ab4c2f3d1/" + "ab" * 32


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(content: object) -> str:
    return encode(json.dumps(content).encode())


def jwks(*names: str) -> dict[str, Any]:
    """The published keys of signers, in Google's form. The id of each is the signer's name."""

    def number(value: int) -> str:
        return encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))

    keys = []
    for name in names:
        numbers = signer(name).key.public_key().public_numbers()
        keys.append(
            {
                "kty": "RSA",
                "alg": "RS256",
                "use": "sig",
                "kid": name,
                "n": number(numbers.n),
                "e": number(numbers.e),
            }
        )
    return {"keys": keys}


def claims(instance: str = "n-1", *, purpose: str = PURPOSE, **changed: Any) -> dict[str, Any]:
    """What a token says of an instance. ``engine``: changes of the part about the instance."""
    engine = {
        "instance_creation_timestamp": int(NOW_AT) - 60,
        "instance_id": "2875949485074006138",
        "instance_name": instance,
        "project_id": PROJECT,
        "project_number": 326694433618,
        "zone": ZONE,
        **changed.pop("engine", {}),
    }
    return {
        "aud": google_audience(PIN, purpose),
        "azp": "109422233875895820585",
        "email": ACCOUNT,
        "email_verified": True,
        "exp": int(NOW_AT) + 3600,
        "google": {"compute_engine": engine},
        "iat": int(NOW_AT),
        "iss": "https://accounts.google.com",
        "sub": "109422233875895820585",
        **changed,
    }


def sign(content: object, by: str = "google", header: Mapping[str, Any] | None = None) -> str:
    """A token with this content. ``header``: changes of its header."""
    named = {"alg": "RS256", "kid": by, "typ": "JWT", **(header or {})}
    signed = f"{part(named)}.{part(content)}"
    signature = signer(by).key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{encode(signature)}"


def token(instance: str = "n-1", **changed: Any) -> str:
    """The token that Google gives an instance."""
    return sign(claims(instance, **changed))


class Wall:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_at = NOW_AT
        self.now_s = 1000.0

    def wall_at(self) -> float:
        return self.now_at

    def monotonic_s(self) -> float:
        return self.now_s

    def advance(self, by_s: float) -> None:
        self.now_at += by_s
        self.now_s += by_s


def google(
    folder: Path, wall: Wall | None = None, clouds: Mapping[CloudName, GoogleNodes] | None = None
) -> GoogleIdentities:
    """What reads the tokens of a site, with the keys that the manager left in a folder."""
    clock = wall or Wall()
    keys = GoogleKeys(folder, clock.wall_at)
    if keys.is_due():
        keys.post(jwks("google"), "public, max-age=22000, must-revalidate, no-transform")
    return GoogleIdentities(clouds or {DEFAULT_CLOUD: NODES}, keys, PIN, clock.wall_at)
