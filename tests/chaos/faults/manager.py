"""The faults of the manager's process and of its clock."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import Act

AWAY_S = 250.0  # longer than idle nodes that joined by ticket wait for a manager before they end


def _killed(run: Run, act: Act) -> None:
    run.kill(act.amount, act.lasts_s)


def _killed_at_a_call(run: Run, act: Act) -> None:
    run.kill_at_a_call(act.amount, act.lasts_s)


def _another(run: Run, act: Act) -> EndFault:
    """Start a second manager process, and end one of the two later."""
    run.start_process()
    return lambda: run.end_process(act.amount)


def _frozen(run: Run, act: Act) -> None:
    run.freeze(act.amount, act.lasts_s)


def _away(run: Run, act: Act) -> None:
    """Keep the manager down until idle nodes that joined by ticket have ended themselves."""
    run.kill(act.amount, AWAY_S)


def _clock_jumps(run: Run, act: Act) -> None:
    """Make the manager's wall clock jump by up to an hour, forward or back."""
    run.world.skew_s = 7200.0 * (act.amount - 0.5)


MANAGER_FAULTS: Mapping[str, FaultAction] = {
    "manager.killed": _killed,
    "manager.killed_at_a_call": _killed_at_a_call,
    "manager.another": _another,
    "manager.frozen": _frozen,
    "manager.away": _away,
    "manager.clock_jumps": _clock_jumps,
}
