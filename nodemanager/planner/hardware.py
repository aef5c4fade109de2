"""Compare a node's real hardware with what its slot declares.

A slot declares cores, GPUs and memory before a node exists. On a node with less, jobs would share resources that
Flux gave to one of them. So by default such a node gets no work and leaves once it is free, and its type is not
bought for a while. What a node has beyond its declaration is left unused, unless ``misfit`` is ``RETYPE``: then
the type is declared with it once none of its slots is in use. Types of several sizes keep the site's declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from nodemanager.core.facts import NodeMeasured, RanksMeasured
from nodemanager.core.nodes import FailureKind, FluxRank, NodeState
from nodemanager.core.reason_codes import Code, Figures
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import Hardware, Misfit, NodeType, Promise, TypeName
from nodemanager.planner.backoff import apply_refusal
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of, with_nodes
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Scope, Snapshot

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
        if policy.rules.misfit is Misfit.RETYPE and node_type is not None and node.state not in _LEAVING:
            return _with_surplus(snapshot, node_type, fact.hardware)
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


def _with_surplus(snapshot: Snapshot, node_type: NodeType, hardware: Hardware) -> Snapshot:
    """Plan to declare what a node has beyond its type's declaration, or what all nodes seen since then have.

    A type is raised at most once by a process, and never after it was reduced: its machines differ.
    """
    name, pending = node_type.name, snapshot.slots.to_promise.get(node_type.name)
    declared = Promise(node_type.cores, node_type.gpus, node_type.memory_bytes)
    if len(node_type.sizes) > 1 or name in snapshot.slots.promised:
        return snapshot
    if pending is not None and not pending.covers(declared):
        return snapshot  # another node had less
    found = _surplus_promise(node_type, hardware)
    promise = found if pending is None else pending.least(found)
    if promise == (pending or declared):
        return snapshot
    promises = _without(snapshot.slots.to_promise, name)
    if promise != declared:
        promises = {**promises, name: promise}
    return replace(snapshot, slots=replace(snapshot.slots, to_promise=promises))


def _surplus_promise(node_type: NodeType, hardware: Hardware) -> Promise:
    """What the type can declare on such a machine: no less than it declares now.

    Cores count, not threads: a machine with two threads a core has no core more than declared.
    """
    memory_bytes = hardware.memory_bytes or 0
    has_more_memory = memory_bytes * (1 - MEMORY_RESERVED) > node_type.memory_bytes
    return Promise(
        cores=max(node_type.cores, hardware.cores),
        gpus=max(node_type.gpus, hardware.gpus or 0),
        memory_bytes=memory_bytes if has_more_memory else node_type.memory_bytes,
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
    """After the slots were changed: if a type now declares what its nodes have, it may be bought again."""
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


# --- instance check ---------------------------------------------------------------------------------------
#
# Check that the instance is the one that the site describes: its slots, the resources of each, and a flat tree.


NAMED_MAX = 10


def check_instance(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The snapshot after the policy changed, with the check repeated."""
    return replace(snapshot, slots=replace(snapshot.slots, mismatch=find_mismatch(snapshot.ranks.values(), policy)))


def find_mismatch(ranks: Iterable[FluxRank], policy: Policy) -> Reason | None:
    """Which of the site's slots the instance lacks or declares differently; None if it matches.

    Slots that only the instance has are fine: it may have nodes of its own. An instance without any ranks matches
    too: nothing can be bought for it.
    """
    of_host = {rank.host: rank for rank in ranks}
    if not of_host:
        return None
    missing = [slot for slot in policy.type_of_slot if slot not in of_host]
    differing = [
        text for slot in policy.type_of_slot if slot in of_host and (text := _slot_mismatch(of_host[slot], policy))
    ]
    if not missing and not differing:
        return None
    return because(
        Code.INSTANCE_DIFFERS,
        why=_describe(missing, differing),
        missing=len(missing),
        otherwise=len(differing),
        slots=len(policy.type_of_slot),
    )


def _slot_mismatch(rank: FluxRank, policy: Policy) -> str:
    """How a slot differs from its type; "" if it does not. The instance's own type takes precedence."""
    if rank.below and not policy.stacked:  # a stack ends from its top, so what is below a rank ends before it
        lost = f"{rank.below} ranks are below {rank.host} in the tree and would be lost with it"
        return f"{lost}: set tbon.topo = kary:0"
    node_type = policy.types.get(rank.type_name) if rank.type_name is not None else policy.type_of_slot[rank.host]
    if node_type is None:
        return f"{rank.host} is of type {rank.type_name}, which the site does not have"
    if (rank.cores, rank.gpus) == (node_type.cores, node_type.gpus):
        return ""
    has, wants = f"{rank.cores} cores and {rank.gpus} GPUs", f"{node_type.cores} and {node_type.gpus}"
    return f"{rank.host} has {has}, a {node_type.name} {wants}"


def _describe(missing: Sequence[str], differing: Sequence[str]) -> str:
    parts = []
    if missing:
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        parts.append(f"it lacks the slots {', '.join(missing[:NAMED_MAX])}{more}")
    return "; ".join([*parts, *differing[:NAMED_MAX]])
