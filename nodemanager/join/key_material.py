"""What a node is given when it joins, and the keys of the service that gives it: made by ``init``, in one folder.

    site.key         what tickets and lease keys are made with
    tls.crt tls.key  the service's own certificate, known to nodes by its fingerprint
    bootstrap.json   the bootstrap table of the instance, and who owns it
    curve.cert       the certificate by which the instance's brokers know each other: all share this one

All are copies or ours alone, so that the service needs to see neither rank 0's folder nor its socket.
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
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodemanager.config.site import JoinMethod, Site
from nodemanager.flux.setup.bootstrap import BootstrapError, find_flux, make_certificate
from nodemanager.join.tickets import is_open_to_others, make_site_key

_TLS_YEARS = 20
_VERSION_TIMEOUT_S = 20
_MULTI_USER = (
    "an instance for several users needs munge keys and flux-imp on its nodes, which joining does not bring"
)


class MaterialError(Exception):
    """What the join service needs is not there, or cannot be used; the text says what to do."""


class MaterialPaths:
    """The files of one folder."""

    def __init__(self, material_dir: Path) -> None:
        self.site_key = material_dir / "site.key"
        self.tls_key = material_dir / "tls.key"
        self.tls_certificate = material_dir / "tls.crt"
        self.bootstrap = material_dir / "bootstrap.json"
        self.curve_certificate = material_dir / "curve.cert"


@dataclass(frozen=True, slots=True)
class Material:
    """What every node of the instance needs. ``bootstrap`` is flux-config-bootstrap(5) without ``curve_cert``."""

    bootstrap: Mapping[str, Any]
    curve_certificate: str
    flux_version: str
    owner_uid: int

    def __repr__(self) -> str:
        return f"Material({self.digest})"

    @property
    def digest(self) -> str:
        """Tells whether a node has what it would be given now."""
        parts = [self.bootstrap, self.curve_certificate, self.flux_version, self.owner_uid]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


# --- making -----------------------------------------------------------------------------------------------


def make_material(site: Site, bootstrap_dir: Path) -> str:
    """Make what is missing in ``material_dir``, and bring the copies up to date; give the fingerprint.

    Keys that are there stay: tickets and user-data depend on them. A pair of which a half is missing is made anew.
    Raises :class:`MaterialError`.
    """
    paths = MaterialPaths(site.join.material_dir)
    _refuse_multi_user(bootstrap_dir)
    try:
        site.join.material_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not paths.site_key.exists():
            make_site_key(paths.site_key)
        if not (paths.tls_certificate.exists() and paths.tls_key.exists()):
            _make_tls(site, paths)  # one is of no use without the other
        copied = {
            "bootstrap": _bootstrap_table(bootstrap_dir),
            "owner_uid": (bootstrap_dir / "curve.cert").stat().st_uid,
        }
        replace_file(paths.bootstrap, json.dumps(copied, indent=1) + "\n")
        replace_file(paths.curve_certificate, (bootstrap_dir / "curve.cert").read_text(encoding="utf-8"))
    except OSError as error:
        raise MaterialError(f"{error.filename or site.join.material_dir}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MaterialError(f"{bootstrap_dir / 'curve.cert'} is no certificate: it is no text") from error
    return fingerprint(paths.tls_certificate)


def rotate_curve_certificate(site: Site, flux_command: str = "flux") -> None:
    """Replace the brokers' shared certificate, for rank 0 and for whoever joins from now on.

    Brokers that run keep the one they began with, until rank 0 is started again. Raises :class:`MaterialError`.
    """
    bootstrap_dir = site.flux.bootstrap_dir
    certificate = bootstrap_dir / "curve.cert"
    if not certificate.is_file():
        raise MaterialError(f"{certificate} is not there: run flux-node-manager init")
    _refuse_multi_user(bootstrap_dir)
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
    """A key and a certificate that it signs itself. Nodes ask for its fingerprint, and for nothing else in it."""
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
    """Write a file for its owner only, so that it is read whole, as it was or as it is.

    What root puts in a place belongs to whom the place belonged to, and else to the folder's owner. In a folder of
    theirs the draft may be anything: what is there is removed, and the owner given by what was opened.
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
    """The SHA-256 of a certificate in DER, as hexadecimal digits. Raises :class:`MaterialError`."""
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii"))
    except OSError as error:
        raise MaterialError(
            f"{certificate} cannot be read ({error.strerror}): run flux-node-manager init"
        ) from error
    except ValueError as error:
        raise MaterialError(
            f"{certificate} is no certificate: remove it, and run flux-node-manager init"
        ) from error
    return hashlib.sha256(der).hexdigest()


def tls_context(paths: MaterialPaths) -> ssl.SSLContext:
    """The service's own certificate and its key, for the server's side. Raises :class:`MaterialError`."""
    fingerprint(paths.tls_certificate)
    _refuse_if_open(paths.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(paths.tls_certificate, paths.tls_key)
    except ssl.SSLError as error:
        raise MaterialError(
            f"{paths.tls_key} is not the key of {paths.tls_certificate}: put back the one that is. Without it,"
            " remove both and run flux-node-manager init; nodes that are up then do not know the service any more"
        ) from error
    return context


def _refuse_if_open(path: Path) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise MaterialError(
            f"{path} cannot be read ({error.strerror}): put it back, or run flux-node-manager init"
        ) from error
    if is_open_to_others(status):
        raise MaterialError(f"others may read {path}: chmod 600 {path}")


class MaterialSource:
    """Reads the folder again when something in it was replaced, so that ``rotate-cert`` needs no restart of us."""

    def __init__(self, material_dir: Path, flux_version: str) -> None:
        self._paths = MaterialPaths(material_dir)
        self._flux_version = flux_version
        self._stamps: tuple[tuple[int, int], ...] = ()
        self._material: Material | None = None

    def current(self) -> Material:
        """Raises :class:`MaterialError`."""
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
            raise MaterialError(f"{self._paths.bootstrap} is not what init writes") from error
        return self._material

    def _read(self) -> Material:
        _refuse_if_open(self._paths.curve_certificate)
        kept = json.loads(self._paths.bootstrap.read_text(encoding="utf-8"))
        return Material(
            bootstrap=dict(kept["bootstrap"]),
            curve_certificate=_certificate_text(self._paths.curve_certificate),
            flux_version=self._flux_version,
            owner_uid=int(kept["owner_uid"]),
        )


def _certificate_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MaterialError(f"{path} is not what init writes: it is no text; run flux-node-manager init") from error


def installed_flux_version(flux_command: str = "flux") -> str:
    """The version of the flux on PATH: "0.88.0". Raises :class:`MaterialError`."""
    try:
        command = [find_flux(flux_command), "--version"]
        said = subprocess.run(  # noqa: S603 - found by which
            command, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        ).stdout
    except (BootstrapError, OSError, subprocess.SubprocessError) as error:
        raise MaterialError(f"{error}; or give the version that rank 0 runs as [Join] flux_version") from error
    found = re.search(r"[0-9]+\.[0-9]+\.[0-9]+\S*", said)
    if found is None:
        raise MaterialError("flux --version names no version: give that of rank 0 as [Join] flux_version")
    return found[0]


def _bootstrap_table(bootstrap_dir: Path) -> dict[str, Any]:
    table = dict(_read_conf_d(bootstrap_dir).get("bootstrap", {}))
    table.pop("curve_cert", None)
    if not table.get("hosts"):
        raise MaterialError(f"{bootstrap_dir / 'conf.d'} has no [bootstrap] hosts: run flux-node-manager init")
    return table


def _read_conf_d(bootstrap_dir: Path) -> dict[str, Any]:
    """All tables of ``conf.d``, as Flux reads them: file by file, a later table over an earlier."""
    tables: dict[str, Any] = {}
    for file in sorted((bootstrap_dir / "conf.d").glob("*.toml")):
        try:
            tables |= tomllib.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise MaterialError(f"{file} cannot be read: {error}") from error
    return tables


# --- several users ----------------------------------------------------------------------------------------


def why_multi_user(bootstrap_dir: Path) -> str:
    """What makes the instance one for several users, "" where nothing does. Raises :class:`MaterialError`."""
    tables = _read_conf_d(bootstrap_dir)
    for table, key in (("access", "allow-guest-user"), ("exec", "imp")):
        if tables.get(table, {}).get(key):
            return f"[{table}] {key} in {bootstrap_dir / 'conf.d'}: {_MULTI_USER}"
    return ""


def _refuse_multi_user(bootstrap_dir: Path) -> None:
    if why := why_multi_user(bootstrap_dir):
        raise MaterialError(
            f"join = service serves instances of one user; {why}. Use join = directory, or an image"
        )
