"""Slots of the instance and the node types that can fill them: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import NewType

Rank = NewType("Rank", int)
SlotName = NewType("SlotName", str)
TypeName = NewType("TypeName", str)


class Market(StrEnum):
    """How a node is bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Billing:
    """How a provider charges for a node that is up.

    ``window_s``: what is begun is paid, in steps of this length; 0 for a node that costs nothing more by
    staying (one's own hardware). ``minimum_s``: what is paid at the least, however short the node's life.
    """

    window_s: float
    minimum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a node costs, in the site's currency, and how that is charged."""

    price_per_hour: Decimal
    billing: Billing


@dataclass(frozen=True, slots=True)
class NodeType:
    """One thing on offer, and the slots it may fill."""

    name: TypeName
    size: str  # the provider's own name for it
    cores: int
    gpus: int
    memory_bytes: int
    price_per_hour: Decimal  # in the site's currency; an estimate: no disks, no addresses, no egress
    billing: Billing
    slots: tuple[SlotName, ...]
    properties: frozenset[str] = frozenset()
    market: Market = Market.ON_DEMAND
    image: str = ""
    zones: tuple[str, ...] = ()  # in the order in which they are tried; () leaves it to the provider
    spares: int = 0  # nodes kept up beyond what jobs need, so that the next one starts at once

    def with_promise(self, promise: Promise) -> NodeType:
        """The type as the instance declares it, where that is not what the site says."""
        return replace(self, cores=promise.cores, gpus=promise.gpus, memory_bytes=promise.memory_bytes)


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder rank of the instance, as R (RFC 20) declares it."""

    name: SlotName
    rank: Rank
    type_name: TypeName


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine really has. ``threads``: the processors that it shows, of which a core has one or more.

    None: nobody looked.
    """

    cores: int
    threads: int
    gpus: int | None = None
    memory_bytes: int | None = None


class Misfit(StrEnum):
    """What becomes of a node that has less than its slot declares."""

    DRAIN = "drain"  # it gets no work, goes once no job runs there, and its type is not bought for a while
    ACCEPT = "accept"
    RETYPE = "retype"  # as drain; and its type is declared as it really is, once none of its slots is in use


@dataclass(frozen=True, slots=True)
class Promise:
    """What the slots of a type declare, in place of what the site says of it."""

    cores: int
    gpus: int
    memory_bytes: int


def _no_promises() -> Mapping[TypeName, Promise]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SlotsWish:
    """How many slots the named types are to have, as somebody asked for it. It lies in the KVS until answered.

    ``promises``: what the instance is to declare of some types from now on. Such a wish is the manager's own, and
    lies nowhere.
    """

    id: str
    counts: Mapping[TypeName, int]
    promises: Mapping[TypeName, Promise] = field(default_factory=_no_promises)
