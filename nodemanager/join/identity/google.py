"""Checks the tokens by which Google vouches for an instance: JSON Web Tokens (RFC 7519), signed by RS256.

An instance gets one from its metadata service, for a purpose of its choice (the audience). See "Verify VM identity"
in Google's documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from nodemanager.core.nodes import ProviderId
from nodemanager.core.slots import CloudName
from nodemanager.core.untrusted import read_json
from nodemanager.join.flux_node_join import google_audience
from nodemanager.join.identity.google_keys import GoogleKeys, KeysUnusable, decode_base64url
from nodemanager.join.identity.proof import IdentityUnproven, ProvenInstance

_ISSUER = "https://accounts.google.com"
_ALGORITHM = "RS256"
_SKEW_S = 60.0  # by how much the clocks may differ


class GoogleNodes(NamedTuple):
    """What the instances of a cloud's nodes have in common: their project, and their service account."""

    project: str
    service_account: str


class GoogleIdentities:
    """Reads the tokens of instances. ``fingerprint``: of this join service's certificate."""

    def __init__(
        self,
        clouds: Mapping[CloudName, GoogleNodes],
        keys: GoogleKeys,
        fingerprint: str,
        wall_at: Callable[[], float],
    ) -> None:
        self._clouds: dict[GoogleNodes, list[CloudName]] = {}
        for cloud, nodes in clouds.items():
            self._clouds.setdefault(nodes, []).append(cloud)
        self._keys = keys
        self._fingerprint = fingerprint
        self._wall_at = wall_at

    def instance_in(self, document: str, purpose: str) -> ProvenInstance:
        """Return the instance that a token names. Raises :class:`IdentityUnproven`.

        A token for another join service, batch or nonce is refused.
        """
        try:
            claims = self._verified_claims(document)
            instance, nodes = _instance_in(claims)
            issuer, audience = claims["iss"], claims["aud"]
            begins_at, ends_at = float(claims["iat"]), float(claims["exp"])
        except InvalidSignature as error:
            raise IdentityUnproven("its signature is not by Google's key") from error
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise IdentityUnproven(f"it is no identity token ({type(error).__name__})") from error
        if issuer != _ISSUER:
            raise IdentityUnproven("it is not issued by Google")
        if audience != google_audience(self._fingerprint, purpose):
            raise IdentityUnproven("it is for another request, batch or service")
        if not begins_at - _SKEW_S <= self._wall_at() <= ends_at + _SKEW_S:
            raise IdentityUnproven("it has expired, or is not valid yet: do the clocks agree?")
        clouds: Sequence[CloudName] = self._clouds.get(nodes, ())
        if not clouds:
            raise IdentityUnproven(f"its instance is of project {nodes.project}, with {nodes.service_account}")
        return ProvenInstance(instance, clouds)

    def _verified_claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token. Raises ``ValueError``, ``InvalidSignature``, :class:`IdentityUnproven`."""
        header, payload, signature = token.split(".")
        names = _object(header)
        # The token must not choose how it is checked (RFC 8725, 3.1).
        if names.get("alg") != _ALGORITHM or "crit" in names:
            raise IdentityUnproven(f"it is not signed by {_ALGORITHM}")
        try:
            key = self._keys.find(str(names["kid"]))
        except KeysUnusable as error:
            raise IdentityUnproven(str(error)) from error
        if key is None:
            raise IdentityUnproven("it is signed by an unknown key; the manager fetches Google's keys once more")
        signed = f"{header}.{payload}".encode()
        key.verify(decode_base64url(signature), signed, padding.PKCS1v15(), hashes.SHA256())
        return _object(payload)


def _instance_in(claims: Mapping[str, Any]) -> tuple[ProviderId, GoogleNodes]:
    """Return an instance as the provider's port names it, and whose it is."""
    engine = claims["google"]["compute_engine"]
    texts = [engine["zone"], engine["instance_name"], engine["project_id"], claims["email"]]
    if not all(isinstance(text, str) and text for text in texts) or claims.get("email_verified") is not True:
        raise ValueError("it does not name an instance with a service account")
    zone, name, project, email = texts
    return ProviderId(f"{zone}/{name}"), GoogleNodes(project, email)


def _object(part: str) -> dict[str, Any]:
    found = read_json(decode_base64url(part))
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - of a token
    return found
