"""The drain reasons by which the manager recognises its own drains, in Flux and after a restart.

This is a safety rule. Every other drain belongs to an operator, and the manager leaves that node alone.
"""

from __future__ import annotations

from nodemanager.core.nodes import FluxRank, LaunchId

DRAIN_MARK = "flux-node-manager:"


def drain_text(launch: LaunchId) -> str:
    """The drain reason of a node that the manager retires."""
    return f"{DRAIN_MARK}{launch}"


def hold_text(launch: LaunchId) -> str:
    """The drain reason of a node that an operator holds. It is unambiguous: no launch id contains a colon."""
    return f"{DRAIN_MARK}hold:{launch}"


def is_our_drain(drain_reason: str | None) -> bool:
    """Whether a rank is drained by the manager."""
    return drain_reason is not None and drain_reason.startswith(DRAIN_MARK)


def drained_by_others(rank: FluxRank) -> bool:
    """Whether a rank is drained by somebody else."""
    return rank.drain_reason is not None and not is_our_drain(rank.drain_reason)
