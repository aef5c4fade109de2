"""The faults of running nodes."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from nodemanager.core.nodes import ProviderId
from nodemanager.core.slots import SlotName
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import Act, pick

FOR_EVER_S = 1e6


def _connected(run: Run) -> list[SlotName]:
    return [slot for slot, rank in sorted(run.flux.rank_of.items()) if run.flux.online(rank)]


def _vanishes(run: Run, act: Act) -> None:
    node = pick(run.our_nodes(), act.amount)
    if node is not None:
        run.provider.kill(node)


def _broker_dies(run: Run, act: Act) -> None:
    slot = pick(_connected(run), act.amount)
    if slot is not None:
        run.flux.broker_down(slot, lost=act.number % 2 == 0)


def _cut(run: Run, act: Act) -> EndFault | None:
    """Cut a node's network for a while. Its broker joins again afterwards, if its machine still runs."""
    slot = pick(_connected(run), act.amount)
    machine = run.flux.machine_of(slot) if slot is not None else None
    if slot is None or machine is None:
        return None
    run.flux.broker_down(slot, lost=True)

    def end() -> None:
        if ProviderId(machine) in run.running_nodes():
            run.reconnected(slot, machine)

    return end


def _hangs(run: Run, act: Act) -> EndFault | None:
    slot = pick(_connected(run), act.amount)
    if slot is None:
        return None
    run.flux.hang(slot)
    return lambda: run.flux.hang(slot, hung=False)


def _torpid(run: Run, act: Act) -> EndFault | None:
    slot = pick(_connected(run), act.amount)
    if slot is None:
        return None
    run.flux.set_torpid(slot, torpid=True)
    return lambda: run.flux.set_torpid(slot, torpid=False)


def _housekeeping(run: Run, act: Act) -> EndFault:
    """Make the housekeeping of jobs submitted now take long."""
    run.flux.set_housekeeping(act.lasts_s)
    return lambda: run.flux.set_housekeeping(run.script.housekeeping_s)


def _housekeeping_hangs(run: Run, act: Act) -> EndFault:
    """Make the housekeeping of jobs submitted now hang. It often ignores SIGTERM, and sometimes SIGKILL too.

    In the phase without faults, the operator ends it once the manager warns of it.
    """
    ignored = pick([(), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGKILL)], act.amount)
    run.flux.set_housekeeping(FOR_EVER_S, ignores=ignored or ())

    return lambda: run.flux.set_housekeeping(run.script.housekeeping_s)


def _reclaimed(run: Run, act: Act) -> EndFault | None:
    """Reclaim a node, announced by the provider shortly before."""
    node = pick(sorted(run.running_nodes().intersection(run.our_nodes())), act.amount)
    if node is None:
        return None
    run.give_notice(node)
    return lambda: run.provider.kill(node, "taken back")


NODE_FAULTS: Mapping[str, FaultAction] = {
    "node.vanishes": _vanishes,
    "node.broker_dies": _broker_dies,
    "node.cut": _cut,
    "node.hangs": _hangs,
    "node.torpid": _torpid,
    "node.housekeeping": _housekeeping,
    "node.housekeeping_hangs": _housekeeping_hangs,
    "node.reclaimed": _reclaimed,
}
