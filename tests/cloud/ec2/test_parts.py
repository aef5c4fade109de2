"""The parts of the EC2 adapter that need no server: endpoints, replies, requests, keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.ec2.credentials import InstanceRoleKeys, Keys, configured_keys, key_source
from nodemanager.cloud.ec2.driver import Action, Ec2Driver, Ec2Endpoint, endpoint_of
from nodemanager.cloud.ec2.port import Ec2Cloud
from nodemanager.cloud.ec2.replies import Disk, error_text_in, node_from_instance, parse_xml
from nodemanager.cloud.ec2.run_instances import Ec2Placement, client_token, run_instances
from nodemanager.core.nodes import CloudState, FailureKind
from nodemanager.core.ports import CloudError
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type
from tests.paths import DOC

NS = "http://ec2.amazonaws.com/doc/2016-11-15/"
POLICY_PAGE = DOC / "clouds" / "ec2.md"


# --- where ------------------------------------------------------------------------------------------------


def test_every_region_that_aws_names_has_the_host_that_aws_gives_it() -> None:
    loaders = pytest.importorskip("botocore.loaders", reason="AWS's own table of regions comes with moto")
    partitions = loaders.Loader().load_data("endpoints")["partitions"]
    told = {
        region: f"ec2.{region}.{partition['dnsSuffix']}"
        for partition in partitions
        for region in partition["regions"]
    }
    assert {"us-east-1", "me-central-1", "il-central-1", "cn-north-1", "us-gov-east-1"} < told.keys()
    assert {region: endpoint_of(region).host for region in told} == told


@pytest.mark.parametrize("region", ["me-central-1", "mx-central-1", "xx-future-9"])
def test_a_region_that_libcloud_does_not_know_is_a_region(region: str) -> None:
    driver = Ec2Driver(endpoint_of(region), lambda: Keys("key", "secret"))
    assert (driver.region_name, driver.signature_version) == (region, "4")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://ec2.example.org", Ec2Endpoint("r", "ec2.example.org", 443, secure=True)),
        ("https://ec2.example.org:8443", Ec2Endpoint("r", "ec2.example.org", 8443, secure=True)),
        ("http://127.0.0.1:5000", Ec2Endpoint("r", "127.0.0.1", 5000, secure=False)),
        ("http://ec2.example.org", Ec2Endpoint("r", "ec2.example.org", 80, secure=False)),
    ],
)
def test_an_endpoint_is_what_its_url_says(url: str, endpoint: Ec2Endpoint) -> None:
    assert endpoint_of("r", url) == endpoint


# --- replies ----------------------------------------------------------------------------------------------


def an_item(inner: str, state: str = "running") -> str:
    return (
        f'<item xmlns="{NS}"><instanceId>i-1</instanceId><instanceState><code>0</code><name>{state}</name>'
        f"</instanceState>{inner}</item>"
    )


@pytest.mark.parametrize(
    ("launch_time", "created_at"),
    [
        ("2026-01-02T03:04:05.000Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()),
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC).timestamp()),
        ("2026-01-02", datetime(2026, 1, 2, tzinfo=UTC).timestamp()),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_moment_is_utc_and_one_that_cannot_be_read_is_not_known(
    launch_time: str, created_at: float | None
) -> None:
    item = parse_xml(an_item(f"<launchTime>{launch_time}</launchTime>").encode())
    assert node_from_instance(item).created_at == created_at


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        ("pending", CloudState.PENDING),
        ("running", CloudState.RUNNING),
        ("shutting-down", CloudState.STOPPING),
        ("terminated", CloudState.TERMINATED),
        ("stopping", CloudState.RUNNING),
        ("stopped", CloudState.RUNNING),
        ("a new one", CloudState.RUNNING),
    ],
)
def test_a_state_that_is_not_surely_an_end_costs(state: str, seen: CloudState) -> None:
    assert node_from_instance(parse_xml(an_item("", state).encode())).state is seen


def test_an_instance_with_few_fields_is_read_as_far_as_possible() -> None:
    seen = node_from_instance(parse_xml(an_item("<tagSet/>", "terminated").encode()))
    assert (seen.identity, seen.addresses) == (None, ())
    assert seen.died_because == "unknown cause: EC2 gives no reason"


def test_text_that_says_nothing_of_its_encoding_is_utf_8() -> None:
    tags = "<tagSet><item><key>fnm:slot</key><value>節点</value></item></tagSet>"
    content = an_item(tags).encode()
    assert "節点" in "".join(parse_xml(content).itertext())


def test_tags_cannot_pretend_to_be_what_is_left_out_of_the_tree() -> None:
    text = escape("<placement></placement><networkInterfaceSet>")
    content = f'<DescribeInstancesResponse xmlns="{NS}"><a>{text}</a></DescribeInstancesResponse>'.encode()
    assert "".join(parse_xml(content).itertext()) == "<placement></placement><networkInterfaceSet>"


@given(st.binary(max_size=200))
def test_whatever_comes_with_an_error_is_read_or_left(content: bytes) -> None:
    assert isinstance(error_text_in(content), str)


@pytest.mark.parametrize("namespace", ["", f' xmlns="{NS}"', f' xmlns="{NS[:-1]}"'])
def test_an_error_is_read_whatever_its_namespace(namespace: str) -> None:
    content = (
        f"<Response{namespace}><Errors><Error><Code>Some</Code><Message>text</Message></Error></Errors></Response>"
    )
    assert error_text_in(content.encode()) == "Some: text"


# --- requests ---------------------------------------------------------------------------------------------


def asked(placement: Ec2Placement, zone: str = "") -> dict[str, str]:
    request = PortSettings(CLUSTER, CLUSTER_UUID, a_script, FrozenClock()).request(a_launch(), a_type())
    return run_instances(replace(request, zone=zone), placement, [Disk("/dev/x", "8")])


def test_the_same_launch_asks_for_the_same() -> None:
    assert asked(Ec2Placement()) == asked(Ec2Placement())


def test_a_launch_without_a_zone_goes_to_the_first_one_of_its_type() -> None:
    settings = PortSettings(CLUSTER, CLUSTER_UUID, a_script, FrozenClock())
    request = settings.request(a_launch(), replace(a_type(), zones=("z-2", "z-1")))
    assert run_instances(request, Ec2Placement(), [])["Placement.AvailabilityZone"] == "z-2"
    assert run_instances(request, Ec2Placement({"z-1": "s-1", "z-2": "s-2"}), [])["SubnetId"] == "s-2"


def test_without_subnets_a_zone_is_named_and_without_a_zone_nothing() -> None:
    assert asked(Ec2Placement(), zone="us-east-1c")["Placement.AvailabilityZone"] == "us-east-1c"
    assert not [name for name in asked(Ec2Placement()) if "Zone" in name or "Subnet" in name]


@pytest.mark.parametrize(
    ("profile", "name"),
    [("nodes", "IamInstanceProfile.Name"), ("arn:aws:iam::1:instance-profile/nodes", "IamInstanceProfile.Arn")],
)
def test_a_role_is_given_by_its_name_or_its_arn(profile: str, name: str) -> None:
    assert asked(Ec2Placement(instance_profile=profile))[name] == profile


@given(st.text())
def test_a_token_is_always_one_that_ec2_takes(token: str) -> None:
    taken = client_token(token)
    assert taken.isascii()
    assert len(taken) <= 64
    assert taken == client_token(token)


def test_a_token_that_ec2_takes_is_left_as_it_is_and_others_stay_apart() -> None:
    assert client_token("0f9c1d7e-small1-19a") == "0f9c1d7e-small1-19a"
    assert client_token("ü" * 65) != client_token("ü" * 66)


# --- keys -------------------------------------------------------------------------------------------------

GIVEN = {"access_key_id": SecretStr("AKIASITE"), "secret_access_key": SecretStr("of-the-site")}
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKIAENV", "AWS_SECRET_ACCESS_KEY": "of-env", "AWS_SESSION_TOKEN": "session"}


class FrozenClock:
    def __init__(self, now_at: float = 0.0) -> None:
        self.now_at = now_at

    def monotonic_s(self) -> float:
        return 0.0

    def wall_at(self) -> float:
        return self.now_at


def test_keys_are_those_of_the_site_else_of_the_environment() -> None:
    assert configured_keys(GIVEN, ENVIRONMENT) == Keys("AKIASITE", "of-the-site", "")
    assert configured_keys({}, ENVIRONMENT) == Keys("AKIAENV", "of-env", "session")
    assert configured_keys({}, {"AWS_ACCESS_KEY_ID": "AKIAENV"}) is None
    assert key_source(GIVEN, ENVIRONMENT, FrozenClock())() == Keys("AKIASITE", "of-the-site", "")


def test_keys_are_shown_nowhere() -> None:
    assert "of-env" not in repr(configured_keys({}, ENVIRONMENT))
    assert "session" not in repr(configured_keys({}, ENVIRONMENT))


@pytest.mark.parametrize("odd", ["SECRET\r", "SECRET\n", "SECRET\u2010", "S\u00d6CRET", "SEC\x00RET"])
@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("AWS_ACCESS_KEY_ID", "access_key_id"),
        ("AWS_SECRET_ACCESS_KEY", "secret_access_key"),
        ("AWS_SESSION_TOKEN", "session_token"),
    ],
)
def test_keys_that_cannot_be_any_are_refused_by_their_name_and_not_shown(
    odd: str, variable: str, name: str
) -> None:
    # Such a character in a header ended the process, or every failed list showed the whole key.
    keys = key_source({}, {**ENVIRONMENT, variable: odd}, FrozenClock())
    driver = Ec2Driver(endpoint_of("us-east-1", "http://127.0.0.1:9"), keys, sleep=lambda _: None)
    cloud = Ec2Cloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, FrozenClock()))
    with pytest.raises(CloudError) as failed:
        cloud.list_nodes()
    assert failed.value.kind is FailureKind.CREDENTIALS
    assert name in failed.value.detail
    assert "CRET" not in str(failed.value)


class MetadataService:
    """The instance metadata service, version 2, with one role."""

    def __init__(self) -> None:
        self.expires_at = 1_000_000.0
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[str, str] = {}
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(bool(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")))

            def do_GET(self) -> None:
                self._answer(self.headers.get("X-aws-ec2-metadata-token") == "a-token")

            def _answer(self, allowed: bool) -> None:
                service.asked.append((self.command, self.path))
                text = service.answers.get(self.path)
                self.send_response(200 if allowed and text is not None else 401 if text is not None else 404)
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.has("AKIAROLE")

    def has(self, key: str, **changes: str) -> None:
        expires = datetime.fromtimestamp(self.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {"AccessKeyId": key, "SecretAccessKey": "of-role", "Token": "session", "Expiration": expires}
        role = "/latest/meta-data/iam/security-credentials/"
        self.answers = {"/latest/api/token": "a-token", role: "nodes\n", role + "nodes": json.dumps(keys | changes)}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[MetadataService]:
    service = MetadataService()
    yield service
    service.close()


def test_without_keys_those_of_the_instances_role_are_asked_for_and_kept(
    service: MetadataService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    keys = key_source({}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url}, FrozenClock())
    assert {keys() for _ in range(3)} == {Keys("AKIAROLE", "of-role", "session")}
    assert [method for method, _ in service.asked] == ["PUT", "GET", "GET"]


def test_they_are_renewed_before_they_expire(service: MetadataService) -> None:
    clock = FrozenClock()
    keys = InstanceRoleKeys(service.url, clock)
    assert keys().access_key_id == "AKIAROLE"
    service.has("AKIANEXT")
    clock.now_at = service.expires_at - 301
    assert keys().access_key_id == "AKIAROLE"
    clock.now_at = service.expires_at - 299
    assert keys().access_key_id == "AKIANEXT"


def test_keys_that_cannot_be_renewed_just_now_are_used_until_they_expire(service: MetadataService) -> None:
    clock = FrozenClock()
    keys = InstanceRoleKeys(service.url, clock)
    keys()
    service.answers.clear()
    clock.now_at = service.expires_at - 200
    assert keys().access_key_id == "AKIAROLE"
    service.has("AKIANEXT")
    assert keys().access_key_id == "AKIAROLE", "the service is not asked at every call"
    clock.now_at += 21
    assert keys().access_key_id == "AKIANEXT"
    service.answers.clear()
    clock.now_at = service.expires_at
    with pytest.raises(CloudError):
        keys()


def no_role(service: MetadataService) -> None:
    service.answers.pop("/latest/meta-data/iam/security-credentials/")


def no_keys(service: MetadataService) -> None:
    service.answers["/latest/meta-data/iam/security-credentials/nodes"] = '{"Code": "Failed", "Secret": "half"}'


def no_sense(service: MetadataService) -> None:
    service.answers["/latest/meta-data/iam/security-credentials/nodes"] = "<html>half a secret</html>"


def no_moment(service: MetadataService) -> None:
    service.has("AKIAROLE", Expiration="soon")


@pytest.mark.parametrize("damage", [no_role, no_keys, no_sense, no_moment, MetadataService.close])
def test_an_instance_without_a_role_is_a_matter_of_credentials(damage: Callable[[MetadataService], None]) -> None:
    service = MetadataService()
    damage(service)
    try:
        with pytest.raises(CloudError) as failed:
            InstanceRoleKeys(service.url, FrozenClock())()
    finally:
        if damage is not MetadataService.close:
            service.close()
    assert failed.value.kind is FailureKind.CREDENTIALS
    assert "half" not in failed.value.detail


# --- the least privileges ---------------------------------------------------------------------------------

# RunInstances also tags what it creates and passes it a role, so it needs these permissions too.
BESIDE = {"ec2:CreateTags", "iam:PassRole"}


def the_policy() -> Mapping[str, list[dict[str, object]]]:
    (text,) = [part for part in POLICY_PAGE.read_text(encoding="utf-8").split("```") if part.startswith("json\n")]
    policy: Mapping[str, list[dict[str, object]]] = json.loads(text.removeprefix("json\n"))
    return policy


def test_the_policy_allows_every_call_that_is_made_and_no_other() -> None:
    actions = [action for statement in the_policy()["Statement"] for action in _listed(statement["Action"])]
    assert {action for action in actions if "*" in action} == set()
    assert set(actions) == {f"ec2:{action}" for action in Action} | BESIDE


def test_what_destroys_is_allowed_on_what_the_cluster_tagged_only() -> None:
    destroys = {
        "ec2:TerminateInstances",
        "ec2:DeleteVolume",
        "ec2:DeleteNetworkInterface",
        "ec2:ReleaseAddress",
        "ec2:DeletePlacementGroup",
    }
    for statement in the_policy()["Statement"]:
        if destroys & set(_listed(statement["Action"])):
            assert statement["Condition"] == {
                "StringEquals": {"aws:ResourceTag/fnm:cluster": ["lab", "lab-cloud-test"]}
            }


def _listed(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
