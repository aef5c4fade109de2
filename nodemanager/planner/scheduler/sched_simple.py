"""The rule of Flux's sched-simple: what fits on a rank, which ranks it prefers, and what a job then holds.

The planner (``seating``), the replay of what-if and the simulated Flux all choose ranks by these functions. Each
keeps its own index of the ranks, so that a choice is fast. ``tests/sched_simple_oracle.py`` reads the rule again.

A job consists of *pieces*: the nodes that it asks for, or its slots if it asks for slots on any nodes. All of a
piece is on one rank. The source is flux-core 0.88, ``flux.resource.Rv1Pool``; the rule ignores memory.
"""

from __future__ import annotations

from nodemanager.core.jobs import Shape


def pieces_of(shape: Shape) -> int:
    """How many pieces a job has: its nodes, or its slots if it does not ask for nodes."""
    return shape.slots if shape.nodes is None else shape.nodes


def slots_per_piece(shape: Shape) -> int:
    """How many slots a piece of a job has."""
    return 1 if shape.nodes is None else shape.slots


def cores_of_piece(shape: Shape) -> int:
    """How many cores a node must have for a piece; for an exclusive piece the cores of one slot."""
    return max(1, shape.cores_per_slot) * (1 if shape.exclusive else slots_per_piece(shape))


def on_different_nodes(shape: Shape) -> bool:
    """Whether the pieces of a job need different nodes. Exclusive slots do too."""
    return shape.nodes is not None or shape.exclusive


def preference(cores: int, gpus: int, rank: int) -> tuple[int, int, int]:
    """The sort key of ranks by their free cores and GPUs: the scheduler takes the least first (worst fit)."""
    return -cores, -gpus, rank


def pieces_that_fit(shape: Shape, cores: int, gpus: int, *, is_empty: bool) -> int:
    """How many pieces of a job fit on one rank with these free cores and GPUs. ``is_empty``: no job runs there.

    An exclusive job starts on any empty rank that has the GPUs of one slot, however few cores the rank has.
    """
    if shape.exclusive:
        return int(is_empty and cores > 0 and gpus >= shape.gpus_per_slot)
    slots = cores // max(1, shape.cores_per_slot)
    if shape.gpus_per_slot:
        slots = min(slots, gpus // shape.gpus_per_slot)
    return slots if shape.nodes is None else int(slots >= shape.slots)


def pieces_in_theory(shape: Shape, cores: int, gpus: int) -> int:
    """How many pieces a rank with these resources counts for when Flux checks whether a job can ever run.

    Unlike when it starts a job, it counts a rank for an exclusive piece only if it has the cores of one slot.
    """
    if shape.exclusive and cores < shape.cores_per_slot:
        return 0
    return pieces_that_fit(shape, cores, gpus, is_empty=True)


def resources_held(shape: Shape, pieces: int, cores: int, gpus: int) -> tuple[int, int]:
    """The cores and GPUs that so many pieces take of a rank with these free ones."""
    if shape.exclusive:
        return cores, gpus
    slots = pieces * slots_per_piece(shape)
    return slots * shape.cores_per_slot, slots * shape.gpus_per_slot
