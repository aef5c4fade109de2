"""How the client learns that the provider will reclaim its node, from metadata services on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nodemanager.core.nodes import ProviderId, launch_id
from nodemanager.core.slots import SlotName
from nodemanager.join.admission import JoinAdmission, Refusal
from nodemanager.join.flux_node_join import CannotJoin, ClientSettings, JoinClient, JoinRefused, LocalMachine
from tests.join.admission import KEY, SOURCE, AdmissionRig, entry
from tests.join.google_tokens import PIN, ZONE, claims, google, sign
from tests.join.identities import identities, signer

EC2_ACTION = "/latest/meta-data/spot/instance-action"
GCE_PREEMPTED = "/computeMetadata/v1/instance/preempted"
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class Metadata(ThreadingHTTPServer):
    """Serves documents by path. EC2's need a token, GCE's and Azure's a header."""

    documents: dict[str, str]
    token: str = "token-1"
    sign: Callable[[str], str] | None = None  # gives an instance of Google a token for an audience
    tokens_given: int = 0


class Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        self.server.tokens_given += 1
        self._answer(200, self.server.token)

    def do_GET(self) -> None:
        if self.path.startswith("/latest/") and self.headers["X-aws-ec2-metadata-token"] != self.server.token:
            self._answer(401, "")
        elif self.path.startswith("/computeMetadata/") and self.headers["Metadata-Flavor"] != "Google":
            self._answer(403, "")
        elif self.path.startswith("/metadata/") and self.headers["Metadata"] != "true":
            self._answer(400, "")
        elif self.server.sign is not None and "/identity?audience=" in self.path:
            (audience,) = parse_qs(urlsplit(self.path).query)["audience"]
            self._answer(200, self.server.sign(audience))
        else:
            document = self.server.documents.get(self.path)
            self._answer(404 if document is None else 200, document or "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing."""


@contextmanager
def _metadata(**documents: str) -> Iterator[Metadata]:
    server = Metadata(("127.0.0.1", 0), Handler)
    server.documents = dict(documents)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _machine(notice: str, folder: Path, server: Metadata | None) -> LocalMachine:
    port = server.server_address[1] if server is not None else 1
    values = {"LAUNCH": "a-1", "TICKET": "t", "ADDRESSES": "127.0.0.1:1", "FINGERPRINT": "", "POWEROFF": "true"}
    values |= {"DIR": str(folder), "HOSTS": str(folder / "hosts"), "SILENCE_MAX_S": "60"}
    return LocalMachine(ClientSettings({**values, "NOTICE": notice, "METADATA": f"http://127.0.0.1:{port}"}))


AZURE_PREEMPT = json.dumps(
    {"Events": [{"EventType": "Preempt", "Resources": ["n1"], "NotBefore": "Sat, 21 Nov 2026 14:00:30 GMT"}]}
)


@pytest.mark.parametrize(
    ("notice", "before", "after", "said"),
    [
        (
            "ec2",
            {},
            {EC2_ACTION: '{"action": "terminate", "time": "2026-11-21T14:02:00Z"}'},
            "terminate at 2026-11-21T14:02:00Z",
        ),
        ("gce", {GCE_PREEMPTED: "FALSE"}, {GCE_PREEMPTED: "TRUE"}, "preempted"),
        (
            "azure",
            {AZURE_NAME: "n1", AZURE_EVENTS: '{"Events": []}'},
            {AZURE_NAME: "n1", AZURE_EVENTS: AZURE_PREEMPT},
            "Preempt not before Sat, 21 Nov 2026 14:00:30 GMT",
        ),
        ("", {}, {EC2_ACTION: '{"action": "terminate", "time": "now"}'}, ""),
    ],
)
def test_57_each_provider_is_asked_in_its_own_way(
    tmp_path: Path, notice: str, before: dict[str, str], after: dict[str, str], said: str
) -> None:
    with _metadata(**before) as server:
        machine = _machine(notice, tmp_path, server)
        assert machine.reclaim_notice() == ""
        server.documents = after
        assert machine.reclaim_notice() == said


def test_another_machine_of_the_set_that_is_taken_back_is_not_ours(tmp_path: Path) -> None:
    with _metadata(**{AZURE_NAME: "n2", AZURE_EVENTS: AZURE_PREEMPT}) as server:
        assert _machine("azure", tmp_path, server).reclaim_notice() == ""


def test_a_token_is_fetched_once_and_again_after_it_has_expired(tmp_path: Path) -> None:
    with _metadata() as server:
        machine = _machine("ec2", tmp_path, server)
        for _ in range(3):
            assert machine.reclaim_notice() == ""
        assert server.tokens_given == 1
        server.token = "token-2"
        machine.reclaim_notice()
        server.documents = {EC2_ACTION: '{"action": "stop", "time": "soon"}'}
        assert machine.reclaim_notice() == "stop at soon"
        assert server.tokens_given == 2


IDENTITY = "/latest/dynamic/instance-identity/rsa2048"


def test_a_machine_shows_what_its_provider_vouches_for(tmp_path: Path) -> None:
    signed = signer().document("i-0123456789abcdef0")
    with _metadata(**{IDENTITY: signed}) as server:
        machine = _machine("ec2", tmp_path, server)
        assert identities(signer().pem).instance_in(machine.identity("19ab/0")).id == "i-0123456789abcdef0"
        server.token = "token-2"
        with pytest.raises(OSError, match="status 401"):
            machine.identity("19ab/0")
        assert machine.identity("19ab/0") == signed, "with a new token"


def test_a_machine_whose_provider_vouches_for_nothing_says_so(tmp_path: Path) -> None:
    with _metadata() as server, pytest.raises(OSError, match="status 404"):
        _machine("ec2", tmp_path, server).identity("19ab/0")
    with pytest.raises(OSError, match="refused"):
        _machine("ec2", tmp_path, None).identity("19ab/0")


def test_a_machine_of_google_asks_for_a_token_for_its_service_batch_and_nonce(tmp_path: Path) -> None:
    path = "/computeMetadata/v1/instance/service-accounts/default/identity"
    asked = f"{path}?audience=flux-node-join%3A%2F%2Ff0f0%2F19ab%2F0&format=full"
    with _metadata(**{asked: "a.b.c\n"}) as server:
        machine = _machine("gce", tmp_path, server)
        machine.settings.fingerprint = "f0f0"
        assert machine.identity("19ab/0") == "a.b.c"
        with pytest.raises(OSError, match="status 404"):
            machine.identity("19ab/1")


def test_a_node_of_a_batch_of_google_is_let_in_by_its_token(tmp_path: Path) -> None:
    """The real client and the real check of tokens: both name the purpose in the same way."""
    roster = (entry(launch_id(SlotName("cloud1"), "19ab"), "cloud1", provider_id=ProviderId(f"{ZONE}/n-1")),)
    rig = AdmissionRig(roster=roster, instance_in=google(tmp_path).instance_in)
    with _metadata() as server:
        machine = _Asking(_settings_of_batch(tmp_path, server), rig.admission)
        machine.settings.notice, machine.settings.fingerprint = "gce", PIN
        server.sign = lambda audience: sign(claims("n-1", aud=audience))
        client = JoinClient(machine, "", KEY.batch_ticket("19ab"), 60.0, "19ab")
        client.step()
    assert (client.launch, machine.asked[:1]) == ("cloud1-19ab", ["redeem-batch"])


def test_a_node_of_a_batch_learns_its_launch_once_and_keeps_it(tmp_path: Path) -> None:
    """The real client, from its settings to its saved state, with a service that admits two instances."""
    instances = ("i-00000001", "i-00000002")
    roster = tuple(
        entry(launch_id(SlotName(f"cloud{number}"), "19ab"), f"cloud{number}", provider_id=ProviderId(instance))
        for number, instance in enumerate(instances, 1)
    )
    rig = AdmissionRig(roster=roster)
    rig.admission = JoinAdmission(
        KEY,
        rig.rules,
        rig,
        lambda: rig.material,
        rig.store,
        lambda: rig.now_at,
        identities(signer().pem).instance_in,
    )
    for number, instance in enumerate(instances, 1):
        with _metadata(**{IDENTITY: signer().document(instance)}) as server:
            folder = tmp_path / instance
            folder.mkdir()
            machine = _Asking(_settings_of_batch(folder, server), rig.admission)
            client = JoinClient(machine, "", KEY.batch_ticket("19ab"), 60.0, "19ab")
            client.step()
            assert (client.launch, machine.asked[:1]) == (f"cloud{number}-19ab", ["redeem-batch"])
            again = JoinClient(machine, "", KEY.batch_ticket("19ab"), 60.0, "19ab")
            again.step()
            assert again.launch == client.launch
            assert machine.asked.count("redeem-batch") == 1, "its saved key is enough after a restart"


class _Asking(LocalMachine):
    """A machine that asks an admission without a network, and starts no broker."""

    def __init__(self, settings: ClientSettings, admission: JoinAdmission) -> None:
        super().__init__(settings)
        self.admission = admission
        self.asked: list[str] = []

    def ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(what)
        match what:
            case "redeem-batch":
                answer = self.admission.redeem_batch(
                    body["batch"], body["ticket"], body["nonce"], body["identity"], SOURCE, body["instance"]
                )
            case "fetch":
                answer = self.admission.fetch(body["launch"], body["key"], SOURCE, body["instance"])
            case _:
                return {}
        if isinstance(answer, Refusal):
            raise JoinRefused(str(answer.code))
        return dict(answer.body)

    def check(self, given: dict[str, Any]) -> None:
        raise CannotJoin("no broker here")


def _settings_of_batch(folder: Path, server: Metadata) -> ClientSettings:
    values = {"BATCH": "19ab", "TICKET": "t", "ADDRESSES": "127.0.0.1:1", "FINGERPRINT": "", "POWEROFF": "true"}
    values |= {"DIR": str(folder), "HOSTS": str(folder / "hosts"), "SILENCE_MAX_S": "60"}
    return ClientSettings({**values, "METADATA": f"http://127.0.0.1:{server.server_address[1]}"})


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"action": 1}', '{"time": "now"}'])
def test_an_answer_that_cannot_be_read_is_no_notice(tmp_path: Path, text: str) -> None:
    with _metadata(**{EC2_ACTION: text}) as server:
        assert _machine("ec2", tmp_path, server).reclaim_notice() == ""


def test_without_a_metadata_service_there_is_no_notice(tmp_path: Path) -> None:
    assert _machine("ec2", tmp_path, None).reclaim_notice() == ""
