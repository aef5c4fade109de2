"""What the nodes kept for each ensemble have cost today (UTC), an estimate that a restart goes on with."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import structlog

COSTS_FILE = "ensembles.json"  # in the site's state_dir
DAY_S = 86400
STORED_EVERY_S = 60.0
GAP_MAX_S = 60.0  # a longer time between two looks counts as this: the service did not run, or the clock was set


@dataclass(slots=True)
class DayCosts:
    """``file`` None stores nothing. A file that cannot be read or written costs only what it remembers."""

    file: Path | None = None
    _day: int = 0  # since the epoch
    _today: dict[str, float] = field(default_factory=dict)
    _counted_at: float | None = None
    _stored_at: float = 0.0
    _said: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.file is None:
            return
        with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
            stored = json.loads(self.file.read_text(encoding="utf-8"))
            costs = {str(name): float(cost) for name, cost in stored["costs"].items()}
            if all(map(math.isfinite, costs.values())):
                self._day, self._today = int(stored["day"]), costs

    def today(self, name: str) -> Decimal:
        """What an ensemble's nodes have cost today."""
        with self._lock:
            return Decimal(str(round(self._today.get(name, 0.0), 6)))

    def count(self, now_at: float, nodes: Mapping[str, float], node_price_per_hour: float) -> None:
        """Add the time since the last call. ``nodes``: how many are kept for each ensemble."""
        with self._lock:
            if (day := int(now_at // DAY_S)) != self._day:
                self._day, self._today = day, {}
            since_s = 0.0 if self._counted_at is None else min(max(0.0, now_at - self._counted_at), GAP_MAX_S)
            self._counted_at = now_at
            for name, count in nodes.items():
                if cost := count * node_price_per_hour * since_s / 3600:
                    self._today[name] = self._today.get(name, 0.0) + cost
            if self._today and not 0 <= now_at - self._stored_at < STORED_EVERY_S:
                self._stored_at = now_at
                self._store()

    def _store(self) -> None:
        if self.file is None:
            return
        draft = self.file.with_name(self.file.name + ".new")
        try:
            draft.write_text(json.dumps({"day": self._day, "costs": self._today}), encoding="utf-8")
            os.replace(draft, self.file)  # noqa: PTH105 - atomic
        except OSError as error:
            log: Any = structlog.get_logger()
            if (why := f"{draft}: {error.strerror}") != self._said:
                self._said = why
                log.warning("ensemble_costs_not_kept", why=why)
