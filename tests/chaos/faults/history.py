"""The faults of the history file. They must have no effect on decisions: the history is only for people."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import Act


def _full(run: Run, act: Act) -> EndFault | None:
    """The disk is full, and the file cannot grow."""
    del act
    history = run.history
    if history is None:
        return None
    history.full = True

    def end() -> None:
        history.full = False

    return end


def _corrupt(run: Run, act: Act) -> None:
    """Corrupt the file: while a process writes it, or (for an even number) while that process is down."""
    if act.number % 2 == 0:
        run.kill(act.amount, act.lasts_s)
    if run.history is not None:
        run.history.corrupt(act.amount)


def _deleted(run: Run, act: Act) -> None:
    if act.number % 2 == 0:
        run.kill(act.amount, act.lasts_s)
    if run.history is not None:
        run.history.delete()


HISTORY_FAULTS: Mapping[str, FaultAction] = {
    "journal.full": _full,
    "journal.corrupt": _corrupt,
    "journal.deleted": _deleted,
}
