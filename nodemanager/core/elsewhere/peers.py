"""Other Flux instances in which jobs of this one may run, as far as the planner weighs them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, TypeVar

UNKNOWN_WAIT_S = math.inf


@dataclass(frozen=True, slots=True)
class PeerOffer:
    """What a peer has to offer now. ``why_not``: why it takes no job, "" if it does.

    ``starts_at``: when its scheduler expects the last waiting job to start; None if it forecasts nothing.
    ``queues``: those that take jobs; None if it has no named queues. ``jobs_left``: how many more of our jobs
    it may get.
    """

    name: str
    why_not: str = ""
    nodes: int = 0
    nodes_free: int = 0
    cores: int = 0
    cores_free: int = 0
    waiting: int = 0
    starts_at: float | None = None
    queues: frozenset[str] | None = None
    jobs_left: int = 0
    price_per_core_hour: Decimal = Decimal(0)


class Way(Protocol):
    """A way to run a job."""

    @property
    def wait_s(self) -> float:
        """How long the job waits; infinity if that is unknown."""
        ...

    @property
    def price_per_hour(self) -> Decimal:
        """What the job costs while it runs."""
        ...


AnyWay = TypeVar("AnyWay", bound=Way)


def cheapest_in_time(ways: Iterable[AnyWay], patience_s: float) -> AnyWay:
    """Return the cheapest way that starts the job within its patience; if there is none, the one that waits least.

    Of equal ways the first one counts.
    """
    known = list(ways)
    in_time = [way for way in known if way.wait_s <= patience_s]
    if in_time:
        return min(in_time, key=lambda way: (way.price_per_hour, way.wait_s))
    return min(known, key=lambda way: (way.wait_s, way.price_per_hour))


def expected_wait_s(*, fits_now: bool, waiting: int, starts_at: float | None, now_at: float) -> float:
    """Return how long a job would wait at a peer, as far as the peer's figures say.

    It starts now if nobody waits and its nodes and cores are free. Behind waiting jobs it starts no earlier than
    the last of them is expected to.
    """
    if fits_now and not waiting:
        return 0.0
    return UNKNOWN_WAIT_S if starts_at is None else max(0.0, starts_at - now_at)


def format_wait(wait_s: float) -> str:
    """Write a wait for a reason."""
    return "unknown" if math.isinf(wait_s) else f"{wait_s:.0f} s"
