"""What a node really has, against what its slot declares.

A slot promises cores, GPUs and memory before anybody stands there. A node with less would have jobs share what they
were promised alone, so by default it gets no work, goes once no job runs there, and its type is not bought for a
while. One with more is of use as it is, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodemanager.core.facts import NodeMeasured, RanksMeasured
from nodemanager.core.nodes import FailureKind, FluxRank, NodeState
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Hardware, Misfit, NodeType, Promise, TypeName
from nodemanager.planner.observe import backoff
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Scope, Snapshot

# Of its memory a machine shows its jobs less than it was sold with: firmware and kernel keep some back.
MEMORY_RESERVED = 1 / 8
WISH_PREFIX = "hardware-"
_LEAVING = (NodeState.STOPPING, NodeState.GONE)


def find_misfit(had: Hardware, node_type: NodeType, rank: FluxRank | None) -> Reason | None:
    """What a machine has less of than its slot declares; None where it has enough.

    A site may count a type's cores or their hardware threads: what is declared must be there as either. ``rank``
    is the slot as R declares it, which goes before the site's word; of memory R says nothing.
    """
    cores, gpus = (rank.cores, rank.gpus) if rank is not None else (node_type.cores, node_type.gpus)
    declares = {"cores": cores, "gpus": gpus, "memory_bytes": node_type.memory_bytes}
    looked_at = {"cores": had.threads, "gpus": had.gpus, "memory_bytes": had.memory_bytes}
    enough = {**declares, "memory_bytes": _enough(node_type)}
    short = {name: has for name, has in looked_at.items() if has is not None and has < enough[name]}
    if not short:
        return None
    figures = {f"has_{name}": has for name, has in short.items()}
    figures |= {f"declared_{name}": declares[name] for name in short}
    return because("less_than_declared", node_type=node_type.name, lacks=tuple(short), **figures)


def drain_note(misfit: Reason) -> str:
    """What Flux shows of it, to whoever asks why the node is drained: "has 2 of 4 cores"."""
    figures = misfit.figures
    lacks = (name.removeprefix("has_") for name in figures if name.startswith("has_"))
    return "has " + ", ".join(f"{figures[f'has_{name}']} of {figures[f'declared_{name}']} {name}" for name in lacks)


# --- seen -------------------------------------------------------------------------------------------------


def apply_measurement(snapshot: Snapshot, fact: NodeMeasured, policy: Policy) -> Snapshot:
    """The snapshot after a node said what it has. The same said again is no news."""
    node = snapshot.nodes.get(fact.launch)
    if node is None or node.hardware == fact.hardware:
        return snapshot
    node_type = policy.types.get(node.launch.type_name)
    found = (
        find_misfit(fact.hardware, node_type, snapshot.ranks.get(node.launch.rank))
        if node_type is not None
        else None
    )
    if policy.misfit is Misfit.ACCEPT or node.state in _LEAVING:
        found = None
    node = replace(node, hardware=fact.hardware, misfit=found)
    snapshot = with_nodes(snapshot, {node.id: node})
    if found is None:
        return snapshot
    # Whatever is bought of this type next has no more: as with a create that can never work.
    snapshot = backoff.apply_refusal(snapshot, node, FailureKind.CONFIG, str(found), policy)
    if policy.misfit is not Misfit.RETYPE or node_type is None:
        return snapshot
    return replace(
        snapshot, to_promise={**snapshot.to_promise, node_type.name: _what_it_can(node_type, fact.hardware)}
    )


def _what_it_can(node_type: NodeType, had: Hardware) -> Promise:
    """No more than a machine of the type has; what it has more is left out of account, as it was."""
    memory_bytes = had.memory_bytes
    if memory_bytes is None or memory_bytes >= _enough(node_type):
        memory_bytes = node_type.memory_bytes
    return Promise(
        cores=node_type.cores if had.threads >= node_type.cores else had.cores,
        gpus=node_type.gpus if had.gpus is None else min(node_type.gpus, had.gpus),
        memory_bytes=memory_bytes,
    )


def apply_rank_measurements(snapshot: Snapshot, fact: RanksMeasured, policy: Policy) -> Snapshot:
    """As :func:`measured`, for nodes that Flux was asked about. What a node says itself goes before it."""
    for rank, had in fact.hardware.items():
        id_ = node_index_of(snapshot).launch_of_rank.get(rank)
        if id_ is not None and snapshot.nodes[id_].hardware is None:
            snapshot = apply_measurement(snapshot, NodeMeasured(id_, had, snapshot.wall_at), policy)
    return snapshot


# --- promised as it is ------------------------------------------------------------------------------------


def apply_kept_promise(snapshot: Snapshot, wish_id: str) -> Snapshot:
    """After the slots were changed: where that had a type promise what it can, it may be bought again."""
    name = _type_of(snapshot, wish_id)
    return _kept(snapshot, name) if name is not None else snapshot


def apply_repaired_promises(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """After a look: a change that was cut short, and ended by the repair, was answered to nobody."""
    for name, promise in snapshot.to_promise.items():
        node_type = policy.types.get(name)
        if node_type is None or (node_type.cores, node_type.gpus) == (promise.cores, promise.gpus):
            continue
        ranks = [
            snapshot.ranks[snapshot.rank_of_slot[slot]] for slot in node_type.slots if slot in snapshot.rank_of_slot
        ]
        if ranks and all((rank.cores, rank.gpus) == (promise.cores, promise.gpus) for rank in ranks):
            snapshot = _kept(snapshot, name)
    return snapshot


def _kept(snapshot: Snapshot, name: TypeName) -> Snapshot:
    return replace(
        snapshot,
        to_promise=_without(snapshot.to_promise, name),
        promised={**snapshot.promised, name: snapshot.to_promise[name]},
        blocks={scope: block for scope, block in snapshot.blocks.items() if scope != Scope(name)},
    )


def drop_promise(snapshot: Snapshot, wish_id: str) -> Snapshot:
    """It could not be done. The next node of the type says again what it has."""
    name = _type_of(snapshot, wish_id)
    return replace(snapshot, to_promise=_without(snapshot.to_promise, name)) if name is not None else snapshot


def _type_of(snapshot: Snapshot, wish_id: str) -> TypeName | None:
    named, _, _ = wish_id.removeprefix(WISH_PREFIX).rpartition("-")
    name = TypeName(named)
    return name if wish_id.startswith(WISH_PREFIX) and name in snapshot.to_promise else None


def _without(promises: Mapping[TypeName, Promise], name: TypeName) -> Mapping[TypeName, Promise]:
    return {other: promise for other, promise in promises.items() if other != name}


def with_promises(policy: Policy, promises: Mapping[TypeName, Promise]) -> Policy:
    """The policy with what the instance declares of some types, in place of what the site says."""
    types = tuple(
        node_type.with_promise(promises[node_type.name]) if node_type.name in promises else node_type
        for node_type in policy.node_types
    )
    return policy if types == policy.node_types else replace(policy, node_types=types)


def _enough(node_type: NodeType) -> int:
    return int(node_type.memory_bytes * (1 - MEMORY_RESERVED))
