"""The site's rules for replacing nodes, as frozen values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from nodemanager.core.upkeep.windows import Window

# What a node is made from, in the order of the digests in a fingerprint. The digests are on record for as long as
# the node lives: a change of what they cover needs a new version, or every node would seem to differ.
PARTS = ("image", "size", "network", "user-data")
_VERSION = "1"
_DIGEST_CHARS = 8


class Drift(StrEnum):
    """What happens to a node that was made from something that the site no longer says."""

    REPLACE = "replace"
    WARN = "warn"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Disruption:
    """How many nodes upkeep may take out of service at once, and when it may begin with one.

    ``nodes``: a count, or None if ``share`` says it. Without windows it may begin at any time.
    """

    nodes: int | None = None
    share: float = 0.1
    windows: tuple[Window, ...] = ()

    def count_of(self, fleet: int) -> int:
        """How many of so many nodes may be out of service at once: a share above 0 allows at least one."""
        if self.nodes is not None:
            return self.nodes
        return max(1, int(self.share * fleet)) if self.share > 0 else 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What applies within some windows of the week. None: as otherwise.

    ``node_types``: the types to each of which it applies. If empty, ``nodes_min``, ``nodes_max`` and
    ``price_per_hour_max`` apply to the whole fleet, and the rest to every type.
    """

    name: str
    windows: tuple[Window, ...]
    node_types: tuple[str, ...] = ()
    nodes_min: int | None = None
    nodes_max: int | None = None
    price_per_hour_max: Decimal | None = None
    spares: int | None = None
    idle_timeout_s: float | None = None


def fingerprint_of(parts: Mapping[str, object]) -> str:
    """A text that differs if a part differs: 8 hexadecimal digits for each of ``PARTS``, which all must be given.

    Values are anything that JSON can hold.
    """
    digests = (hashlib.sha256(json.dumps(parts[part]).encode()).hexdigest() for part in PARTS)
    return "-".join((_VERSION, *(digest[:_DIGEST_CHARS] for digest in digests)))


def changed_parts(made_from: str, now: str) -> tuple[str, ...]:
    """The parts in which two fingerprints differ; none if one of them is unknown or of another version."""
    before, after = made_from.split("-"), now.split("-")
    if before[0] != after[0] or len(before) != len(PARTS) + 1 or len(after) != len(PARTS) + 1:
        return ()
    return tuple(part for part, was, is_ in zip(PARTS, before[1:], after[1:], strict=True) if was != is_)
