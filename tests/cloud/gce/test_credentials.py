"""Google's tokens: from a service account's key or from the metadata service, with every kind of reply."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.gce.credentials import (
    SCOPE,
    CachedTokens,
    TokenGrant,
    instance_token_fetcher,
    key_token_fetcher,
)
from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.cloud.gce.port import GceCloud, token_fetcher
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from tests.cloud.gce.test_port import LIST, NOTHING, POST
from tests.cloud.recorded import LOST, Reply, Service, a_service, said
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type

LOGIN = ("POST", "/o/oauth2/token")
METADATA = ("GET", "/computeMetadata/v1/instance/service-accounts/default/token")
ROBOT = "robot@example.iam.gserviceaccount.com"


def a_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.fixture(scope="module")
def pem() -> str:
    return a_pem(rsa.generate_private_key(public_exponent=65_537, key_size=2048))


@pytest.fixture
def google() -> Iterator[Service]:
    with a_service(Service) as service:
        service.says(*LOGIN, a_token("first"))
        service.says(*METADATA, a_token("first"))
        service.says(*LIST, NOTHING)
        yield service


@pytest.fixture(params=["key", "instance"])
def ask(request: pytest.FixtureRequest, google: Service, pem: str) -> Callable[[], TokenGrant]:
    return at(google, pem) if request.param == "key" else instance_token_fetcher(google.url)


def at(service: Service, key: str) -> Callable[[], TokenGrant]:
    parts = urlsplit(service.url)
    return key_token_fetcher(ROBOT, key, host=parts.hostname, port=parts.port, secure=False, timeout=5.0)


def a_token(given: str = "a-token", **changes: object) -> Reply:
    return said({"access_token": given, "expires_in": 3600, "token_type": "Bearer", **changes})


class FrozenClock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_at(self) -> float:
        return self.now_s


def cloud_at(service: Service, ask: Callable[[], TokenGrant]) -> GceCloud:
    driver = GceDriver("project_name", CachedTokens(ask, FrozenClock()), endpoint=service.url)
    settings = PortSettings(CLUSTER, CLUSTER_UUID, a_script, FrozenClock(), sleep=lambda _: None)
    return GceCloud(driver, settings, {})


def failure_of(call: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as failed:
        call()
    return failed.value


def says(service: Service, *replies: Reply) -> None:
    service.says(*LOGIN, *replies)
    service.says(*METADATA, *replies)


def test_nothing_is_asked_before_it_must_be(google: Service, ask: Callable[[], TokenGrant]) -> None:
    cloud_at(google, ask)
    assert google.calls == []


def test_a_token_serves_for_many_calls(google: Service, ask: Callable[[], TokenGrant]) -> None:
    cloud = cloud_at(google, ask)
    assert [cloud.list_nodes() for _ in range(3)] == [(), (), ()]
    assert {call.headers["authorization"] for call in google.asked(*LIST)} == {"Bearer first"}
    assert len(google.asked(*LOGIN)) + len(google.asked(*METADATA)) == 1


def test_the_key_signs_who_asks_and_for_what(google: Service, pem: str) -> None:
    for key in (pem, json.dumps({"type": "service_account", "private_key": pem})):
        cloud_at(google, at(google, key)).list_nodes()
    for call in google.asked(*LOGIN):
        (assertion,) = parse_qs(call.body)["assertion"]
        part = assertion.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        assert (claims["iss"], claims["scope"]) == (ROBOT, SCOPE)


def test_the_metadata_service_is_asked_as_it_wants_to_be_and_past_proxies(
    google: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    ask = token_fetcher({}, {"GCE_METADATA_HOST": urlsplit(google.url).netloc}, 5.0)
    assert ask() == ("first", 3600.0)
    assert google.asked(*METADATA)[0].headers["metadata-flavor"] == "Google"


def test_seconds_may_come_as_text(google: Service, ask: Callable[[], TokenGrant]) -> None:
    says(google, a_token(expires_in="3599"))
    assert ask() == ("a-token", 3599.0)


@pytest.mark.parametrize(
    "reply",
    [
        said({"access_token": "THE-TOKEN"}),
        said({"expires_in": 3600}),
        a_token("THE-TOKEN", expires_in=None),
        a_token("THE-TOKEN", expires_in="soon"),
        a_token("THE-TOKEN", expires_in=0),
        Reply(200, '{"access_token": "THE-TOKEN", "expires_in": NaN}', {"Content-Type": "application/json"}),
        a_token("THE-TOKEN\r\n"),
        a_token("THE-T\u00d6KEN"),
        a_token(""),
        said({"access_token": ["THE-TOKEN"], "expires_in": 3600}),
        said(["THE-TOKEN"]),
        said("THE-TOKEN"),
        said(None),
        Reply(200),
        Reply(200, "THE-TOKEN"),
        Reply(503, "<html>"),
        said({"error": {"code": 503, "message": "later"}}, 503),
    ],
    ids=lambda reply: f"{reply.status} {reply.body[:60]}",
)
def test_a_reply_without_a_token_is_asked_for_again_and_not_kept(
    google: Service, ask: Callable[[], TokenGrant], reply: Reply
) -> None:
    # Once, a reply without expires_in was kept until the service restarted. The other replies ended the service.
    says(google, *[reply] * 3, a_token("next"))
    cloud = cloud_at(google, ask)
    failed = failure_of(cloud.list_nodes)
    assert failed.kind is FailureKind.TRANSIENT
    assert "THE-T" not in str(failed)
    assert cloud.list_nodes() == ()


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refused_login_is_a_matter_of_credentials_at_a_create_too(
    google: Service, ask: Callable[[], TokenGrant], status: int
) -> None:
    says(google, said({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, status))
    cloud = cloud_at(google, ask)
    assert failure_of(cloud.list_nodes).kind is FailureKind.CREDENTIALS
    failed = failure_of(lambda: cloud.create(a_launch(), a_type()))
    assert failed.kind is FailureKind.CREDENTIALS
    assert google.asked(*POST) == []


def test_what_google_says_of_a_key_is_passed_on(google: Service, pem: str) -> None:
    google.says(*LOGIN, said({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400))
    failed = failure_of(cloud_at(google, at(google, pem)).list_nodes)
    assert failed.detail.endswith("invalid_grant: Invalid JWT Signature.")


def test_a_login_whose_reply_is_lost_is_tried_again(google: Service, pem: str) -> None:
    google.says(*LOGIN, LOST, a_token())
    assert cloud_at(google, at(google, pem)).list_nodes() == ()


def test_a_machine_without_a_metadata_service_has_no_credentials() -> None:
    with a_service(Service) as service:
        gone = service.url
    with a_service(Service) as service:
        failed = failure_of(cloud_at(service, instance_token_fetcher(gone)).list_nodes)
    assert failed.kind is FailureKind.CREDENTIALS
    assert failed.detail.startswith("no key is configured")


@pytest.mark.parametrize("key", ["no key", "123", "[]", "{}", '{"private_key": 1}', "", "ec"])
def test_a_key_that_cannot_sign_is_a_matter_of_credentials(
    google: Service, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    given = a_pem(ec.generate_private_key(ec.SECP256R1())) if key == "ec" else key
    assert failure_of(cloud_at(google, at(google, given)).list_nodes).kind is FailureKind.CREDENTIALS
    assert google.calls == []
    assert list(tmp_path.iterdir()) == []  # libcloud would store its tokens in the home directory


def test_tokens_are_renewed_before_they_end_and_the_old_one_serves_while_that_fails(google: Service) -> None:
    clock = FrozenClock()
    tokens = CachedTokens(instance_token_fetcher(google.url), clock)
    assert tokens.access_token == "first"
    google.says(*METADATA, Reply(503))
    clock.now_s = 3600 - 226
    assert tokens.access_token == "first"
    assert len(google.calls) == 1
    clock.now_s = 3600 - 224
    assert [tokens.access_token for _ in range(3)] == ["first"] * 3
    assert len(google.calls) == 2, "the service is not asked at every call"
    google.says(*METADATA, a_token("next"))
    clock.now_s += 21
    assert tokens.access_token == "next"


def test_a_token_that_has_ended_serves_no_more(google: Service) -> None:
    clock = FrozenClock()
    tokens = CachedTokens(instance_token_fetcher(google.url), clock)
    assert tokens.access_token == "first"
    google.says(*METADATA, Reply(503))
    clock.now_s = 3600
    driver = GceDriver("project_name", tokens, endpoint=google.url)
    settings = PortSettings(CLUSTER, CLUSTER_UUID, a_script, clock, sleep=lambda _: None)
    cloud = GceCloud(driver, settings, {})
    assert failure_of(cloud.list_nodes).kind is FailureKind.TRANSIENT
    assert google.asked(*LIST) == []
