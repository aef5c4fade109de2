"""The client's decisions, on a simulated machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodemanager.join.flux_node_join import JoinClient, JoinRefused, JoinUnreachable, is_plain

STANDING = {
    "may_start": True,
    "online": True,
    "material": "m1",
    "manager_silence_s": 0.0,
    "renew_s": 10.0,
    "orphan_grace_s": 300.0,
}
ALL = {**STANDING, "slot": "cloud1", "lease_key": "k"}


@dataclass
class FakeMachine:
    """A machine whose join service is ``service``. ``done`` lists what the client did."""

    service: Callable[[str], dict[str, Any]] = lambda _: dict(ALL)
    now: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    running: bool = False
    busy: bool = False
    disk_is_full: bool = False
    copied: bool = False
    notice: str = ""
    survivors: str = ""
    said: list[dict[str, Any]] = field(default_factory=list)  # the reports
    hardware: dict[str, int] = field(default_factory=dict)

    def now_s(self) -> float:
        return self.now

    def uniform(self, low: float, high: float) -> float:
        return high

    def nonce(self) -> str:
        return "n"

    def instance(self) -> str:
        return "i"

    def is_a_copy(self) -> bool:
        return self.copied

    def log(self, text: str) -> None:
        pass

    def measured(self) -> dict[str, int]:
        return self.hardware

    def load(self) -> dict[str, Any]:
        return self.kept

    def save(self, state: dict[str, Any]) -> None:
        self.kept = state

    def write_hosts(self, hosts: dict[str, str]) -> None:
        pass

    def ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        self.done.append(what)
        self.said += [body] if what == "report" else []
        return self.service(what)

    def reclaim_notice(self) -> str:
        return self.notice

    def check(self, given: dict[str, Any]) -> None:
        pass

    def start_broker(self, given: dict[str, Any]) -> None:
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        self.done.append("START")
        self.running = True

    def broker_status(self) -> str | None:
        return None if self.running else "status 0"

    def broker_tail(self) -> str:
        return ""

    def end_survivors(self) -> str:
        return self.survivors

    def stop_broker(self) -> None:
        self.done.append("STOP")
        self.running = False

    def job_runs(self) -> bool:
        return self.busy

    def drain(self, reason: str) -> None:
        self.done.append("DRAIN")

    def power_off(self) -> None:
        self.done.append("OFF")


def a_client(machine: FakeMachine) -> JoinClient:
    return JoinClient(machine, "cloud1-1", "t", 3600.0)


def run_for(machine: FakeMachine, client: JoinClient, seconds: float) -> None:
    end_s = machine.now + seconds
    while machine.now < end_s:
        wait_s = client.step()
        if wait_s is None:
            return
        machine.now += wait_s


def refusing(code: str) -> Callable[[str], dict[str, Any]]:
    def refuse(what: str) -> dict[str, Any]:
        raise JoinRefused(code)

    return refuse


def silent(what: str) -> dict[str, Any]:
    raise JoinUnreachable("nobody")


def test_it_redeems_starts_and_renews() -> None:
    machine = FakeMachine()
    run_for(machine, a_client(machine), 30.0)
    assert machine.done[:4] == ["redeem", "START", "renew", "report"]
    assert set(machine.done[4:]) == {"renew"}


def test_it_asks_again_before_each_start_and_starts_for_ever() -> None:
    machine = FakeMachine()
    client = a_client(machine)
    for _ in range(20):
        run_for(machine, client, 40.0)
        assert machine.running
        machine.running = False
    starts = [index for index, done in enumerate(machine.done) if done == "START"]
    assert len(starts) == 20
    assert all(machine.done[index - 1] in ("fetch", "report", "redeem") for index in starts)
    assert machine.done.count("fetch") >= 19


@pytest.mark.parametrize("code", ["used", "wrong", "expired", "malformed", "too_large"])
def test_a_refused_ticket_is_sent_once_and_the_node_ends_after_the_silence(code: str) -> None:
    machine = FakeMachine(service=refusing(code))
    run_for(machine, a_client(machine), 3599.0)
    assert machine.done == ["redeem"]
    run_for(machine, a_client(machine), 3700.0)
    assert machine.done[-1] == "OFF"


def test_a_copy_of_a_nodes_disk_asks_for_nothing_and_ends_after_the_silence() -> None:
    machine = FakeMachine(copied=True, kept={"nonce": "n", "lease_key": "k"})
    client = a_client(machine)
    run_for(machine, client, 3599.0)
    assert machine.done == []
    run_for(machine, client, 10.0)
    assert machine.done[-1] == "OFF"


@pytest.mark.parametrize("code", ["not_current", "in_use", "unavailable", "too_many", "wrong_source", "too_slow"])
def test_a_refusal_that_may_change_is_retried(code: str) -> None:
    machine = FakeMachine(service=refusing(code))
    client = a_client(machine)
    run_for(machine, client, 60.0)
    assert machine.done.count("redeem") > 3
    machine.service = FakeMachine.service
    run_for(machine, client, 60.0)
    assert machine.running


def test_a_node_without_its_lease_starts_nothing_and_ends_when_that_lasts() -> None:
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 5.0)
    machine.service = refusing("not_current")
    machine.running = False
    run_for(machine, client, 50.0)
    assert machine.done.count("START") == 1
    machine.service = FakeMachine.service  # the lease is on the roster again
    run_for(machine, client, 50.0)
    assert machine.running
    machine.service = refusing("not_current")
    run_for(machine, client, 400.0)
    assert machine.done[-3:] == ["DRAIN", "STOP", "OFF"]


def test_a_node_that_is_being_stopped_starts_no_broker() -> None:
    machine = FakeMachine(service=lambda _: {**ALL, "may_start": False})
    run_for(machine, a_client(machine), 60.0)
    assert "START" not in machine.done


def test_a_silence_ends_an_idle_node_and_never_one_with_a_job() -> None:
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 5.0)
    machine.service, machine.busy = silent, True
    run_for(machine, client, 10_000.0)
    assert "OFF" not in machine.done
    machine.busy = False
    run_for(machine, client, 10.0)
    assert machine.done[-3:] == ["DRAIN", "STOP", "OFF"]


def test_a_service_without_a_manager_is_no_sign_of_life() -> None:
    machine = FakeMachine(service=lambda _: {**ALL, "manager_silence_s": machine.now})
    run_for(machine, a_client(machine), 3700.0)
    assert machine.done[-1] == "OFF"


def test_a_job_that_comes_while_the_rank_is_drained_is_not_stopped() -> None:
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 5.0)
    machine.service = silent

    def drained(reason: str) -> None:
        machine.busy = True

    machine.drain = drained  # type: ignore[method-assign]
    run_for(machine, client, 5000.0)
    assert "STOP" not in machine.done


@pytest.mark.parametrize("answer", [{}, {**ALL, "renew_s": "soon"}, {**ALL, "orphan_grace_s": None}])
def test_an_answer_of_another_protocol_stops_no_broker(answer: dict[str, Any]) -> None:
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 5.0)
    machine.service = lambda _: answer
    run_for(machine, client, 100.0)
    assert machine.running
    assert "STOP" not in machine.done


def test_a_full_disk_is_waited_out() -> None:
    machine = FakeMachine(disk_is_full=True)
    client = a_client(machine)
    run_for(machine, client, 60.0)
    assert not machine.running
    machine.disk_is_full = False
    run_for(machine, client, 60.0)
    assert machine.running


def test_a_broker_that_waits_with_what_has_changed_is_stopped_unless_it_is_in_or_has_a_job() -> None:
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 5.0)
    machine.service = lambda _: {**ALL, "material": "m2"}
    run_for(machine, client, 60.0)
    assert "STOP" not in machine.done, "it is in"
    machine.service, machine.busy = lambda _: {**ALL, "material": "m2", "online": False}, True
    run_for(machine, client, 60.0)
    assert "STOP" not in machine.done, "a job runs"
    machine.busy = False
    run_for(machine, client, 60.0)
    assert machine.done.count("STOP") == 1
    assert machine.running


def test_57_a_notice_that_the_node_is_taken_back_is_reported_at_once_and_once() -> None:
    said: list[dict[str, Any]] = []
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 30.0)
    machine.said = said
    machine.notice = "terminate at 2026-11-21T14:02:00Z"
    run_for(machine, client, 6.0)
    assert [(body["phase"], body["detail"]) for body in said] == [("reclaimed", machine.notice)]
    run_for(machine, client, 60.0)
    assert len(said) == 1
    assert machine.running, "what runs there goes on"


def test_57_a_notice_waits_for_a_service_that_is_away() -> None:
    machine = FakeMachine()
    client = a_client(machine)
    run_for(machine, client, 30.0)
    machine.service, machine.notice = silent, "terminate"
    run_for(machine, client, 20.0)
    machine.service = lambda _: dict(ALL)
    reports = machine.done.count("report")
    run_for(machine, client, 40.0)
    assert machine.done.count("report") == reports + 1


@pytest.mark.parametrize(
    ("name", "address", "plain"),
    [
        ("cloud1", "10.0.0.1", True),
        ("cloud1\n", "10.0.0.1", False),
        ("cloud1", "10.0.0.1\n", False),
        ("a b", "::1", False),
    ],
)
def test_a_line_of_the_hosts_file_has_nothing_else_in_it(name: str, address: str, plain: bool) -> None:
    assert is_plain(name, address) is plain


def test_no_broker_starts_while_a_process_of_the_one_before_survives_and_it_says_so_once() -> None:
    machine = FakeMachine(survivors="process 7 of uid 1001")
    client = a_client(machine)
    run_for(machine, client, 30.0)
    assert "START" not in machine.done
    said = json.dumps(machine.said)
    assert said.count("process 7 of uid 1001") == 1
    machine.survivors = ""
    run_for(machine, client, 5.0)
    assert "START" in machine.done
