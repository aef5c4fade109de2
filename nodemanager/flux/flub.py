"""The slots of ranks that Flux assigns: ``join = flub``, a flux-core with pull request 5184 (RFC 44, a draft).

Flux gives a broker that joins by FLUB the lowest free rank, whoever starts it. So a slot has no fixed rank. A slot
is a name: the node's broker uses it as its host name, and the rank that the broker gets takes the name. All slots
have one node type and are interchangeable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import Rank, SlotName


class FlubSlotNames:
    """The slot name of each rank of one instance, learned from the brokers that came online."""

    def __init__(self) -> None:
        self._host_names: dict[Rank, SlotName] = {}
        self._names: Mapping[Rank, SlotName] = {}

    def ranks_to_ask(self, ranks: Sequence[FluxRank]) -> list[Rank]:
        """List the ranks that came online since the last look. Ask their brokers for their host names."""
        online = {rank.rank for rank in ranks if rank.online}
        self._host_names = {rank: name for rank, name in self._host_names.items() if rank in online}
        return sorted(online - self._host_names.keys())

    def learn(self, host_names: Mapping[Rank, SlotName]) -> None:
        """Take in the host names of the brokers that were asked."""
        self._host_names |= host_names

    def rename_ranks(self, ranks: Sequence[FluxRank]) -> tuple[FluxRank, ...]:
        """Return the ranks, each with the name of its current slot."""
        self._names = assign_slot_names(ranks, self._host_names, self._names)
        names = self._names
        return tuple(
            rank if names[rank.rank] == rank.host else replace(rank, host=names[rank.rank]) for rank in ranks
        )


def assign_slot_names(
    ranks: Sequence[FluxRank], host_names: Mapping[Rank, SlotName], before: Mapping[Rank, SlotName]
) -> dict[Rank, SlotName]:
    """Assign a slot to each rank: its broker's host name, else its slot before, else a remaining slot in order.

    If two brokers have the same name, the lower rank gets it. A name that is not a slot is ignored.
    """
    slots = {rank.host: None for rank in ranks}
    names: dict[Rank, SlotName] = {}
    for wanted in (host_names, before, {rank.rank: rank.host for rank in ranks}):
        for rank in ranks:
            name = wanted.get(rank.rank)
            if name is not None and name in slots and rank.rank not in names:
                names[rank.rank] = name
                del slots[name]
    remaining = iter(slots)
    return {rank.rank: names[rank.rank] if rank.rank in names else next(remaining) for rank in ranks}
