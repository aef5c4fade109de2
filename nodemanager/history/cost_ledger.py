"""What the nodes cost, and for whom: by hour, node type, user, queue and what the time was used for.

An estimate, from the site's prices. Time is charged as it passes, a node's to the jobs that run on it, each by its
share of the node's cores; the rest is not work: ``boot``, ``idle``, ``stop``. What was paid for and not used when a
node goes, for windows are paid whole, is ``unused``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import Job
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import NodeType, Rank, Tariff
from nodemanager.planner.cost import billing
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot

HOUR_S = 3600
NOBODY = -1  # in place of a user, where nobody's job ran
# Who has what is looked at so often at the most: of jobs that are shorter, some are charged for the others.
STEP_MIN_S = 5.0
# A pause of ours (a suspended machine, a stuck process) is not charged at once: who ran meanwhile is not known.
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
    """``hour``: hours since the epoch."""

    hour: int
    node_type: str
    userid: int
    queue: str
    use: str


@dataclass(slots=True)
class CostSum:
    cost: float = 0.0
    node_s: float = 0.0


Costs = Mapping[CostKey, CostSum]


class CostLedger:
    """Follows the publications, and gives what was spent since the one before."""

    def __init__(self) -> None:
        self._last: Snapshot | None = None
        self._policy: Policy | None = None
        self._charged: dict[LaunchId, float] = {}

    def accrue(self, published: Publication) -> Costs:
        last = self._last
        spent: defaultdict[CostKey, CostSum] = defaultdict(CostSum)
        if last is not None and published.snapshot.now_s - last.now_s < STEP_MIN_S:
            return spent
        self._last = published.snapshot
        policy, self._policy = self._policy or published.policy, published.policy
        if last is None:
            return spent
        span_s = min(STEP_MAX_S, max(0.0, published.snapshot.now_s - last.now_s))
        hour = int(published.snapshot.wall_at // HOUR_S)
        jobs_on = _jobs_on(last)
        for node in last.nodes.values():
            tariff = billing.tariff_of(node.launch, policy)
            if tariff is None or node.cloud is None or node.state is NodeState.GONE:
                continue
            cost = float(tariff.price_per_hour) * span_s / HOUR_S
            self._charged[node.id] = self._charged.get(node.id, 0.0) + cost
            for account, share in _shares(node, policy, hour, jobs_on.get(node.launch.rank, ())):
                spent[account].cost += cost * share
                spent[account].node_s += span_s * share
        for node, tariff in _nodes_billed_to_the_end(last, published.snapshot, policy):
            paid = float(billing.cost(tariff, billing.age_s(node, last.now_s)))
            unused = paid - self._charged.pop(node.id, 0.0)
            # Of a node found standing only the part since then was charged: what is paid in advance, a window or
            # the minimum, is the most that can be "unused".
            ahead_s = max(tariff.billing.window_s, billing.paid_s(tariff.billing, 0.0))
            ahead = float(tariff.price_per_hour) * ahead_s / HOUR_S
            account = CostKey(hour, node.launch.type_name, NOBODY, "", "unused")
            spent[account].cost += min(ahead, max(0.0, unused))
        return spent


def _jobs_on(snapshot: Snapshot) -> Mapping[Rank, list[tuple[Job, int]]]:
    """The running jobs of each rank, with the cores that each holds there."""
    found: defaultdict[Rank, list[tuple[Job, int]]] = defaultdict(list)
    for job in snapshot.jobs.values():
        for held in job.allocations:
            found[held.rank].append((job, held.cores))
    return found


def _shares(
    node: Node, policy: Policy, hour: int, jobs: list[tuple[Job, int]] | tuple[()]
) -> Iterator[tuple[CostKey, float]]:
    name, left = node.launch.type_name, 1.0
    if jobs:
        whole = _cores(node, policy) or sum(cores for _, cores in jobs)
        for job, cores in jobs:
            share = min(left, cores / whole)
            left -= share
            yield CostKey(hour, name, job.userid, job.queue, JOB_USE), share
    if left > 0:
        yield CostKey(hour, name, NOBODY, "", USE_WITHOUT_JOB[node.state]), left


def _cores(node: Node, policy: Policy) -> int:
    """By the site, or by its rank where the site names its type no more; 0 where nobody knows."""
    node_type = policy.types.get(node.launch.type_name)
    if node_type is not None:
        return node_type.cores
    return node.rank.cores if node.rank is not None else 0


def _nodes_billed_to_the_end(
    last: Snapshot, now: Snapshot, policy: Policy
) -> Iterator[tuple[Node, NodeType | Tariff]]:
    """The nodes whose bill ended between the two."""
    if last.nodes is now.nodes:
        return
    for id_, node in last.nodes.items():
        after = now.nodes.get(id_)
        ended = after is None or after.state is NodeState.GONE
        tariff = billing.tariff_of(node.launch, policy)
        if ended and node.state is not NodeState.GONE and node.cloud is not None and tariff is not None:
            yield node, tariff
