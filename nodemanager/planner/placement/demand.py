"""The demand: which waiting jobs want nodes, by batch, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodemanager.core.jobs import JobId
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.backoff.drain_breaker import users_put_off
from nodemanager.planner.state.queue_index import BatchKey, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Demand:
    """The waiting jobs. No node would help the batches in ``put_off`` and the single jobs in ``withheld``."""

    batches: Mapping[BatchKey, Sequence[JobId]]
    put_off: Mapping[BatchKey, Reason]
    withheld: Mapping[JobId, Reason]
    unheeded: Mapping[JobId, tuple[str, ...]]  # what jobs ask for but no scheduler we know honours: memory


def read_demand(snapshot: Snapshot, spent: Mapping[BatchKey, Reason] | None = None) -> Demand:
    """Read the demand from the queue: only jobs that the scheduler would start if there were room.

    ``spent``: the batches of users and queues whose budget is used up. No node is kept or bought for their jobs.
    """
    queue_index = queue_index_of(snapshot.jobs, snapshot.indexes.queue)
    put_off: dict[BatchKey, Reason] = {}
    off = users_put_off(snapshot)
    for key in queue_index.batches if snapshot.queues.stopped or off or spent else ():
        if key.queue in snapshot.queues.stopped:
            put_off[key] = because(Code.QUEUE_STOPPED, queue=key.queue)
        elif key.userid in off:
            put_off[key] = off[key.userid]
        elif spent and key in spent:
            put_off[key] = spent[key]
    unreadable = {bad.id: because(Code.UNREADABLE, why=bad.why) for bad in snapshot.queues.unreadable.values()}
    return Demand(
        batches=queue_index.in_order,
        put_off=put_off,
        withheld={**queue_index.withheld, **unreadable} if unreadable else queue_index.withheld,
        unheeded=queue_index.unheeded,
    )
