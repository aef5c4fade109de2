"""Emptied nodes that leave before ``idle_timeout``: those that the next surge of jobs will probably not need.

The demand for a node type is the cores that its nodes have in use, and all cores of nodes that boot. The peak in
each minute of the last hour is kept. A *surge* is a rise from minute to minute, until it falls again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from nodemanager.core.jobs import Job
from nodemanager.core.nodes import COMING, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Rank, TypeName
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Peak, Snapshot

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
