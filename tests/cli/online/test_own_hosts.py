"""``check --online`` and ``cloud-test`` with own hosts. A host is awake while a file of its name is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodemanager.cli import cloud_test, main
from nodemanager.cli.online.checks import check_own_hosts
from nodemanager.cloud.common.findings import Finding, Verdict
from nodemanager.cloud.static import port as static_port
from nodemanager.cloud.static.survey import STRANGER_REMEDY, check_hosts
from nodemanager.config.load import load_site
from nodemanager.config.site import Site

SITE = """
[Site]
cluster = rack
state_dir = state
[Flux]
uri = local://{folder}/no-flux
head_address = 127.0.0.1
port = 1
[Cloud]
provider = static
wake = touch awake/{{node}}
sleep = rm -f awake/{{node}}
probe = test -e awake/{{node}}
[Limits]
nodes_max = 3
price_per_hour_max = 1
[Node rack]
cores = 2
memory = 2GiB
price_per_hour = 0.12
billing = per-second
slots = rack[1-3]
hosts = host[1-3]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "awake").mkdir()
    site = tmp_path / "site.ini"
    site.write_text(SITE.format(folder=tmp_path), encoding="utf-8")
    return site


@pytest.fixture
def site(file: Path) -> Site:
    return load_site(file)


def edit(file: Path, old: str, new: str) -> Site:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    return load_site(file)


def found(site: Site) -> list[tuple[Verdict, str]]:
    return [(it.verdict, str(it)) for it in check_hosts(site)]


# --- check --online ---------------------------------------------------------------------------------------


def test_the_hosts_are_probed_and_nothing_is_woken_or_written(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(file.parent.iterdir())
    assert main.main(["check", "--online", "--config", str(file)]) == 1, "there is no instance"
    lines = capsys.readouterr().out.splitlines()
    assert "ok       commands: the programs of wake, sleep and probe may be run here" in lines
    assert "ok       hosts of rack: 3 asleep, 0 awake; 0 serve nodes" in lines
    assert not any(line.startswith("fault") and "instance" not in line for line in lines)
    assert sorted(file.parent.iterdir()) == before
    assert list((file.parent / "awake").iterdir()) == []


def test_a_host_that_somebody_else_uses_is_named(file: Path, site: Site) -> None:
    (file.parent / "awake" / "host2").touch()
    assert found(site)[1:] == [
        (
            Verdict.WARNING,
            f"warning  hosts of rack: awake, and not by this manager: host2. {STRANGER_REMEDY}",
        ),
        (Verdict.OK, "ok       hosts of rack: 2 asleep, 1 awake; 0 serve nodes"),
    ]


def test_hosts_whose_probe_tells_nothing_are_named_with_what_it_printed(file: Path) -> None:
    probe = file.parent / "probe"
    probe.write_text('#!/bin/sh\n[ "$1" = host1 ] || { echo no route to $1; exit 2; }\nexit 1\n', encoding="utf-8")
    probe.chmod(0o700)
    [(verdict, text), (_, rest)] = found(edit(file, "test -e awake/{node}", "./probe {node}"))[1:]
    assert verdict is Verdict.WARNING
    assert "not known of host[2-3]: probe of host2: exit status 2: no route to host2" in text
    assert rest.endswith("1 asleep, 0 awake; 0 serve nodes")
    probe.write_text("#!/bin/sh\nexit 255\n", encoding="utf-8")
    [(verdict, text)] = found(load_site(file))[1:]
    assert verdict is Verdict.FAULT, "a probe that tells nothing about any host does not work"
    assert "not known of host[1-3]" in text


@pytest.mark.parametrize("program", ["no-such-program-here", "./none", "./awake"])
def test_a_command_that_is_not_there_or_may_not_be_run_is_a_fault(file: Path, program: str) -> None:
    [(verdict, text)] = found(edit(file, "touch awake/{node}", f"{program} {{node}}"))
    assert verdict is Verdict.FAULT
    assert f"wake: there is no program {program} here that may be run" in text


def test_a_damaged_file_of_uses_is_a_fault(site: Site) -> None:
    site.cloud_dir.mkdir(parents=True)
    (site.cloud_dir / "hosts.json").write_text("{", encoding="utf-8")
    [(verdict, text)] = found(site)[1:]
    assert verdict is Verdict.FAULT
    assert "hosts.json cannot be read: restore it" in text


def test_without_a_probe_nothing_is_known(file: Path) -> None:
    [(verdict, text)] = found(edit(file, "probe = test -e awake/{node}", ""))[1:]
    assert verdict is Verdict.OK
    assert "without a probe" in text


def test_a_host_that_is_a_rank_already_is_a_fault(site: Site) -> None:
    slots = {"head", "rack1", "rack2", "rack3"}
    assert [it.verdict for it in check_own_hosts(site, slots)] == [Verdict.OK]
    [finding] = check_own_hosts(site, slots | {"host2"})
    assert finding == Finding(
        "own hosts",
        Verdict.FAULT,
        "the instance has ranks on hosts that the manager may put to sleep: host2",
        "Remove them from hosts, or from the instance",
    )


def test_slots_with_the_names_of_hosts_are_a_warning(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, "slots = rack[1-3]", "slots = host[2-4]")
    assert main.main(["check", "--config", str(file)]) == 0
    assert "slots host[2-3] have the names of hosts" in capsys.readouterr().err


# --- cloud-test -------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at a host count as far enough apart."""
    monkeypatch.setattr(cloud_test, "POLL_S", 0.01)
    monkeypatch.setattr(static_port, "ASLEEP_OVER_S", 0.0)


@pytest.mark.usefixtures("soon")
def test_one_free_host_is_woken_seen_and_put_to_sleep(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, "touch awake/{node}", "cp /dev/stdin awake/{node}")
    edit(file, "rm -f awake/{node}", "mv awake/{node} slept-{node}")
    (file.parent / "awake" / "host1").touch()
    assert main.main(["cloud-test", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("made: host2.1" in line for line in lines)
    assert [line.split("s  ")[-1] for line in lines if line.startswith("  ok")] == [
        "list",
        "create",
        "listed, with its tags",
        "running",
        "created again for the same launch: the same node",
        "destroyed, and seen gone",
    ]
    assert [it.name for it in (file.parent / "awake").iterdir()] == ["host1"], "the host of others is left alone"
    assert (file.parent / "slept-host2").read_text(encoding="utf-8") == cloud_test.USER_DATA_OF_A_HOST


@pytest.mark.usefixtures("soon")
def test_a_host_that_an_earlier_test_left_is_put_to_sleep_once_it_is_old(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["cloud-test", "--config", str(file)]
    assert main.main([*asked, "--keep"]) == 0
    assert "kept: host1.1. A cloud-test after 30 minutes puts it to sleep" in capsys.readouterr().out
    assert main.main(asked) == 0
    shown = capsys.readouterr().out
    assert "another test has it, or left it less than 30 minutes ago: host1.1" in shown
    assert "made: host2.2" in shown
    uses = file.parent / "state" / "cloud" / "hosts.json"
    saved = json.loads(uses.read_text(encoding="utf-8"))
    saved["uses"][0]["created_at"] -= 1800.0
    uses.write_text(json.dumps(saved), encoding="utf-8")
    assert main.main(asked) == 0
    assert "left by an earlier test, and put to sleep now: host1.1" in capsys.readouterr().out
    assert list((file.parent / "awake").iterdir()) == []


def test_a_wake_that_fails_is_shown_and_nothing_is_left(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(file, "touch awake/{node}", "sh -c 'echo the card of {node} does not answer; exit 1'")
    assert main.main(["cloud-test", "--config", str(file)]) == 1
    assert (
        "failed: transient: wake of host1: exit status 1: the card of host1 does not answer"
        in capsys.readouterr().err
    )


def test_a_host_has_the_site_s_time_to_boot(file: Path) -> None:
    site = cloud_test.make_test_site(edit(file, "[Limits]", "[Timing]\nboot_timeout = 40m\n[Limits]"))
    nothing = object()
    test = cloud_test.CloudTest(site, nothing, _Clock(), lambda _: None, print)  # type: ignore[arg-type]
    assert test.wait_max_s == 2400.0


class _Clock:
    def monotonic_s(self) -> float:
        return 0.0

    def wall_at(self) -> float:
        return 0.0
