"""Own hosts: what their commands do wrong, and what a crash leaves."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nodemanager.cloud.static import commands as host_commands
from nodemanager.cloud.static.commands import HostCommands
from nodemanager.cloud.static.port import ASLEEP_LOOKS, ASLEEP_OVER_S
from nodemanager.core.nodes import CloudState, FailureKind, ProviderId
from nodemanager.core.ports import CloudError
from tests.contract.cloud_subjects import SystemClock, a_launch, a_script, a_type
from tests.contract.static_subject import StaticSubject


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[StaticSubject]:
    subject = StaticSubject(tmp_path / "static")
    subject.hosts = ("host0", "host1", "host2")
    yield subject
    subject.close()


def command(folder: Path, name: str, text: str) -> str:
    """Write a script, and return the command line that runs it with a host's name."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(stat.S_IRWXU)
    return f"{file} {{node}}"


def asleep(subject: StaticSubject, provider_id: ProviderId) -> bool:
    """Whether enough looks show the node terminated."""
    return [subject.state(provider_id) for _ in range(ASLEEP_LOOKS)][-1] is CloudState.TERMINATED


def hosts_in_use(subject: StaticSubject) -> list[str]:
    return [node.addresses[0] for node in subject.standing()]


# --- waking -----------------------------------------------------------------------------------------------


def test_the_wake_command_reads_the_user_data_of_the_launch(hosts: StaticSubject) -> None:
    hosts.port.commands = replace(
        hosts.port.commands, wake=command(hosts.directory, "wake", f"cat >{hosts.directory}/$1")
    )
    hosts.port.create(a_launch(), a_type())
    assert (hosts.directory / "host0").read_text(encoding="utf-8") == a_script(a_launch(), a_type())


def test_a_host_s_name_becomes_one_word_whatever_the_command_is(hosts: StaticSubject) -> None:
    told = hosts.directory / "told"
    wake = command(hosts.directory, "wake", f'printf "%s\\n" "$@" >{told}').replace(" {node}", "")
    hosts.port.commands = replace(hosts.port.commands, wake=f"{wake} '{{node}} ; reboot' $(reboot) *")
    hosts.port.create(a_launch(), a_type())
    assert told.read_text(encoding="utf-8").splitlines() == ["host0 ; reboot", "$(reboot)", "*"]


def test_a_wake_that_fails_says_why_and_the_next_try_takes_another_host(hosts: StaticSubject) -> None:
    good = hosts.port.commands
    wake = command(hosts.directory, "wake", "echo no route to $1 >&2; exit 3")
    hosts.port.commands = replace(good, wake=wake)
    with pytest.raises(CloudError) as failed:
        hosts.port.create(a_launch(), a_type())
    assert (failed.value.kind, failed.value.detail) == (
        FailureKind.TRANSIENT,
        "wake of host0: exit status 3: no route to host0",
    )
    assert hosts.port.list_nodes() == ()
    hosts.port.commands = good
    hosts.port.create(a_launch(), a_type())
    assert hosts_in_use(hosts) == ["host1"]


def test_a_host_that_failed_is_tried_last_and_trusted_again_once_it_wakes(hosts: StaticSubject) -> None:
    good = hosts.port.commands
    hosts.port.commands = replace(good, wake="false {node}")
    kinds = []
    for _ in range(3):
        with pytest.raises(CloudError) as failed:
            hosts.port.create(a_launch(), a_type())
        kinds.append(failed.value.kind)
    assert kinds == [FailureKind.TRANSIENT, FailureKind.TRANSIENT, FailureKind.CAPACITY]
    hosts.port.commands = good
    for number in range(3):
        hosts.port.create(a_launch(str(number), f"node-{number}"), a_type())
    assert hosts_in_use(hosts) == ["host0", "host1", "host2"]
    with pytest.raises(CloudError, match="all 3 hosts of small are in use"):
        hosts.port.create(a_launch("4", "node-4"), a_type())


def test_a_wake_that_failed_half_way_is_undone(hosts: StaticSubject) -> None:
    awake = hosts.directory / "awake"
    wake = command(hosts.directory, "wake", f"touch {awake}/$1; exit 1")
    hosts.port.commands = replace(hosts.port.commands, wake=wake)
    with pytest.raises(CloudError):
        hosts.port.create(a_launch(), a_type())
    assert list(awake.iterdir()) == []


def test_a_host_whose_wake_and_sleep_both_fail_is_not_forgotten(hosts: StaticSubject) -> None:
    good = hosts.port.commands
    awake = hosts.directory / "awake"
    wake = command(hosts.directory, "wake", f"touch {awake}/$1; exit 1")
    sleep = command(hosts.directory, "sleep", "echo no answer; exit 2")
    hosts.port.commands = replace(good, wake=wake, sleep=sleep)
    with pytest.raises(CloudError, match=r"wake of host0: exit status 1; sleep of host0: .* no answer") as failed:
        hosts.port.create(a_launch(), a_type())
    assert failed.value.kind is FailureKind.AMBIGUOUS
    (node,) = hosts.another_port().list_nodes()
    assert (node.state, node.addresses) == (CloudState.FAILED, ("host0",))
    assert "sleep of host0" in node.died_because
    with pytest.raises(CloudError, match="sleep of host0"):
        hosts.port.destroy(node.provider_id)
    hosts.port.commands = good
    hosts.port.create(a_launch("2", "node-2"), a_type())
    assert sorted(hosts_in_use(hosts)) == ["host0", "host1"], "the next launch takes another host"
    hosts.port.destroy(node.provider_id)
    assert asleep(hosts, node.provider_id)
    assert [it.name for it in awake.iterdir()] == ["host1"]


def test_a_host_that_is_still_awake_after_a_wake_that_failed_is_not_forgotten(hosts: StaticSubject) -> None:
    wake = command(hosts.directory, "wake", f"touch {hosts.directory}/awake/$1; exit 1")
    hosts.port.commands = replace(hosts.port.commands, wake=wake, sleep="true {node}")
    with pytest.raises(CloudError, match="the probe does not find host0 asleep") as failed:
        hosts.port.create(a_launch(), a_type())
    assert failed.value.kind is FailureKind.AMBIGUOUS
    assert [node.state for node in hosts.port.list_nodes()] == [CloudState.FAILED]


def test_a_broken_host_is_let_go_once_the_site_does_not_list_it(hosts: StaticSubject) -> None:
    hosts.port.commands = replace(hosts.port.commands, wake="false {node}", sleep="false {node}")
    with pytest.raises(CloudError):
        hosts.port.create(a_launch(), a_type())
    assert {node.state for _ in range(2 * ASLEEP_LOOKS) for node in hosts.port.list_nodes()} == {CloudState.FAILED}
    hosts.hosts = hosts.hosts[1:]
    (node,) = hosts.port.list_nodes()
    assert node.state is CloudState.TERMINATED
    assert node.died_because.endswith("it is no host of the site any more")


def test_a_host_that_somebody_else_uses_is_left_alone(hosts: StaticSubject) -> None:
    awake = hosts.directory / "awake"
    (awake / "host0").touch()
    created = hosts.port.create(a_launch(), a_type())
    assert created.addresses == ("host1",)
    (awake / "host2").touch()
    with pytest.raises(CloudError, match=r"1 are in use, and host\[0,2\] awake") as failed:
        hosts.port.create(a_launch("2", "node-2"), a_type())
    assert failed.value.kind is FailureKind.CAPACITY
    (awake / "host0").unlink()
    assert hosts.port.create(a_launch("2", "node-2"), a_type()).addresses == ("host0",)
    assert (awake / "host2").exists()


def test_of_two_sites_with_the_same_hosts_each_leaves_the_other_s_alone(
    hosts: StaticSubject, tmp_path: Path
) -> None:
    other = StaticSubject(tmp_path / "other")
    other.hosts, other.port.commands = hosts.hosts, hosts.port.commands
    first, second = hosts.port.create(a_launch(), a_type()), other.port.create(a_launch(), a_type())
    assert (first.addresses, second.addresses) == (("host0",), ("host1",))
    hosts.port.destroy(first.provider_id)
    assert [it.name for it in (hosts.directory / "awake").iterdir()] == ["host1"]


def test_a_host_of_which_nothing_is_known_is_woken(hosts: StaticSubject) -> None:
    probe = command(hosts.directory, "probe", "exit 255")
    hosts.port.commands = replace(hosts.port.commands, probe=probe)
    assert hosts.port.create(a_launch(), a_type()).addresses == ("host0",)


@pytest.mark.parametrize("with_probe", [True, False])
def test_a_host_put_to_sleep_during_its_wake_sleeps_in_the_end(hosts: StaticSubject, *, with_probe: bool) -> None:
    awake, waking = hosts.directory / "awake", hosts.directory / "waking"
    wake = command(
        hosts.directory,
        "wake",
        f"touch {waking}; while test -e {waking}; do sleep 0.01; done; touch {awake}/$1",
    )
    good = hosts.port.commands if with_probe else replace(hosts.port.commands, probe="")
    hosts.port.commands = replace(good, wake=wake)
    other = hosts.another_port()
    other.commands = good
    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(hosts.port.create, a_launch(), a_type())
        hosts.wait(waking.exists, "the wake")
        (node,) = other.list_nodes()
        other.destroy(node.provider_id)
        assert {it.state for _ in range(2 * ASLEEP_LOOKS) for it in other.list_nodes()} == {CloudState.STOPPING}
        waking.unlink()
        creating.result()
    assert asleep(hosts, node.provider_id)
    assert list(awake.iterdir()) == []


def test_a_sleep_that_fails_after_such_a_wake_is_not_forgotten(
    hosts: StaticSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = replace(hosts.port.commands, probe="")
    hosts.port.commands = good

    def put_to_sleep_meanwhile(_self: HostCommands, _host: str, _script: str) -> host_commands.Ran:
        (node,) = hosts.port.list_nodes()
        hosts.port.destroy(node.provider_id)
        hosts.port.commands = replace(good, sleep="false {node}")
        return host_commands.Ran(0, "")

    monkeypatch.setattr(HostCommands, "run_wake", put_to_sleep_meanwhile)
    with pytest.raises(CloudError, match="put to sleep while its wake still ran; sleep of host0") as failed:
        hosts.port.create(a_launch(), a_type())
    assert failed.value.kind is FailureKind.AMBIGUOUS
    assert [node.state for node in hosts.port.list_nodes()] == [CloudState.FAILED]


def test_a_command_that_is_not_there_is_a_fault_of_the_site(hosts: StaticSubject) -> None:
    hosts.port.commands = replace(hosts.port.commands, wake="/no/such/program {node}")
    with pytest.raises(CloudError, match=r"/no/such/program .* cannot be run") as failed:
        hosts.port.create(a_launch(), a_type())
    assert failed.value.kind is FailureKind.CONFIG
    assert hosts.port.list_nodes() == ()


def test_what_a_wake_leaves_running_does_not_hold_it_up(hosts: StaticSubject) -> None:
    wake = command(
        hosts.directory, "wake", f"sleep 600 & echo $! >{hosts.directory}/pid; touch {hosts.directory}/awake/$1"
    )
    hosts.port.commands = replace(hosts.port.commands, wake=wake)
    assert hosts.port.create(a_launch(), a_type()).state is CloudState.PENDING
    left = psutil.Process(int((hosts.directory / "pid").read_text(encoding="ascii")))
    assert left.is_running()
    left.kill()


def test_a_command_that_prints_without_end_is_killed(hosts: StaticSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_commands, "_PRINTED_MAX", 2**20)
    hosts.port.commands = replace(hosts.port.commands, wake="yes {node}")
    with pytest.raises(CloudError, match="wake of host0: printed more than 1 MiB and was killed") as failed:
        hosts.port.create(a_launch(), a_type())
    assert failed.value.kind is FailureKind.AMBIGUOUS
    assert len(failed.value.detail) < 500


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_command_that_no_signal_ends_does_not_hold_up_the_manager(
    hosts: StaticSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, _signal: deaf.append(pid))
    monkeypatch.setattr(host_commands, "KILLED_WITHIN_S", 0.01)
    hosts.port.commands = replace(hosts.port.commands, wake="sh -c 'exec sleep 600' {node}", timeout_s=0.01)
    with pytest.raises(CloudError, match="wake of host0: ran too long and was killed") as failed:
        hosts.port.create(a_launch(), a_type())
    assert failed.value.kind is FailureKind.AMBIGUOUS
    kill(deaf[0], signal.SIGKILL)
    os.waitpid(deaf[0], 0)


def test_a_wake_that_was_cut_off_is_repeated_on_the_same_host(hosts: StaticSubject) -> None:
    with hosts.losing_replies(), pytest.raises(CloudError):
        hosts.port.create(a_launch(), a_type())
    assert [node.state for node in hosts.port.list_nodes()] == [CloudState.PENDING]
    hosts.another_port().create(a_launch(), a_type())
    hosts.wait(lambda: [node.state for node in hosts.port.list_nodes()] == [CloudState.RUNNING], "the host")
    assert hosts_in_use(hosts) == ["host0"]


# --- asleep or awake --------------------------------------------------------------------------------------


def test_without_a_probe_the_commands_tell_the_state(hosts: StaticSubject) -> None:
    hosts.port.commands = replace(hosts.port.commands, probe="")
    created = hosts.port.create(a_launch(), a_type())
    assert created.state is CloudState.RUNNING
    hosts.port.destroy(created.provider_id)
    assert hosts.state(created.provider_id) is CloudState.TERMINATED


def test_a_host_is_dead_only_after_several_probes_in_a_row(hosts: StaticSubject) -> None:
    created = hosts.port.create(a_launch(), a_type())
    awake = hosts.directory / "awake" / "host0"
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    for _ in range(2):
        awake.unlink()
        assert {hosts.state(created.provider_id) for _ in range(ASLEEP_LOOKS - 1)} == {CloudState.RUNNING}
        awake.touch()
        assert hosts.state(created.provider_id) is CloudState.RUNNING
    awake.unlink()
    assert {hosts.state(created.provider_id) for _ in range(ASLEEP_LOOKS - 1)} == {CloudState.RUNNING}
    node = hosts.node(created.provider_id)
    assert node is not None
    assert (node.state, node.died_because) == (CloudState.TERMINATED, "the probe finds it asleep")


def test_pings_that_are_lost_for_a_while_are_no_proof(
    hosts: StaticSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(SystemClock, "wall_at", lambda _: now)
    monkeypatch.setattr(hosts.port, "_asleep_over_s", ASLEEP_OVER_S)
    created = hosts.port.create(a_launch(), a_type())
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    hosts.kill(created.provider_id)
    looks = [hosts.state(created.provider_id) for _ in range(3 * ASLEEP_LOOKS)]
    assert set(looks) == {CloudState.RUNNING}, "however many looks there were, they were all at the same time"
    now += ASLEEP_OVER_S
    assert hosts.state(created.provider_id) is CloudState.TERMINATED


def test_a_lost_ping_is_no_proof_that_a_host_went_to_sleep(hosts: StaticSubject) -> None:
    created = hosts.port.create(a_launch(), a_type())
    good = hosts.port.commands
    hosts.port.commands = replace(good, sleep="true {node}")  # the host does not heed it
    hosts.port.destroy(created.provider_id)
    for probe in ("false {node}", good.probe, "false {node}", "false {node}", good.probe):
        hosts.port.commands = replace(good, probe=probe)
        assert hosts.state(created.provider_id) is CloudState.STOPPING
    hosts.port.destroy(created.provider_id)
    assert asleep(hosts, created.provider_id)


@pytest.mark.parametrize("end", ["exit 2", "exit 255", "kill -9 $$"])
def test_a_probe_that_fails_changes_nothing(hosts: StaticSubject, end: str) -> None:
    created = hosts.port.create(a_launch(), a_type())
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    hosts.port.commands = replace(hosts.port.commands, probe=command(hosts.directory, "probe", end))
    assert {hosts.state(created.provider_id) for _ in range(2 * ASLEEP_LOOKS)} == {CloudState.RUNNING}


def test_a_probe_that_hangs_is_killed_and_changes_nothing(hosts: StaticSubject) -> None:
    created = hosts.port.create(a_launch(), a_type())
    hosts.port.commands = replace(hosts.port.commands, probe="sh -c 'exec sleep 600' {node}", timeout_s=0.01)
    assert hosts.state(created.provider_id) is CloudState.PENDING


def test_a_list_without_its_probe_fails_and_is_not_empty(hosts: StaticSubject) -> None:
    hosts.port.create(a_launch(), a_type())
    hosts.port.commands = replace(hosts.port.commands, probe="/no/such/probe {node}")
    with pytest.raises(CloudError, match="cannot be run"):
        hosts.port.list_nodes()


def test_a_sleep_that_fails_says_why_and_the_host_stays_ours(hosts: StaticSubject) -> None:
    good = hosts.port.commands
    created = hosts.port.create(a_launch(), a_type())
    sleep = command(hosts.directory, "sleep", "echo the card does not answer; exit 1")
    hosts.port.commands = replace(good, sleep=sleep)
    with pytest.raises(CloudError, match="sleep of host0: exit status 1: the card does not answer") as failed:
        hosts.port.destroy(created.provider_id)
    assert failed.value.kind is FailureKind.TRANSIENT
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    hosts.port.commands = good
    hosts.port.destroy(created.provider_id)
    assert asleep(hosts, created.provider_id)
    assert list((hosts.directory / "awake").iterdir()) == []


def test_a_host_that_did_not_heed_its_sleep_is_put_to_sleep_again(hosts: StaticSubject) -> None:
    good = hosts.port.commands
    created = hosts.port.create(a_launch(), a_type())
    hosts.port.commands = replace(good, sleep="true {node}")
    hosts.port.destroy(created.provider_id)
    assert hosts.state(created.provider_id) is CloudState.STOPPING
    hosts.port.commands = good
    hosts.port.destroy(created.provider_id)
    assert asleep(hosts, created.provider_id)
    assert list((hosts.directory / "awake").iterdir()) == []


def test_a_host_that_sleeps_is_not_put_to_sleep_again_before_a_list_shows_it(hosts: StaticSubject) -> None:
    created = hosts.port.create(a_launch(), a_type())
    hosts.port.destroy(created.provider_id)
    hosts.port.commands = replace(hosts.port.commands, sleep="false {node}")
    hosts.port.destroy(created.provider_id)
    assert asleep(hosts, created.provider_id)


def test_a_host_that_has_gone_to_sleep_serves_the_next_launch_under_another_id(hosts: StaticSubject) -> None:
    hosts.hosts = ("host0",)
    first = hosts.port.create(a_launch("1"), a_type())
    hosts.port.destroy(first.provider_id)
    hosts.wait(lambda: hosts.standing() == [], "its sleep")
    second = hosts.port.create(a_launch("2"), a_type())
    assert second.addresses == first.addresses == ("host0",)
    assert second.provider_id != first.provider_id
    hosts.port.destroy(first.provider_id)
    assert (hosts.directory / "awake" / "host0").exists(), "the earlier launch's end is no end of this one"


def test_a_sleep_that_is_repeated_leaves_the_host_s_next_launch_alone(
    hosts: StaticSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.hosts = ("host0",)
    first = hosts.port.create(a_launch("1"), a_type())
    hosts.port.destroy(first.provider_id)
    other, is_awake = hosts.another_port(), HostCommands.is_awake

    def meanwhile(commands: HostCommands, host: str) -> bool | None:
        """While the probe runs, lists end the use, and the host is woken for the next launch."""
        monkeypatch.setattr(HostCommands, "is_awake", is_awake)
        assert asleep(hosts, first.provider_id)
        other.create(a_launch("2"), a_type())
        return is_awake(commands, host)

    monkeypatch.setattr(HostCommands, "is_awake", meanwhile)
    hosts.port.destroy(first.provider_id)
    assert (hosts.directory / "awake" / "host0").exists()


# --- the file ---------------------------------------------------------------------------------------------


def test_a_damaged_file_is_no_empty_list(hosts: StaticSubject) -> None:
    hosts.port.create(a_launch(), a_type())
    file = hosts.directory / "cloud" / "hosts.json"
    file.write_text("{", encoding="utf-8")
    for call in (hosts.port.list_nodes, lambda: hosts.port.create(a_launch("2"), a_type())):
        with pytest.raises(CloudError, match=r"hosts\.json cannot be read: restore it") as failed:
            call()
        assert failed.value.kind is FailureKind.TRANSIENT


def test_hosts_that_slept_long_ago_are_forgotten(hosts: StaticSubject) -> None:
    file = hosts.directory / "cloud" / "hosts.json"
    hosts.port.destroy(hosts.port.create(a_launch(), a_type()).provider_id)
    hosts.wait(lambda: hosts.standing() == [], "its sleep")
    assert len(hosts.port.list_nodes()) == 1
    saved = json.loads(file.read_text(encoding="utf-8"))
    saved["uses"][0]["ended_at"] -= 601.0
    file.write_text(json.dumps(saved), encoding="utf-8")
    assert hosts.port.list_nodes() == ()
    assert hosts.port.create(a_launch("2"), a_type()).provider_id == "host0.2"


def test_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    command(tmp_path, "wake", "true")
    commands = HostCommands("./wake {node}", "no-such-program-here {node}", "test -e {node}", tmp_path, 1.0)
    assert list(commands.missing_programs()) == [
        "sleep: there is no program no-such-program-here here that may be run"
    ]
