"""Which cloud worker gets the next order: one that has none."""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.actors.messages import Mailbox
from nodemanager.core.orders import CloudOrder


class WorkerPool:
    """A few workers. A call that hangs holds up its own worker and nobody else."""

    def __init__(self, workers: Sequence[Mailbox[CloudOrder]]) -> None:
        self._workers = workers
        self._load = [0] * len(workers)
        self._busy_with: dict[str, list[int]] = {}

    def dispatch(self, subject: str, order: CloudOrder) -> None:
        """Hand an order on a subject (a launch or a provider id) to the worker with the least to do."""
        worker = min(range(len(self._workers)), key=lambda index: (self._load[index], index))
        self._load[worker] += 1
        self._busy_with.setdefault(subject, []).append(worker)
        self._workers[worker].tell(order)

    def mark_done(self, subject: str) -> None:
        """An answer on the subject has come."""
        workers = self._busy_with.get(subject)
        if workers:
            self._load[workers.pop(0)] -= 1
            if not workers:
                del self._busy_with[subject]
