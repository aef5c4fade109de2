"""From one bulk insert to a slot for each node: the port, the files in between, and the join service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from nodemanager.cli import main
from nodemanager.cloud.gce.port import FETCH_EVERY_S, GceCloud, KeyCourier
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudNode, JoinPhase, LaunchId
from nodemanager.core.ports import CloudError
from nodemanager.join.admission import Answer, Granted, JoinAdmission, Refusal
from nodemanager.join.exchange import ExchangePaths, FileExchange
from nodemanager.join.flux_node_join import google_audience, purpose_of
from nodemanager.join.identity.google_keys import GoogleKeys
from nodemanager.join.key_material import MaterialPaths, fingerprint, make_material
from nodemanager.join.server import make_admission
from nodemanager.join.tickets import hash_nonce, read_site_key
from tests.cloud.recorded import Call, Reply, said
from tests.contract.cloud_subjects import a_type
from tests.contract.gce_subject import GceSubject
from tests.contract.test_cloud_batches import STAMP, launches
from tests.join.admission import entry
from tests.join.google_tokens import ACCOUNT, Wall, claims, jwks, sign

SITE = """[Site]
cluster = ada
cluster_uuid = 11111111-1111-4111-8111-111111111111
state_dir = state
[Flux]
uri = local:///nowhere/local-0
head_address = 10.0.0.1
join = service
bootstrap_dir = flux
[Join]
addresses = 10.0.0.1:8443
flux_version = 0.88.0
[Cloud]
provider = gce
project = lab
image = global/images/flux
network = global/networks/default
zones = europe-west3-a
{account}
[Limits]
nodes_max = 50
price_per_hour_max = 20
[Node small]
size = n2-standard-4
cores = 2
memory = 4GiB
price_per_hour = 0.10
slots = node-[1-40]
"""


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Restore logging: a verb configures it to write to the test's stream."""
    yield
    structlog.reset_defaults()


def a_site(folder: Path, account: str = f"node_service_account = {ACCOUNT}") -> Site:
    (folder / "site.ini").write_text(SITE.format(account=account), encoding="utf-8")
    site = load_site(folder / "site.ini", {})
    conf = folder / "flux" / "conf.d"
    conf.mkdir(parents=True)
    (conf / "flux.toml").write_text('[bootstrap]\ncurve_cert = "curve.cert"\nhosts = [{ host = "head" }]\n')
    (folder / "flux" / "curve.cert").write_text("the secret curve certificate")
    make_material(site, conf.parent)
    return site


class Yard:
    """A project, the manager's port for it, and the join service of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.subject = GceSubject()
        self.published = jwks("google")
        answer = self.subject.service.answer
        self.subject.service.answer = lambda call: self._keys(call) or answer(call)  # type: ignore[method-assign]
        self.wall = Wall()
        self.port: GceCloud = self.subject.port
        folder = site.join.material_dir
        self.port._keys = KeyCourier(self.port.driver, GoogleKeys(folder, time.time), self.wall)
        self.pin = fingerprint(MaterialPaths(folder).tls_certificate)
        self.key = read_site_key(MaterialPaths(folder).site_key)
        self.admission: JoinAdmission = make_admission(site)

    def _keys(self, call: Call) -> Reply | None:
        return said(self.published, Cache_Control="max-age=22000") if call.path == "/oauth2/v3/certs" else None

    def list(self) -> list[CloudNode]:
        """List the nodes as the manager does, and post the roster."""
        nodes = [node for node in self.port.list_nodes() if node.identity is not None]
        until_at = time.time() + 900
        roster = tuple(
            entry(it.identity.launch, it.identity.slot, provider_id=it.provider_id, redeemable_until_at=until_at)
            for it in nodes
            if it.identity is not None
        )
        FileExchange(ExchangePaths(self.site.join.material_dir)).post(roster, time.time())
        return nodes

    def join(self, node: CloudNode, nonce: str, by: str = "google", **changed: Any) -> Answer:
        """Show the ticket of the batch and a token, as a node does."""
        zone, _, name = node.provider_id.partition("/")
        now_at = int(time.time())
        audience = google_audience(self.pin, purpose_of(STAMP, hash_nonce(nonce)))
        shown = {"aud": audience, "iat": now_at, "exp": now_at + 3600, "engine": {"zone": zone}, **changed}
        token = sign(claims(name, **shown), by)
        return self.admission.redeem_batch(STAMP, self.key.batch_ticket(STAMP), nonce, token, "10.0.0.5")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(a_site(tmp_path))
    try:
        yield made
    finally:
        made.subject.close()
        made.admission._store.close()


def slot_of(answer: Answer) -> str:
    assert isinstance(answer, Granted), answer
    return str(answer.body["slot"])


def test_each_node_of_one_call_gets_its_own_slot_once(yard: Yard) -> None:
    made = yard.port.create_many(launches(40), a_type())
    assert not any(isinstance(it, CloudError) for it in made)
    nodes = yard.list()
    given = {it.provider_id: slot_of(yard.join(it, f"{number:064x}")) for number, it in enumerate(nodes)}
    assert given == {it.provider_id: it.identity.slot for it in nodes if it.identity is not None}
    assert len(set(given.values())) == 40
    again = yard.join(nodes[0], "f" * 64)
    assert isinstance(again, Refusal)
    assert again.code == "used"
    reports = FileExchange(ExchangePaths(yard.site.join.material_dir)).reports()
    assert sum(getattr(it, "phase", None) is JoinPhase.REPLAYED for it in reports) == 1


def test_a_node_that_is_not_listed_yet_waits(yard: Yard) -> None:
    yard.list()
    (node, *_) = yard.port.create_many(launches(2), a_type())
    assert isinstance(node, CloudNode)
    refused = yard.join(node, "1" * 64)
    assert isinstance(refused, Refusal)
    assert refused.code == "not_current"
    yard.list()
    assert slot_of(yard.join(node, "1" * 64)) == "node-1"


def test_after_google_has_changed_its_keys_nodes_wait_for_the_next_list(yard: Yard) -> None:
    yard.port.create_many(launches(2), a_type())
    first, second = yard.list()
    assert slot_of(yard.join(first, "1" * 64))
    yard.published = jwks("google", "next")
    refused = yard.join(second, "2" * 64, by="next")
    assert isinstance(refused, Refusal)
    assert (refused.code, "unknown key" in refused.why) == ("unproven", True)
    yard.wall.advance(FETCH_EVERY_S)
    yard.list()
    assert slot_of(yard.join(second, "2" * 64, by="next"))


@pytest.mark.parametrize(
    "changed",
    [
        {"engine": {"project_id": "other", "zone": "europe-west3-a"}},
        {"email": "other@lab"},
        {"exp": 1},
        {"aud": ""},
    ],
    ids=["another project", "another account", "too late", "for something else"],
)
def test_a_token_that_does_not_fit_the_site_brings_nothing(yard: Yard, changed: dict[str, Any]) -> None:
    yard.port.create_many(launches(2), a_type())
    node = yard.list()[0]
    refused = yard.join(node, "1" * 64, **changed)
    assert isinstance(refused, Refusal)
    assert refused.code == "unproven"
    assert slot_of(yard.join(node, "1" * 64)), "and nothing was used up"


def test_a_node_that_joined_by_its_own_ticket_is_not_let_in_again_by_a_token(yard: Yard) -> None:
    (launch,) = launches(1)
    yard.port.create(launch, a_type())
    (node,) = yard.list()
    ticket = yard.key.ticket(LaunchId(launch.id))
    assert slot_of(yard.admission.redeem(launch.id, ticket, "1" * 64, "10.0.0.5")) == "node-1"
    again = yard.join(node, "2" * 64)
    assert isinstance(again, Refusal)
    assert again.code == "used"


@pytest.mark.parametrize(("account", "said_so"), [("", True), (f"node_service_account = {ACCOUNT}", False)])
def test_check_says_why_nodes_are_created_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], account: str, said_so: bool
) -> None:
    site = a_site(tmp_path, account)
    assert main.main(["check", "--config", str(site.path)]) == 0
    assert ("one call creates several if [Cloud] node_service_account is set" in capsys.readouterr().out) is said_so


def test_check_names_the_section_of_the_cloud_that_lacks_the_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_site(tmp_path, "").path
    file.write_text(file.read_text(encoding="utf-8").replace("[Cloud]", "[Cloud west]"), encoding="utf-8")
    assert main.main(["check", "--config", str(file)]) == 0
    assert "one call creates several if [Cloud west] node_service_account is set" in capsys.readouterr().out
