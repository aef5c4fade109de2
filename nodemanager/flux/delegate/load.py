"""Read how busy a peer is from its answers (``sched.resource-status``, ``job-list.job-stats`` and others; RFC 20).

Every function raises ``ValueError``, and nothing else, if an answer has another shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.core.notation import IDS_MAX, parse_idset
from nodemanager.delegation.choose import PeerLoad
from nodemanager.flux.parse.json_fields import SECONDS_MAX, list_at, object_at, text_at, whole_at

RESOURCES = "sched.resource-status"
STATS = "job-list.job-stats"
QUEUES = "job-manager.queue-list"
QUEUE = "job-manager.queue-status"
FLUXION = "sched-fluxion-qmanager.stats-get"
QUEUES_MAX = 1000


class LoadRound:
    """One round of questions about how busy the peer is."""

    def __init__(self, seen_at: float) -> None:
        self.seen_at = seen_at
        self.unanswered = 0
        self.answers: dict[str, object] = {}
        self.queues: dict[str, bool] = {}

    def read(self, last_start_at: float | None) -> PeerLoad:
        """Read all answers together. ``last_start_at``: see ``PeerLoad``."""
        status = object_at(self.answers.get(RESOURCES) or {}, RESOURCES)
        all_, allocated, down = (_cores_of_ranks(status.get(key)) for key in ("all", "allocated", "down"))
        stats = object_at(self.answers.get(STATS) or {}, STATS)
        states = object_at(stats.get("job_states") or {}, "job_states")
        fluxion = self.answers.get(FLUXION)
        up = all_.keys() - down.keys()
        return PeerLoad(
            seen_at=self.seen_at,
            scheduler="fluxion" if fluxion is not None else "sched-simple" if status else "none",
            nodes=len(all_),
            nodes_up=len(up),
            nodes_free=sum(1 for rank in up if allocated.get(rank, 0) < all_[rank]),
            cores=sum(all_.values()),
            cores_free=sum(all_[rank] - allocated.get(rank, 0) for rank in up),
            waiting=fluxion_backlog(fluxion) if fluxion is not None else whole_at(states.get("sched", 0), "sched"),
            running=whole_at(states.get("run", 0), "run"),
            queues=dict(self.queues) if self.queues else None,
            last_start_at=last_start_at,
        )


def read_queue_names(answer: object) -> list[str]:
    """Read the names of a peer's queues."""
    queues = list_at(object_at(answer, QUEUES).get("queues"), "queues")
    if len(queues) > QUEUES_MAX:
        raise ValueError(f"queues: more than {QUEUES_MAX}")
    return [text_at(queue, "queues") for queue in queues]


def takes_jobs(answer: object) -> bool:
    """Read whether a queue is enabled."""
    enabled = object_at(answer, QUEUE).get("enable")
    if not isinstance(enabled, bool):
        raise ValueError("enable: true or false is needed")  # noqa: TRY004 - as other faults of an answer
    return enabled


def read_forecast(event: Mapping[str, Any]) -> float | None:
    """Read when the scheduler expects a job to start, from an ``annotations`` event; None if it says nothing."""
    value: object = event.get("context")
    for key in ("annotations", "sched", "t_estimate"):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= SECONDS_MAX:
        return None
    return float(value)


def _cores_of_ranks(r: object) -> dict[int, int]:
    """Count the cores of each rank of a resource set (RFC 20)."""
    execution = object_at(object_at(r or {}, "R").get("execution") or {}, "R.execution")
    cores: dict[int, int] = {}
    for entry in list_at(execution.get("R_lite") or [], "R_lite"):
        ranks = object_at(entry, "R_lite")
        children = object_at(ranks.get("children"), "R_lite.children")
        count = len(parse_idset(text_at(children.get("core", ""), "R_lite.children.core")))
        cores |= dict.fromkeys(parse_idset(text_at(ranks.get("rank"), "R_lite.rank")), count)
        if len(cores) > IDS_MAX:
            raise ValueError(f"R_lite: more than {IDS_MAX} ranks")
    return cores


def fluxion_backlog(stats: object) -> int:
    """Count the jobs in Fluxion's lists of waiting jobs. Its counters count every job that ever waited."""
    waiting = 0
    for queue in object_at(object_at(stats, FLUXION).get("queues") or {}, "queues").values():
        lists = object_at(object_at(queue, "queue").get("pending_queues") or {}, "pending_queues")
        waiting += sum(len(jobs) for jobs in lists.values() if isinstance(jobs, list))
    return waiting
