"""``init --provider static``: what the hosts tell, what is asked, and that the site is good."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.cli import main
from nodemanager.cli.new_site.command import NewSiteError, write_new_site
from nodemanager.cli.new_site.static import WAYS
from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_USAGE
from nodemanager.cloud.common.survey import Questions, Unanswered
from nodemanager.cloud.static.commands import commands_of
from nodemanager.cloud.static.provider import WAYS_TO_WAKE
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from tests.cli.new_site.test_new_site import options
from tests.paths import ROOT

GIB = 2**30

# Answers as the host named in its last but two words would. The script itself runs on this machine.
SSH = """#!/bin/sh
while [ $# -gt 3 ]; do shift; done
case ${1#root@} in
gone*) echo "ssh: connect to host ${1#root@}: No route to host" >&2; exit 255 ;;
odd*) cat >/dev/null; echo "Welcome"; echo "bye" ;;
gpu*) cat >/dev/null; echo "hardware 16 4 264000000" ;;
this*) echo "Welcome to ${1#root@}"; shift; exec "$@" ;;
*) cat >/dev/null; echo "a login banner"; echo "hardware 32 0 131900000" ;;
esac
"""


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that ssh is here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "ssh"
    file.write_text(SSH, encoding="utf-8")
    file.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return file


def write(file: Path, *typed: str, **given: object) -> tuple[Site, list[str]]:
    """The site written, and what was said. ``typed``: the answers on a terminal; without any there is none."""
    answers = iter(typed)
    said: list[str] = []
    nothing = dict.fromkeys(("hosts", "wake_by", "cores", "memory", "gpus", "price"))
    chosen = options(file, **{**nothing, "provider": "static", **given})
    write_new_site(chosen, Questions((lambda _: next(answers)) if typed else None), {}, said.append)
    assert list(answers) == [], "every answer was asked for"
    return load_site(file), said


def test_hosts_that_stay_on_are_asked_what_they_have(tmp_path: Path) -> None:
    site, said = write(tmp_path / "site.ini", hosts="node[01-03],gpu[1-2]", head_address="10.0.0.10")
    assert (site.cluster, site.mode_text, site.cloud.provider) == ("lab", "observe", "static")
    assert [(it.cores, it.gpus, it.memory_bytes, it.slots) for it in site.node_types] == [
        (32, 0, 125 * GIB, ("cpu1", "cpu2", "cpu3")),
        (16, 4, 251 * GIB, ("gpu-slot1", "gpu-slot2")),
    ]
    assert [node.hosts for node in site.nodes.values()] == [("node01", "node02", "node03"), ("gpu1", "gpu2")]
    assert [it.properties for it in site.node_types] == [frozenset(), {"gpu"}]
    assert (site.limits.nodes_max, site.limits.price_per_hour_max) == (5, Decimal(1))
    assert site.cloud.wake.endswith("root@{node} sh -s")
    assert any("wakes one host, and puts it to sleep" in line for line in said)
    assert [it.name for it in tmp_path.iterdir() if it.name != "bin"] == ["site.ini"]


def test_the_script_that_a_host_runs_counts_cores_and_memory(tmp_path: Path) -> None:
    site, _ = write(tmp_path / "site.ini", hosts="this1")
    (node_type,) = site.node_types
    assert node_type.cores >= 1
    assert node_type.memory_bytes >= GIB
    assert node_type.slots == ("cpu1",)


@pytest.mark.parametrize(
    ("state", "awake"),
    [
        ("active", True),
        ("activating", True),
        ("deactivating", True),
        ("inactive", False),
        ("failed", False),
        ("unknown", False),
        ("", None),
    ],
)
def test_a_host_s_unit_tells_whether_it_is_awake(tmp_path: Path, ssh: Path, state: str, awake: bool | None) -> None:
    """As systemctl does: it exits with 0 only if the unit is active, and with 1 if systemd does not answer."""
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n', encoding="utf-8")
    systemctl = ssh.with_name("systemctl")
    systemctl.write_text(f"#!/bin/sh\necho {state}\n[ active = '{state}' ]\n", encoding="utf-8")
    systemctl.chmod(0o700)
    site, _ = write(tmp_path / "site.ini", hosts="node1", cores="2", memory="4GiB")
    assert commands_of(site).is_awake("node1") is awake


def test_the_page_has_the_same_commands() -> None:
    page = (ROOT / "doc" / "clouds" / "static.md").read_text(encoding="utf-8")
    for key, command in zip(("wake", "sleep", "probe"), WAYS["ssh"].commands, strict=True):
        assert f"\n{key} = {command}\n" in page


@pytest.mark.parametrize(("way", "script"), [("ipmi", "ipmi-host"), ("lan", "wol-host")])
def test_hosts_that_are_off_need_no_ssh_and_get_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, script: str
) -> None:
    file = tmp_path / "site.ini"
    given = {"hosts": "gone[1-8]", "cores": "32", "memory": "64GiB", "price": "0.12"}
    site, said = write(file, wake_by=way, **given)
    assert site.cloud.probe == f"./{script} {{node}} probe"
    assert site.limits.price_per_hour_max == Decimal("0.96")
    assert (tmp_path / script).stat().st_mode & 0o777 == 0o755
    assert any(str(tmp_path / script) in line for line in said)
    assert main.main(["check", "--config", str(file)]) == 0
    shown = capsys.readouterr()
    assert "warning" not in shown.err
    assert "good; 1 node type, 8 slots, mode observe" in shown.out
    with pytest.raises(NewSiteError, match=f"{script} exists, and nothing is overwritten"):
        write(tmp_path / "other.ini", wake_by=way, **given)
    assert not (tmp_path / "other.ini").exists()


def test_on_a_terminal_everything_is_asked(tmp_path: Path) -> None:
    typed = ("gone[1-2]", "2", "8", "32GiB", "1", "0.2", "10.0.0.1")
    site, _ = write(tmp_path / "site.ini", *typed)
    (node_type,) = site.node_types
    assert (node_type.cores, node_type.gpus, node_type.price_per_hour) == (8, 1, Decimal("0.2"))
    assert (site.cloud.wake, site.flux.head_address) == ("./ipmi-host {node} wake", "10.0.0.1")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, r"^give --hosts: the hosts, such as node\[01-16\]$"),
        ({"hosts": "node[1-"}, "--hosts node"),
        ({"hosts": "node1,-oProxyCommand=reboot"}, "is no host name"),
        (
            {"hosts": "node1,gone[1-2]"},
            r"gone\[1-2\] did not tell what they have \(ssh of gone1: exit status 255: .*",
        ),
        ({"hosts": "odd1"}, "odd1 did not tell what they have"),
        ({"hosts": "node1", "cores": "many", "memory": "1GiB"}, "--cores many"),
        ({"hosts": "node1", "cores": "0", "memory": "1GiB"}, "at least one core"),
        ({"hosts": "node1", "cores": "8", "memory": "8GB"}, "did you mean"),
        ({"hosts": "node1", "price": "cheap"}, "--price cheap"),
        ({"hosts": "node1", "price": "-1"}, "must not be negative"),
    ],
)
def test_what_is_missing_or_odd_is_named_and_nothing_is_written(
    tmp_path: Path, given: dict[str, object], problem: str
) -> None:
    with pytest.raises(Unanswered, match=problem):
        write(tmp_path / "site.ini", **given)
    assert [it.name for it in tmp_path.iterdir()] == ["bin"]


def test_this_machine_is_no_host_that_may_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node02.example")
    with pytest.raises(Unanswered, match="node02 is this machine"):
        write(tmp_path / "site.ini", hosts="node[01-03]")


def test_without_ssh_the_options_must_say_what_the_hosts_have(
    tmp_path: Path, ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh.unlink()
    monkeypatch.setenv("PATH", str(ssh.parent))
    with pytest.raises(Unanswered, match=r"cannot be run: .* Give --cores, --memory and --gpus"):
        write(tmp_path / "site.ini", hosts="node1")


def test_the_command_line_knows_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["init", "--provider", "static", "--output", str(tmp_path / "site.ini")]
    assert main.main(asked) == EXIT_USAGE
    assert "give --hosts" in capsys.readouterr().err
    for way in WAYS_TO_WAKE:
        folder = tmp_path / way
        folder.mkdir()
        asked = ["init", "--provider", "static", "--hosts", "node[1-2]", "--wake-by", way]
        assert main.main([*asked, "--output", str(folder / "site.ini")]) == 0
        assert main.main(["check", "--config", str(folder / "site.ini")]) == 0
    assert main.main([*asked, "--output", str(folder / "site.ini")]) == EXIT_FAILED
