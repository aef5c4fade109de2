"""The keys and certificates of the join service, and the data that it sends to nodes. ``init`` makes them.

They are in one folder, ``[Join] material_dir``:

    site.key         the key from which tickets and lease keys are computed
    tls.crt tls.key  the service's own certificate, which nodes recognise by its fingerprint
    bootstrap.json   the instance's bootstrap table and its owner's uid
    curve.cert       the certificate that all brokers of the instance share

The folder holds copies, so the service needs no access to rank 0's folder or socket.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodemanager.config.site import JoinMethod, Site
from nodemanager.config.text.flux_toml import FluxConfigError, read_conf_d
from nodemanager.flux.setup.bootstrap import BootstrapError, find_flux, make_certificate
from nodemanager.join.tickets import is_open_to_others, make_site_key

_TLS_YEARS = 20
_VERSION_TIMEOUT_S = 20


class MaterialError(Exception):
    """A file that the join service needs is missing or unusable. The text says what to do."""


class MaterialPaths:
    """The paths of the files in ``material_dir``."""

    def __init__(self, material_dir: Path) -> None:
        self.site_key = material_dir / "site.key"
        self.tls_key = material_dir / "tls.key"
        self.tls_certificate = material_dir / "tls.crt"
        self.bootstrap = material_dir / "bootstrap.json"
        self.curve_certificate = material_dir / "curve.cert"


@dataclass(frozen=True, slots=True)
class Material:
    """The data that every node's broker needs. ``bootstrap`` is flux-config-bootstrap(5) without ``curve_cert``."""

    bootstrap: Mapping[str, Any]
    curve_certificate: str
    flux_version: str
    owner_uid: int

    def __repr__(self) -> str:
        return f"Material({self.digest})"

    @property
    def digest(self) -> str:
        """A hash of the material. If a node's digest differs, its broker runs with outdated material."""
        parts = [self.bootstrap, self.curve_certificate, self.flux_version, self.owner_uid]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


# --- making -----------------------------------------------------------------------------------------------


def make_material(site: Site, bootstrap_dir: Path) -> str:
    """Create the missing files in ``material_dir``, update the copies, and return the certificate's fingerprint.

    Existing keys stay, because tickets and user-data depend on them. If either half of the TLS pair is missing,
    both are replaced. Raises :class:`MaterialError`.
    """
    paths = MaterialPaths(site.join.material_dir)
    try:
        site.join.material_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not paths.site_key.exists():
            make_site_key(paths.site_key)
        if not (paths.tls_certificate.exists() and paths.tls_key.exists()):
            _make_tls(site, paths)  # neither half is of use alone
        copied = {
            "bootstrap": _bootstrap_table(bootstrap_dir),
            "owner_uid": (bootstrap_dir / "curve.cert").stat().st_uid,
        }
        replace_file(paths.bootstrap, json.dumps(copied, indent=1) + "\n")
        replace_file(paths.curve_certificate, (bootstrap_dir / "curve.cert").read_text(encoding="utf-8"))
    except OSError as error:
        raise MaterialError(f"{error.filename or site.join.material_dir}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MaterialError(f"{bootstrap_dir / 'curve.cert'} is not a certificate: it is not text") from error
    return fingerprint(paths.tls_certificate)


def rotate_curve_certificate(site: Site, flux_command: str = "flux") -> None:
    """Replace the brokers' shared certificate, for rank 0 and for every node that joins from now on.

    Running brokers keep the old certificate until rank 0 restarts. Raises :class:`MaterialError`.
    """
    bootstrap_dir = site.flux.bootstrap_dir
    certificate = bootstrap_dir / "curve.cert"
    if not certificate.is_file():
        raise MaterialError(f"{certificate} does not exist: run flux-node-manager init")
    try:
        with tempfile.TemporaryDirectory(prefix="flux-node-manager.") as folder:
            made = Path(folder) / "curve.cert"
            make_certificate(made, site.cluster, find_flux(flux_command))
            replace_file(certificate, made.read_text(encoding="utf-8"))
    except BootstrapError as error:
        raise MaterialError(str(error)) from error
    except OSError as error:
        raise MaterialError(f"{certificate}: {error.strerror}") from error
    if site.flux.join is JoinMethod.SERVICE:
        make_material(site, bootstrap_dir)


def _make_tls(site: Site, paths: MaterialPaths) -> None:
    """Create a key and a self-signed certificate. Nodes check only the certificate's fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{site.cluster} join service")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * _TLS_YEARS))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_file(paths.tls_key, secret.decode("ascii"))
    replace_file(paths.tls_certificate, certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"))


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically, with mode 0600: a reader gets the old or the new text.

    If root writes it, the file keeps its owner; a new file gets the folder's owner. That owner can put anything at
    the draft's path. So an existing draft is removed first, and the owner is set through the open descriptor.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if os.geteuid() == 0:
            status = (path if path.exists() else path.parent).stat()
            os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fsync(descriptor)
    draft.replace(path)


# --- reading ----------------------------------------------------------------------------------------------


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate in DER, as hexadecimal digits. Raises :class:`MaterialError`."""
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii"))
    except OSError as error:
        raise MaterialError(
            f"{certificate} cannot be read ({error.strerror}): run flux-node-manager init"
        ) from error
    except ValueError as error:
        raise MaterialError(
            f"{certificate} is not a certificate: remove it, and run flux-node-manager init"
        ) from error
    return hashlib.sha256(der).hexdigest()


def tls_context(paths: MaterialPaths) -> ssl.SSLContext:
    """Return the TLS context of the service, with its certificate and key. Raises :class:`MaterialError`."""
    fingerprint(paths.tls_certificate)
    _refuse_if_open(paths.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no client resumes a session, so none needs the means to
    try:
        context.load_cert_chain(paths.tls_certificate, paths.tls_key)
    except ssl.SSLError as error:
        raise MaterialError(
            f"{paths.tls_key} is not the key of {paths.tls_certificate}: restore the right key. If you cannot,"
            " remove both files and run flux-node-manager init; running nodes then no longer trust the service"
        ) from error
    return context


def _refuse_if_open(path: Path) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise MaterialError(
            f"{path} cannot be read ({error.strerror}): restore it, or run flux-node-manager init"
        ) from error
    if is_open_to_others(status):
        raise MaterialError(f"others may read {path}: chmod 600 {path}")


class MaterialSource:
    """Reads the material again whenever a file was replaced, so ``rotate-cert`` needs no restart of the service."""

    def __init__(self, material_dir: Path, flux_version: str) -> None:
        self._paths = MaterialPaths(material_dir)
        self._flux_version = flux_version
        self._stamps: tuple[tuple[int, int], ...] = ()
        self._material: Material | None = None

    def current(self) -> Material:
        """Return the current material. Raises :class:`MaterialError`."""
        files = (self._paths.bootstrap, self._paths.curve_certificate)
        try:
            stamps = tuple((status.st_ino, status.st_mtime_ns) for status in (file.stat() for file in files))
            if self._material is None or stamps != self._stamps:
                self._material = self._read()
                self._stamps = stamps
        except OSError as error:
            raise MaterialError(
                f"{error.filename} cannot be read ({error.strerror}): run flux-node-manager init"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise MaterialError(
                f"{self._paths.bootstrap} is not as init writes it: run flux-node-manager init"
            ) from error
        return self._material

    def _read(self) -> Material:
        _refuse_if_open(self._paths.curve_certificate)
        stored = json.loads(self._paths.bootstrap.read_text(encoding="utf-8"))
        return Material(
            bootstrap=dict(stored["bootstrap"]),
            curve_certificate=_certificate_text(self._paths.curve_certificate),
            flux_version=self._flux_version,
            owner_uid=int(stored["owner_uid"]),
        )


def _certificate_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MaterialError(f"{path} is damaged: it is not text; run flux-node-manager init") from error


def installed_flux_version(flux_command: str = "flux") -> str:
    """Return the version of the flux on PATH, such as "0.88.0". Raises :class:`MaterialError`."""
    try:
        command = [find_flux(flux_command), "--version"]
        output = subprocess.run(  # noqa: S603 - a path that shutil.which returned
            command, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        ).stdout
    except (BootstrapError, OSError, subprocess.SubprocessError) as error:
        raise MaterialError(f"{error}; or set [Join] flux_version to the version of rank 0") from error
    version = re.search(r"[0-9]+\.[0-9]+\.[0-9]+\S*", output)
    if version is None:
        raise MaterialError("flux --version prints no version: set [Join] flux_version to the version of rank 0")
    return version[0]


def _bootstrap_table(bootstrap_dir: Path) -> dict[str, Any]:
    try:
        table = dict(read_conf_d(bootstrap_dir).get("bootstrap", {}))
    except FluxConfigError as error:
        raise MaterialError(str(error)) from error
    table.pop("curve_cert", None)
    if not table.get("hosts"):
        raise MaterialError(f"{bootstrap_dir / 'conf.d'} has no [bootstrap] hosts: run flux-node-manager init")
    return table
