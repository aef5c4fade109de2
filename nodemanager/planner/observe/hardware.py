"""Compare a node's real hardware with what its slot declares.

A slot declares cores, GPUs and memory before a node exists. On a node with less, jobs would share resources that
Flux gave to one of them. So by default such a node gets no work and leaves once it is free, and its type is not
bought for a while. A node with more than declared is kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from nodemanager.core.facts import NodeMeasured, RanksMeasured
from nodemanager.core.nodes import FailureKind, FluxRank, NodeState
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Hardware, Misfit, NodeType, Promise, TypeName
from nodemanager.planner.backoff.refusals import apply_refusal
from nodemanager.planner.state.node_index import node_index_of, with_nodes
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Scope, Snapshot

# Firmware and kernel keep part of a machine's memory, so jobs see less than the nominal size.
MEMORY_RESERVED = 1 / 8
WISH_PREFIX = "hardware-"
_LEAVING = (NodeState.STOPPING, NodeState.GONE)


def find_misfit(hardware: Hardware, node_type: NodeType, rank: FluxRank | None) -> Reason | None:
    """What the machine has less of than its slot declares; None if it has enough.

    A site may count cores or hardware threads, so either may meet the declared cores. ``rank`` is the slot as R
    declares it (RFC 20), which overrides the site's settings. R does not declare memory.
    """
    cores, gpus = (rank.cores, rank.gpus) if rank is not None else (node_type.cores, node_type.gpus)
    declares = {"cores": cores, "gpus": gpus, "memory_bytes": node_type.memory_bytes}
    looked_at = {"cores": hardware.threads, "gpus": hardware.gpus, "memory_bytes": hardware.memory_bytes}
    enough = {**declares, "memory_bytes": _memory_required(node_type)}
    short = {name: has for name, has in looked_at.items() if has is not None and has < enough[name]}
    if not short:
        return None
    figures = {f"has_{name}": has for name, has in short.items()}
    figures |= {f"declared_{name}": declares[name] for name in short}
    reason = because(Code.LESS_THAN_DECLARED, node_type=node_type.name, lacks=tuple(short))
    return reason.with_figures(**cast("Figures", figures))  # each of these names is one of its figures


def drain_note(misfit: Reason) -> str:
    """The text for the drain reason in Flux, for example "has 2 of 4 cores"."""
    figures = misfit.figures
    lacks = (name.removeprefix("has_") for name in figures if name.startswith("has_"))
    return "has " + ", ".join(f"{figures[f'has_{name}']} of {figures[f'declared_{name}']} {name}" for name in lacks)


# --- taking in --------------------------------------------------------------------------------------------


def apply_measurement(snapshot: Snapshot, fact: NodeMeasured, policy: Policy) -> Snapshot:
    """The snapshot after a node reported its hardware. A repeated report changes nothing."""
    node = snapshot.nodes.get(fact.launch)
    if node is None or node.join_report.hardware == fact.hardware:
        return snapshot
    node_type = policy.types.get(node.launch.type_name)
    misfit = (
        find_misfit(fact.hardware, node_type, snapshot.ranks.get(node.launch.rank))
        if node_type is not None
        else None
    )
    if policy.rules.misfit is Misfit.ACCEPT or node.state in _LEAVING:
        misfit = None
    node = replace(
        node,
        join_report=replace(node.join_report, hardware=fact.hardware),
        health=replace(node.health, misfit=misfit),
    )
    snapshot = with_nodes(snapshot, {node.id: node})
    if misfit is None:
        return snapshot
    # The next node of this type would have no more, so the type is blocked like one whose create cannot work.
    snapshot = apply_refusal(snapshot, node, FailureKind.CONFIG, str(misfit), policy)
    if policy.rules.misfit is not Misfit.RETYPE or node_type is None:
        return snapshot
    return replace(
        snapshot,
        slots=replace(
            snapshot.slots,
            to_promise={**snapshot.slots.to_promise, node_type.name: _attainable_promise(node_type, fact.hardware)},
        ),
    )


def _attainable_promise(node_type: NodeType, hardware: Hardware) -> Promise:
    """What the type can declare: no more than its machines have, and no more than it declares now."""
    memory_bytes = hardware.memory_bytes
    if memory_bytes is None or memory_bytes >= _memory_required(node_type):
        memory_bytes = node_type.memory_bytes
    return Promise(
        cores=node_type.cores if hardware.threads >= node_type.cores else hardware.cores,
        gpus=node_type.gpus if hardware.gpus is None else min(node_type.gpus, hardware.gpus),
        memory_bytes=memory_bytes,
    )


def apply_rank_measurements(snapshot: Snapshot, fact: RanksMeasured, policy: Policy) -> Snapshot:
    """Like :func:`apply_measurement`, but as reported by Flux. A node's own report takes precedence."""
    for rank, hardware in fact.hardware.items():
        id_ = node_index_of(snapshot).launch_of_rank.get(rank)
        if id_ is not None and snapshot.nodes[id_].join_report.hardware is None:
            snapshot = apply_measurement(snapshot, NodeMeasured(id_, hardware, snapshot.wall_at), policy)
    return snapshot


# --- changing what a type declares ------------------------------------------------------------------------


def apply_kept_promise(snapshot: Snapshot, wish_id: str) -> Snapshot:
    """After the slots were changed: if the change made a type declare less, it may be bought again."""
    name = _type_of_wish(snapshot, wish_id)
    return _keep_promise(snapshot, name) if name is not None else snapshot


def apply_repaired_promises(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """After a look: find changes that were interrupted and completed by the repair, so that no answer came."""
    for name, promise in snapshot.slots.to_promise.items():
        node_type = policy.types.get(name)
        if node_type is None or (node_type.cores, node_type.gpus) == (promise.cores, promise.gpus):
            continue
        ranks = [
            snapshot.ranks[snapshot.slots.rank_of_slot[slot]]
            for slot in node_type.slots
            if slot in snapshot.slots.rank_of_slot
        ]
        if ranks and all((rank.cores, rank.gpus) == (promise.cores, promise.gpus) for rank in ranks):
            snapshot = _keep_promise(snapshot, name)
    return snapshot


def _keep_promise(snapshot: Snapshot, name: TypeName) -> Snapshot:
    return replace(
        snapshot,
        learned=replace(
            snapshot.learned,
            blocks={scope: block for scope, block in snapshot.learned.blocks.items() if scope != Scope(name)},
        ),
        slots=replace(
            snapshot.slots,
            to_promise=_without(snapshot.slots.to_promise, name),
            promised={**snapshot.slots.promised, name: snapshot.slots.to_promise[name]},
        ),
    )


def drop_promise(snapshot: Snapshot, wish_id: str) -> Snapshot:
    """The declaration could not be changed. The next node of the type will report its hardware again."""
    name = _type_of_wish(snapshot, wish_id)
    return (
        replace(snapshot, slots=replace(snapshot.slots, to_promise=_without(snapshot.slots.to_promise, name)))
        if name is not None
        else snapshot
    )


def _type_of_wish(snapshot: Snapshot, wish_id: str) -> TypeName | None:
    named, _, _ = wish_id.removeprefix(WISH_PREFIX).rpartition("-")
    name = TypeName(named)
    return name if wish_id.startswith(WISH_PREFIX) and name in snapshot.slots.to_promise else None


def _without(promises: Mapping[TypeName, Promise], name: TypeName) -> Mapping[TypeName, Promise]:
    return {other: promise for other, promise in promises.items() if other != name}


def with_promises(policy: Policy, promises: Mapping[TypeName, Promise]) -> Policy:
    """The policy with some types as the instance declares them, instead of the site's settings."""
    types = tuple(
        node_type.with_promise(promises[node_type.name]) if node_type.name in promises else node_type
        for node_type in policy.node_types
    )
    return policy if types == policy.node_types else replace(policy, node_types=types)


def _memory_required(node_type: NodeType) -> int:
    return int(node_type.memory_bytes * (1 - MEMORY_RESERVED))
