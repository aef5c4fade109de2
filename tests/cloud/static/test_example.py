"""The shipped ``ipmi-host``, with an ipmitool that keeps the power of a host in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.cloud.static.commands import HostCommands
from nodemanager.cloud.static.port import ASLEEP_LOOKS, StaticHosts
from nodemanager.core.nodes import CloudState
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SystemClock, a_launch, a_script, a_type
from tests.paths import ROOT

SCRIPTS = ROOT / "nodemanager" / "cloud" / "static" / "host_scripts"
IPMITOOL = """#!/bin/sh
while [ "$1" != power ]; do
    [ "$1" = -H ] && card=$2
    shift
done
[ -n "${IPMI_PASSWORD:-}" ] || exit 1
case $2 in
on) echo on >"$CARDS/$card" ;;
soft) grep -q on "$CARDS/$card" && echo off >"$CARDS/$card" ;;
status) echo "Chassis Power is $(cat "$CARDS/$card")" ;;
esac
"""


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StaticHosts:
    for name in ("bin", "cards", "nodes"):
        (tmp_path / name).mkdir()
    tool = tmp_path / "bin" / "ipmitool"
    tool.write_text(IPMITOOL, encoding="utf-8")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CARDS", str(tmp_path / "cards"))
    monkeypatch.setenv("FLUX_NODES_DIR", str(tmp_path / "nodes"))
    monkeypatch.setenv("IPMI_PASSWORD", "secret")
    verbs = [f"./ipmi-host {{node}} {verb}" for verb in ("wake", "sleep", "probe")]
    commands = HostCommands(verbs[0], verbs[1], verbs[2], SCRIPTS, timeout_s=30.0)
    return StaticHosts(
        tmp_path / "cloud",
        lambda _: ("node01",),
        commands,
        CLUSTER,
        CLUSTER_UUID,
        a_script,
        SystemClock(),
        call_timeout_s=60.0,
        asleep_over_s=0.0,
    )


def states(port: StaticHosts) -> list[CloudState]:
    """The states of the nodes after enough looks at their hosts."""
    return [[node.state for node in port.list_nodes()] for _ in range(ASLEEP_LOOKS)][-1]


def test_a_host_is_switched_on_with_its_script_at_hand_and_off_again(port: StaticHosts, tmp_path: Path) -> None:
    created = port.create(a_launch(), a_type())
    assert [node.state for node in port.list_nodes()] == [CloudState.RUNNING]
    script = tmp_path / "nodes" / "node01"
    assert (script.read_text(encoding="utf-8"), script.stat().st_mode & 0o777) == (
        a_script(a_launch(), a_type()),
        0o600,
    )
    assert (tmp_path / "cards" / "node01-ipmi").read_text(encoding="ascii") == "on\n"
    port.destroy(created.provider_id)
    assert states(port) == [CloudState.TERMINATED]
    assert not script.exists()
    assert (tmp_path / "cards" / "node01-ipmi").read_text(encoding="ascii") == "off\n"
    assert list(port.commands.missing_programs()) == []


def test_a_host_that_is_off_already_is_asleep(port: StaticHosts, tmp_path: Path) -> None:
    created = port.create(a_launch(), a_type())
    (tmp_path / "cards" / "node01-ipmi").write_text("off\n", encoding="ascii")
    port.destroy(created.provider_id)
    assert states(port) == [CloudState.TERMINATED]


def test_a_card_that_does_not_answer_is_not_a_host_that_is_off(port: StaticHosts, tmp_path: Path) -> None:
    port.create(a_launch(), a_type())
    port.list_nodes()
    (tmp_path / "bin" / "ipmitool").write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
    assert {node.state for _ in range(2 * ASLEEP_LOOKS) for node in port.list_nodes()} == {CloudState.RUNNING}
