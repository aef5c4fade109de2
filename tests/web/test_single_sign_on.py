"""config/proxy/nginx.conf in a real nginx, before a real service. A small server plays oauth2-proxy."""

from __future__ import annotations

import datetime as dt
import http.client
import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodemanager.web.state.token import NamedToken, Role
from tests.live.instance import eventually
from tests.paths import ROOT
from tests.web.fleets import TOKEN, Stand, a_fleet, a_stand, served

EXAMPLE = ROOT / "config" / "proxy" / "nginx.conf"
END_WITHIN_S = 60.0
ADA, BOB = "a" * 32, "b" * 32
TOKENS = f"ada@example.org {ADA};\nbob@example.org {BOB};\n"
NGINX = """\
daemon off;
master_process off;
pid nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include {folder}/example.conf;
}}
"""


class SignOn(http.server.BaseHTTPRequestHandler):
    """Knows a user by a cookie: 202 and the address, or 401."""

    def do_GET(self) -> None:
        _, _, user = self.headers.get("Cookie", "").partition("session=")
        self.send_response(202 if user else 401)
        if user:
            self.send_header("X-Auth-Request-Email", f"{user}@example.org")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: str
    location: str


class Connection(http.client.HTTPSConnection):
    """HTTPS over a Unix socket, which no other test can take."""

    def __init__(self, path: Path) -> None:
        super().__init__("nodes.example.org", timeout=END_WITHIN_S)
        self._path = path
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)  # kept at once, so that it is closed if it cannot be connected
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


@dataclass(frozen=True, slots=True)
class Proxy:
    """nginx, and the service behind it."""

    socket: Path
    stand: Stand

    def ask(self, user: str, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask as a browser that has signed on as this user; "" if it has not."""
        with closing(Connection(self.socket)) as connection:
            cookie = {"Cookie": f"session={user}"} if user else {}
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            if method == "POST" and not given.keys() & {"Sec-Fetch-Site", "Origin"}:
                given["Sec-Fetch-Site"] = "same-origin"
            connection.request(method, path, b"{}" if method == "POST" else None, cookie | given)
            response = connection.getresponse()
            return Answer(response.status, response.read().decode(), response.headers.get("Location", ""))


@contextmanager
def a_sign_on() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SignOn)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(END_WITHIN_S)


@contextmanager
def an_nginx(folder: Path, nginx: str, sign_on: int, service: str) -> Iterator[Path]:
    """Run the example with other addresses, another certificate and another folder, and nothing else changed."""
    listens = folder / "nginx.sock"
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in {
        "listen 443 ssl": f"listen unix:{listens} ssl",
        "http://127.0.0.1:4180": f"http://127.0.0.1:{sign_on}",
        "http://127.0.0.1:8080": service.rstrip("/"),
        "/etc/nginx/": f"{folder}/",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "example.conf").write_text(text, encoding="utf-8")
    user = "user root;\n" if os.geteuid() == 0 else ""  # it would change to a user who cannot read the folder
    (folder / "nginx.conf").write_text(user + NGINX.format(folder=folder), encoding="utf-8")
    (folder / "node-manager-tokens").write_text(TOKENS, encoding="utf-8")
    make_certificate(folder)
    log = folder / "error.log"
    command = [nginx, "-p", str(folder), "-c", "nginx.conf", "-e", str(log)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            eventually("nginx listens", lambda: is_open(listens) or running.poll() is not None, END_WITHIN_S)
            assert running.poll() is None, log.read_text(encoding="utf-8")
            yield listens
        finally:
            running.kill()


def is_open(path: Path) -> bool:
    try:
        with closing(Connection(path)) as connection:
            connection.connect()
    except OSError:
        return False
    return True


def make_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodes.example.org")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "nodes.example.org.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "nodes.example.org.key").write_bytes(secret)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("no nginx (apt install nginx-light)")
    stand = a_stand()
    stand.post(a_fleet(3))
    stand.served.access.team.tokens = (NamedToken("ada", Role.OPERATE, ADA), NamedToken("bob", Role.VIEW, BOB))
    with (
        a_sign_on() as sign_on,
        served(stand) as service,
        tempfile.TemporaryDirectory(prefix="fnm-") as folder,  # short, for a socket lies in it
        an_nginx(Path(folder), nginx, sign_on, service) as listens,
    ):
        yield Proxy(listens, stand)


def test_who_has_not_signed_on_is_sent_there_and_sees_nothing(proxy: Proxy) -> None:
    for path in ("/", "/status", "/jobs", "/oauth2/auth"):
        answer = proxy.ask("", path)
        assert answer.status in (302, 404), path
        assert "cluster" not in answer.body
    assert proxy.ask("", "/status").location.endswith("/oauth2/start?rd=/")
    assert proxy.ask("", "/pause", "POST").status == 302
    assert proxy.stand.manager.told == []


def test_each_operator_acts_by_the_role_of_their_own_token(proxy: Proxy) -> None:
    assert json.loads(proxy.ask("bob", "/jobs").body)["jobs"]
    assert proxy.ask("bob", "/hold/cpu1", "POST").status == 403
    assert proxy.ask("ada", "/hold/cpu1", "POST").status == 200
    assert json.loads(proxy.ask("ada", "/nodes").body)["nodes"][0]["held"]["by"] == "ada"


def test_a_user_who_is_no_operator_sees_no_job_and_steers_nothing(proxy: Proxy) -> None:
    assert proxy.ask("eve", "/nodes").status == 200
    jobs = json.loads(proxy.ask("eve", "/jobs").body)
    assert (jobs["jobs"], jobs["shown"]) == ([], False)
    assert proxy.ask("eve", "/release/cpu1", "POST").status == 401


@pytest.mark.parametrize(
    "claims",
    [
        {"X_Auth_Request_Email": "ada@example.org"},
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"Bearer {ADA}"},
    ],
)
def test_what_a_client_says_of_itself_counts_for_nothing(proxy: Proxy, claims: dict[str, str]) -> None:
    assert proxy.ask("bob", "/release/cpu1", "POST", **claims).status == 403
    assert proxy.ask("", "/release/cpu1", "POST", **claims).status == 302


OWN = "https://nodes.example.org"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": OWN},
        {"Sec_Fetch_Site": ""},
        {"Origin": "https://evil.example"},
        {"Origin": f"{OWN}.evil.example"},
        {"Origin": "http://nodes.example.org"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
)
def test_a_page_of_another_site_cannot_steer_with_the_users_cookie(proxy: Proxy, headers: dict[str, str]) -> None:
    assert proxy.ask("ada", "/hold/cpu1", "POST", **headers).status == 403
    assert proxy.stand.manager.told == []
    assert proxy.ask("ada", "/nodes", **headers).status == 200
    assert proxy.ask("ada", "/hold/cpu1", "POST", Sec_Fetch_Site="same-origin").status == 200
    assert proxy.ask("ada", "/release/cpu1", "POST", Origin=OWN).status == 200
