"""What keeps a job from getting nodes. Decisions read the kind; the reason is for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from nodemanager.core.reasons import Reason
from nodemanager.core.slots import TypeName


class Hindrance(Enum):
    """What follows from an obstacle."""

    NO_SLOT_FITS = auto()  # Flux itself rejects the job, so it blocks no other job
    BEYOND_LIMITS = auto()  # a limit or a budget never allows its nodes, although Flux does not reject it
    LIMIT_REACHED = auto()  # it goes away if another node is stopped
    NO_FREE_SLOT = auto()  # other jobs hold the slots
    UNAVAILABLE = auto()  # it passes: a block, a budget, a zone


@dataclass(frozen=True, slots=True)
class Obstacle:
    """``node_type``: the type of the slots that are not free."""

    kind: Hindrance
    reason: Reason
    node_type: TypeName | None = None
