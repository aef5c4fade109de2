"""Whether other nodes can take over the work of a node that is to be drained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container

from nodemanager.core.nodes import COMING, USABLE, LaunchId, NodeState
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.planner.health.node_health import gets_no_work
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.queue_index import queue_index_of
from nodemanager.planner.state.snapshot import Snapshot


class SpareRoom:
    """The free cores and GPUs of nodes that are up, and of those that boot for no job. Each is given away once.

    ``needed``: slots that waiting jobs use. ``without``: nodes that count no longer.
    """

    def __init__(
        self, snapshot: Snapshot, policy: Policy, needed: Container[SlotName], without: Collection[LaunchId]
    ) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._free: dict[LaunchId, tuple[NodeType, int, int]] = {}
        self._coming: dict[LaunchId, tuple[NodeType, int, int]] = {}
        self._usable = 0
        self._of_type: Counter[TypeName] = Counter()  # the usable ones
        for node in snapshot.nodes.values():
            node_type = policy.types.get(node.launch.type_name)
            if node_type is None or node.id in without or snapshot.steered(node):
                continue
            if gets_no_work(node, policy, snapshot.now_s):
                continue
            if node.state in USABLE and node.rank is not None and node.rank.schedulable:
                self._usable += 1
                self._of_type[node_type.name] += 1
                if node.launch.slot not in needed:
                    self._free[node.id] = node_type, node.rank.cores_free, node.rank.gpus_free
            elif node.state in COMING and node.launch.slot not in needed:
                self._coming[node.id] = node_type, node_type.cores, node_type.gpus

    def take_for(self, node: Node) -> bool:
        """Take what the node's work needs from other nodes that are up; False if they have too little.

        ``nodes_min`` and the spares of its type count as work too. If no job has come for ``idle_timeout``, none is
        expected to take the place of those that run there, and nothing is needed.
        """
        own = self._free.pop(node.id, None)
        if self._fits(node) and self._takes(node, self._free):
            self._usable -= 1
            self._of_type[node.launch.type_name] -= 1
            return True
        if own is not None:
            self._free[node.id] = own
        return False

    def boots_for(self, node: Node) -> bool:
        """Whether a node boots that can take its place. It is counted once."""
        for id_, (node_type, _, _) in self._coming.items():
            if node_type.name == node.launch.type_name:
                del self._coming[id_]
                return True
        return False

    def _fits(self, node: Node) -> bool:
        """Whether enough nodes stay for ``nodes_min``, and enough idle ones for the spares of its type."""
        counts = node.id in self._snapshot.nodes and node.rank is not None and node.rank.schedulable
        if counts and self._usable - 1 < self._policy.limits.nodes_min:
            return False
        node_type = self._policy.types.get(node.launch.type_name)
        if counts and node_type is not None and self._of_type[node_type.name] - 1 < node_type.limits.nodes_min:
            return False
        if node_type is None or not node_type.spares or node.state is not NodeState.IDLE:
            return True
        nodes, at_rest = self._snapshot.nodes, node_index_of(self._snapshot).at_rest
        idle = [id_ for id_ in self._free if id_ in at_rest and nodes[id_].launch.type_name == node_type.name]
        return len(idle) >= node_type.spares

    def _takes(self, node: Node, free: dict[LaunchId, tuple[NodeType, int, int]]) -> bool:
        rank, node_type = node.rank, self._policy.types.get(node.launch.type_name)
        if rank is None or node_type is None or node.state is not NodeState.BUSY or not self._jobs_come():
            return True
        cores, gpus = rank.cores - rank.cores_free, rank.gpus - rank.gpus_free
        taken: dict[LaunchId, tuple[NodeType, int, int]] = {}
        for id_, (of, cores_free, gpus_free) in free.items():
            if cores <= 0 and gpus <= 0:
                break
            if of.properties >= node_type.properties:
                taken[id_] = of, cores_free - min(cores, cores_free), gpus_free - min(gpus, gpus_free)
                cores, gpus = cores - cores_free, gpus - gpus_free
        if cores > 0 or gpus > 0:
            return False
        free |= taken
        return True

    def _jobs_come(self) -> bool:
        """Whether jobs wait, or one has come lately."""
        newest_s = self._snapshot.news.newest_job_s
        lately = newest_s is not None and (
            self._snapshot.now_s - newest_s
            < max(self._policy.rules.idle_timeout_s, self._policy.timing.settle_max_s)
        )
        return lately or bool(queue_index_of(self._snapshot.jobs, self._snapshot.indexes.queue).batches)
