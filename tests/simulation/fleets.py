"""Node types and slots for the tests of the simulated Flux and cloud."""

from __future__ import annotations

from decimal import Decimal

from nodemanager.core.slots import Billing, NodeType, Rank, Slot, SlotName, TypeName
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World


def a_type(name: str, cores: int, *, gpus: int = 0, count: int, of: str) -> NodeType:
    """Make a type with ``count`` slots named after it, and one property, ``of``."""
    return NodeType(
        name=TypeName(name),
        size=f"{name}.size",
        cores=cores,
        gpus=gpus,
        memory_bytes=2**34,
        price_per_hour=Decimal("0.5"),
        billing=Billing(window_s=3600),
        slots=tuple(SlotName(f"{name}{number}") for number in range(1, count + 1)),
        properties=frozenset({of}),
    )


def slots_of(*node_types: NodeType) -> tuple[Slot, ...]:
    """Number the slots as ranks from 1, in the order of the types."""
    named = [(slot, node_type.name) for node_type in node_types for slot in node_type.slots]
    return tuple(Slot(slot, Rank(rank), name) for rank, (slot, name) in enumerate(named, start=1))


CLOUD = a_type("cloud", 4, count=4, of="small")
GPU = a_type("gpu", 8, gpus=2, count=2, of="gpu")


def small_instance(world: World) -> SimulatedFlux:
    """Ranks 1-4 are cloud1-4 (4 cores), 5-6 are gpu1-2 (8 cores, 2 GPUs)."""
    return SimulatedFlux(world, [CLOUD, GPU], slots_of(CLOUD, GPU))


def up(flux: SimulatedFlux, *names: str) -> None:
    for name in names:
        flux.broker_up(SlotName(name))
