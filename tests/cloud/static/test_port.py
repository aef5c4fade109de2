"""Own hosts: what their commands do wrong, and what a crash leaves."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from nodemanager.cloud.static.commands import HostCommands
from nodemanager.core.nodes import CloudState, FailureKind
from nodemanager.core.ports import CloudError
from tests.contract.cloud_subjects import a_launch, a_script, a_type
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


def test_a_host_is_dead_only_after_two_probes_in_a_row(hosts: StaticSubject) -> None:
    created = hosts.port.create(a_launch(), a_type())
    awake = hosts.directory / "awake" / "host0"
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    awake.unlink()
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    awake.touch()
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    awake.unlink()
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    node = hosts.node(created.provider_id)
    assert node is not None
    assert (node.state, node.died_because) == (CloudState.TERMINATED, "the probe finds it asleep")


@pytest.mark.parametrize("end", ["exit 2", "exit 255", "kill -9 $$"])
def test_a_probe_that_fails_changes_nothing(hosts: StaticSubject, end: str) -> None:
    created = hosts.port.create(a_launch(), a_type())
    assert hosts.state(created.provider_id) is CloudState.RUNNING
    hosts.port.commands = replace(hosts.port.commands, probe=command(hosts.directory, "probe", end))
    assert {hosts.state(created.provider_id) for _ in range(3)} == {CloudState.RUNNING}


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
    assert hosts.state(created.provider_id) is CloudState.TERMINATED
    assert list((hosts.directory / "awake").iterdir()) == []


def test_a_host_that_did_not_heed_its_sleep_is_put_to_sleep_again(hosts: StaticSubject) -> None:
    good = hosts.port.commands
    created = hosts.port.create(a_launch(), a_type())
    hosts.port.commands = replace(good, sleep="true {node}")
    hosts.port.destroy(created.provider_id)
    assert hosts.state(created.provider_id) is CloudState.STOPPING
    hosts.port.commands = good
    hosts.port.destroy(created.provider_id)
    assert hosts.state(created.provider_id) is CloudState.TERMINATED
    assert list((hosts.directory / "awake").iterdir()) == []


def test_a_host_that_sleeps_is_not_put_to_sleep_again_before_a_list_shows_it(hosts: StaticSubject) -> None:
    created = hosts.port.create(a_launch(), a_type())
    hosts.port.destroy(created.provider_id)
    hosts.port.commands = replace(hosts.port.commands, sleep="false {node}")
    hosts.port.destroy(created.provider_id)
    assert hosts.state(created.provider_id) is CloudState.TERMINATED


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
