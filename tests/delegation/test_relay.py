"""Output is passed on once, in order, and up to a limit."""

from __future__ import annotations

import json

from nodemanager.delegation.relay import EXEC, OUTPUT, OutputRelay, counts_for_relay

EVENTS = [
    {"timestamp": float(n), "name": "data", "context": {"stream": "stdout", "data": f"line {n}\n"}}
    for n in range(9)
]


def a_relay(passed: int = 0, limit_bytes: int = 10_000) -> OutputRelay:
    return OutputRelay({OUTPUT: passed}, limit_bytes, "flux job attach f1")


def test_everything_once_and_in_order() -> None:
    relay = a_relay()
    lines = relay.take(OUTPUT, EVENTS[:4]) + relay.take(OUTPUT, EVENTS[4:])
    assert [json.loads(line) for line in lines.splitlines()] == EVENTS


def test_after_a_restart_of_the_manager_what_is_there_is_not_passed_on_again() -> None:
    lines = a_relay(passed=5).take(OUTPUT, EVENTS)
    assert [json.loads(line) for line in lines.splitlines()] == EVENTS[5:]


def test_after_a_lost_connection_too() -> None:
    relay = a_relay()
    first = relay.take(OUTPUT, EVENTS[:6])
    relay.restart()
    lines = first + relay.take(OUTPUT, EVENTS[:3]) + relay.take(OUTPUT, EVENTS[3:])
    assert [json.loads(line) for line in lines.splitlines()] == EVENTS


def test_a_second_lost_connection_before_the_first_is_caught_up() -> None:
    relay = a_relay()
    first = relay.take(OUTPUT, EVENTS[:6])
    relay.restart()
    assert not relay.take(OUTPUT, EVENTS[:3])
    relay.restart()
    lines = first + relay.take(OUTPUT, EVENTS)
    assert [json.loads(line) for line in lines.splitlines()] == EVENTS


def test_it_is_cut_with_a_line_that_says_so() -> None:
    relay = a_relay(limit_bytes=250)
    lines = relay.take(OUTPUT, EVENTS).splitlines()
    assert relay.cut
    assert [json.loads(line) for line in lines[:-1]] == EVENTS[: len(lines) - 1]
    assert "flux job attach f1" in json.loads(lines[-1])["context"]["data"]
    assert not relay.take(OUTPUT, EVENTS)


def test_only_the_shell_s_events_of_the_other_log() -> None:
    events = [{"name": "init"}, {"name": "shell.init"}, {"name": "starting"}, {"name": "shell.start"}]
    relay = a_relay()
    lines = relay.take(EXEC, events)
    assert [json.loads(line)["name"] for line in lines.splitlines()] == ["shell.init", "shell.start"]
    assert counts_for_relay(EXEC, events) == 2
