"""Which waiting jobs want nodes, as counts; and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodemanager.core.jobs import JobId
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.state.queue_index import BatchKey, queue_index_of
from nodemanager.planner.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Demand:
    """Batches in the order of their first jobs; those that no node would help, and single jobs of that kind."""

    batches: Mapping[BatchKey, Sequence[JobId]]
    put_off: Mapping[BatchKey, Reason]
    withheld: Mapping[JobId, Reason]
    unheeded: Mapping[JobId, tuple[str, ...]]  # what jobs ask for and no scheduler we know honours: memory


def read_demand(snapshot: Snapshot, spent: Mapping[BatchKey, Reason] | None = None) -> Demand:
    """Read the demand off the queue: only what the scheduler would start if there were room.

    ``spent``: the batches of users and queues whose budget is used up. For their jobs no node is kept or bought.
    """
    line = queue_index_of(snapshot.jobs, snapshot.queue_index)
    put_off: dict[BatchKey, Reason] = {}
    for key in line.batches if snapshot.queues_stopped or spent else ():
        if key.queue in snapshot.queues_stopped:
            put_off[key] = because("queue_stopped", queue=key.queue)
        elif spent and key in spent:
            put_off[key] = spent[key]
    unreadable = {bad.id: because("unreadable", why=bad.why) for bad in snapshot.unreadable.values()}
    return Demand(
        batches=line.in_order,
        put_off=put_off,
        withheld={**line.withheld, **unreadable} if unreadable else line.withheld,
        unheeded=line.unheeded,
    )
