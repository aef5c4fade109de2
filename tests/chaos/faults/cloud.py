"""The faults of the provider."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.core.nodes import FailureKind, Identity, LaunchId
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import Act, pick
from tests.chaos.run.site import ZONES

FOREIGN_UUID = "f0e1900f-0000-4000-8000-000000000000"


def _refuse_all(run: Run, kind: FailureKind) -> EndFault:
    run.provider.faults.refuse_all = kind

    def end() -> None:
        run.provider.faults.refuse_all = None

    return end


def _outage(run: Run, act: Act) -> EndFault:
    """Every call fails with a server error."""
    return _refuse_all(run, FailureKind.TRANSIENT if act.amount < 0.7 else FailureKind.AMBIGUOUS)


def _credentials(run: Run, act: Act) -> EndFault:
    del act
    return _refuse_all(run, FailureKind.CREDENTIALS)


def _quota(run: Run, act: Act) -> EndFault:
    run.provider.faults.quota = int(act.amount * run.policy.limits.nodes_max)

    def end() -> None:
        run.provider.faults.quota = None

    return end


def _stockout(run: Run, act: Act) -> EndFault:
    node_type = pick(run.policy.node_types, act.amount)
    name = node_type.name if node_type is not None else ""
    run.provider.faults.capacity_of[name] = 0

    def end() -> None:
        run.provider.faults.capacity_of.pop(name, None)

    return end


def _size_short(run: Run, act: Act) -> EndFault:
    """There is no capacity for one size, on either market."""
    return _limit_size(run.provider.faults.capacity_of_size, _pick_size(run, act), 0)


def _size_quota(run: Run, act: Act) -> EndFault:
    """A quota allows a node of one size, or none."""
    return _limit_size(run.provider.faults.quota_of_size, _pick_size(run, act), act.number % 2)


def _limit_size(limits: dict[str, int], size: str, most: int) -> EndFault:
    limits[size] = most

    def end() -> None:
        limits.pop(size, None)

    return end


def _pick_size(run: Run, act: Act) -> str:
    sizes = sorted({size.name for it in run.policy.node_types for size in it.sizes})
    return pick(sizes, act.amount) or ""


def _no_spot(run: Run, act: Act) -> EndFault:
    """There is no spot capacity of any size."""
    del act
    run.provider.faults.no_spot = True

    def end() -> None:
        run.provider.faults.no_spot = False

    return end


def _zone_full(run: Run, act: Act) -> EndFault:
    """No placement group has room in one of the zones."""
    faults, zone = run.provider.faults, pick(ZONES, act.amount)
    faults.zones_full |= {zone} if zone is not None else set()

    def end() -> None:
        faults.zones_full.clear()

    return end


def _slow_end(run: Run, act: Act) -> EndFault:
    """Nodes destroyed now take long to terminate."""
    faults, usual = run.provider.faults, run.provider.faults.stop_delay_s
    faults.stop_delay_s = (60.0 * act.amount, 120.0)

    def end() -> None:
        faults.stop_delay_s = usual

    return end


def _stranger(run: Run, act: Act) -> None:
    del act
    run.provider.add_foreign_node()


def _impostor(run: Run, act: Act) -> None:
    """Add a foreign node with our cluster's name and another UUID."""
    slot = pick(sorted(run.flux.rank_of), act.amount)
    if slot is not None:
        launch = LaunchId(f"{slot}-of-another")
        type_name = run.flux.slot_types[slot]
        run.provider.add_foreign_node(Identity(run.policy.cluster, FOREIGN_UUID, launch, slot, type_name))


def _forgotten(run: Run, act: Act) -> None:
    """Add a node with our tags, for a free slot, of a launch without a record."""
    taken = {node.identity.slot for node in run.invariants.our_nodes() if node.identity is not None}
    slot = pick([it for it in sorted(run.flux.rank_of) if it not in taken | run.flux.leases.keys()], act.amount)
    if slot is not None:
        launch = LaunchId(f"{slot}-forgotten-{act.number}")
        ours = Identity(run.policy.cluster, run.policy.cluster_uuid, launch, slot, run.flux.slot_types[slot])
        run.invariants.planted.add(run.provider.add_foreign_node(ours))


CLOUD_FAULTS: Mapping[str, FaultAction] = {
    "cloud.outage": _outage,
    "cloud.credentials": _credentials,
    "cloud.quota": _quota,
    "cloud.stockout": _stockout,
    "size.short": _size_short,
    "size.quota": _size_quota,
    "size.no_spot": _no_spot,
    "cloud.zone_full": _zone_full,
    "cloud.slow_end": _slow_end,
    "cloud.stranger": _stranger,
    "cloud.impostor": _impostor,
    "cloud.forgotten": _forgotten,
}
