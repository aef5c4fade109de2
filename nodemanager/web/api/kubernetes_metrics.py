"""Custom metrics for Kubernetes, with the names and paths of flux-metrics-api, so autoscalers need no change.

Sources: https://github.com/converged-computing/flux-metrics-api; documents of custom.metrics.k8s.io/v1beta2. The
values are those of the whole instance, with the jobs of all users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from nodemanager.actors.manager import Publication
from nodemanager.core.jobs import JobState
from nodemanager.core.nodes import FluxRank
from nodemanager.core.reason_text import format_wall_time
from nodemanager.web.api.documents import Document

GROUP_VERSION = "custom.metrics.k8s.io/v1beta2"
API_ROOT = f"/apis/{GROUP_VERSION}"


def _ranks_up(published: Publication) -> Iterable[FluxRank]:
    """The ranks that ``flux resource list`` shows as up, except rank 0: online, and open for jobs."""
    return (rank for rank in published.snapshot.ranks.values() if rank.online and _takes_jobs(rank))


def _takes_jobs(rank: FluxRank) -> bool:
    return rank.drain_reason is None and not rank.excluded


def _ranks_free(published: Publication) -> Iterable[FluxRank]:
    return (rank for rank in _ranks_up(published) if rank.cores_free > 0)


def _in_state(state: JobState) -> Callable[[Publication], int]:
    def count(published: Publication) -> int:
        return Counter(job.state for job in published.snapshot.jobs.values())[state]

    return count


METRICS: Mapping[str, Callable[[Publication], int]] = {
    "node_cores_free_count": lambda published: sum(rank.cores_free for rank in _ranks_up(published)),
    "node_cores_up_count": lambda published: sum(rank.cores for rank in _ranks_up(published)),
    "node_free_count": lambda published: sum(1 for _ in _ranks_free(published)),
    "node_up_count": lambda published: sum(1 for _ in _ranks_up(published)),
    **{f"job_queue_state_{state}_count": _in_state(state) for state in JobState},
    "job_queue_state_inactive_count": lambda published: published.snapshot.queues.jobs_ended,
}


def metric_list() -> Document:
    """List the metrics, in the form of Kubernetes' API."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",  # of the list itself, as in Kubernetes; flux-metrics-api has v1beta2
        "groupVersion": GROUP_VERSION,
        "resources": [
            {"name": name, "singularName": name, "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
            for name in METRICS
        ],
    }


def metric_value(published: Publication, name: str, namespace: str, described: str) -> Document:
    """Return one metric, in the form of Kubernetes' API. ``name`` is one of ``METRICS``."""
    return {
        "kind": "MetricValueList",
        "apiVersion": GROUP_VERSION,
        "metadata": {"selfLink": API_ROOT},
        "items": [
            {
                "metric": {"name": name},
                "value": str(METRICS[name](published)),
                "timestamp": format_wall_time(published.snapshot.wall_at),
                "windowSeconds": 0,
                "describedObject": {
                    "kind": "Service",
                    "namespace": namespace,
                    "name": described,
                    "apiVersion": "v1",
                },
            }
        ],
    }
