"""The shipped scripts: ``ipmi-host`` with an ipmitool that keeps each host's power in a file, and ``wol-host``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nodemanager.cloud.common.request import PortSettings
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
        PortSettings(CLUSTER, CLUSTER_UUID, a_script, SystemClock()),
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


# --- wol-host ---------------------------------------------------------------------------------------------

# Each host is a file that contains the exit status of its ping.
WAKE_ON_LAN = {
    "ping": 'for host; do :; done; [ -e "$LAN/$host" ] || exit 2; exit "$(cat "$LAN/$host")"',
    "wakeonlan": 'echo "$1" >>"$LAN/packets"',
    "ssh": 'for command; do :; done; echo "$*" >>"$LAN/logins"; [ "$command" = poweroff ]',
}


@pytest.fixture
def lan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the hosts. ``node01`` is off."""
    for name in ("bin", "lan", "nodes"):
        (tmp_path / name).mkdir()
    for name, text in WAKE_ON_LAN.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o700)
    (tmp_path / "ethers").write_text("# a comment\n00:00:5e:00:53:01 node01\n", encoding="ascii")
    (tmp_path / "lan" / "node01").write_text("1", encoding="ascii")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("LAN", str(tmp_path / "lan"))
    monkeypatch.setenv("ETHERS", str(tmp_path / "ethers"))
    monkeypatch.setenv("FLUX_NODES_DIR", str(tmp_path / "nodes"))
    return tmp_path / "lan"


def wol(node: str, verb: str) -> tuple[int, str]:
    command = ["sh", str(SCRIPTS / "wol-host"), node, verb]
    ran = subprocess.run(command, input="#!/bin/sh\n", capture_output=True, text=True, check=False, timeout=60)
    return ran.returncode, ran.stderr


def test_a_host_is_woken_by_its_address_and_put_to_sleep_by_ssh(lan: Path) -> None:
    script = lan.parent / "nodes" / "node01"
    assert wol("node01", "probe")[0] == 1
    assert wol("node01", "wake")[0] == 0
    assert (lan / "packets").read_text(encoding="ascii") == "00:00:5e:00:53:01\n"
    assert script.stat().st_mode & 0o777 == 0o600
    (lan / "node01").write_text("0", encoding="ascii")
    assert wol("node01", "probe")[0] == 0
    assert wol("node01", "sleep")[0] == 0
    assert (lan / "logins").read_text(encoding="ascii").endswith("root@node01 poweroff\n")
    assert not script.exists()


def test_a_host_that_still_boots_is_not_taken_for_one_that_sleeps(lan: Path) -> None:
    script = lan.parent / "nodes" / "node01"
    wol("node01", "wake")
    assert wol("node01", "sleep") == (1, "node01 was woken less than 20 minutes ago and does not answer yet\n")
    os.utime(script, (script.stat().st_mtime - 1300, script.stat().st_mtime - 1300))
    assert wol("node01", "sleep")[0] == 0
    assert not script.exists()
    assert not (lan / "logins").exists()


def test_a_name_that_is_not_known_says_nothing_about_its_host(lan: Path) -> None:
    (lan / "node01").unlink()
    assert wol("node01", "probe")[0] == wol("node01", "sleep")[0] == 2
    assert wol("node02", "wake") == (1, f"{lan.parent}/ethers has no hardware address of node02\n")
