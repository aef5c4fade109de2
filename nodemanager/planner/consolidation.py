"""Consolidate: keep new jobs off some nodes, so that they empty, if the others have room for all the work.

sched-simple spreads jobs, so many small jobs keep many nodes half empty. A node that is *emptying* carries a drain
of ours with a text of its own. It stays up until it is empty, and a waiting job that no other node can take gets it
back at once. What empties is read from the drains. Which nodes are dear: ``planner.free_room``. Which emptied nodes
leave at once: ``surges``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from math import inf
from types import MappingProxyType

from nodemanager.core.drains import emptying_text
from nodemanager.core.jobs import Job, JobState
from nodemanager.core.nodes import COMING, USABLE, CallKind, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, Rank, SlotName, TypeName
from nodemanager.planner import billing, timings
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_health import gets_no_work
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.ranks_and_queue import queue_index_of
from nodemanager.planner.snapshot import Node, Peak, Snapshot
from nodemanager.planner.timings import ends_in_s

# A node is emptied at most this long before it can leave: until then its paid time serves new jobs.
EARLY_S = 900.0
LOOK_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Emptying:
    """What consolidation does. ``nodes``: all that should take no new job, with the reason.

    A node that has our drain for it and is not among them is undrained. ``early``: those of them that need not wait
    for ``idle_timeout`` once they are idle. ``demand``: the cores in demand by type, to be remembered.
    """

    nodes: Mapping[LaunchId, Reason] = field(default_factory=lambda: MappingProxyType({}))
    again_at_s: float = inf
    early: Mapping[LaunchId, Reason] = field(default_factory=lambda: MappingProxyType({}))
    demand: Mapping[TypeName, int] = field(default_factory=lambda: MappingProxyType({}))


def is_emptying(node: Node) -> bool:
    """Whether new jobs are kept off the node so that it empties."""
    drain_reason = node.rank.drain_reason if node.rank is not None else None
    return drain_reason is not None and drain_reason == emptying_text(node.id)


def takes_no_more(node: Node) -> bool:
    """Whether the node is emptying, or its rank is being drained: perhaps for that."""
    drained_now = node.call is not None and node.call.kind is CallKind.DRAIN
    return is_emptying(node) or (drained_now and node.state in USABLE)


def free_while_emptying(node: Node, snapshot: Snapshot) -> tuple[int, int]:
    """The cores and GPUs that a node would have free if it were undrained."""
    held = [it for job in snapshot.jobs.values() for it in job.allocations if it.rank == node.launch.rank]
    rank = node.rank
    if rank is None:
        return 0, 0
    return (
        max(0, rank.cores - sum(it.cores for it in held)),
        max(0, rank.gpus - sum(it.gpus for it in held)),
    )


@dataclass(slots=True)
class _Candidate:
    node: Node
    node_type: NodeType
    cores: int  # in use
    gpus: int
    largest: int  # the most cores that one job holds there
    empties_in_s: float
    price: Decimal


@dataclass(frozen=True, slots=True)
class DearNode:
    """A node whose jobs could run on nodes of cheaper types (``planner.free_room`` finds them).

    ``instead``: these types. ``why``: why it gets no further job although the other nodes may have no room: a
    cheaper node can be had in time, and this one is empty before it is paid for again. None if that does not hold.
    """

    instead: frozenset[TypeName]
    why: Reason | None = None


def plan_emptying(
    snapshot: Snapshot,
    policy: Policy,
    needed: Container[SlotName],
    leaving: Collection[LaunchId],
    dear: Mapping[LaunchId, DearNode] = MappingProxyType({}),
) -> Emptying:
    """Choose the nodes that empty. ``needed``: where waiting jobs are placed. ``leaving``: nodes to be replaced."""
    if not policy.upkeep.consolidate:
        return Emptying()
    by_rank = _jobs_by_rank(snapshot)
    candidates = [
        found
        for node in snapshot.nodes.values()
        if (found := _candidate(node, snapshot, policy, by_rank, needed, leaving)) is not None
    ]
    chosen = _Choice(snapshot, policy, needed, leaving, candidates, by_rank, dear).choose()
    up = (node for node in snapshot.nodes.values() if _is_up(node, snapshot, policy, leaving))
    free = free_cores(up, by_rank)
    unclaimed = {id_: cores for id_, cores in free.items() if snapshot.nodes[id_].launch.slot not in needed}
    emptied = [it.node for it in candidates if is_emptying(it.node) and it.node.id in chosen.nodes]
    return replace(
        chosen, early=leave_early(emptied, unclaimed, snapshot), demand=demand_of(snapshot, policy, free)
    )


def count_up(snapshot: Snapshot, policy: Policy) -> int:
    """How many nodes take jobs, or would if they were not emptying."""
    return sum(_is_up(node, snapshot, policy, ()) for node in snapshot.nodes.values())


def may_empty(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether new jobs may be kept off the node, whatever runs there."""
    node_type = policy.types.get(node.launch.type_name)
    if node_type is None or node.launch.prepaid or node_type.name in policy.observed or node_type.spares:
        return False
    if node_type.limits.nodes_min or node.call is not None or not _is_up(node, snapshot, policy, ()):
        return False
    return not snapshot.is_out_of_reach(node, policy)


def _jobs_by_rank(snapshot: Snapshot) -> Mapping[Rank, Sequence[tuple[Job, int, int]]]:
    found: defaultdict[Rank, list[tuple[Job, int, int]]] = defaultdict(list)
    for job in snapshot.jobs.values():
        if job.state in (JobState.RUN, JobState.CLEANUP):
            for held in job.allocations:
                found[held.rank].append((job, held.cores, held.gpus))
    return found


def _is_up(node: Node, snapshot: Snapshot, policy: Policy, leaving: Collection[LaunchId]) -> bool:
    """Whether it takes jobs, or would if it were not emptying."""
    rank = node.rank
    if node.state not in USABLE or rank is None or not rank.online or rank.excluded or node.id in leaving:
        return False
    if snapshot.steered(node) or gets_no_work(node, policy, snapshot.now_s):
        return False
    return rank.schedulable or is_emptying(node)


def _candidate(
    node: Node,
    snapshot: Snapshot,
    policy: Policy,
    by_rank: Mapping[Rank, Sequence[tuple[Job, int, int]]],
    needed: Container[SlotName],
    leaving: Collection[LaunchId],
) -> _Candidate | None:
    """A node that may empty; None if it must not, or would not be empty before it is paid for once more."""
    node_type = policy.types.get(node.launch.type_name)
    if (
        node_type is None
        or node.launch.slot in needed
        or node.id in leaving
        or not may_empty(node, snapshot, policy)
    ):
        return None
    held = by_rank.get(node.launch.rank, ())
    if node.rank is not None and node.rank.allocated and not held:
        return None  # a housekeeping, or a job that has just started
    empties_in_s = max((ends_in_s(job, snapshot) for job, _, _ in held), default=0.0)
    if not is_emptying(node) and not empties_in_time(node, node_type, empties_in_s, snapshot, policy):
        return None
    return _Candidate(
        node,
        node_type,
        sum(cores for _, cores, _ in held),
        sum(gpus for _, _, gpus in held),
        max((cores for _, cores, _ in held), default=0),
        empties_in_s,
        node_type.price_per_hour,
    )


def empties_in_time(
    node: Node, node_type: NodeType, empties_in_s: float, snapshot: Snapshot, policy: Policy
) -> bool:
    """Whether it will be empty at the end of its paid window, and that end is near."""
    if empties_in_s == inf:
        return False
    if node_type.billing.window_s <= policy.idle_timeout_s(node_type):
        return True
    left_s = billing.window_left_s(node_type.billing, billing.age_s(node, snapshot.now_s))
    left_s -= timings.stop_lead_s(snapshot, node_type.name, policy)
    return empties_in_s <= left_s <= empties_in_s + EARLY_S


class _Choice:
    """Chooses nodes as long as the others have room for the work of all chosen ones."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        needed: Container[SlotName],
        leaving: Collection[LaunchId],
        candidates: Sequence[_Candidate],
        by_rank: Mapping[Rank, Sequence[tuple[Job, int, int]]],
        dear: Mapping[LaunchId, DearNode],
    ) -> None:
        self._snapshot, self._policy, self._dear = snapshot, policy, dear
        self._candidates = sorted(candidates, key=self._order)
        up = [node for node in snapshot.nodes.values() if _is_up(node, snapshot, policy, leaving)]
        self._free: dict[LaunchId, tuple[NodeType, int, int]] = {}
        self._price = Decimal(0)
        for node in up:
            node_type = policy.types.get(node.launch.type_name)
            if node_type is None or node.rank is None:
                continue
            self._price += billing.price_per_hour(node.launch, policy)
            if node.launch.slot not in needed:
                held = by_rank.get(node.launch.rank, ())
                cores = node.rank.cores - sum(cores for _, cores, _ in held)
                gpus = node.rank.gpus - sum(gpus for _, _, gpus in held)
                self._free[node.id] = node_type, max(0, cores), max(0, gpus)
        self._nodes_left = len(up)
        under_way = sum(map(takes_no_more, snapshot.nodes.values()))
        self._more = policy.upkeep.disruption.count_of(len(up)) - len(leaving) - under_way
        # Room for one more job as large as the largest that runs, and for as much work as there was a moment ago.
        # Otherwise short jobs in a row would have the same node drained and undrained, again and again.
        jobs = [cores for held in by_rank.values() for _, cores, _ in held]
        self._next_job = max(jobs, default=1)
        self._reserve = max(self._next_job, latest_peak(snapshot) - sum(jobs))

    def choose(self) -> Emptying:
        old: dict[LaunchId, Reason] = {}
        new: dict[LaunchId, Reason] = {}
        saved = Decimal(0)
        for it in self._candidates:
            emptying = is_emptying(it.node)
            if len(new) >= self._more and not emptying:
                break
            moves = self._moves(it) if emptying else self._moves(it, self._reserve, self._next_job)
            why = because(Code.EMPTIES, cores=it.cores, price_per_hour=it.price) if moves else self._gives_up(it)
            if why is not None:
                why = why.with_figures(empties_in_s=it.empties_in_s) if it.empties_in_s < inf else why
                (old if emptying else new)[it.node.id] = why
                saved += it.price
        worth = saved >= Decimal(str(self._policy.upkeep.consolidate_gain)) * self._price
        # Jobs come nearer to their ends, and windows to theirs.
        return Emptying({**old, **(new if worth else {})}, self._snapshot.now_s + LOOK_EVERY_S)

    def _order(self, it: _Candidate) -> tuple[bool, bool, float, LaunchId]:
        """Those that empty already first, then those that are not refilled, then those that save most.

        These are dear, and empty soon.
        """
        dear = self._dear.get(it.node.id)
        not_refilled = dear is not None and dear.why is not None
        worth = 0.0 if not_refilled else (1.0 + it.empties_in_s) / float(it.price or Decimal("0.000001"))
        return not is_emptying(it.node), not not_refilled, worth, it.node.id

    def _gives_up(self, it: _Candidate) -> Reason | None:
        """Why a dear node empties although the others have no room; None if it does not."""
        dear = self._dear.get(it.node.id)
        if dear is None or dear.why is None or self._nodes_left - 1 < self._policy.limits.nodes_min:
            return None
        self._free.pop(it.node.id, None)
        self._nodes_left -= 1
        return dear.why

    def _moves(self, it: _Candidate, reserve: int = 0, next_job: int = 0) -> bool:
        """Whether work as that of the node fits on the others; if so, that room is taken.

        ``reserve``: the cores that must be left. ``next_job``: the cores that one node must have free.
        """
        if self._nodes_left - 1 < max(1, self._policy.limits.nodes_min):
            return False
        own, dear = self._free.get(it.node.id), self._dear.get(it.node.id)
        instead = dear.instead if dear is not None else ()
        others = [
            (id_, of, cores, gpus)
            for id_, (of, cores, gpus) in self._free.items()
            if id_ != it.node.id and (of.properties >= it.node_type.properties or of.name in instead)
        ]
        room, gpus_free = sum(cores for _, _, cores, _ in others), sum(gpus for *_, gpus in others)
        largest = max((cores for _, _, cores, _ in others), default=0)
        if room < it.cores + reserve or gpus_free < it.gpus or largest < max(it.largest, next_job):
            return False
        cores, gpus = it.cores, it.gpus
        for id_, of, cores_free, gpus_there in sorted(others, key=lambda other: (-other[2], other[0])):
            self._free[id_] = of, cores_free - min(cores, cores_free), gpus_there - min(gpus, gpus_there)
            cores, gpus = max(0, cores - cores_free), max(0, gpus - gpus_there)
        if own is not None:
            del self._free[it.node.id]
        self._nodes_left -= 1
        return True


def count_emptying(snapshot: Snapshot) -> int:
    """How many nodes are emptying."""
    return sum(map(is_emptying, node_index_of(snapshot).to_check.values()))


# --- surges -----------------------------------------------------------------------------------------------
#
# Emptied nodes that leave before ``idle_timeout``: those that the next surge of jobs will probably not need.
#
# The demand for a node type is the cores that its nodes have in use, and all cores of nodes that boot. The peak
# in each minute of the last hour is kept. A *surge* is a rise from minute to minute, until it falls again.


MINUTES_KEPT = 60
MINUTES_MIN = 15  # with less history, emptied nodes stay for ``idle_timeout``
# The share of the usual surge for which room is kept. More keeps nodes that are seldom used: with the whole of it,
# bursts cost 6 % more and wait 2 s less. With half of it, they cost 4 % less and wait 4 s more.
SHARE = 0.75


def free_cores(
    up: Iterable[Node], by_rank: Mapping[Rank, Sequence[tuple[Job, int, int]]]
) -> Mapping[LaunchId, int]:
    """The free cores of each node that is up; of a node whose GPUs are scarcer, the same share of its cores.

    ``by_rank``: the running jobs with the cores and GPUs that they hold there.
    """
    found: dict[LaunchId, int] = {}
    for node in up:
        if (rank := node.rank) is None:
            continue
        held = by_rank.get(rank.rank, ())
        cores = rank.cores - sum(cores for _, cores, _ in held)
        if rank.gpus:
            cores = min(cores, rank.cores * (rank.gpus - sum(gpus for *_, gpus in held)) // rank.gpus)
        found[node.id] = max(0, cores)
    return found


def demand_of(snapshot: Snapshot, policy: Policy, free: Mapping[LaunchId, int]) -> Mapping[TypeName, int]:
    """The cores in demand by type. ``free``: the free cores of each node that is up."""
    found: Counter[TypeName] = Counter()
    for node in snapshot.nodes.values():
        name, rank = node.launch.type_name, node.rank
        if node.id in free and rank is not None:
            found[name] += rank.cores - free[node.id]
        elif node.state in COMING and name in policy.types:
            found[name] += policy.types[name].cores
    return found


def with_demand(snapshot: Snapshot, demand: Mapping[TypeName, int]) -> Snapshot:
    """The snapshot that remembers the demand, if it is a peak of this minute."""
    minute, before = int(snapshot.now_s // 60), snapshot.learned.peaks
    higher: dict[TypeName, tuple[Peak, ...]] = {}
    for name in {**before, **demand}:
        known, cores = before.get(name, ()), demand.get(name, 0)
        if known and known[-1].minute == minute:
            if cores <= known[-1].cores:
                continue
            known = known[:-1]
        kept = (it for it in known if it.minute > minute - MINUTES_KEPT)
        higher[name] = (*kept, Peak(minute, cores))
    if not higher:
        return snapshot
    return replace(snapshot, learned=replace(snapshot.learned, peaks={**before, **higher}))


def latest_peak(snapshot: Snapshot) -> int:
    """The cores that all types had in demand at the peak of this minute or of the one before."""
    since = int(snapshot.now_s // 60) - 1
    return sum(
        max((it.cores for it in peaks if it.minute >= since), default=0)
        for peaks in snapshot.learned.peaks.values()
    )


def usual_surge(peaks: Sequence[Peak]) -> float | None:
    """The mean surge in cores, each weighted by its cores; None if the history is too short.

    So it is the surge in which the average core is asked for. Surges of one size give that size, however rare they
    are, and a few large ones count more than many small ones.
    """
    if not peaks or peaks[-1].minute - peaks[0].minute < MINUTES_MIN:
        return None
    surges = [0]
    for before, after in pairwise(peaks):
        if after.cores > before.cores:
            surges[-1] += after.cores - before.cores
        else:
            surges.append(0)
    total = sum(surges)
    return sum(it * it for it in surges) / total if total else 0.0


def leave_early(
    emptied: Sequence[Node], free: Mapping[LaunchId, int], snapshot: Snapshot
) -> Mapping[LaunchId, Reason]:
    """The emptied nodes that leave once their idleness is confirmed, with the reason.

    A node may leave if the other nodes of its type have ``SHARE`` of the usual surge free. Nodes that empty count:
    a job gets them back at once. ``free``: the free cores of each node that is up and not about to be used.
    """
    room = Counter[TypeName]()
    for id_, cores in free.items():
        room[snapshot.nodes[id_].launch.type_name] += cores
    surges = {name: usual_surge(peaks) for name, peaks in snapshot.learned.peaks.items()}
    found: dict[LaunchId, Reason] = {}
    for node in emptied:
        name, surge = node.launch.type_name, surges.get(node.launch.type_name)
        if node.state is not NodeState.IDLE or surge is None or node.id not in free:
            continue
        left = room[name] - free[node.id]
        if left >= SHARE * surge:
            room[name] = left
            found[node.id] = because(Code.NO_SURGE_NEEDS_IT, cores_free=left, surge_cores=round(surge))
    return found


# --- whether other nodes can take over the work of a node that is to be drained ---------------------------


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
