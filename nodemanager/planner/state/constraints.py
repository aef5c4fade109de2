"""Evaluate a job's constraint (RFC 31) for a host with its rank and its properties."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import assert_never

from nodemanager.core.jobs import All, AnyOf, Constraint, HasProperty, Not, OnHosts, OnRanks


def holds(constraint: Constraint, *, properties: AbstractSet[str], host: str, rank: int) -> bool:
    """Whether Flux would let a job with this constraint run on the host.

    Follows flux-core's matcher: a host's name counts as a property of that host; an empty ``AnyOf`` holds
    everywhere; an empty set of hosts or ranks holds nowhere.
    """
    match constraint:
        case HasProperty(name):
            return name in properties or name == host
        case OnHosts(hosts):
            return host in hosts
        case OnRanks(ranks):
            return rank in ranks
        case All(parts):
            return all(holds(part, properties=properties, host=host, rank=rank) for part in parts)
        case AnyOf(parts):
            return not parts or any(holds(part, properties=properties, host=host, rank=rank) for part in parts)
        case Not(part):
            return not holds(part, properties=properties, host=host, rank=rank)
        case _:
            assert_never(constraint)
