"""The verbs init, check, join-service and rotate-cert, as an operator uses them."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from nodemanager.cli import main
from nodemanager.config.load import load_site
from nodemanager.config.provider import provider_named
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.join.flux_node_join import post_json
from nodemanager.join.key_material import MaterialPaths, MaterialSource, fingerprint, tls_context
from tests.join.test_user_data import a_site

FLUX = '#!/bin/sh\nif [ "$1" = keygen ]; then date +%N > "$3"; else echo "commands: 0.88.0"; fi\n'


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Restore logging: a verb configures it to write to the test's stream."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake flux command."""
    command = tmp_path / "bin" / "flux"
    command.parent.mkdir()
    command.write_text(FLUX)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")


def run(verb: str, folder: Path, *more: str) -> int:
    return main.main([verb, "--config", str(folder / "site.ini"), *more])


def join_folder(folder: Path) -> MaterialPaths:
    return MaterialPaths(load_site(folder / "site.ini").join.material_dir)


@pytest.mark.usefixtures("flux")
def test_init_makes_keys_that_only_their_owner_reads_and_says_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = a_site(tmp_path).path.read_text()
    site = tmp_path / "new" / "site.ini"
    site.parent.mkdir()
    site.write_text(text)
    assert run("init", site.parent, "--output", str(site.parent / "state" / "flux")) == 0
    assert "flux-node-manager join-service --config" in capsys.readouterr().out
    paths = join_folder(site.parent)
    for file in (paths.site_key, paths.tls_key, paths.curve_certificate):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.site_key.parent.stat().st_mode) == 0o700


@pytest.mark.usefixtures("flux")
def test_init_on_an_existing_instance_adds_missing_files_and_changes_no_key(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    paths = join_folder(tmp_path)
    before = [paths.site_key.read_text(), paths.tls_certificate.read_text()]
    paths.curve_certificate.unlink()
    certificate = (site.flux.bootstrap_dir / "curve.cert").read_text()
    assert run("init", tmp_path, "--output", str(site.flux.bootstrap_dir)) == 0
    assert [paths.site_key.read_text(), paths.tls_certificate.read_text()] == before
    assert paths.curve_certificate.read_text() == certificate
    assert (site.flux.bootstrap_dir / "curve.cert").read_text() == certificate


@pytest.mark.usefixtures("flux")
def test_rotate_cert_changes_it_for_rank_0_and_for_nodes_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = a_site(tmp_path)
    paths = join_folder(tmp_path)
    source = MaterialSource(site.join.material_dir, "0.88.0")
    before, key = source.current(), paths.site_key.read_text()
    assert run("rotate-cert", tmp_path) == 0
    assert "restart rank 0" in capsys.readouterr().out
    now = source.current()
    assert now.digest != before.digest
    assert now.curve_certificate == (site.flux.bootstrap_dir / "curve.cert").read_text()
    assert paths.site_key.read_text() == key


@pytest.mark.usefixtures("flux")
def test_what_is_put_in_a_folder_of_others_follows_no_link_of_theirs(tmp_path: Path) -> None:
    """Root may run init and rotate-cert in folders that belong to the instance's owner."""
    site = a_site(tmp_path)
    other = tmp_path / "other"
    other.write_text("not theirs")
    material, bootstrap = site.join.material_dir, site.flux.bootstrap_dir
    for place in (material / "bootstrap.json", material / "curve.cert", bootstrap / "curve.cert"):
        place.with_name(f".{place.name}.new").symlink_to(other)
    assert run("rotate-cert", tmp_path) == 0
    assert other.read_text() == "not theirs"
    assert (material / "curve.cert").read_text() == (bootstrap / "curve.cert").read_text()


GUESTS = '[access]\nallow-guest-user = true\n[exec]\nimp = "/usr/libexec/flux/flux-imp"\n'


@pytest.mark.usefixtures("flux")
def test_an_instance_for_several_users_is_served(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    (site.flux.bootstrap_dir / "conf.d" / "more.toml").write_text(GUESTS)
    assert run("check", tmp_path) == 0
    assert run("rotate-cert", tmp_path) == 0


def test_check_says_whether_a_node_can_end_its_own_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_site(tmp_path)
    assert run("check", tmp_path) == 0
    assert provider_named("local").poweroff_effect in capsys.readouterr().out


def test_the_effect_of_powering_off_is_known_for_every_provider() -> None:
    assert all(provider_named(name).poweroff_effect for name in PROVIDERS)


@pytest.mark.parametrize("file", ["site_key", "tls_key", "tls_certificate", "bootstrap", "curve_certificate"])
@pytest.mark.usefixtures("flux")
def test_a_service_without_its_files_says_what_to_do(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_site(tmp_path)
    getattr(join_folder(tmp_path), file).unlink()
    assert run("join-service", tmp_path) == 78
    assert "flux-node-manager init" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["site_key", "tls_key", "curve_certificate"])
@pytest.mark.usefixtures("flux")
def test_a_secret_that_others_may_read_is_refused(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_site(tmp_path)
    path = getattr(join_folder(tmp_path), file)
    path.chmod(0o640)
    assert run("join-service", tmp_path) == 78
    assert f"others may read {path}: chmod 600" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "message"),
    [("tls_key", "is not the key of"), ("curve_certificate", "curve.cert is damaged: it is not text")],
)
@pytest.mark.usefixtures("flux")
def test_a_damaged_file_is_named(
    tmp_path: Path, file: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_site(tmp_path)
    getattr(join_folder(tmp_path), file).write_bytes(b"\xff\xfe")
    assert run("join-service", tmp_path) == 78
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("half", ["tls_key", "tls_certificate"])
@pytest.mark.usefixtures("flux")
def test_init_replaces_a_tls_pair_if_half_of_it_is_missing(tmp_path: Path, half: str) -> None:
    site = a_site(tmp_path)
    paths = join_folder(tmp_path)
    getattr(paths, half).unlink()
    assert run("init", tmp_path, "--output", str(site.flux.bootstrap_dir)) == 0
    tls_context(paths)


# --- the process ------------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], tuple[str, int], str]]:
    """The service in its own process, its address and its fingerprint."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The service must not read the cloud credential, so an unreadable one does no harm.
    unreadable = "[Cloud Credentials]\nsecret_file = /nonexistent\nsecret = ${NOT_SET}\n[Join]\n"
    text = f"listen = 127.0.0.1:{port}\nflux_version = 0.88.0"
    site = a_site(tmp_path, text)
    site.path.write_text(site.path.read_text().replace("[Join]\n", unreadable))
    command = [sys.executable, "-m", "nodemanager.cli.main", "--config", str(site.path), "join-service"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert b"join_service_started" in process.stderr.readline()
            yield process, ("127.0.0.1", port), fingerprint(MaterialPaths(site.join.material_dir).tls_certificate)
        finally:
            process.kill()


def test_the_service_survives_garbage_and_ends_on_sigterm(
    service: tuple[subprocess.Popen[bytes], tuple[str, int], str],
) -> None:
    process, address, pin = service
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for garbage in (
        b"\0" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/redeem HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"A" * 200_000,
    ):
        with socket.create_connection(address, 10) as plain:
            plain.sendall(garbage)
        with context.wrap_socket(socket.create_connection(address, 10)) as secured:
            try:
                secured.sendall(garbage)
                answer = secured.recv(1000)
            except OSError:
                answer = b""
            assert b" 500 " not in answer
    with pytest.raises(Exception, match="wrong"):
        post_json(":".join(map(str, address)), pin, "/v1/fetch", {"launch": "x", "key": "0" * 64})
    process.terminate()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert b"stopped" in process.stderr.read()


def test_a_client_tells_nothing_to_another_certificate(
    service: tuple[subprocess.Popen[bytes], tuple[str, int], str],
) -> None:
    _, address, pin = service
    other = pin[:-1] + ("0" if pin[-1] != "0" else "1")
    with pytest.raises(ConnectionError, match="another certificate"):
        post_json(":".join(map(str, address)), other, "/v1/fetch", {"launch": "x", "key": "0" * 64})
