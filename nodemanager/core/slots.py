"""Slots of the instance and the node types that can fill them, as frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import NewType

Rank = NewType("Rank", int)
SlotName = NewType("SlotName", str)
TypeName = NewType("TypeName", str)
CloudName = NewType("CloudName", str)

DEFAULT_CLOUD = CloudName("default")  # the one that the site calls just [Cloud]


class Market(StrEnum):
    """How a node is bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Billing:
    """How a provider charges for a node that is up.

    ``window_s``: time is billed in steps of this length, each in full once it begins; 0 if time costs nothing (own
    hardware). ``minimum_s``: the least time that is billed, however short the node's life.
    """

    window_s: float
    minimum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tariff:
    """A node's price in the site's currency, and how it is billed."""

    price_per_hour: Decimal
    billing: Billing


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the provider, on one market, that serves as a node of a type.

    ``cores``, ``gpus``, ``memory_bytes``: what it has, by the price list; 0 if unknown.
    """

    name: str
    market: Market
    price_per_hour: Decimal
    cores: int = 0
    gpus: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TypeLimits:
    """What a schedule allows of one node type, within the limits of the whole fleet. None: nothing of its own."""

    nodes_min: int = 0
    nodes_max: int | None = None
    price_per_hour_max: Decimal | None = None
    schedule: str = field(default="", compare=False)  # the last one that allows fewer nodes


NO_LIMITS = TypeLimits()


class OnlyFor(StrEnum):
    """Which jobs nodes of a type are bought for."""

    GPU = "gpu"  # jobs that ask for GPUs
    ANY = "any"


class NodePlacement(StrEnum):
    """Where the nodes of a type are created within a zone."""

    ANYWHERE = "anywhere"
    CLUSTER = "cluster"  # near each other: in a placement group of the type and the zone


@dataclass(frozen=True, slots=True)
class NodeType:
    """A kind of node that the site may buy, and the slots that it may fill."""

    name: TypeName
    size: str  # the provider's own name for the type; the cheapest, if there are several ``sizes``
    cores: int
    gpus: int
    memory_bytes: int
    price_per_hour: Decimal  # in the site's currency; an estimate: no disks, no addresses, no egress
    billing: Billing
    slots: tuple[SlotName, ...]
    properties: frozenset[str] = frozenset()
    market: Market = Market.ON_DEMAND
    image: str = ""
    zones: tuple[str, ...] = ()  # in the order in which they are tried; () leaves the choice to the provider
    placement: NodePlacement = NodePlacement.ANYWHERE
    limits: TypeLimits = NO_LIMITS  # what the open schedules set for this type
    spares: int = 0  # nodes kept up beyond what jobs need, so that the next job starts at once
    prepaid: int = 0  # so many nodes at once cost nothing more
    prepaid_until_at: float = 0.0  # when that ends, in seconds since the epoch; 0: never
    price_until_at: float = 0.0  # until when the price is known to be right; 0: for ever
    idle_timeout_s: float | None = None  # how long an idle node is kept; None: as the site says for all types
    sizes: tuple[Size, ...] = ()  # those that serve, the cheapest first; () if only ``size`` on ``market`` does
    max_age_s: float | None = None  # older nodes are replaced; None: at no age
    made_from: str = ""  # the fingerprint of what its nodes are made from (``core.upkeep.rules``); "" if unknown
    cloud: CloudName = DEFAULT_CLOUD  # where its nodes are created
    priority: int = 0  # of its cloud: the highest is bought first, whatever the price
    only_for: OnlyFor | None = None  # None: jobs that ask for GPUs if it has some, and jobs that fit no other type

    @property
    def is_reserved(self) -> bool:
        """Whether its nodes are bought for jobs that ask for GPUs, and for others only if no other type fits."""
        return self.only_for is OnlyFor.GPU or (self.only_for is None and self.gpus > 0)

    def with_promise(self, promise: Promise) -> NodeType:
        """The type with the resources that the instance declares instead of the site's."""
        return replace(self, cores=promise.cores, gpus=promise.gpus, memory_bytes=promise.memory_bytes)

    def as_size(self, size: Size) -> NodeType:
        """The type if it is bought as this size."""
        return replace(self, size=size.name, market=size.market, price_per_hour=size.price_per_hour)

    def by_size(self) -> tuple[NodeType, ...]:
        """The type as each of its sizes, the cheapest first; only the type itself if it has a single one."""
        return tuple(map(self.as_size, self.sizes)) or (self,)


def types_by_cloud(node_types: Iterable[NodeType]) -> dict[CloudName, list[TypeName]]:
    """The names of the types of each cloud."""
    found: dict[CloudName, list[TypeName]] = {}
    for node_type in node_types:
        found.setdefault(node_type.cloud, []).append(node_type.name)
    return found


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder rank of the instance, as R (RFC 20) declares it."""

    name: SlotName
    rank: Rank
    type_name: TypeName


@dataclass(frozen=True, slots=True)
class Hardware:
    """The measured hardware of a machine. ``threads``: the hardware threads, one or more per core.

    None: not measured.
    """

    cores: int
    threads: int
    gpus: int | None = None
    memory_bytes: int | None = None


class Misfit(StrEnum):
    """How the manager treats a node that has less, or more, than its slot declares."""

    DRAIN = "drain"  # drain it, terminate it once no job runs there, and do not buy its type for a while
    ACCEPT = "accept"
    RETYPE = "retype"  # as drain; and declare the type as measured once none of its slots is in use


class ForeignDrain(StrEnum):
    """How the manager treats a node that Flux itself has drained."""

    RETIRE = "retire"  # terminate it once no job runs there and a while has passed
    HOLD = "hold"  # keep it, as if a person had drained it


@dataclass(frozen=True, slots=True)
class Promise:
    """The resources that the slots of a type declare, overriding the site."""

    cores: int
    gpus: int
    memory_bytes: int

    def covers(self, other: Promise) -> bool:
        """Whether it is no less than another in any way."""
        return self.cores >= other.cores and self.gpus >= other.gpus and self.memory_bytes >= other.memory_bytes

    def least(self, other: Promise) -> Promise:
        """The less of both, resource by resource."""
        return Promise(
            min(self.cores, other.cores), min(self.gpus, other.gpus), min(self.memory_bytes, other.memory_bytes)
        )


def _no_promises() -> Mapping[TypeName, Promise]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SlotsWish:
    """A request for how many slots the named types should have. It stays in the KVS until it is answered.

    ``promises``: what the instance should declare for some types from now on. The manager makes such a wish itself
    and does not store it.
    """

    id: str
    counts: Mapping[TypeName, int]
    promises: Mapping[TypeName, Promise] = field(default_factory=_no_promises)
