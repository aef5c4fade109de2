"""Documents about delegation: the peers, and where a delegated job is."""

from __future__ import annotations

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import ClockReading
from nodemanager.core.reasons import because
from nodemanager.delegation.choose import PeerLoad
from nodemanager.delegation.view import DelegatedJob, DelegationView, PeerStatus
from nodemanager.web.api.documents import Document, reason_document

_NO_DELEGATION = "the site has no [Peer NAME], or [Policy] burst = never"


def peers(view: DelegationView | None) -> Document:
    """All peers. ``delegates`` is false if the site has none and allows no other targets."""
    return {
        "delegates": view is not None,
        "fault": view.fault if view is not None else "",
        "jobs": len(view.jobs) if view is not None else 0,
        "peers": [_peer_document(peer) for peer in view.peers] if view is not None else [],
    }


def _peer_document(peer: PeerStatus) -> Document:
    return {
        "name": peer.name,
        "uri": peer.uri,
        "reachable": peer.reachable,
        "why": peer.why,
        "price_per_core_hour": float(peer.price_per_core_hour),
        "jobs": peer.jobs,
        "jobs_max": peer.jobs_max,
        "load": _load_document(peer.load) if peer.load is not None else None,
    }


def _load_document(load: PeerLoad) -> Document:
    return {
        "seen_at": load.seen_at,
        "scheduler": load.scheduler,
        "nodes": load.nodes,
        "nodes_up": load.nodes_up,
        "nodes_free": load.nodes_free,
        "cores": load.cores,
        "cores_free": load.cores_free,
        "waiting": load.waiting,
        "running": load.running,
        "queues": dict(load.queues) if load.queues is not None else None,
        "wait_s": load.wait_s,
    }


def with_delegation(document: Document, view: DelegationView | None, clock: ClockReading) -> Document:
    """Add to a job's document where the job runs, and the reason for its state, if it is a delegated job."""
    found = view.jobs.get(JobId(document["id"])) if view is not None else None
    if found is not None:
        document = {**document, "reason": reason_document(found.reason, clock), "delegated": _where(found, clock)}
    if document["delegated"] is not None and (fault := _NO_DELEGATION if view is None else view.fault):
        stopped = because(Code.DELEGATION_STOPPED, detail=fault)
        return {**document, "reason": reason_document(stopped, clock)}
    return document


def _where(job: DelegatedJob, clock: ClockReading) -> Document:
    return {
        "target": job.target,
        "peer": job.peer,
        "uri": job.uri,
        "remote": format_job_id(job.remote) if job.remote is not None else None,
        "started_at": job.started_at,
        "chosen": reason_document(job.chosen, clock) if job.chosen is not None else None,
    }
