"""What the planner needs to know of the peers, from the delegator's view."""

from __future__ import annotations

from nodemanager.core.elsewhere.peers import PeerOffer
from nodemanager.core.facts import PeersSeen
from nodemanager.delegation.view import DelegationView, PeerStatus


def peers_seen(view: DelegationView, userid: int) -> PeersSeen:
    """Tell the planner what the peers offer; nothing while no job can be delegated."""
    offers = () if view.fault else tuple(_offer(peer) for peer in view.peers if peer.configured)
    return PeersSeen(offers, userid, view.taken, view.refused)


def _offer(peer: PeerStatus) -> PeerOffer:
    load = peer.load
    if not peer.reachable or load is None:
        return PeerOffer(peer.name, peer.why or "not asked yet")
    taking = None if load.queues is None else frozenset(name for name, takes in load.queues.items() if takes)
    return PeerOffer(
        peer.name,
        nodes=load.nodes,
        nodes_free=load.nodes_free,
        cores=load.cores,
        cores_free=load.cores_free,
        waiting=load.waiting,
        starts_at=load.last_start_at,
        queues=taking,
        jobs_left=max(0, peer.jobs_max - peer.jobs),
        price_per_core_hour=peer.price_per_core_hour,
    )
