"""The cost of the nodes by hour, node type, user, queue, use and cloud.

All amounts are estimates from the site's prices. A node's time is charged as it passes: to the jobs on the node,
each by its share of the cores or of the GPUs, whichever is larger, and the rest to one of the uses ``boot``,
``idle`` and ``stop``. Billing windows are paid as a whole, so part of the last one may be left when a node ends:
that is the use ``unused``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import Job, RankAllocation
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, NodeType, Rank, Tariff
from nodemanager.planner.cost import billing
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

HOUR_S = 3600
NOBODY = -1  # the user id of time in which no job ran
# The ledger accrues at most this often. Of jobs shorter than that, some are charged for others.
STEP_MIN_S = 5.0
# After a longer pause of this process (machine suspended, process stuck) only this much is charged to the jobs seen
# before it: which jobs ran in the meantime is unknown.
STEP_MAX_S = 600.0
JOB_USE = "job"

USE_WITHOUT_JOB: Mapping[NodeState, str] = {
    NodeState.REQUESTED: "boot",
    NodeState.BOOTING: "boot",
    NodeState.IDLE: "idle",
    NodeState.BUSY: "idle",
    NodeState.LOST: "idle",
    NodeState.DRAINING: "stop",
    NodeState.STOPPING: "stop",
}


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a cost is summed by. ``hour``: whole hours since the epoch."""

    hour: int
    node_type: str
    userid: int
    queue: str
    use: str
    cloud: CloudName = DEFAULT_CLOUD


@dataclass(slots=True)
class CostSum:
    """Money in the site's currency, and the node-seconds that it paid for."""

    cost: float = 0.0
    node_s: float = 0.0


Costs = Mapping[CostKey, CostSum]


class CostLedger:
    """Charges the time between publications."""

    def __init__(self) -> None:
        self._last: Snapshot | None = None
        self._policy: Policy | None = None
        self._charged: dict[LaunchId, float] = {}

    def accrue(self, published: Publication) -> Costs:
        """Return the cost since the last publication that was accrued.

        Empty if that was less than a step ago and no node's billing has begun or ended since.
        """
        last = self._last
        costs: defaultdict[CostKey, CostSum] = defaultdict(CostSum)
        if (
            last is not None
            and published.snapshot.now_s - last.now_s < STEP_MIN_S
            and _same_billed(last, published)
        ):
            return costs
        self._last = published.snapshot
        policy, self._policy = self._policy or published.policy, published.policy
        if last is None:
            return costs
        span_s = min(STEP_MAX_S, max(0.0, published.snapshot.now_s - last.now_s))
        hour = int(published.snapshot.wall_at // HOUR_S)
        jobs_on = _jobs_on(last)
        for node in last.nodes.values():
            tariff = billing.tariff_of(node.launch, policy)
            if tariff is None or node.cloud is None or node.state is NodeState.GONE:
                continue
            cost = float(billing.cost_of_time(tariff.price_per_hour, span_s))
            self._charged[node.id] = self._charged.get(node.id, 0.0) + cost
            for key, share in _shares(node, policy, hour, jobs_on.get(node.launch.rank, ())):
                costs[key].cost += cost * share
                costs[key].node_s += span_s * share
        for node, tariff in _nodes_billed_to_the_end(last, published.snapshot, policy):
            paid = float(billing.cost(tariff, billing.age_s(node, last.now_s)))
            unused = paid - self._charged.pop(node.id, 0.0)
            # A node adopted from an earlier process was charged only since then, so the difference may be too
            # large. No more can be unused than is paid in advance: one window, or the minimum.
            ahead_s = max(tariff.billing.window_s, billing.paid_s(tariff.billing, 0.0))
            ahead = float(billing.cost_of_time(tariff.price_per_hour, ahead_s))
            key = CostKey(hour, node.launch.type_name, NOBODY, "", "unused", policy.cloud_of(node.launch))
            costs[key].cost += min(ahead, max(0.0, unused))
        return costs


def _same_billed(last: Snapshot, published: Publication) -> bool:
    now = published.snapshot
    return last.nodes is now.nodes or _billed(last) == _billed(now)


def _billed(snapshot: Snapshot) -> frozenset[LaunchId]:
    return frozenset(
        id_ for id_, it in snapshot.nodes.items() if it.cloud is not None and it.state is not NodeState.GONE
    )


def _jobs_on(snapshot: Snapshot) -> Mapping[Rank, list[tuple[Job, RankAllocation]]]:
    """Return the running jobs of each rank, each with what it holds there."""
    found: defaultdict[Rank, list[tuple[Job, RankAllocation]]] = defaultdict(list)
    for job in snapshot.jobs.values():
        for held in job.allocations:
            found[held.rank].append((job, held))
    return found


def _shares(
    node: Node, policy: Policy, hour: int, jobs: list[tuple[Job, RankAllocation]] | tuple[()]
) -> Iterator[tuple[CostKey, float]]:
    """Divide a node's time among its jobs, and the rest to its use without a job. The shares sum to 1.

    If the jobs' shares (``billing.node_share``) exceed the node, each is reduced in proportion: some jobs may hold
    its cores, and others its GPUs. A budget does not know the other jobs, and counts each share in full.
    """
    name, cloud, taken = node.launch.type_name, policy.cloud_of(node.launch), 0.0
    if jobs:
        cores, gpus = _size(node, policy)
        cores = cores or sum(held.cores for _, held in jobs)
        parts = [billing.node_share(held.cores, held.gpus, cores, gpus) for _, held in jobs]
        shares = [part / whole for part, whole in parts]
        taken = sum(shares)
        for (job, _), share in zip(jobs, shares, strict=True):
            yield CostKey(hour, name, job.userid, job.queue, JOB_USE, cloud), share / max(1.0, taken)
    if taken < 1.0:
        yield CostKey(hour, name, NOBODY, "", USE_WITHOUT_JOB[node.state], cloud), 1.0 - taken


def _size(node: Node, policy: Policy) -> tuple[int, int]:
    """A node's cores and GPUs by the site, or by its rank if the site no longer has its type; 0 if unknown."""
    node_type = policy.types.get(node.launch.type_name)
    if node_type is not None:
        return node_type.cores, node_type.gpus
    return (node.rank.cores, node.rank.gpus) if node.rank is not None else (0, 0)


def _nodes_billed_to_the_end(
    last: Snapshot, now: Snapshot, policy: Policy
) -> Iterator[tuple[Node, NodeType | Tariff]]:
    """Return the nodes whose billing ended between two snapshots, each with its tariff."""
    if last.nodes is now.nodes:
        return
    for id_, node in last.nodes.items():
        after = now.nodes.get(id_)
        ended = after is None or after.state is NodeState.GONE
        tariff = billing.tariff_of(node.launch, policy)
        if ended and node.state is not NodeState.GONE and node.cloud is not None and tariff is not None:
            yield node, tariff
