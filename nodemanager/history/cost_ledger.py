"""The cost of the nodes by hour, node type, user, queue, use and cloud.

All amounts are estimates from the site's prices. A node's time is charged as it passes: to the jobs on the node,
each by its share of the cores or of the GPUs, whichever is larger, and the rest to one of the uses ``boot``,
``idle`` and ``stop``. Billing windows are paid as a whole, so part of the last one may be left when a node ends:
that is the use ``unused``.

What a node with GPUs cost while it ran only jobs that neither held nor asked for GPUs is summed as ``misused``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import Job, RankAllocation
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, NodeType, Rank, Tariff
from nodemanager.planner import billing
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot

HOUR_S = 3600
NOBODY = -1  # the user id of time in which no job ran
# The ledger accrues at most this often. Of jobs shorter than that, some are charged for others.
STEP_MIN_S = 5.0
# After a longer pause of this process (machine suspended, process stuck) the jobs seen before it are not charged:
# which jobs ran in the meantime is unknown.
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
    """Money in the site's currency, and the node-seconds that it paid for.

    ``misused``: the part of the money that nodes with GPUs cost while they ran only jobs without GPUs.
    """

    cost: float = 0.0
    node_s: float = 0.0
    misused: float = 0.0

    def add(self, cost: float, node_s: float, *, is_misused: bool = False) -> None:
        self.cost += cost
        self.node_s += node_s
        self.misused += cost if is_misused else 0.0


Costs = Mapping[CostKey, CostSum]


class CostLedger:
    """Charges the time between publications.

    Time that nobody watched (no manager ran, the machine was suspended) is charged when it is over: to the jobs
    that still run, each from its start, and the rest to the use that the node has now.

    ``charged_until_at``: until when the costs are on record, as seconds since the epoch.
    """

    def __init__(self, charged_until_at: float = inf) -> None:
        self.charged_until_at = charged_until_at
        self._on_record_until_at = charged_until_at
        self._last: Snapshot | None = None
        self._policy: Policy | None = None
        self._charged: dict[LaunchId, float] = {}  # the money
        self._until_at: dict[LaunchId, float] = {}  # until when each node is charged

    def accrue(self, published: Publication) -> Costs:
        """Return the cost since the last publication that was accrued.

        Empty if that was less than a step ago and no node's billing has begun or ended since.
        """
        last, now = self._last, published.snapshot
        costs: defaultdict[CostKey, CostSum] = defaultdict(CostSum)
        if last is not None and now.now_s - last.now_s < STEP_MIN_S and _same_billed(last, published):
            return costs
        self._last = now
        clouds = map(now.account_of, published.policy.cloud_names)
        if now.sources.claimed and all(account.source.seen_s is not None for account in clouds):
            self.charged_until_at = now.wall_at  # all nodes are known, so all are charged
        policy, self._policy = self._policy or published.policy, published.policy
        watched = last if last is not None and now.now_s - last.now_s <= STEP_MAX_S else None
        if watched is not None:
            self._charge_watched(costs, watched, now, policy)
        if watched is None or watched.nodes is not now.nodes:
            self._charge_unwatched(costs, watched, now, policy)
        if last is not None:
            for node, tariff in _nodes_billed_to_the_end(last, now, policy):
                paid = float(billing.cost(tariff, billing.age_s(node, last.now_s)))
                key = _key_without_job(node, policy, int(now.wall_at // HOUR_S), "unused")
                costs[key].cost += max(0.0, paid - self._charged.pop(node.id, 0.0))
            self._until_at = {id_: until_at for id_, until_at in self._until_at.items() if id_ in now.nodes}
        return costs

    def _charge_watched(
        self, costs: defaultdict[CostKey, CostSum], last: Snapshot, now: Snapshot, policy: Policy
    ) -> None:
        """Charge the time since ``last`` to the jobs seen then."""
        jobs_on, span_s, hour = _jobs_on(last), max(0.0, now.now_s - last.now_s), int(now.wall_at // HOUR_S)
        for node, tariff in billed_nodes(last, policy):
            cost = float(billing.cost_of_time(tariff.price_per_hour, span_s))
            self._charged[node.id] = self._charged.get(node.id, 0.0) + cost
            self._until_at[node.id] = now.wall_at
            jobs = jobs_on.get(node.launch.rank, ())
            is_misused = _is_misused(node, policy, jobs)
            for key, share in _shares(node, policy, hour, jobs):
                costs[key].add(cost * share, span_s * share, is_misused=is_misused)

    def _charge_unwatched(
        self, costs: defaultdict[CostKey, CostSum], watched: Snapshot | None, now: Snapshot, policy: Policy
    ) -> None:
        """Charge the nodes that ``watched`` lacks for the time until now, by the hour."""
        seen = _billed(watched) if watched is not None else frozenset()
        jobs_on = _jobs_on(now)
        for node, tariff in billed_nodes(now, policy):
            if node.id in seen:
                continue
            age_s = billing.age_s(node, now.now_s)
            since_at = max(self._until_at.get(node.id, self._on_record_until_at), now.wall_at - age_s)
            self._until_at[node.id] = now.wall_at
            self._charged[node.id] = float(billing.cost_of_time(tariff.price_per_hour, age_s))
            for from_at, to_at in _hours(since_at, now.wall_at):
                cost = float(billing.cost_of_time(tariff.price_per_hour, to_at - from_at))
                hour, jobs = int(from_at // HOUR_S), jobs_on.get(node.launch.rank, ())
                ran = [it for it in jobs if _ran(it[0], (from_at, to_at))]
                is_misused = _is_misused(node, policy, ran)
                for key, share in _shares(node, policy, hour, jobs, (from_at, to_at)):
                    costs[key].add(cost * share, (to_at - from_at) * share, is_misused=is_misused)


def billed_nodes(snapshot: Snapshot, policy: Policy) -> Iterator[tuple[Node, NodeType | Tariff]]:
    """The nodes that are charged for, each with its tariff."""
    for node in snapshot.nodes.values():
        tariff = billing.tariff_of(node.launch, policy)
        if tariff is not None and _is_billed(node):
            yield node, tariff


def _is_billed(node: Node) -> bool:
    """Whether the provider has listed it, it has left the provider's own queue, and it is not gone."""
    return node.cloud is not None and not node.cloud.queued and node.state is not NodeState.GONE


def _hours(from_at: float, to_at: float) -> Iterator[tuple[float, float]]:
    """Divide a span at the full hours."""
    while from_at < to_at:
        end_at = min(to_at, (from_at // HOUR_S + 1) * HOUR_S)
        yield from_at, end_at
        from_at = end_at


def _key_without_job(node: Node, policy: Policy, hour: int, use: str) -> CostKey:
    return CostKey(hour, node.launch.type_name, NOBODY, "", use, policy.cloud_of(node.launch))


def _same_billed(last: Snapshot, published: Publication) -> bool:
    now = published.snapshot
    return last.nodes is now.nodes or _billed(last) == _billed(now)


def _billed(snapshot: Snapshot) -> frozenset[LaunchId]:
    return frozenset(id_ for id_, it in snapshot.nodes.items() if _is_billed(it))


def _jobs_on(snapshot: Snapshot) -> Mapping[Rank, list[tuple[Job, RankAllocation]]]:
    """Return the running jobs of each rank, each with what it holds there."""
    found: defaultdict[Rank, list[tuple[Job, RankAllocation]]] = defaultdict(list)
    for job in snapshot.jobs.values():
        for held in job.allocations:
            found[held.rank].append((job, held))
    return found


def _shares(
    node: Node,
    policy: Policy,
    hour: int,
    jobs: list[tuple[Job, RankAllocation]] | tuple[()],
    span: tuple[float, float] | None = None,
) -> Iterator[tuple[CostKey, float]]:
    """Divide a node's time among its jobs, and the rest to its use without a job. The shares sum to 1.

    ``span``: the time, in seconds since the epoch, if some of the jobs began in it.

    If the jobs' shares (``billing.node_share``) exceed the node, each is reduced in proportion: some jobs may hold
    its cores, and others its GPUs. A budget does not know the other jobs, and counts each share in full.
    """
    name, cloud, taken = node.launch.type_name, policy.cloud_of(node.launch), 0.0
    if jobs:
        cores, gpus = _size(node, policy)
        cores = cores or sum(held.cores for _, held in jobs)
        parts = [billing.node_share(held.cores, held.gpus, cores, gpus) for _, held in jobs]
        shares = [part / whole * _ran(job, span) for (part, whole), (job, _) in zip(parts, jobs, strict=True)]
        taken = sum(shares)
        for (job, _), share in zip(jobs, shares, strict=True):
            yield CostKey(hour, name, job.userid, job.queue, JOB_USE, cloud), share / max(1.0, taken)
    if taken < 1.0:
        yield _key_without_job(node, policy, hour, USE_WITHOUT_JOB[node.state]), 1.0 - taken


def _is_misused(node: Node, policy: Policy, jobs: Sequence[tuple[Job, RankAllocation]]) -> bool:
    """Whether a node has GPUs, and runs jobs that neither hold nor ask for any."""
    if not jobs or any(held.gpus or job.shape.gpus_per_slot for job, held in jobs):
        return False
    _, gpus = _size(node, policy)
    return gpus > 0


def _ran(job: Job, span: tuple[float, float] | None) -> float:
    """In which part of a span a running job ran."""
    if span is None:
        return 1.0
    from_at, to_at = span
    return min(1.0, max(0.0, (to_at - (job.began_at or to_at)) / (to_at - from_at)))


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
        if ended and _is_billed(node) and tariff is not None:
            yield node, tariff
