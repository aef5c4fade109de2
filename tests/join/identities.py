"""Identity documents as EC2 writes them, signed by a certificate of the tests in the role of AWS's."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import NameOID

from nodemanager.core.slots import DEFAULT_CLOUD
from nodemanager.join.identity.ec2 import InstanceIdentities


@dataclass(frozen=True)
class Signer:
    """Who signs identity documents: AWS, or somebody who would like to."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    def document(self, instance: str, *, options: tuple[pkcs7.PKCS7Options, ...] = ()) -> str:
        """The signed identity of an instance, as its metadata service returns it: base64 in lines."""
        return base64.encodebytes(self.sign(identity(instance), options=options)).decode()

    def sign(
        self,
        content: bytes,
        algorithm: pkcs7.PKCS7HashTypes | None = None,
        *,
        options: tuple[pkcs7.PKCS7Options, ...] = (),
    ) -> bytes:
        builder = pkcs7.PKCS7SignatureBuilder().set_data(content)
        builder = builder.add_signer(self.certificate, self.key, algorithm or hashes.SHA256())
        used = [pkcs7.PKCS7Options.Binary, pkcs7.PKCS7Options.NoCerts, *options]
        return builder.sign(serialization.Encoding.DER, used)


def identity(instance: str) -> bytes:
    """The identity document of an instance."""
    document = {
        "accountId": "123456789012",
        "architecture": "x86_64",
        "availabilityZone": "eu-central-1a",
        "billingProducts": None,
        "imageId": "ami-0abc",
        "instanceId": instance,
        "instanceType": "c7i.large",
        "pendingTime": "2026-11-22T16:32:11Z",
        "privateIp": "10.0.0.5",
        "region": "eu-central-1",
        "version": "2017-09-30",
    }
    return json.dumps(document, indent=2).encode()


@cache
def signer(name: str = "Amazon Web Services LLC") -> Signer:
    """A signer with a certificate of its own. The same name gives the same one."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    names = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return Signer(key, certificate)


def identities(certificate: str) -> InstanceIdentities:
    """What reads the identities of the instances of a site's only cloud."""
    return InstanceIdentities({DEFAULT_CLOUD: certificate})
