"""The whole loop on OpenStack: the real planner and actors, and a service on loopback that plays Nova."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.openstack.driver import Login
from nodemanager.cloud.openstack.port import OpenStackCloud, OpenStackPlacement
from nodemanager.core.facts import NodeCreated
from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import CreateNode, WithDeadline
from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.backoff import refusal_reason
from nodemanager.planner.snapshot import Scope
from tests.builders import CLUSTER, CLUSTER_UUID, a_type, a_world, tasks
from tests.cloud.fleet_loop import FleetLoop
from tests.cloud.recorded import LOST, Call, Reply, Service, a_service, recorded, said

A_FEW_MINUTES = 40  # steps
PRICES = {"cloud": "0.40", "spare": "0.50"}
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
NETWORK = "3cb9bc59-5699-4588-a4b1-b87f96708bc6"


class SmallNova(Service):
    """Creates servers, lists them by tags and deletes them. ``lose``: how many next creates get no answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.servers: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.lose = 0
        self.drop = 0  # how many next creates never reach Nova
        self.fault_of: dict[str, str] = {}  # flavor -> the fault of its servers
        self.hidden = False  # whether new servers are missing from lists

    def answer(self, call: Call) -> Reply:
        if not call.path.startswith("/v2.1/servers"):
            return super().answer(call)
        self.calls.append(call)
        match call.method, call.path.removeprefix("/v2.1/servers"):
            case "POST", "":
                return self._create(call.body["server"])
            case "GET", "/detail":
                wanted = set(call.query["tags"].split(","))
                shown = [] if self.hidden else list(self.servers.values())
                return said({"servers": [server for server in shown if wanted <= set(server["tags"])]})
            case "GET", path:
                return said({"server": self.servers[path[1:]]})
            case _, path:
                known = self.servers.pop(path[1:], None)
                return Reply(204) if known else recorded("openstack/server-unknown")

    def _create(self, asked: dict[str, Any]) -> Reply:
        if self.drop:
            self.drop -= 1
            return LOST
        self.made += 1
        server_id = f"00000000-0000-4000-8000-{self.made:012}"
        server = {
            **json.loads(recorded("openstack/server").body)["server"],
            "id": server_id,
            "metadata": asked["metadata"],
            "tags": asked["tags"],
            "created": "2027-01-15T08:00:00Z",
        }
        if asked["flavorRef"] in self.fault_of:
            server |= {"status": "ERROR", "fault": {"message": self.fault_of[asked["flavorRef"]]}}
        self.servers[server_id] = server
        if self.lose:
            self.lose -= 1
            return LOST
        return said({"server": {"id": server_id}}, 202)


class Loop(FleetLoop):
    """A fleet of two node types on this Nova."""

    def __init__(self, nova: SmallNova) -> None:
        self.nova = nova
        types = [replace(a_type(name, price=price), image=IMAGE) for name, price in PRICES.items()]
        super().__init__(a_world(*types), self._port)

    def _port(self) -> OpenStackCloud:
        login = Login(self.nova.url, "demo", "not-a-secret", project="demo", region="RegionOne")
        placements = {TypeName(name): OpenStackPlacement((NETWORK,)) for name in PRICES}
        settings = PortSettings(CLUSTER, CLUSTER_UUID, lambda *_: "#!/bin/sh\n", self, sleep=lambda _: None)
        return OpenStackCloud(login, settings, placements)


@pytest.fixture
def nova() -> Iterator[SmallNova]:
    with a_service(SmallNova) as service:
        service.says("POST", "/v3/auth/tokens", recorded("openstack/token"))
        flavors = [{"id": f"id-of-{name}", "name": f"{name}.size"} for name in PRICES]
        service.says("GET", "/v2.1/flavors", said({"flavors": flavors}))
        yield service


@pytest.fixture
def loop(nova: SmallNova) -> Loop:
    return Loop(nova)


def test_a_create_that_was_carried_out_and_never_answered_makes_no_second_server(loop: Loop) -> None:
    loop.nova.lose = 1
    loop.world.job(tasks(1))
    loop.run(A_FEW_MINUTES)
    assert loop.nova.made == 1
    assert loop.nodes() == [("cloud", NodeState.BOOTING)]


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_nor_while_the_list_does_not_show_it_yet(loop: Loop, steps: int) -> None:
    loop.nova.lose, loop.nova.hidden = 1, True
    loop.world.job(tasks(1))
    loop.run(1 + steps)
    loop.nova.hidden = False
    loop.run(A_FEW_MINUTES)
    assert loop.nova.made == 1
    assert loop.nodes() == [("cloud", NodeState.BOOTING)]


def test_a_create_that_never_arrived_is_made_anew_under_another_name_once_that_is_proven(loop: Loop) -> None:
    loop.nova.drop = 1
    loop.world.job(tasks(1))
    loop.run(A_FEW_MINUTES)
    first, second = loop.nova.asked("POST", "/v2.1/servers")
    assert loop.nova.made == 1
    assert first.body["server"]["tags"] != second.body["server"]["tags"]
    lists = loop.nova.asked("GET", "/v2.1/servers/detail")
    between = lists[: loop.nova.calls.index(second)]
    assert len(between) > loop.world.policy.timing.absences


def test_a_slot_whose_create_is_sent_again_by_a_manager_that_lost_its_memory_gets_the_server_there_is(
    loop: Loop,
) -> None:
    loop.nova.lose = 1
    loop.world.job(tasks(1))
    loop.run(2)
    (node,) = loop.world.snapshot.nodes.values()
    again = Loop(loop.nova)
    again.worker.on_receive(
        WithDeadline(CreateNode(node.launch, again.world.policy.node_types[0]), again.monotonic_s())
    )
    (told,) = again.told
    assert isinstance(told, NodeCreated)
    assert loop.nova.made == 1


def test_a_server_for_which_there_is_no_host_is_deleted_and_another_type_bought(loop: Loop) -> None:
    loop.nova.fault_of["id-of-cloud"] = "No valid host was found."
    loop.world.job(tasks(1))
    loop.run(10)
    assert loop.nodes() == [("spare", NodeState.BOOTING)]
    assert loop.nova.made == 2
    assert len(loop.nova.servers) == 1
    block = loop.world.snapshot.learned.blocks[Scope(TypeName("cloud"), Market.ON_DEMAND, "")]
    assert str(refusal_reason(block)) == "create_capacity detail=No valid host was found."
