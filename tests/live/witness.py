"""Who watches that no two living nodes ever stand for one slot: a thread that reads the local cloud's records."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from nodemanager.cloud.common.request import TAG_LAUNCH, TAG_SLOT, TAG_TYPE
from nodemanager.cloud.local.port import NodeRecord, Store

PERIOD_S = 0.2  # a record is kept for a minute after the node's end, so that none is missed


class Witness(threading.Thread):
    """Keeps every node that was ever on record, as it was last seen there.

    What it judges by is exact, not sampled: a record says when its node was made, before any process of it
    lived, and when it ended, after the last of them was gone.
    """

    def __init__(self, cloud: Path) -> None:
        super().__init__(name="witness", daemon=True)
        self._store = Store(cloud)
        self._seen: dict[str, NodeRecord] = {}
        self._of_old: frozenset[str] = frozenset()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            self.look()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def begin_anew(self) -> None:
        """Forget every node that was there up to now: the next test has its own."""
        self._of_old |= self.look().keys()

    def look(self) -> dict[str, NodeRecord]:
        """Every node since the beginning, the forgotten ones too."""
        with self._store.locked():
            self._seen.update({record.id: record for record in self._store.read_all()})
        return {name: record for name, record in self._seen.items() if name not in self._of_old}

    @contextmanager
    def cloud_at_rest(self) -> Iterator[None]:
        """Meanwhile nobody makes, ends or lists a node."""
        with self._store.locked():
            yield

    def living(self) -> tuple[NodeRecord, ...]:
        return tuple(record for record in self.look().values() if record.terminated_at is None)

    def doubles(self) -> list[str]:
        """Every two nodes that stood for one slot at one time."""
        return [
            f"{one.id} and {other.id} both for {slot_of(one)}"
            for one, other in combinations(self.look().values(), 2)
            if slot_of(one) == slot_of(other) and _overlap(one, other)
        ]


def slot_of(record: NodeRecord) -> str:
    return record.order.tags[TAG_SLOT]


def launch_of(record: NodeRecord) -> str:
    return record.order.tags[TAG_LAUNCH]


def types_of(records: Iterable[NodeRecord]) -> list[str]:
    return sorted(record.order.tags[TAG_TYPE] for record in records)


def _overlap(one: NodeRecord, other: NodeRecord) -> bool:
    return one.created_at < _ended_at(other) and other.created_at < _ended_at(one)


def _ended_at(record: NodeRecord) -> float:
    return math.inf if record.terminated_at is None else record.terminated_at
