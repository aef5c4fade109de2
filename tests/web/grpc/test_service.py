"""The gRPC service and its members, on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemanager.web.grpc.material import MaterialUnusable, member_material, read_address, service_material
from nodemanager.web.grpc.messages import SERVICE, load_messages
from nodemanager.web.grpc.server import MembersServer
from nodemanager.web.listen import CannotListen, TcpAddress
from tests.web.grpc.services import Member, MembersInMemory, free_port, serving

grpc = pytest.importorskip("grpc", reason="the extra ensemble is not installed")


@pytest.fixture
def members() -> MembersInMemory:
    return MembersInMemory()


@pytest.fixture
def plain(members: MembersInMemory) -> Iterator[TcpAddress]:
    with serving(members) as address:
        yield address


def call(address: TcpAddress, method: str, channel: Any = None, **fields: str) -> Any:
    """Call the service as any gRPC client may."""
    messages = load_messages()
    request = messages.action_request if method == "RequestAction" else messages.status_request
    with channel or grpc.insecure_channel(f"{address.host}:{address.port}") as opened:
        stub = opened.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=messages.response.FromString,
        )
        return stub(request(member="miniclusters", **fields), timeout=20)


def act(address: TcpAddress, action: str, payload: str, name: str = "mini") -> tuple[int, Any]:
    reply = call(address, "RequestAction", name=name, action=action, payload=payload)
    return reply.status, json.loads(reply.payload)


# --- actions ----------------------------------------------------------------------------------------------


def test_grow_and_shrink_change_the_nodes_of_the_member_by_its_name(
    plain: TcpAddress, members: MembersInMemory
) -> None:
    assert act(plain, "grow", '{"version": "v1alpha2", "group": "flux-framework.org", "grow": 2}') == (
        1,
        {"nodes": 2},
    )
    assert act(plain, "grow", "{}") == (1, {"nodes": 3}), "absent is 1"
    assert act(plain, "grow", '{"grow": 2.0}', name="other.one") == (1, {"nodes": 2})
    assert act(plain, "shrink", '{"shrink": 1}') == (1, {"nodes": 2})
    assert act(plain, "shrink", '{"shrink": -9}') == (1, {"nodes": 0}), "the sign does not count"
    assert members.kept == {"mini": 0, "other.one": 2}


def test_a_limit_denies_with_its_reason_and_changes_nothing(plain: TcpAddress, members: MembersInMemory) -> None:
    assert act(plain, "grow", '{"grow": 4}')[0] == 1
    assert act(plain, "grow", '{"grow": 3}') == (3, {"why": "nodes_max = 6"})
    assert members.kept == {"mini": 4}


@pytest.mark.parametrize(
    ("action", "payload", "name", "why"),
    [
        ("grow", "{grow: 2}", "mini", "not JSON"),
        ("grow", "[" * 20000, "mini", "not JSON"),
        ("grow", "[2]", "mini", "must be an object"),
        ("grow", '{"grow": "two"}', "mini", "must be a whole number"),
        ("grow", '{"grow": true}', "mini", "must be a whole number"),
        ("grow", '{"grow": 1.5}', "mini", "must be a whole number"),
        ("grow", '{"grow": Infinity}', "mini", "is no JSON number"),
        ("grow", '{"grow": 1e300}', "mini", "must be a whole number"),
        ("grow", '{"grow": -1}', "mini", "above 0"),
        ("grow", '{"nodes": -1}', "mini", "0 or more"),
        ("explode", "{}", "mini", "use grow or shrink"),
        ("grow", "{}", "", "needs a name"),
        ("grow", "{}", "x" * 201, "needs a name"),
    ],
)
def test_a_request_that_cannot_be_read_is_an_error_that_says_why(
    plain: TcpAddress, members: MembersInMemory, action: str, payload: str, name: str, why: str
) -> None:
    status, answer = act(plain, action, payload, name)
    assert status == 2
    assert why in answer["why"]
    assert not members.asked


def test_a_change_that_fails_is_an_error(plain: TcpAddress, members: MembersInMemory) -> None:
    members.fault = "Flux is away"
    assert act(plain, "grow", "{}") == (2, {"why": "Flux is away"})


def test_a_repeated_request_that_says_its_number_changes_nothing(plain: TcpAddress) -> None:
    for _ in range(2):
        assert act(plain, "grow", '{"grow": 2, "nodes": 2}') == (1, {"nodes": 2})


def test_a_status_is_answered_as_json(plain: TcpAddress) -> None:
    act(plain, "grow", '{"grow": 2}')
    reply = call(plain, "RequestStatus", name="mini")
    assert reply.status == 1
    assert json.loads(reply.payload)["size"] == {"asked": 2}


def test_a_port_in_use_is_refused(plain: TcpAddress, members: MembersInMemory) -> None:
    with pytest.raises(CannotListen, match=f"127.0.0.1:{plain.port}"):
        MembersServer(plain, members, None).start()


# --- token and TLS ----------------------------------------------------------------------------------------


def test_a_member_with_the_files_is_served(tmp_path: Path, members: MembersInMemory) -> None:
    with serving(members, service_material(tmp_path)) as address:
        member = Member(address, member_material(tmp_path))
        assert member.ask((2, 2), (3, 1)) == ["", ""]
        member.nodes.close()
    assert members.kept == {"mini": 3}


def test_without_the_token_nothing_is_answered(tmp_path: Path, members: MembersInMemory) -> None:
    material = service_material(tmp_path)
    known = member_material(tmp_path)
    with serving(members, material) as address:
        options = [("grpc.ssl_target_name_override", known.name)]
        target = f"{address.host}:{address.port}"
        for method in ("RequestStatus", "RequestAction"):
            channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(known.trusted), options=options)
            with pytest.raises(grpc.RpcError, match="the token is required"):
                call(address, method, channel, name="mini")
        (tmp_path / "token").write_text("another\n")
        wrong = Member(address, member_material(tmp_path))
        assert "unauthenticated: the token is required" in wrong.ask((1, 1))[0]
        wrong.nodes.close()
        with pytest.raises(grpc.RpcError):
            call(address, "RequestStatus", name="mini")  # no TLS either
    assert not members.asked
    assert not members.heard


def test_a_service_with_another_certificate_is_not_trusted(tmp_path: Path, members: MembersInMemory) -> None:
    service_material(tmp_path / "ours")
    with serving(members, service_material(tmp_path / "theirs")) as address:
        member = Member(address, member_material(tmp_path / "ours"), deadline_s=3)
        (why,) = member.ask((1, 1))
        member.nodes.close()
    assert "did not answer" in why
    assert not members.asked


def test_the_files_are_made_once_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    first = service_material(folder)
    assert service_material(folder) == first
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {
        "token": "0o600", "tls.crt": "0o600", "tls.key": "0o600",
    }  # fmt: skip
    assert first.token not in repr(first)


def test_what_a_member_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(MaterialUnusable, match="token"):
        member_material(tmp_path)
    service_material(tmp_path)
    (tmp_path / "tls.crt").write_text("no certificate")
    with pytest.raises(MaterialUnusable, match="not a certificate"):
        member_material(tmp_path)
    (tmp_path / "tls.crt").unlink()
    with pytest.raises(MaterialUnusable, match="No such file"):
        member_material(tmp_path)


@pytest.mark.parametrize("address", ["0.0.0.0:50051", "[::]:50051", "head.example:50051", "192.0.2.1:50051"])
def test_plaintext_is_for_the_loopback_interface_only(address: str) -> None:
    assert read_address(address, plaintext=False).port == 50051
    with pytest.raises(MaterialUnusable, match="loopback"):
        read_address(address, plaintext=True)


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "localhost:50051", "[::1]:50051"])
def test_the_loopback_interface_may_be_plaintext(address: str) -> None:
    assert read_address(address, plaintext=True).port == 50051


@pytest.mark.parametrize("address", ["", "off", "unix:/x", "host", "host:", ":5", "host:port", "host:99999"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    with pytest.raises(MaterialUnusable, match="use HOST:PORT"):
        read_address(address, plaintext=False)


# --- a member's side --------------------------------------------------------------------------------------


def test_a_refusal_comes_with_its_reason(plain: TcpAddress) -> None:
    member = Member(plain)
    assert member.ask((7, 7)) == ["the ensemble service denies it: nodes_max = 6"]
    member.nodes.close()


def test_a_lost_service_is_an_answer_too_and_a_later_request_finds_it_again(members: MembersInMemory) -> None:
    port = free_port()
    member = Member(TcpAddress("127.0.0.1", port), deadline_s=4)
    (why,) = member.ask((2, 2))
    assert why.startswith(f"the ensemble service 127.0.0.1:{port} did not answer: ")
    with serving(members, port=port):
        assert member.ask((2, 2)) == [""]
    member.nodes.close()


def test_a_service_that_starts_a_moment_later_is_tried_again(members: MembersInMemory) -> None:
    port = free_port()
    member = Member(TcpAddress("127.0.0.1", port))
    member.nodes.keep(2, 2, member.answers.append)
    with serving(members, port=port):
        member.loop.until(lambda: bool(member.answers))
    assert member.answers == [""]
    assert members.kept == {"mini": 2}
    member.nodes.close()


def test_a_repeated_floor_is_a_sign_of_life_and_mends_what_the_service_forgot(
    plain: TcpAddress, members: MembersInMemory
) -> None:
    member = Member(plain)
    assert member.ask((4, 4), (4, 0)) == ["", ""]
    assert members.heard == ["mini"]
    assert len(members.asked) == 1, "nothing is asked for twice"
    members.kept.clear()
    assert member.ask((4, 0)) == [""]
    assert members.kept == {"mini": 4}
    member.nodes.close()


def test_the_end_of_a_run_lets_the_nodes_go_although_its_loop_has_ended(
    plain: TcpAddress, members: MembersInMemory
) -> None:
    member = Member(plain)
    member.ask((4, 4))
    member.nodes.keep(3, -1, member.answers.append)
    member.nodes.keep(0, -3, member.answers.append)
    member.nodes.close()
    assert members.kept == {"mini": 0}
