"""The faults of the Flux instance."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.core.slots import SlotName, SlotsWish, TypeName
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import Act, pick


def _restart(run: Run, act: Act) -> None:
    run.restart_rank_0(act.lasts_s)


def _unreachable(run: Run, act: Act) -> EndFault:
    del act
    run.flux.unreachable = True

    def end() -> None:
        run.flux.unreachable = False

    return end


def _journal_lost(run: Run, act: Act) -> None:
    del act
    run.flux.break_journals()


def _scheduler_reloaded(run: Run, act: Act) -> None:
    run.flux.reload_scheduler(act.lasts_s)


def _wish(run: Run, act: Act) -> None:
    """Ask for another split of the slots of two types."""
    names = [node_type.name for node_type in run.policy.node_types]
    one, other = names[act.number % 3], names[(act.number + 1) % 3]
    have = list(run.flux.slot_types.values())
    both = have.count(one) + have.count(other)
    # Each type keeps a slot. Without one, Flux would reject its jobs as infeasible, and the run could not finish.
    share = 1 + int(act.amount * (both - 1))
    run.flux.wish_slots(SlotsWish(f"wish-{act.number}", {one: share, other: both - share}))


def _resized(run: Run, act: Act) -> None:
    """Give a type two more slots, for which rank 0 restarts."""
    size = len(run.flux.rank_of)
    node_type = pick(run.policy.node_types, act.amount)
    name = node_type.name if node_type is not None else TypeName("")
    run.resize({SlotName(f"more{size + number}"): name for number in (1, 2)}, act.lasts_s)


FLUX_FAULTS: Mapping[str, FaultAction] = {
    "flux.restart": _restart,
    "flux.cut": _unreachable,
    "flux.journal_lost": _journal_lost,
    "flux.scheduler_reloaded": _scheduler_reloaded,
    "flux.wish": _wish,
    "flux.resized": _resized,
}
