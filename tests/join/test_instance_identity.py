"""Which identity documents are believed. They are signed by other programs: cryptography, and OpenSSL."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.cloud.ec2.provider import certificates
from nodemanager.core.slots import CloudName
from nodemanager.join.identity.ec2 import InstanceIdentities
from nodemanager.join.identity.proof import IdentityUnproven
from tests.join.identities import identities, identity, signer

INSTANCE = "i-0123456789abcdef0"
SIGNED_DATA, DATA, MESSAGE_DIGEST = (bytes.fromhex(f"2a864886f70d01{end}") for end in ("0702", "0701", "0904"))
SHA256 = bytes.fromhex("608648016503040201")
PLAIN = (pkcs7.PKCS7Options.NoAttributes,)


@pytest.mark.parametrize("options", [(), PLAIN], ids=["attributes are signed", "the content is signed"])
def test_a_document_that_the_certificate_signed_names_its_instance(options: tuple[pkcs7.PKCS7Options, ...]) -> None:
    document = signer().document(INSTANCE, options=options)
    assert identities(signer().pem).instance_in(document).id == INSTANCE


@pytest.mark.parametrize("algorithm", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
def test_every_hash_of_sha_2_will_do(algorithm: pkcs7.PKCS7HashTypes) -> None:
    document = base64.b64encode(signer().sign(identity(INSTANCE), algorithm)).decode()
    assert identities(signer().pem).instance_in(document).id == INSTANCE


@pytest.mark.parametrize("encoding", [[], ["-stream"]], ids=["DER", "BER of a stream"])
@pytest.mark.parametrize("attributes", [[], ["-noattr"]])
def test_what_openssl_signs_is_read(encoding: list[str], attributes: list[str], tmp_path: Path) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl here")
    (tmp_path / "key").write_text(signer().key_pem)
    (tmp_path / "certificate").write_text(signer().pem)
    command = [openssl, "cms", "-sign", "-binary", "-nodetach", "-nocerts", "-outform", "DER", "-md", "sha256"]
    command += ["-signer", str(tmp_path / "certificate"), "-inkey", str(tmp_path / "key"), *encoding, *attributes]
    signed = subprocess.run(command, input=identity(INSTANCE), stdout=subprocess.PIPE, check=True).stdout
    assert (signed[1] == 0x80) == bool(encoding)
    document = base64.b64encode(signed).decode()
    assert identities(signer().pem).instance_in(document).id == INSTANCE


@pytest.mark.parametrize("options", [(), PLAIN])
def test_another_signer_proves_nothing(options: tuple[pkcs7.PKCS7Options, ...]) -> None:
    document = signer("somebody else").document(INSTANCE, options=options)
    with pytest.raises(IdentityUnproven, match="not by the provider's certificate"):
        identities(signer().pem).instance_in(document)


@pytest.mark.parametrize("options", [(), PLAIN])
def test_a_changed_instance_proves_nothing(options: tuple[pkcs7.PKCS7Options, ...]) -> None:
    signed = signer().sign(identity(INSTANCE), options=options)
    changed = base64.b64encode(signed.replace(b"abcdef0", b"abcdef1")).decode()
    with pytest.raises(IdentityUnproven):
        identities(signer().pem).instance_in(changed)


@given(st.integers(0, 4000), st.integers(1, 255))
def test_no_change_of_one_byte_names_another_instance(position: int, change: int) -> None:
    signed = bytearray(signer().sign(identity(INSTANCE)))
    signed[position % len(signed)] ^= change
    try:
        named = identities(signer().pem).instance_in(base64.b64encode(signed).decode()).id
    except IdentityUnproven:
        return
    assert named == INSTANCE  # a byte that means nothing, such as the issuer's name


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_and_crash_nothing(data: bytes) -> None:
    with pytest.raises(IdentityUnproven):
        identities(signer().pem).instance_in(base64.b64encode(data).decode())


def test_a_signer_without_a_signature_proves_nothing() -> None:
    content = identity(INSTANCE)
    digest = _value(0x04, hashlib.sha256(content).digest())
    attributes = _value(0xA0, _value(0x30, _value(0x06, MESSAGE_DIGEST), _value(0x31, digest)))
    signed_by = _value(0x30, _value(0x02, b"\1"), _value(0x30), _value(0x30, _value(0x06, SHA256)), attributes)
    for more in (), (_value(0x30),):
        signers = _value(0x31, _value(0x30, signed_by[4:], *more))
        data = _value(0x30, _value(0x06, DATA), _value(0xA0, _value(0x04, content)))
        signed = _value(0x30, _value(0x02, b"\1"), _value(0x31), data, signers)
        document = _value(0x30, _value(0x06, SIGNED_DATA), _value(0xA0, signed))
        with pytest.raises(IdentityUnproven):
            identities(signer().pem).instance_in(base64.b64encode(document).decode())


def _value(tag: int, *parts: bytes) -> bytes:
    """A value of BER with a length of two bytes."""
    content = b"".join(parts)
    return bytes([tag, 0x82]) + len(content).to_bytes(2, "big") + content


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b'{"instanceId": 1}', b'{"instanceId": ""}', b"{}", b"[" * 5000]
)
def test_a_signed_document_without_an_instance_proves_nothing(content: bytes) -> None:
    document = base64.b64encode(signer().sign(content)).decode()
    with pytest.raises(IdentityUnproven):
        identities(signer().pem).instance_in(document)


def test_signed_attributes_are_not_taken_for_a_document() -> None:
    """What is signed in one document must not count as the content of another (RFC 5652, security)."""
    signed = signer().sign(identity(INSTANCE), options=())
    assert identities(signer().pem).instance_in(base64.b64encode(signed).decode()).id == INSTANCE
    start = signed.rindex(b"\xa0", 0, signed.rindex(bytes.fromhex("2a864886f70d010904")))
    attributes = b"\x31" + signed[start + 1 :]
    forged = signer("somebody else").sign(attributes, options=PLAIN)
    with pytest.raises(IdentityUnproven):
        identities(signer().pem).instance_in(base64.b64encode(forged).decode())


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="no certificate as PEM"):
        identities(text)


def test_every_region_has_a_certificate_of_its_own_by_amazon() -> None:
    assert {"us-east-1", "eu-central-1", "ap-southeast-2", "us-gov-west-1", "cn-north-1"} <= certificates().keys()
    moduli = set()
    for region, text in certificates().items():
        certificate = x509.load_pem_x509_certificate(text.encode())
        certificate.verify_directly_issued_by(certificate)
        key = certificate.public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        assert key.key_size == 2048, region
        assert "Amazon" in certificate.subject.rfc4514_string(), region
        moduli.add(key.public_numbers().n)
    assert len(moduli) == len(certificates())


def test_each_certificate_vouches_for_the_instances_of_its_own_clouds() -> None:
    east, west = signer(), signer("another region")
    known = InstanceIdentities(
        {CloudName("east"): east.pem, CloudName("west"): west.pem, CloudName("two"): east.pem}
    )
    assert known.instance_in(east.document(INSTANCE)) == (INSTANCE, ["east", "two"])
    assert known.instance_in(west.document(INSTANCE)) == (INSTANCE, ["west"])
    with pytest.raises(IdentityUnproven):
        known.instance_in(signer("somebody else").document(INSTANCE))
