"""How a drain of ours is told from anybody else's, in Flux and after a restart: by the reason that it carries.

This is a safety rule. A node whose drain is not ours is an operator's, and is left alone.
"""

from __future__ import annotations

from nodemanager.core.nodes import FluxRank, LaunchId

DRAIN_MARK = "flux-node-manager:"


def drain_text(launch: LaunchId) -> str:
    """The reason of the drain of a node that is to leave."""
    return f"{DRAIN_MARK}{launch}"


def hold_text(launch: LaunchId) -> str:
    """The reason of the drain of a node that an operator holds. No launch's name has a colon."""
    return f"{DRAIN_MARK}hold:{launch}"


def is_our_drain(drain_reason: str | None) -> bool:
    """Whether a rank is drained, and by us."""
    return drain_reason is not None and drain_reason.startswith(DRAIN_MARK)


def drained_by_others(rank: FluxRank) -> bool:
    """Whether a rank is drained, and not by us."""
    return rank.drain_reason is not None and not is_our_drain(rank.drain_reason)
