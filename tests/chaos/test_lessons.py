"""Failures of earlier node managers and autoscalers that only the whole service in its world can show.

The numbers go on from ``tests/stories/test_lessons.py``, which says where each of them is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from nodemanager.core.nodes import LaunchId
from nodemanager.join.admission import Refusal
from nodemanager.web.api.documents import status
from tests.chaos.command import silence_logs
from tests.chaos.join_network import KEY, JoinScenario
from tests.chaos.run.script import JOB, Act, Script, draw_script
from tests.chaos.scenario import Scenario

DOWN_S = 3.0
STEPS = 240  # more than a run has: the moments before and after each call of the service


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    silence_logs()
    yield
    structlog.configure(**before)


def three_jobs(*more: Act, joins: bool = False) -> Script:
    """A script with jobs for three node types, one after the other, and limits that allow all of them."""
    jobs = [Act(0, 1.0, JOB, 0.0, 20.0), Act(1, 20.0, JOB, 0.3, 10.0), Act(2, 60.0, JOB, 0.75, 5.0)]
    site = draw_script(0, joins=joins)
    return replace(site, nodes_max=6, budget=None, idle_timeout_s=5.0, acts=(*jobs, *more))


def left(run: Scenario) -> tuple[object, ...]:
    """Return what must not be left at the end: our nodes, leases, jobs and drains."""
    drains = [reason for rank in run.flux.rank_of.values() if (reason := run.flux.drain_reason(rank))]
    return (*run.our_nodes(), *run.flux.leases, *run.flux.active_jobs(), *drains)


def made(run: Scenario) -> list[LaunchId]:
    """Return the launches of all nodes ever created."""
    return [line.launch for line in run.provider.bill() if line.launch is not None]


# --- 51: kill -9 at every step ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(8))
def test_51_killed_at_every_step_nothing_leaks_and_nothing_is_made_twice(first: int) -> None:
    """The service is killed before or after each of its calls, from its claim to the end of the last lease.

    The invariants hold after every step of every run, and nothing is left. Each node has its own launch.
    """
    steps = 0
    gang = replace(three_jobs(), acts=(Act(0, 1.0, JOB, 0.43, 10.0),))
    for calls in range(first, STEPS, 8):
        run = Scenario(gang)
        run.world.after(0.0, lambda run=run, calls=calls: _killed_at(run, calls))  # type: ignore[misc]
        outcome = run.run()
        assert left(run) == ()
        assert len(set(made(run))) == len(made(run)) >= 3
        assert outcome.creates - outcome.kills <= len(made(run)) <= outcome.creates
        if not outcome.kills:
            break
        steps += 1
    else:
        pytest.fail(f"there are more than {STEPS} steps")
    assert steps > 10, "there are many calls, and the service was killed at each"


def _killed_at(run: Scenario, calls: int) -> None:
    (process,) = run.processes
    process.calls_left, process.down_s = calls, DOWN_S


# --- lists that lag ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag_s", [20.0, 60.0, 100.0])
def test_a_node_that_lists_show_late_is_not_bought_again(lag_s: float) -> None:
    """EC2's lists are eventually consistent: the create is answered, and for a while no list shows the node."""
    run = Scenario(three_jobs())
    run.policy = replace(run.policy, timing=replace(run.policy.timing, create_grace_s=120.0, boot_timeout_s=300.0))
    run.provider.faults.list_lag_s = (lag_s, lag_s)
    run.provider.faults.user_data_s = (lag_s + 5.0, lag_s + 5.0)
    run.run()
    assert left(run) == ()
    assert len(made(run)) == 3


# --- 52: SIGTERM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_s", [2.0, 4.5, 9.0, 20.0, 31.0, 47.0, 66.0, 90.0])
def test_52_one_that_was_told_to_end_is_gone_on_with_by_the_next_start(at_s: float) -> None:
    """tests/service/test_systemd.py and tests/live show that it ends in time with status 0."""
    alone = Scenario(three_jobs())
    alone.run()
    run = Scenario(three_jobs())
    run.world.after(at_s, lambda: _ended_and_started(run))
    run.run()
    assert left(run) == ()
    assert len(made(run)) == len(set(made(run))) == len(made(alone)), "nothing was bought again"


def _ended_and_started(run: Scenario) -> None:
    run.kill_process(run.processes[0], DOWN_S)


# --- 56: secrets ------------------------------------------------------------------------------------------


@pytest.fixture
def said() -> list[Any]:
    """Every log line, with all fields."""
    lines: list[Any] = []

    def keep(_logger: object, _method: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep], wrapper_class=structlog.stdlib.BoundLogger)
    return lines


def test_56_no_secret_is_in_a_tag_a_log_or_a_status_and_an_old_ticket_is_refused(said: list[Any]) -> None:
    run = JoinScenario(three_jobs(joins=True))
    keys: set[str] = set()
    told: list[str] = []

    def look() -> None:
        keys.update(it.saved_state["lease_key"] for it in run.joins.machines if it.saved_state.get("lease_key"))
        told.extend(repr(node) for node in run.provider.nodes())
        if run.published is not None:
            told.append(repr(status(run.published)))
            told.append(repr(run.published))
        run.world.after(1.0, look)

    run.world.after(1.0, look)
    run.run()
    launches = made(run)
    secrets = {*keys, *(KEY.ticket(launch) for launch in launches)}
    assert len(keys) == len(launches) > 0
    everything = "\n".join([*told, *map(repr, said)])
    assert launches[0] in everything, "what is looked through does tell of the nodes"
    assert [secret for secret in secrets if secret in everything] == []

    admission = run.joins._admission
    assert admission is not None
    answers = [admission.redeem(launch, KEY.ticket(launch), "f" * 64, "elsewhere") for launch in launches]
    assert all(isinstance(answer, Refusal) for answer in answers)
