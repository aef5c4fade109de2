"""The pool of cloud workers: the next order goes to the one with the fewest open orders."""

from __future__ import annotations

from collections.abc import Sequence

from nodemanager.actors.messages import Mailbox
from nodemanager.core.orders import CloudOrder


class WorkerPool:
    """A few cloud workers. A call that hangs blocks its own worker only."""

    def __init__(self, workers: Sequence[Mailbox[CloudOrder]]) -> None:
        self._workers = workers
        self._load = [0] * len(workers)
        self._busy_with: dict[str, list[int]] = {}

    def dispatch(self, subject: str, order: CloudOrder) -> None:
        """Send an order about a subject (a launch or a provider id) to the worker with the fewest open orders."""
        self.dispatch_together([subject], order)

    def dispatch_together(self, subjects: Sequence[str], order: CloudOrder) -> None:
        """Send one order about several subjects to the worker with the fewest open orders."""
        worker = min(range(len(self._workers)), key=lambda index: (self._load[index], index))
        self._load[worker] += len(subjects)
        for subject in subjects:
            self._busy_with.setdefault(subject, []).append(worker)
        self._workers[worker].tell(order)

    def mark_done(self, subject: str) -> None:
        """Record that the oldest open order about a subject was answered."""
        workers = self._busy_with.get(subject)
        if workers:
            self._load[workers.pop(0)] -= 1
            if not workers:
                del self._busy_with[subject]
