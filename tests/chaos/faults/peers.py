"""The faults of peers and of the connections to them. Knobs hold for all peers."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.delegation.jobs import PeerName
from nodemanager.simulation.delegation.instance import SimulatedInstance
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.peers import PeerWorld
from tests.chaos.run.run import Run
from tests.chaos.run.script import PEER_KNOBS, Act, pick


def _peer(run: Run, act: Act) -> tuple[PeerWorld, PeerName, SimulatedInstance]:
    peers = run.peers
    assert peers is not None
    name = pick(sorted(peers.instances), act.amount) or next(iter(peers.instances))
    return peers, name, peers.instances[name]


def _down(run: Run, act: Act) -> EndFault:
    """A peer ends, and comes back with its state."""
    _, _, instance = _peer(run, act)
    instance.up = False

    def end() -> None:
        if not instance.up:
            instance.restart()

    return end


def _emptied(run: Run, act: Act) -> EndFault:
    """A peer ends, and comes back without its state."""
    peers, name, instance = _peer(run, act)
    instance.up = False

    def end() -> None:
        peers.truth.note_emptied(name)
        instance.restart(keeps_state=False)

    return end


def _cut(run: Run, act: Act) -> None:
    """A connection to a peer breaks."""
    run.lose_link(act.amount, home=False)


def _home_cut(run: Run, act: Act) -> None:
    """The delegator's connection to home breaks."""
    run.lose_link(act.amount, home=True)


def _hangs(run: Run, act: Act) -> None:
    """A peer hangs: open connections get no answer, and none can be opened."""
    _, _, instance = _peer(run, act)
    instance.faults.answers_from_s = run.world.now_s + act.lasts_s


def _refuses(run: Run, act: Act) -> EndFault:
    """A peer takes no jobs."""
    _, _, instance = _peer(run, act)
    instance.queue_disabled = True

    def end() -> None:
        instance.queue_disabled = False

    return end


def _cancels(run: Run, act: Act) -> None:
    """An operator of a peer cancels a copy."""
    _, _, instance = _peer(run, act)
    active = [job for job in instance.jobs.values() if not job.ended and not job.failed]
    if instance.up and active:
        instance.raise_on(active[act.number % len(active)].id, "cancel", "by an operator")


PEER_FAULTS: Mapping[str, FaultAction] = {
    "peer.down": _down,
    "peer.emptied": _emptied,
    "peer.cut": _cut,
    "peer.home_cut": _home_cut,
    "peer.hangs": _hangs,
    "peer.refuses": _refuses,
    "peer.cancels": _cancels,
}


def turn_peer_knob(run: Run, act: Act) -> None:
    """Make all peers answer badly."""
    peers, _, _ = _peer(run, act)
    value = PEER_KNOBS[act.kind] * act.amount
    for instance in peers.instances.values():
        match act.kind:
            case "peer.slow":
                instance.faults.travel_s = value
            case "peer.answers_twice":
                instance.faults.p_repeats = value
            case "peer.loses_submit":
                instance.faults.p_loses_submit = value
            case _:
                instance.faults.p_rejects = value
