"""Nodes that cost money for nothing, by the true state of the world.

- A node without a job leaves within its idle timeout, one billing window and the longest stop, unless a stated
  reason keeps it, which must be true as far as the world can tell. It may be kept for the next window once.
- Of one type, at most ``UNUSED_MAX`` times as many nodes as it has slots boot and are ended in a row without a job.

Time in which the manager stands still, and says why, does not count for the first rule: an operator paused it, it
is in safe mode, Flux or the cloud does not answer, or another process acts. A new process counts from its first
plan. Nor does time in which a node has another stated reason, such as a call in flight or a failed one, a hold, or
data to wait for. No fault is an exception to the second rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.nodes import CloudNode, LaunchId, NodeState, ProviderId
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import TypeName
from nodemanager.planner import timings
from nodemanager.planner.snapshot import Node
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.flux.job_manager import JobEvent
from tests.chaos.run.upkeep import UpkeepTruth

UNUSED_MAX = 3
SLACK_S = 10.0  # for answers, ticks and rounding
NEWS_DELAY_S = 15.0  # until the manager knows that no job waits any more: it polls for that
# An idle node with one of these reasons has no other reason to stay than that it has not been idle for long.
ONLY_WAITS = frozenset(
    {
        Code.IDLE_NOT_LONG,
        Code.IDLE_UNCONFIRMED,
        Code.PAID_TIME_LEFT,
        Code.NEXT_WINDOW_BEGINS,
        Code.WINDOW_CLOSES,  # it was to leave, and stayed
    }
)


@dataclass
class NodeUse:
    """Which machines have joined, and when a job last held one: the truth.

    ``held``: jobs that users hold. ``require`` raises if a rule is broken.
    """

    flux: SimulatedFlux
    upkeep: UpkeepTruth
    held: Collection[JobId]
    require: Callable[[bool, str], None]
    used_s: dict[ProviderId, float] = field(default_factory=dict)  # when a job was last seen on each machine
    unused: Counter[TypeName] = field(default_factory=Counter)  # nodes ended in a row without a job, by type
    _joined: set[ProviderId] = field(default_factory=set)
    _ended: set[ProviderId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.flux.observe_jobs(self._on_job)

    def _on_job(self, event: JobEvent) -> None:
        del event
        self.look()

    def look(self) -> None:
        """Note who is where. It is called with every job event and every plan."""
        busy = {grant.rank for _, grant in self.flux.held_grants()}
        for slot, rank in self.flux.rank_of.items():
            machine = self.flux.machine_of(slot)
            if machine is None or not self.flux.online(rank):
                continue
            self._joined.add(ProviderId(machine))
            if rank in busy:
                self.used_s[ProviderId(machine)] = self.flux.world.now_s
                self.unused[self.flux.slot_types[slot]] = 0

    def any_job_waits(self) -> bool:
        """Whether any job waits that nobody holds."""
        states = (self.flux.job_state(it) for it in self.flux.active_jobs() if it not in self.held)
        return any(state in (JobState.SCHED, JobState.PRIORITY) for state in states)

    def note_destroy(self, node: CloudNode) -> None:
        """The manager is about to destroy a node."""
        name = node.identity.type_name if node.identity is not None else TypeName("")
        if node.provider_id in self._ended or node.provider_id not in self._joined:
            return
        self._ended.add(node.provider_id)
        if node.provider_id in self.used_s:
            return
        self.unused[name] += 1
        count = list(self.flux.slot_types.values()).count(name)
        self.require(
            self.unused[name] <= UNUSED_MAX * count,
            f"{self.unused[name]} nodes of {name} in a row booted and were ended without a job",
        )


@dataclass
class IdleNodes:
    """The idle nodes as one manager process knows them."""

    use: NodeUse
    jobs_wait_s: float = 0.0
    _free_s: dict[LaunchId, float] = field(default_factory=dict)  # since when nothing that is stated keeps a node
    _keeps_next_window: set[LaunchId] = field(default_factory=set)

    def check(self, published: Publication) -> None:
        """Check the nodes after a plan of the acting manager."""
        snapshot, made, now_s = published.snapshot, published.plan, published.snapshot.now_s
        if self.use.any_job_waits():
            self.jobs_wait_s = now_s
        if made.stands_still is not None:
            self._free_s.clear()  # it says why, and decides nothing
            return
        self._free_s = {
            node.id: self._free_s.get(node.id, now_s)
            for node in snapshot.nodes.values()
            if self._is_free(node, published)
        }
        for id_, free_s in self._free_s.items():
            self._check_node(snapshot.nodes[id_], free_s, published)

    def _is_free(self, node: Node, published: Publication) -> bool:
        """Whether the manager knows that the node is up, and nothing but time keeps it."""
        if node.state is not NodeState.IDLE:
            return False
        reason = published.plan.nodes.get(node.id)
        if reason is None:
            return False
        if reason.code is Code.NEXT_WINDOW_BEGINS:
            self._keeps_next_window.add(node.id)
        untrue = reason.code in TRUE_IF and not TRUE_IF[reason.code](self, node, published)
        return untrue or reason.code in ONLY_WAITS

    def _check_node(self, node: Node, free_s: float, published: Publication) -> None:
        policy, now_s = published.policy, published.snapshot.now_s
        node_type = policy.types.get(node.launch.type_name)
        if node_type is None or node.cloud is None:
            return
        since_s = max(free_s, self.use.used_s.get(node.cloud.provider_id, 0.0))
        timeouts_s = [policy.rules.idle_timeout_s, *(it.idle_timeout_s or 0.0 for it in policy.upkeep.schedules)]
        stop_s = timings.stop_lead_s(published.snapshot, node_type.name, policy)
        looks_s = policy.timing.probe_s * policy.rules.idle_confirmations
        windows = 2 if node.id in self._keeps_next_window else 1
        most_s = max(timeouts_s) + windows * node_type.billing.window_s + stop_s + looks_s + SLACK_S
        self.use.require(
            now_s - since_s <= most_s,
            f"{node.id} is idle for {now_s - since_s:.0f} s, and {most_s:.0f} s are allowed:"
            f" {published.plan.nodes.get(node.id)}",
        )


def _job_waits(idle: IdleNodes, _node: Node, published: Publication) -> bool:
    return published.snapshot.now_s - idle.jobs_wait_s <= NEWS_DELAY_S


def _has_spares(_idle: IdleNodes, _node: Node, published: Publication) -> bool:
    policy = published.policy
    return any(it.spares for it in policy.node_types) or any(it.spares for it in policy.upkeep.schedules)


def _has_nodes_min(_idle: IdleNodes, _node: Node, published: Publication) -> bool:
    policy = published.policy
    return bool(policy.limits.nodes_min) or any(it.nodes_min for it in policy.upkeep.schedules)


def _is_prepaid(idle: IdleNodes, node: Node, _published: Publication) -> bool:
    return node.id in idle.use.upkeep.prepaid


def _is_drained(idle: IdleNodes, node: Node, _published: Publication) -> bool:
    return idle.use.flux.drain_reason(node.launch.rank) is not None


# The stated reasons that the world can tell true from untrue. An untrue one keeps no node.
TRUE_IF: Mapping[Code, Callable[[IdleNodes, Node, Publication], bool]] = {
    Code.WANTED: _job_waits,
    Code.SPARE: _has_spares,
    Code.NODES_MIN: _has_nodes_min,
    Code.PREPAID: _is_prepaid,
    Code.HELD_BY_DRAIN: _is_drained,
}
