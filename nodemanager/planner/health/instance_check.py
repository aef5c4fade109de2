"""Check that the instance is the one that the site describes: its slots, the resources of each, and a flat tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodemanager.core.nodes import FluxRank
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

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
