"""EC2's complaints about running nodes: three reads a minute for all nodes, and they never make a list fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")

from structlog.testing import capture_logs

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.ec2.credentials import Keys
from nodemanager.cloud.ec2.driver import Ec2Driver, endpoint_of
from nodemanager.cloud.ec2.port import HEALTH_EVERY_MAX_S, HEALTH_EVERY_S, Ec2Cloud
from nodemanager.simulation.time.world import World
from tests.cloud.ec2.moto_faults import Fault
from tests.cloud.ec2.moto_front import NAMESPACE, REGION, SECRETS, MotoFront
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type

STATUS = "DescribeInstanceStatus"
# From the API reference, shortened to the elements that are read and those around them.
IMPAIRED = """
  <item>
    <instanceId>{id}</instanceId>
    <availabilityZone>us-east-1a</availabilityZone>
    <instanceState><code>16</code><name>running</name></instanceState>
    <systemStatus>
      <status>{system}</status>
      <details><item><name>reachability</name><status>failed</status></item></details>
    </systemStatus>
    <instanceStatus><status>{instance}</status></instanceStatus>
    <eventsSet>{events}</eventsSet>
  </item>"""
EVENT = """
  <item>
    <instanceEventId>instance-event-0d59937288b749b32</instanceEventId>
    <code>{code}</code>
    <description>{description}</description>
    <notBefore>2026-11-23T10:00:00.000Z</notBefore>
  </item>"""
NOT_WELL: dict[str, Any] = {"system": "ok", "instance": "ok", "events": ""}


@pytest.fixture
def front() -> Iterator[MotoFront]:
    front = MotoFront()
    yield front
    front.close()


class Listed:
    """A node, and its health in lists as time passes."""

    def __init__(self, front: MotoFront) -> None:
        self.world, self.front = World(1), front
        keys = Keys(*next(iter(SECRETS.items())))
        driver = Ec2Driver(endpoint_of(REGION, front.url), lambda: keys, sleep=lambda _: None)
        clock = self.world.clock()
        self.cloud = Ec2Cloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, a_script, clock))
        self.id = self.cloud.create(a_launch(), a_type()).provider_id

    def impaired(self) -> str:
        (node,) = self.cloud.list_nodes()
        return node.impaired

    def is_said(self, which: int, **said: str) -> None:
        """Let one of the three reads report this node with these texts."""
        item = IMPAIRED.format(**{"id": self.id, **NOT_WELL, **said})
        text = (
            f'<{STATUS}Response xmlns="{NAMESPACE}/"><requestId>1</requestId>'
            f"<instanceStatusSet>{item}</instanceStatusSet></{STATUS}Response>"
        )
        asked = {0: "system-status.status", 1: "instance-status.status", 2: "event.code"}[which]
        self.front.faults.append(
            Fault(STATUS, where={"Filter.1.Name": asked}, rewrite=lambda _: text.encode(), times=100)
        )


@pytest.mark.parametrize(
    ("which", "said", "words"),
    [
        (0, {"system": "impaired"}, "system status check failed"),
        (1, {"instance": "impaired"}, "instance status check failed"),
        (
            2,
            {"events": EVENT.format(code="instance-retirement", description="It runs on degraded hardware")},
            "instance-retirement from 2026-11-23T10:00:00.000Z: It runs on degraded hardware",
        ),
        (2, {"events": EVENT.format(code="system-reboot", description="[Completed] Scheduled reboot")}, ""),
    ],
)  # fmt: skip
def test_a_node_that_is_not_well_is_listed_with_what_ec2_says(
    front: MotoFront, which: int, said: dict[str, str], words: str
) -> None:
    listed = Listed(front)
    assert listed.impaired() == ""
    listed.is_said(which, **said)
    listed.world.advance_by(HEALTH_EVERY_S)
    assert listed.impaired() == words


def test_all_nodes_are_asked_for_at_once_and_once_a_minute(front: MotoFront) -> None:
    listed = Listed(front)
    for _ in range(13):
        listed.impaired()
        listed.world.advance_by(10.0)
    assert front.calls[STATUS] == 3 * 3
    asked = [call.parameters for call in front.received if call.action == STATUS]
    assert {call["Filter.1.Name"] for call in asked} == {
        "system-status.status",
        "instance-status.status",
        "event.code",
    }
    assert not any("InstanceId.1" in call for call in asked)


def test_a_refused_health_query_is_logged_once_and_the_list_still_works(front: MotoFront) -> None:
    listed = Listed(front)
    front.faults.append(Fault(STATUS, "UnauthorizedOperation", status=403, times=100))
    with capture_logs() as logs:
        for _ in range(3):
            assert listed.impaired() == ""
            listed.world.advance_by(HEALTH_EVERY_S)
    (warning,) = (log for log in logs if log["event"] == "health_not_known")
    assert "UnauthorizedOperation" in warning["why"]


def test_what_fails_again_and_again_is_asked_less_and_less_often_until_it_is_answered(front: MotoFront) -> None:
    # A query that hangs takes as long as a list may take. With one query for each list, every list was that late.
    listed = Listed(front)
    fault = Fault(STATUS, "UnauthorizedOperation", status=403, times=1_000)
    front.faults.append(fault)

    def asked_in(minutes: int) -> int:
        before = front.calls[STATUS]
        for _ in range(minutes):
            listed.impaired()
            listed.world.advance_by(HEALTH_EVERY_S)
        return front.calls[STATUS] - before

    assert asked_in(64) == 7  # in minutes 0, 2, 6, 14, then every 16 minutes
    front.faults.remove(fault)
    listed.world.advance_by(HEALTH_EVERY_MAX_S)
    assert asked_in(3) == 3 * 3


def test_what_was_known_stays_while_it_cannot_be_asked(front: MotoFront) -> None:
    listed = Listed(front)
    listed.is_said(0, system="impaired")
    assert listed.impaired() == "system status check failed"
    front.faults.clear()
    front.faults.append(Fault(STATUS, "InternalError", status=500, times=100))
    listed.world.advance_by(HEALTH_EVERY_S)
    assert listed.impaired() == "system status check failed"
