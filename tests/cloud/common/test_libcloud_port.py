"""How the shared port interprets any libcloud driver: errors, waits, states, tags."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from libcloud.common.exceptions import BaseHTTPError, RateLimitReachedError
from libcloud.common.types import InvalidCredsError, LibcloudError, MalformedResponseError
from libcloud.compute.base import Node, NodeDriver
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.libcloud_port import (
    LibcloudPort,
    classify,
    cloud_error,
)
from nodemanager.cloud.common.request import NodeRequest, PortSettings, identity_from_tags
from nodemanager.cloud.common.retry_after import parse_retry_after
from nodemanager.cloud.ec2.errors import EC2_CODES, classify_ec2
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, ProviderId, QuotaScope
from nodemanager.core.ports import CloudError
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SystemClock, a_launch, a_script, a_type

NOW_AT = 1_700_000_000.0
Refusal = BaseHTTPError | LibcloudError | OSError


def http(status: int | str, message: str = "", headers: dict[str, str] | None = None) -> BaseHTTPError:
    return BaseHTTPError(status, message, headers)  # type: ignore[no-untyped-call]


class TestClassify:
    @pytest.mark.parametrize("creating", [True, False])
    def test_a_header_that_cannot_be_sent_is_not_shown(self, creating: bool) -> None:
        with pytest.raises(requests.exceptions.InvalidHeader) as refused:
            requests.get("http://127.0.0.1:9", headers={"X-Token": "a-secret\r"}, timeout=1)
        assert "a-secret" in str(refused.value)
        failed = classify(refused.value, creating=creating, now_at=NOW_AT)
        assert failed.kind is FailureKind.CREDENTIALS
        assert "a-secret" not in failed.detail

    @pytest.mark.parametrize(
        ("detail", "reach"),
        [
            ("VcpuLimitExceeded: you have requested more vCPU capacity than your limit of 32", QuotaScope.TYPE),
            ("InstanceLimitExceeded: 20 of m5.large", QuotaScope.TYPE),
            ("MaxSpotInstanceCountExceeded: enough", QuotaScope.MARKET),
            ("VolumeLimitExceeded: enough", None),
            ("Quota exceeded for cores: Requested 8, but already used 17 of 20 cores", QuotaScope.TYPE),
            ("Quota exceeded for instances: Requested 1, but already used 10 of 10 instances", None),
            ("Quota 'CPUS_ALL_REGIONS' exceeded. Limit: 12.0 globally.", QuotaScope.TYPE),
            ("Quota 'NVIDIA_T4_GPUS' exceeded", QuotaScope.TYPE),
        ],
    )
    def test_a_quota_reaches_as_far_as_the_provider_says(self, detail: str, reach: QuotaScope | None) -> None:
        assert cloud_error(FailureKind.QUOTA, detail, scopes=EC2_CODES.scopes).quota_scope is reach
        assert cloud_error(FailureKind.CAPACITY, detail, scopes=EC2_CODES.scopes).quota_scope is None

    @pytest.mark.parametrize(
        ("error", "creating", "otherwise"),
        [
            (http(500, "InsufficientInstanceCapacity: none"), FailureKind.CAPACITY, FailureKind.CAPACITY),
            (http(400, "Unsupported: not in this zone"), FailureKind.CAPACITY, FailureKind.CAPACITY),
            (http(400, "VcpuLimitExceeded: 32"), FailureKind.QUOTA, FailureKind.QUOTA),
            (http(400, "InstanceLimitExceeded: 20"), FailureKind.QUOTA, FailureKind.QUOTA),
            (http(503, "RequestLimitExceeded: slow down"), FailureKind.THROTTLED, FailureKind.THROTTLED),
            (http(429, "Too many requests"), FailureKind.THROTTLED, FailureKind.THROTTLED),
            (RateLimitReachedError(), FailureKind.THROTTLED, FailureKind.THROTTLED),  # type: ignore[no-untyped-call]
            (http(400, "RequestExpired: clock"), FailureKind.CREDENTIALS, FailureKind.CREDENTIALS),
            (http(403, "UnauthorizedOperation: no"), FailureKind.CREDENTIALS, FailureKind.CREDENTIALS),
            (InvalidCredsError(), FailureKind.CREDENTIALS, FailureKind.CREDENTIALS),
            (http(400, "InvalidParameterValue: size"), FailureKind.CONFIG, FailureKind.CONFIG),
            (http(400, "InvalidAMIID.NotFound: image"), FailureKind.CONFIG, FailureKind.GONE),
            (http(400, "InvalidInstanceID.NotFound: i-1"), FailureKind.CONFIG, FailureKind.GONE),
            (http(404, "no such thing"), FailureKind.CONFIG, FailureKind.GONE),
            (http(409, "in the middle of another call"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (http(500, "InternalError: oops"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (http(502), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (http(503, "Unavailable: later"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (http("ERROR", "an operation failed"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (http(302, "moved"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (MalformedResponseError("not XML", "<html>"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (LibcloudError("something"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (ConnectionResetError("by peer"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (requests.ReadTimeout("60 s"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
            (requests.ConnectionError("refused"), FailureKind.AMBIGUOUS, FailureKind.TRANSIENT),
        ],
        ids=str,
    )
    def test_by_what_there_is_to_do(self, error: Refusal, creating: FailureKind, otherwise: FailureKind) -> None:
        assert classify_ec2(error, creating=True, now_at=NOW_AT).kind is creating
        assert classify_ec2(error, creating=False, now_at=NOW_AT).kind is otherwise

    def test_a_code_means_something_at_its_own_provider_only(self) -> None:
        refused = http(400, "VcpuLimitExceeded: 32")
        assert classify_ec2(refused, creating=True, now_at=NOW_AT).quota_scope is QuotaScope.TYPE
        assert classify(refused, creating=True, now_at=NOW_AT).kind is FailureKind.CONFIG

    @given(st.integers(300, 599) | st.text())
    def test_create_of_any_status_is_transient_never(self, status: int | str) -> None:
        # TRANSIENT means that nothing happened. For a create, no HTTP status alone proves that.
        assert classify(http(status, "?"), creating=True, now_at=NOW_AT).kind is not FailureKind.TRANSIENT

    def test_says_nothing_of_what_a_url_carries(self) -> None:
        error = requests.ConnectionError("Max retries exceeded with url: /?Action=RunInstances&UserData=c2VjcmV0")
        assert "c2VjcmV0" not in classify(error, creating=True, now_at=NOW_AT).detail

    def test_says_no_more_than_can_be_read(self) -> None:
        assert len(classify(http(500, "<html>" * 10_000), creating=True, now_at=NOW_AT).detail) <= 500

    def test_uses_the_status_if_the_provider_gives_no_message(self) -> None:
        assert classify(http(502), creating=False, now_at=NOW_AT).detail == "HTTP 502"

    @pytest.mark.parametrize("name", ["retry-after", "Retry-After", "RETRY-AFTER"])
    def test_wait_is_read_in_whatever_case_the_header_comes(self, name: str) -> None:
        error = http(503, "RequestLimitExceeded: slow down", {"server": "x", name: "7"})
        assert classify(error, creating=True, now_at=NOW_AT).retry_after_s == 7


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "wait_s"),
        [
            ("0", 0),
            ("7", 7),
            (" 7 ", 7),
            ("1.5", 1.5),
            ("-5", 0),
            ("300", 300),
            ("301", 300),
            ("9" * 400, 300),
            ("", 0),
            ("soon", 0),
            ("nan", 0),
            ("inf", 0),
            ("1e3", 0),
            ("0x10", 0),
            ("٣", 0),
            (format_datetime(datetime.fromtimestamp(NOW_AT + 60, UTC), usegmt=True), 60),
            (format_datetime(datetime.fromtimestamp(NOW_AT - 60, UTC), usegmt=True), 0),
            (format_datetime(datetime.fromtimestamp(NOW_AT + 86_400, UTC), usegmt=True), 300),
            ("Tue, 14 Nov 2023 22:14:20 -0000", 60),
            ("Sun, 99 Xxx 9999 99:99:99 GMT", 0),
        ],
    )
    def test_is_a_wait_in_seconds_or_until_a_moment(self, header: str, wait_s: float) -> None:
        assert parse_retry_after(header, NOW_AT) == pytest.approx(wait_s)

    @given(st.text())
    def test_whatever_comes_is_a_wait_within_bounds(self, header: str) -> None:
        assert 0 <= parse_retry_after(header, NOW_AT) <= 300


class ScriptedDriver(NodeDriver):
    """A driver whose replies a test sets."""

    type = "scripted"
    name = "Scripted"

    def __init__(self, nodes: list[Node] | Refusal, *, destroys: bool | Refusal = True) -> None:
        self.nodes = nodes
        self.destroys = destroys

    def list_nodes(self) -> list[Node]:
        if isinstance(self.nodes, Exception):
            raise self.nodes
        return self.nodes

    def destroy_node(self, node: Node) -> bool:
        if isinstance(self.destroys, Exception):
            raise self.destroys
        return self.destroys


class ScriptedPort(LibcloudPort):
    codes = EC2_CODES

    def __init__(self, driver: NodeDriver) -> None:
        super().__init__(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, SystemClock(), sleep=lambda _: None))
        self.requests: list[NodeRequest] = []

    def _create_node(self, request: NodeRequest) -> Node:
        self.requests.append(request)
        return a_node(extra={"tags": dict(request.tags)})


def a_node(state: NodeState = NodeState.RUNNING, extra: dict[str, object] | None = None) -> Node:
    return Node("i-1", "name", state, ["192.0.2.1"], ["10.0.0.1"], ScriptedDriver([]), extra=extra)


class TestLibcloudPort:
    def test_create_asks_for_all_that_a_launch_says(self) -> None:
        port = ScriptedPort(ScriptedDriver([]))
        created = port.create(a_launch(), a_type())
        (request,) = port.requests
        assert (request.client_token, request.name) == ("token-1", f"{CLUSTER}-node-1")
        assert request.user_data == a_script(a_launch(), a_type())
        assert created.identity == identity_from_tags(request.tags)

    @pytest.mark.parametrize(
        ("state", "seen"),
        [
            (NodeState.PENDING, CloudState.PENDING),
            (NodeState.STARTING, CloudState.PENDING),
            (NodeState.RUNNING, CloudState.RUNNING),
            (NodeState.REBOOTING, CloudState.RUNNING),
            (NodeState.UNKNOWN, CloudState.RUNNING),
            (NodeState.STOPPED, CloudState.RUNNING),
            (NodeState.STOPPING, CloudState.STOPPING),
            (NodeState.TERMINATED, CloudState.TERMINATED),
            (NodeState.ERROR, CloudState.FAILED),
        ],
    )
    def test_state_that_is_not_surely_an_end_costs(self, state: NodeState, seen: CloudState) -> None:
        assert ScriptedPort(ScriptedDriver([a_node(state)])).list_nodes()[0].state is seen

    def test_bare_node_is_seen_as_far_as_the_driver_knows_it(self) -> None:
        (seen,) = ScriptedPort(ScriptedDriver([a_node()])).list_nodes()
        assert seen == CloudNode(
            provider_id=ProviderId("i-1"),
            state=CloudState.RUNNING,
            identity=None,
            created_at=None,
            addresses=("192.0.2.1", "10.0.0.1"),
            died_because="",
        )

    def test_node_that_lacks_one_of_our_tags_is_nobodys(self) -> None:
        port = ScriptedPort(ScriptedDriver([]))
        port.create(a_launch(), a_type())
        tags = port.requests[0].tags
        assert identity_from_tags(tags) is not None
        for name in tags:
            assert identity_from_tags({tag: value for tag, value in tags.items() if tag != name}) is None

    def test_list_that_fails_is_a_failure_and_not_an_empty_list(self) -> None:
        with pytest.raises(CloudError) as failed:
            ScriptedPort(ScriptedDriver(MalformedResponseError("not XML"))).list_nodes()
        assert failed.value.kind is FailureKind.TRANSIENT

    def test_destroy_of_one_that_is_gone_is_no_error(self) -> None:
        driver = ScriptedDriver([], destroys=http(400, "InvalidInstanceID.NotFound: i-1"))
        # It must not raise.
        ScriptedPort(driver).destroy(ProviderId("i-1"))

    @pytest.mark.parametrize("answer", [False, http(503, "Unavailable: later")])
    def test_destroy_that_was_not_accepted_is_to_be_repeated(self, answer: bool | BaseHTTPError) -> None:
        with pytest.raises(CloudError) as failed:
            ScriptedPort(ScriptedDriver([], destroys=answer)).destroy(ProviderId("i-1"))
        assert failed.value.kind is FailureKind.TRANSIENT

    def test_bug_passes_as_what_it_is(self) -> None:
        class BrokenPort(ScriptedPort):
            def _create_node(self, request: NodeRequest) -> Node:
                raise AttributeError("a bug")

        with pytest.raises(AttributeError, match="a bug"):
            BrokenPort(ScriptedDriver([])).create(a_launch(), a_type())
