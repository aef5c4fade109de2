"""Checks the document by which EC2 vouches for an instance: PKCS #7 SignedData (RFC 5652), RSA with SHA-2.

An instance reads it at ``/latest/dynamic/instance-identity/rsa2048`` of its metadata service, in base64. It lacks
the signer's certificate: AWS publishes one for each region.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509 import load_pem_x509_certificate

from nodemanager.core.nodes import ProviderId
from nodemanager.core.slots import CloudName
from nodemanager.core.untrusted import read_json
from nodemanager.join.identity.proof import IdentityUnproven, ProvenInstance

_DEPTH_MAX = 16
_CONSTRUCTED = 0x20
_SEQUENCE, _SET, _OCTETS, _OID, _OPTION_0 = 0x30, 0x31, 0x04, 0x06, 0xA0
# Object identifiers, as the bytes that encode them.
_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
_MESSAGE_DIGEST = bytes.fromhex("2a864886f70d010904")
_HASHES: dict[bytes, Callable[[], hashes.HashAlgorithm]] = {
    bytes.fromhex("608648016503040201"): hashes.SHA256,
    bytes.fromhex("608648016503040202"): hashes.SHA384,
    bytes.fromhex("608648016503040203"): hashes.SHA512,
}


class InstanceIdentities:
    """Reads identity documents that the certificate of one of the clouds proves.

    ``certificates``: as PEM. Raises ``ValueError`` if one is none.
    """

    def __init__(self, certificates: Mapping[CloudName, str]) -> None:
        clouds: dict[str, list[CloudName]] = {}
        for cloud, certificate in certificates.items():
            clouds.setdefault(certificate, []).append(cloud)
        self._keys = [(_key_of(certificate), names) for certificate, names in clouds.items()]

    def instance_in(self, document: str, purpose: str = "") -> ProvenInstance:
        """Return the instance that a document names. Raises :class:`IdentityUnproven`.

        EC2 signs the same document for every ``purpose``.
        """
        del purpose
        fault = IdentityUnproven("no certificate is known")
        for key, clouds in self._keys:
            try:
                return ProvenInstance(_instance_in(document, key), clouds)
            except IdentityUnproven as error:
                fault = error
        raise fault


def _key_of(certificate: str) -> rsa.RSAPublicKey:
    try:
        key = load_pem_x509_certificate(certificate.encode()).public_key()
    except ValueError as error:
        raise ValueError(f"no certificate as PEM: {error}") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise ValueError("no certificate with an RSA key")  # noqa: TRY004 - of a file
    return key


def _instance_in(document: str, key: rsa.RSAPublicKey) -> ProviderId:
    try:
        content = _verified_content(base64.b64decode(document), key)
        instance = read_json(content)["instanceId"]
    except InvalidSignature as error:
        raise IdentityUnproven("its signature is not by the provider's certificate") from error
    except (ValueError, LookupError, TypeError) as error:
        raise IdentityUnproven(f"it is no signed identity document ({type(error).__name__})") from error
    if not isinstance(instance, str) or not instance:
        raise IdentityUnproven("it names no instance")
    return ProviderId(instance)


# --- PKCS #7 ----------------------------------------------------------------------------------------------


def _verified_content(data: bytes, key: rsa.RSAPublicKey) -> bytes:
    """Return the content of SignedData with one signer. Raises ``ValueError``, ``InvalidSignature``."""
    outer, _ = _read(data, 0, 0)
    kind, wrapped = _parts(outer, _SEQUENCE, 2)
    if kind.content != _SIGNED_DATA:
        raise ValueError("not SignedData")
    _, _, encapsulated, *_, signers = _parts(_only(wrapped), _SEQUENCE, 4)
    content = _octets(_only(_parts(encapsulated, _SEQUENCE, 2)[1]))
    fields = _parts(_only(signers), _SEQUENCE, 5)
    algorithm = _HASHES.get(_parts(fields[2], _SEQUENCE, 1)[0].content)
    if algorithm is None:
        raise ValueError("not a hash of SHA-2")
    signed = content
    if fields[3].tag == _OPTION_0:
        attributes = fields.pop(3)
        if _octets(_message_digest(attributes)) != _digest(algorithm(), content):
            raise InvalidSignature("the document's digest differs")
        signed = bytes([_SET]) + attributes.encoded[1:]  # RFC 5652, 5.4: signed as a SET
    key.verify(_octets(fields[4]), signed, padding.PKCS1v15(), algorithm())
    return content


def _message_digest(attributes: Element) -> Element:
    for attribute in attributes.parts:
        name, values = _parts(attribute, _SEQUENCE, 2)
        if name.tag == _OID and name.content == _MESSAGE_DIGEST:
            return _only(values)
    raise ValueError("no digest is signed")


def _digest(algorithm: hashes.HashAlgorithm, content: bytes) -> bytes:
    digest = hashes.Hash(algorithm)
    digest.update(content)
    return digest.finalize()


# --- BER (X.690) ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Element:
    """One value. ``parts``: the values that it consists of, if it is constructed. ``encoded``: all of its bytes."""

    tag: int
    content: bytes
    parts: tuple[Element, ...]
    encoded: bytes


def _read(data: bytes, start: int, depth: int) -> tuple[Element, int]:
    """Read the value at ``start``. Return it and the position after it. Raises ``ValueError``."""
    if depth > _DEPTH_MAX or start + 2 > len(data):
        raise ValueError("cut off, or nested too deeply")
    tag, length, at = data[start], data[start + 1], start + 2
    if tag & 0x1F == 0x1F:
        raise ValueError("a long tag")
    if length == 0x80:  # the end is marked by two zeros, as encoders of streams write it
        if not tag & _CONSTRUCTED:
            raise ValueError("a primitive value without a length")
        parts = []
        while data[at : at + 2] != b"\0\0":
            part, at = _read(data, at, depth + 1)
            parts.append(part)
        return Element(tag, b"", tuple(parts), data[start : at + 2]), at + 2
    if length > 0x80:
        size = length - 0x80
        length, at = int.from_bytes(data[at : at + size], "big"), at + size
    end = at + length
    if end > len(data):
        raise ValueError("cut off")
    parts = []
    position = at
    while tag & _CONSTRUCTED and position < end:
        part, position = _read(data[:end], position, depth + 1)
        parts.append(part)
    return Element(tag, data[at:end], tuple(parts), data[start:end]), end


def _parts(element: Element, tag: int, least: int) -> list[Element]:
    if element.tag != tag or len(element.parts) < least:
        raise ValueError("another structure")
    return list(element.parts)


def _only(element: Element) -> Element:
    parts: Sequence[Element] = element.parts
    if len(parts) != 1:
        raise ValueError("not exactly one value")
    return parts[0]


def _octets(element: Element) -> bytes:
    """Return the bytes of an octet string, which may consist of several."""
    if element.tag & ~_CONSTRUCTED != _OCTETS:
        raise ValueError("no octet string")
    return b"".join(map(_octets, element.parts)) if element.tag & _CONSTRUCTED else element.content
