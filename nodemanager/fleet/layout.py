"""The waiting jobs laid out on the fleet: who would run where, and which nodes are needed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import takewhile

from nodemanager.fleet import supply
from nodemanager.fleet.demand import Demand, demand
from nodemanager.fleet.packing import Bin, Market, Packing, Standing, pack
from nodemanager.fleet.policy import Policy
from nodemanager.fleet.snapshot import Snapshot
from nodemanager.model import Job, JobId, QueuePolicy, Reason, SlotName, because

# Obstacles that a node less elsewhere would clear away.
CAPS = ("nodes_max", "price_per_hour_max")
# What no slot could ever serve, Flux refuses at submission: such a job holds up nobody.
INFEASIBLE = ("no_type_fits", "too_few_slots")

SERVED_BY: Mapping[Standing, str] = {
    Standing.UP: "fits_on_a_node_that_is_up",
    Standing.DRAINING: "node_kept_for_it",
    Standing.COMING: "node_coming",
    Standing.NEW: "node_ordered",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """``stuck`` is the first job that cannot be given its nodes now; None under a scheduler that fills gaps.

    In queue order nothing starts behind it. So no node is needed, neither kept nor bought, for the sake of jobs
    behind it alone: such a node would stand idle, and at a cap it would keep the first one out for ever.
    """

    packing: Packing
    withheld: Mapping[JobId, Reason]
    needed: Mapping[SlotName, Bin]
    stuck: Job | None
    market: Market  # what may still be bought beyond
    unheeded: Mapping[JobId, tuple[str, ...]]  # what jobs ask for and no scheduler we know honours: memory

    @property
    def room_short(self) -> int:
        """How many nodes have to go to let the stuck job in, at the most: 0 where that would not help."""
        if self.stuck is None or self.packing.unplaced[self.stuck.id].code not in CAPS:
            return 0
        return self.stuck.shape.nodes or 1

    @property
    def to_buy(self) -> list[Bin]:
        return [bin_ for bin_ in self.needed.values() if bin_.standing is Standing.NEW]

    def reasons(self, settling: Reason | None) -> dict[JobId, Reason]:
        """Why each waiting job waits. ``settling``: why nothing is bought for it yet, if so."""
        reasons = {**self.withheld, **self.packing.unplaced}
        for job, bins in self.packing.placed.items():
            latest = max(bin_.standing for bin_ in bins)
            nodes = tuple(bin_.slot for bin_ in bins if bin_.standing is latest)
            if not all(slot in self.needed for slot in nodes):
                reasons[job] = because("behind_a_stuck_job", job=str(self.stuck.id) if self.stuck else "")
            elif latest is Standing.NEW and settling is not None:
                reasons[job] = settling
            else:
                unheeded = {"unheeded": self.unheeded[job]} if job in self.unheeded else {}
                reasons[job] = because(SERVED_BY[latest], nodes=nodes, **unheeded)
        return reasons


def lay_out(snapshot: Snapshot, policy: Policy, price_per_hour: Decimal) -> Layout:
    """Lay the queue out on what there is, then on what may be bought."""
    wanted = demand(snapshot)
    market = supply.market(snapshot, policy, price_per_hour)
    packing = pack(wanted, supply.room(snapshot, policy), market)
    stuck = _first_stuck(wanted, packing) if policy.queue_policy is QueuePolicy.FIFO else None
    unheeded = {job.id: job.unheeded for job in wanted.jobs if job.unheeded}
    return Layout(packing, wanted.withheld, _needed(wanted, packing, stuck), stuck, market, unheeded)


def _first_stuck(wanted: Demand, packing: Packing) -> Job | None:
    unplaced = packing.unplaced
    stuck = (job for job in wanted.jobs if job.id in unplaced and unplaced[job.id].code not in INFEASIBLE)
    return next(stuck, None)


def _needed(wanted: Demand, packing: Packing, stuck: Job | None) -> Mapping[SlotName, Bin]:
    needed = {bin_.slot: bin_ for bin_ in packing.bins if bin_.serves}
    if stuck is None:
        return needed
    ahead = {job.id for job in takewhile(lambda job: job is not stuck, wanted.jobs)}
    return {slot: bin_ for slot, bin_ in needed.items() if ahead.intersection(bin_.serves)}
