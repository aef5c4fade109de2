"""What each kind of act does to the journal, which is history for people: nothing may come of it."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.chaos.faults.types import EndFault, FaultAction
from nodemanager.chaos.run.run import Run
from nodemanager.chaos.run.script import Act


def _full(run: Run, act: Act) -> EndFault | None:
    """The disk is full."""
    del act
    history = run.history
    if history is None:
        return None
    history.full = True

    def end() -> None:
        history.full = False

    return end


def _corrupt(run: Run, act: Act) -> None:
    """Its file is spoilt: under the process that writes it, or while that is away."""
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
