"""The Nova port, on a real Nova's recorded replies (``tests/data/openstack``) and on invented ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from nodemanager.cloud.common.libcloud_port import READ_TRIES
from nodemanager.cloud.common.request import PortSettings, unique_name
from nodemanager.cloud.openstack.driver import Login
from nodemanager.cloud.openstack.port import OpenStackCloud, OpenStackPlacement, cluster_tag, launch_tag
from nodemanager.core.nodes import CloudState, FailureKind, Identity, LaunchId, ProviderId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType, SlotName, TypeName
from tests.cloud.recorded import LOST, Reply, Service, a_service, recorded, said
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type

NETWORK = "3cb9bc59-5699-4588-a4b1-b87f96708bc6"
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
SERVER = json.loads(recorded("openstack/server").body)["server"]
MADE = json.loads(recorded("openstack/server-created").body)["server"]["id"]

TOKENS = ("POST", "/v3/auth/tokens")
LIST = ("GET", "/v2.1/servers/detail")
POST = ("POST", "/v2.1/servers")
DETAILS = ("GET", f"/v2.1/servers/{MADE}")
FLAVORS = ("GET", "/v2.1/flavors")

REFUSED = said({"computeFault": {"code": 503, "message": "later"}}, 503)


class ATime:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_at(self) -> float:
        return 1_800_000_000.0 + self.now_s


@pytest.fixture
def nova() -> Iterator[Service]:
    """A cloud without faults: the list is empty, and a create makes the recorded server."""
    with a_service(Service) as service:
        service.says(*TOKENS, recorded("openstack/token"))
        service.says(*LIST, recorded("openstack/servers-none"))
        service.says(*FLAVORS, *(recorded(f"openstack/flavors-page-{page}") for page in (1, 2, 3, 4)))
        service.says("GET", "/image/v2/images", recorded("openstack/images"))
        service.says("GET", "/network/v2.0/networks", recorded("openstack/networks"))
        service.says(*POST, recorded("openstack/server-created"))
        service.says(*DETAILS, recorded("openstack/server"))
        yield service


def cloud_at(service: Service, clock: ATime | None = None, **changes: Any) -> OpenStackCloud:
    placement = changes.pop("placement", OpenStackPlacement(("private",)))
    login = Login(service.url, "demo", "not-a-secret", project="demo", region="RegionOne")
    return OpenStackCloud(
        replace(login, **changes),
        PortSettings(CLUSTER, CLUSTER_UUID, a_script, clock or ATime(), sleep=lambda _: None),
        {TypeName("small"): placement},
    )


def a_nova_type(**changes: Any) -> NodeType:
    return replace(a_type(), **changes)


def failure_of(cloud: OpenStackCloud, call: str = "list") -> CloudError:
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: cloud.create(a_launch(), a_type()),
        "list": cloud.list_nodes,
        "destroy": lambda: cloud.destroy(ProviderId(MADE)),
    }
    with pytest.raises(CloudError) as failed:
        calls[call]()
    return failed.value


def a_server(**changes: Any) -> dict[str, Any]:
    """The server of launch 1 as Nova lists it."""
    return {**SERVER, **changes}


def a_list(*servers: dict[str, Any]) -> Reply:
    return said({"servers": list(servers)})


class TestWhatACreateAsksFor:
    def test_everything_that_makes_a_node_ours_is_in_the_create_itself(self, nova: Service) -> None:
        created = cloud_at(nova).create(a_launch(), a_type())
        (asked,) = nova.asked(*POST)
        assert asked.body == {
            "server": {
                "name": unique_name("ada-node-1", LaunchId("launch-1")),
                "flavorRef": json.loads(recorded("openstack/flavors-page-4").body)["flavors"][-1]["id"],
                "imageRef": IMAGE,
                "networks": [{"uuid": NETWORK}],
                "metadata": {
                    "fnm:cluster": "ada",
                    "fnm:cluster-uuid": CLUSTER_UUID,
                    "fnm:launch": "launch-1",
                    "fnm:slot": "node-1",
                    "fnm:type": "small",
                },
                "tags": [cluster_tag("ada"), launch_tag(LaunchId("launch-1"))],
                "user_data": base64.b64encode(a_script(a_launch(), a_type()).encode()).decode(),
            }
        }
        assert created.identity == Identity(
            CLUSTER, CLUSTER_UUID, LaunchId("launch-1"), SlotName("node-1"), TypeName("small")
        )

    def test_what_the_site_adds_is_in_it(self, nova: Service) -> None:
        placement = OpenStackPlacement((NETWORK, "private"), ("default", "flux"), "key", config_drive=True)
        cloud_at(nova, placement=placement).create(a_launch(), a_nova_type(zones=("az1", "az2"), image=IMAGE))
        (asked,) = nova.asked(*POST)
        server = asked.body["server"]
        assert server["networks"] == [{"uuid": NETWORK}, {"uuid": NETWORK}]
        assert server["security_groups"] == [{"name": "default"}, {"name": "flux"}]
        assert (server["key_name"], server["config_drive"], server["availability_zone"]) == ("key", True, "az1")
        assert nova.asked("GET", "/image/v2/images") == []

    def test_zone_of_the_launch_goes_before_those_of_the_type(self, nova: Service) -> None:
        cloud_at(nova).create(replace(a_launch(), zone="az9"), a_nova_type(zones=("az1",)))
        assert nova.asked(*POST)[0].body["server"]["availability_zone"] == "az9"

    def test_every_call_of_nova_names_the_microversion(self, nova: Service) -> None:
        cloud_at(nova, microversion="2.90").create(a_launch(), a_type())
        asked = [call for call in nova.calls if call.path.startswith("/v2.1/")]
        assert {call.headers.get("openstack-api-version") for call in asked} == {"compute 2.90"}

    def test_names_are_unlike_and_fit_for_hosts_whatever_a_slot_is_called(self) -> None:
        names = [unique_name(name, LaunchId(launch)) for name in ("-Ünï code_", "x" * 99, "a.b") for launch in "12"]
        assert len(set(names)) == len(names)
        assert all(len(name) <= 60 and name.replace("-", "").isalnum() and name.isascii() for name in names)
        assert all(name[0].isalnum() for name in names)

    def test_tags_are_such_as_nova_takes(self) -> None:
        assert len(cluster_tag("c" * 32)) <= 60
        assert len(launch_tag(LaunchId("节点," * 99))) <= 60
        assert not set(",/") & set(launch_tag(LaunchId("a,b/c")))

    def test_script_that_is_too_long_is_never_sent(self, nova: Service) -> None:
        cloud = OpenStackCloud(
            Login(nova.url, "demo", "not-a-secret", project="demo"),
            PortSettings(CLUSTER, CLUSTER_UUID, lambda *_: "#" * 16_385, ATime()),
            {},
        )
        assert failure_of(cloud, "create").kind is FailureKind.CONFIG
        assert nova.calls == []


class TestLookUp:
    def test_names_are_looked_up_once(self, nova: Service) -> None:
        cloud = cloud_at(nova)
        cloud.create(a_launch("1"), a_type())
        cloud.create(a_launch("2"), a_type())
        assert len(nova.asked("GET", "/image/v2/images")) == 1
        assert len(nova.asked(*FLAVORS)) == 4  # its pages

    def test_names_are_looked_up_again_after_nova_refused_their_ids(self, nova: Service) -> None:
        nova.says(*POST, recorded("openstack/flavor-refused"), recorded("openstack/server-created"))
        cloud = cloud_at(nova)
        assert failure_of(cloud, "create").kind is FailureKind.CONFIG
        nova.says(*FLAVORS, recorded("openstack/flavors-page-4"))
        cloud.create(a_launch(), a_type())
        assert len(nova.asked("GET", "/image/v2/images")) == 2

    def test_flavor_may_be_named_by_its_id(self, nova: Service) -> None:
        cloud_at(nova).create(a_launch(), a_nova_type(size="2"))
        assert nova.asked(*POST)[0].body["server"]["flavorRef"] == "2"

    @pytest.mark.parametrize(
        ("path", "reply"),
        [
            ("/v2.1/flavors", said({"flavors": []})),
            ("/image/v2/images", said({"images": []})),
            (
                "/image/v2/images",
                said({"images": [{"id": "1", "name": "ami-03cf127a"}, {"id": "2", "name": "ami-03cf127a"}]}),
            ),
            ("/network/v2.0/networks", said({"networks": [{"id": "1", "name": "privateer"}]})),
        ],
    )
    def test_what_is_not_there_or_not_one_is_a_fault_of_the_site(
        self, nova: Service, path: str, reply: Reply
    ) -> None:
        nova.says("GET", path, reply)
        failed = failure_of(cloud_at(nova), "create")
        assert failed.kind is FailureKind.CONFIG
        assert '"' in failed.detail
        assert nova.asked(*POST) == []


class TestNoSecondServer:
    def test_looks_for_the_launch_before_it_creates(self, nova: Service) -> None:
        cloud_at(nova).create(a_launch(), a_type())
        looked, posted = nova.asked(*LIST)[0], nova.asked(*POST)[0]
        assert looked.query["tags"] == f"{cluster_tag('ada')},{launch_tag(LaunchId('launch-1'))}"
        assert nova.calls.index(looked) < nova.calls.index(posted)

    def test_one_that_is_found_is_the_answer(self, nova: Service) -> None:
        nova.says(*LIST, recorded("openstack/servers-one"))
        assert cloud_at(nova).create(a_launch(), a_type()).provider_id == SERVER["id"]
        assert nova.asked(*POST) == []

    def test_one_of_a_cluster_of_our_name_is_not_the_answer(self, nova: Service) -> None:
        theirs = {**SERVER["metadata"], "fnm:cluster-uuid": "22222222-2222-4222-8222-222222222222"}
        nova.says(*LIST, a_list(a_server(metadata=theirs)))
        cloud_at(nova).create(a_launch(), a_type())
        assert len(nova.asked(*POST)) == 1

    def test_lost_reply_is_ambiguous_and_what_was_made_is_found(self, nova: Service) -> None:
        nova.says(*POST, LOST)
        cloud = cloud_at(nova)
        assert failure_of(cloud, "create").kind is FailureKind.AMBIGUOUS
        nova.says(*LIST, recorded("openstack/servers-one"))
        assert cloud.create(a_launch(), a_type()).provider_id == SERVER["id"]
        assert len(nova.asked(*POST)) == 1

    @pytest.mark.parametrize("variable", ["LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS", "RETRY_FAILED_HTTP_REQUESTS"])
    def test_libcloud_repeats_nothing_even_if_the_environment_says_so(
        self, nova: Service, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "1")
        nova.says(*POST, LOST, said({"overLimit": {"message": "slower"}}, 429, Retry_After="1"))
        assert failure_of(cloud_at(nova), "create").kind is FailureKind.AMBIGUOUS
        assert len(nova.asked(*POST)) == 1
        nova.says(*TOKENS, LOST)
        assert failure_of(cloud_at(nova), "destroy").kind is FailureKind.TRANSIENT
        assert len(nova.asked(*TOKENS)) == 1 + 3  # one for each service, then the lost one again

    @pytest.mark.parametrize("look", [LOST, REFUSED, said({}), said({"error": "no"}, 403)])
    def test_nothing_is_created_when_the_look_fails(self, nova: Service, look: Reply) -> None:
        nova.says(*LIST, look)
        assert failure_of(cloud_at(nova), "create").kind is not FailureKind.AMBIGUOUS
        assert nova.asked(*POST) == []

    def test_nothing_is_created_when_the_look_took_so_long_that_nobody_waits(self, nova: Service) -> None:
        clock = ATime()
        cloud = cloud_at(nova, clock)
        nova.on_call = lambda: clock.pass_by(61.0)
        assert failure_of(cloud, "create").kind is FailureKind.TRANSIENT
        assert nova.asked(*POST) == []

    @pytest.mark.parametrize("details", [LOST, REFUSED, said({}), said({"server": {"id": MADE}})])
    def test_one_whose_details_cannot_be_had_is_made_all_the_same(self, nova: Service, details: Reply) -> None:
        nova.says(*DETAILS, details)
        made = cloud_at(nova).create(a_launch(), a_type())
        assert (made.provider_id, made.state, made.created_at) == (MADE, CloudState.PENDING, None)
        assert made.identity is not None
        assert made.identity.launch == "launch-1"

    @pytest.mark.parametrize(
        "reply",
        [said({}), said({"server": {}}), said([]), Reply(200, "<html>"), Reply(202), said({"server": {"id": 7}})],
    )
    def test_foreign_answer_to_a_create_is_ambiguous(self, nova: Service, reply: Reply) -> None:
        nova.says(*POST, reply)
        assert failure_of(cloud_at(nova), "create").kind is FailureKind.AMBIGUOUS


class TestRefusals:
    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (recorded("openstack/quota-refused"), FailureKind.QUOTA),
            (recorded("openstack/flavor-refused"), FailureKind.CONFIG),
            (recorded("openstack/microversion-refused"), FailureKind.CONFIG),
            (said({"forbidden": {"message": "Maximum number of ports exceeded"}}, 403), FailureKind.QUOTA),
            (
                said({"forbidden": {"message": "Policy doesn't allow it to be performed"}}, 403),
                FailureKind.CREDENTIALS,
            ),
            (said({"overLimit": {"message": "slow"}}, 413, Retry_After="7"), FailureKind.THROTTLED),
            (said({"overLimit": {"message": "full"}}, 413), FailureKind.QUOTA),
            (said({"overLimit": {"message": "slow"}}, 429, Retry_After="7"), FailureKind.THROTTLED),
            (REFUSED, FailureKind.AMBIGUOUS),
            (Reply(504, "<html>", {"Content-Type": "text/html"}), FailureKind.AMBIGUOUS),
        ],
        ids=lambda value: value.body[:40] if isinstance(value, Reply) else str(value),
    )
    def test_of_a_create_by_what_there_is_to_do(self, nova: Service, reply: Reply, kind: FailureKind) -> None:
        nova.says(*POST, reply)
        failed = failure_of(cloud_at(nova), "create")
        assert failed.kind is kind
        assert failed.detail
        assert len(nova.asked(*POST)) == 1

    def test_user_data_that_nova_says_back_is_not_said_on(self, nova: Service) -> None:
        refused = recorded("openstack/user-data-refused")
        assert "c2VjcmV0" in refused.body
        nova.says(*POST, refused)
        detail = failure_of(cloud_at(nova), "create").detail
        assert "user_data" in detail
        assert "c2VjcmV0" not in detail

    @pytest.mark.parametrize("wait", ["soon", "Tue, 99 Foo 9999 99:99:99 GMT", "-1", "", "1e400"])
    def test_wait_that_cannot_be_read_is_none(self, nova: Service, wait: str) -> None:
        nova.says(*LIST, said({"overLimit": {"message": "slower"}}, 429, Retry_After=wait))
        failed = failure_of(cloud_at(nova))
        assert (failed.kind, failed.retry_after_s) == (FailureKind.THROTTLED, 0)

    @pytest.mark.parametrize("body", ["", "null", "[]", '"no"', "{", '{"a": 1}', '{"a": {"message": null}}'])
    def test_error_of_any_form_is_an_error_and_no_bug(self, nova: Service, body: str) -> None:
        nova.says(*LIST, Reply(503, body, {"Content-Type": "application/json"}))
        failed = failure_of(cloud_at(nova))
        assert failed.kind is FailureKind.TRANSIENT
        assert failed.detail


class TestFailedServers:
    def test_one_for_which_there_is_no_host_says_so_and_that_it_is_capacity(self, nova: Service) -> None:
        server = json.loads(recorded("openstack/server-failed").body)["server"]
        nova.says(*LIST, a_list(server))
        (failed,) = cloud_at(nova).list_nodes()
        assert failed.state is CloudState.FAILED
        assert failed.died_because == "No valid host was found."
        assert failed.died_of is FailureKind.CAPACITY
        assert failed.identity is not None

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            ({"message": "Quota exceeded for resources: ['port']"}, FailureKind.QUOTA),
            ({"message": "Maximum number of ports exceeded"}, FailureKind.QUOTA),
            ({"message": "Exceeded maximum number of retries. Exhausted all hosts"}, FailureKind.CAPACITY),
            ({"message": "Build of instance aborted: image is unacceptable"}, FailureKind.CAPACITY),
            (None, FailureKind.CAPACITY),
            ("odd", FailureKind.CAPACITY),
            ({"message": None}, FailureKind.CAPACITY),
        ],
    )
    def test_fault_says_what_to_make_of_it(self, nova: Service, fault: object, kind: FailureKind) -> None:
        nova.says(*LIST, a_list(a_server(status="ERROR", fault=fault)))
        (failed,) = cloud_at(nova).list_nodes()
        assert (failed.state, failed.died_of) == (CloudState.FAILED, kind)
        assert failed.died_because

    def test_one_that_is_being_deleted_is_on_its_way_out(self, nova: Service) -> None:
        deleting = a_server(status="ERROR", fault={"message": "x"}, **{"OS-EXT-STS:task_state": "deleting"})
        nova.says(*LIST, a_list(deleting))
        assert [node.state for node in cloud_at(nova).list_nodes()] == [CloudState.STOPPING]

    @pytest.mark.parametrize(
        ("status", "state"),
        [
            ("BUILD", CloudState.PENDING),
            ("ACTIVE", CloudState.RUNNING),
            ("SHUTOFF", CloudState.RUNNING),  # a powered-off server still occupies its host and costs money
            ("SHELVED_OFFLOADED", CloudState.RUNNING),
            ("UNKNOWN", CloudState.RUNNING),
            ("DELETED", CloudState.TERMINATED),
        ],
    )
    def test_state_that_is_not_surely_an_end_costs(self, nova: Service, status: str, state: CloudState) -> None:
        nova.says(*LIST, a_list(a_server(status=status)))
        (seen,) = cloud_at(nova).list_nodes()
        assert (seen.state, seen.died_because, seen.died_of) == (state, "", None)


class TestList:
    def test_asks_for_our_tag_oldest_first_and_follows_the_pages(self, nova: Service) -> None:
        nova.says(*LIST, recorded("openstack/servers-page-1"), recorded("openstack/servers-page-2"))
        nodes = cloud_at(nova).list_nodes()
        assert [node.identity.launch for node in nodes if node.identity] == ["launch-1", "launch-2", "launch-3"]
        assert [node.state for node in nodes] == [CloudState.RUNNING, CloudState.FAILED, CloudState.RUNNING]
        first, second = nova.asked(*LIST)
        assert first.query == {"tags": "fnm-cluster-ada", "sort_key": "created_at", "sort_dir": "asc"}
        assert second.query == {**first.query, "marker": nodes[1].provider_id}

    def test_moments_are_in_utc(self, nova: Service) -> None:
        nova.says(*LIST, a_list(a_server(created="2026-11-21T10:36:58Z")))
        (node,) = cloud_at(nova).list_nodes()
        assert node.created_at == datetime(2026, 11, 21, 10, 36, 58, tzinfo=UTC).timestamp()

    def test_addresses_are_those_of_its_networks(self, nova: Service) -> None:
        nova.says(*LIST, recorded("openstack/servers-one"))
        (node,) = cloud_at(nova).list_nodes()
        assert node.addresses == (SERVER["addresses"]["private"][0]["addr"],)

    @pytest.mark.parametrize(
        "reply",
        [
            said({}),
            said([]),
            said(None),
            said({"servers": None}),
            said({"servers": {}}),
            said({"servers": ["x"]}),
            said({"servers": [], "servers_links": "x"}),
            said({"servers": [], "servers_links": [{"rel": "next", "href": "/servers/detail"}]}),
            said({"servers": [], "servers_links": [{"rel": "next", "href": "/servers/detail?marker=1"}]}),
            Reply(200, "", {"Content-Type": "application/json"}),
            Reply(200, "{", {"Content-Type": "application/json"}),
            Reply(200, "<html>Welcome</html>", {"Content-Type": "text/html"}),
            Reply(204),
            a_list({key: value for key, value in SERVER.items() if key != "tags"}),  # the filter was ignored
            a_list(a_server(tags=["fnm-cluster-another"])),
            a_list(a_server(created="soon")),
            # The server's cell is down: https://docs.openstack.org/api-guide/compute/down_cells.html
            a_list(a_server(), {"id": MADE, "status": "UNKNOWN", "links": [], "tags": ["fnm-cluster-ada"]}),
        ],
        ids=lambda reply: reply.body[:60],
    )
    def test_that_is_foreign_or_cut_is_an_error_and_never_an_empty_list(self, nova: Service, reply: Reply) -> None:
        nova.says(*LIST, reply)
        assert failure_of(cloud_at(nova)).kind is FailureKind.TRANSIENT

    @pytest.mark.parametrize("metadata", [None, {}, [], {"fnm:launch": "launch-1"}])
    def test_shows_one_that_lost_its_metadata_as_nobodys(self, nova: Service, metadata: object) -> None:
        nova.says(*LIST, a_list(a_server(metadata=metadata)))
        assert [node.identity for node in cloud_at(nova).list_nodes()] == [None]

    def test_that_fails_for_a_moment_is_read_again(self, nova: Service) -> None:
        nova.says(*LIST, LOST, REFUSED, recorded("openstack/servers-one"))
        assert len(cloud_at(nova).list_nodes()) == 1

    def test_that_fails_on_is_given_up(self, nova: Service) -> None:
        nova.says(*LIST, REFUSED)
        assert failure_of(cloud_at(nova)).kind is FailureKind.TRANSIENT
        assert len(nova.asked(*LIST)) == READ_TRIES

    @pytest.mark.parametrize(
        "reply", [recorded("openstack/microversion-refused"), said({"x": {"message": "?"}}, 429)]
    )
    def test_that_is_refused_is_not_asked_again(self, nova: Service, reply: Reply) -> None:
        nova.says(*LIST, reply)
        failure_of(cloud_at(nova))
        assert len(nova.asked(*LIST)) == 1


class TestDestroy:
    def test_is_one_call(self, nova: Service) -> None:
        nova.says("DELETE", f"/v2.1/servers/{MADE}", recorded("openstack/server-deleted"))
        cloud_at(nova).destroy(ProviderId(MADE))
        assert len(nova.asked("DELETE", f"/v2.1/servers/{MADE}")) == 1

    def test_of_one_that_is_gone_is_no_error(self, nova: Service) -> None:
        nova.says("DELETE", f"/v2.1/servers/{MADE}", recorded("openstack/server-unknown"))
        # It must not raise.
        cloud_at(nova).destroy(ProviderId(MADE))

    @pytest.mark.parametrize("reply", [REFUSED, LOST, said({"conflictingRequest": {"message": "busy"}}, 409)])
    def test_that_was_refused_is_not_retried(self, nova: Service, reply: Reply) -> None:
        nova.says("DELETE", f"/v2.1/servers/{MADE}", reply)
        assert failure_of(cloud_at(nova), "destroy").kind is FailureKind.TRANSIENT
        assert len(nova.asked("DELETE", f"/v2.1/servers/{MADE}")) == 1

    @pytest.mark.parametrize("name", ["", "i-1", "../servers", "nobody's"])
    def test_of_what_is_no_id_of_nova_calls_nobody(self, nova: Service, name: str) -> None:
        cloud_at(nova).destroy(ProviderId(name))
        assert nova.calls == []


class TestIdentity:
    def test_nothing_is_called_before_it_must_be(self, nova: Service) -> None:
        cloud_at(nova)
        assert nova.calls == []

    @pytest.mark.parametrize("call", ["list", "create"])
    def test_token_that_ended_early_is_renewed_once(self, nova: Service, call: str) -> None:
        cloud = cloud_at(nova)
        cloud.list_nodes()
        path = {"list": LIST, "create": POST}[call]
        good = {"list": recorded("openstack/servers-none"), "create": recorded("openstack/server-created")}[call]
        nova.says(*path, recorded("openstack/unauthorized"), good)
        if call == "list":
            cloud.list_nodes()
        else:
            cloud.create(a_launch(), a_type())
        assert len(nova.asked(*path)) == {"list": 3, "create": 2}[call]

    @pytest.mark.parametrize("call", ["list", "create", "destroy"])
    def test_new_token_that_is_refused_too_is_a_matter_of_credentials(self, nova: Service, call: str) -> None:
        for path in (LIST, POST, ("DELETE", f"/v2.1/servers/{MADE}")):
            nova.says(*path, recorded("openstack/unauthorized"))
        assert failure_of(cloud_at(nova), call).kind is FailureKind.CREDENTIALS
        assert len(nova.asked(*TOKENS)) == 2

    def test_wrong_password_is_a_matter_of_credentials(self, nova: Service) -> None:
        nova.says(*TOKENS, recorded("openstack/token-refused"))
        assert failure_of(cloud_at(nova)).kind is FailureKind.CREDENTIALS

    def test_user_and_project_are_named_with_their_domains(self, nova: Service) -> None:
        cloud_at(nova, user_domain="users", project_domain_id="projects").list_nodes()
        (asked,) = nova.asked(*TOKENS)
        auth = asked.body["auth"]
        assert auth["identity"]["password"]["user"]["domain"] == {"name": "users"}
        assert auth["scope"] == {"project": {"name": "demo", "domain": {"id": "projects"}}}

    def test_application_credential_says_nothing_more(self, nova: Service) -> None:
        cloud_at(nova, application_credential=True, user="id", secret="word", project="").list_nodes()
        (asked,) = nova.asked(*TOKENS)
        assert asked.body["auth"] == {
            "identity": {
                "methods": ["application_credential"],
                "application_credential": {"id": "id", "secret": "word"},
            }
        }

    @pytest.mark.parametrize("ending", ["/v3", "/v3/", "/"])
    def test_address_may_end_in_its_version(self, nova: Service, ending: str) -> None:
        # It must not raise.
        cloud_at(nova, auth_url=nova.url + ending).list_nodes()

    @pytest.mark.parametrize("region", ["", "nowhere"])
    def test_region_that_does_not_say_which_is_a_fault_of_the_site_with_those_there_are(
        self, nova: Service, region: str
    ) -> None:
        failed = failure_of(cloud_at(nova, region=region))
        assert failed.kind is FailureKind.CONFIG
        assert "RegionOne, RegionTwo" in failed.detail

    @pytest.mark.parametrize(
        "reply",
        [
            said({}, 201, X_Subject_Token="t"),
            said([], 201, X_Subject_Token="t"),
            said({"token": {"expires_at": "soon", "catalog": []}}, 201, X_Subject_Token="t"),
            said({"token": {"expires_at": "2099-01-01T00:00:00Z"}}, 201, X_Subject_Token="t"),
            said({"token": {"expires_at": "2099-01-01T00:00:00Z", "catalog": [1]}}, 201, X_Subject_Token="t"),
            recorded("openstack/servers-none"),
            Reply(201, "<html>", {"Content-Type": "text/html"}),
            Reply(201),
            REFUSED,
            LOST,
        ],
        ids=lambda reply: f"{reply.status} {reply.body[:50]}",
    )
    def test_login_of_any_other_form_is_an_error_and_no_bug(self, nova: Service, reply: Reply) -> None:
        nova.says(*TOKENS, reply)
        assert failure_of(cloud_at(nova)).kind in {FailureKind.TRANSIENT, FailureKind.CONFIG}
