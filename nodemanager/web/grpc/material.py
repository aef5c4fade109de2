"""What a gRPC service and its members share: a token and a certificate, as files of one folder.

    token    the secret that members send
    tls.crt  the service's certificate; members trust this one only
    tls.key  its key, of the service only
    ca.crt   if it is there, members trust the certificates that it has signed for the service's host instead

``serve`` makes missing files. Members on other machines need copies of ``token`` and ``tls.crt`` (or ``ca.crt``).
"""

from __future__ import annotations

import datetime as dt
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodemanager.config.text.settings import is_loopback
from nodemanager.web.listen import TcpAddress, parse_listen
from nodemanager.web.state.token import TokenError, read_or_make_token, read_token

NAME = "flux-node-manager-ensembles"  # in the certificates that we make
_YEARS = 20


class MaterialUnusable(Exception):
    """A file is missing or unusable, or an address must not be used. The message says what to do."""


@dataclass(frozen=True, slots=True)
class ServiceMaterial:
    """What a service needs. ``repr`` shows no secret."""

    token: str
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "ServiceMaterial()"


@dataclass(frozen=True, slots=True)
class MemberMaterial:
    """What a member needs. ``name``: what the service's certificate must be made for; "" is its host."""

    token: str
    trusted: bytes
    name: str = ""

    def __repr__(self) -> str:
        return "MemberMaterial()"


def default_folder() -> Path:
    """The folder of a user who names none: below XDG_STATE_HOME."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "flux-node-manager" / "ensembles"


def service_material(folder: Path) -> ServiceMaterial:
    """Read the files of a service, and make those that are missing. Raises ``MaterialUnusable``."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    try:
        token = read_or_make_token(folder / "token")
        if not certificate.exists() and not key.exists():
            _make_certificate(certificate, key)
        return ServiceMaterial(token, certificate.read_bytes(), key.read_bytes())
    except TokenError as error:
        raise MaterialUnusable(str(error)) from error
    except OSError as error:
        raise MaterialUnusable(f"{error.filename or folder}: {error.strerror}") from error


def token_of_member(token: str, name: str) -> str:
    """Return the token of one member: only the holder of the service's token can make it (HMAC-SHA256)."""
    return hmac.new(token.encode(), name.encode(), "sha256").hexdigest()


def member_material(folder: Path) -> MemberMaterial:
    """Read the files of a member. Raises ``MaterialUnusable``."""
    authority, own = folder / "ca.crt", folder / "tls.crt"
    try:
        token = read_token(folder / "token")
        if authority.exists():
            return MemberMaterial(token, authority.read_bytes())
        text = own.read_bytes()
        return MemberMaterial(token, text, _first_name(text))
    except TokenError as error:
        raise MaterialUnusable(f"{error}. Members need a copy of the service's token") from error
    except OSError as error:
        raise MaterialUnusable(
            f"{error.filename or folder}: {error.strerror}. Members need a copy of the service's tls.crt"
        ) from error
    except ValueError as error:
        raise MaterialUnusable(f"{own}: not a certificate that can be used: {error}") from error


def read_address(text: str, *, plaintext: bool) -> TcpAddress:
    """Read HOST:PORT. Without TLS, only an address of the loopback interface is allowed.

    Raises ``MaterialUnusable``.
    """
    try:
        place = parse_listen(text)
    except ValueError:
        place = None
    if not isinstance(place, TcpAddress) or not place.host or not place.port:
        raise MaterialUnusable(f'"{text}" is not an address: use HOST:PORT, such as 127.0.0.1:50051')
    if plaintext and not is_loopback(place.host):
        raise MaterialUnusable(
            f"{text}: without TLS and token, everybody who reaches the service may buy nodes: use an address of the"
            " loopback interface, or TLS"
        )
    return place


def _make_certificate(certificate: Path, key: Path) -> None:
    """Make a key and a self-signed certificate. Members trust this certificate itself, whatever the host."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    private = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(key, private)
    _write_new(certificate, made.public_bytes(serialization.Encoding.PEM))


def _write_new(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _first_name(certificate: bytes) -> str:
    """Return the first host name that a certificate is made for. Raises ``ValueError``."""
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound as error:
        raise ValueError("it names no host") from error
    names = found.value.get_values_for_type(x509.DNSName)
    if not names:
        raise ValueError("it names no host")
    return names[0]
