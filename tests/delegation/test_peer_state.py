"""What the delegator remembers of one peer."""

from __future__ import annotations

from typing import cast

from nodemanager.actors.delegation.state import PeerState, TrackedJob
from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import Peer, PeerLoad
from nodemanager.delegation.jobs import PeerName, Proxy
from nodemanager.delegation.ports import PeerPort

JOB, REMOTE = JobId(7), JobId(99)
TRACKED = TrackedJob(Proxy(JOB, "b"))


def a_peer() -> PeerState:
    return PeerState(Peer(PeerName("b"), "local:///b"), cast("PeerPort", None), synced=True)


def test_a_peer_that_did_not_know_a_copy_is_asked_again_once_it_is_back() -> None:
    """It may have been about to lose the connection because it was starting, without its jobs."""
    peer = a_peer()
    peer.missing.add(REMOTE)
    peer.lose("the connection is lost")
    assert not peer.view(JOB).missing


def test_a_copy_that_the_load_of_its_peer_shows_does_not_count_twice() -> None:
    peer = a_peer()
    peer.sent = [(100.0, 8), (200.0, 4)]
    peer.load = PeerLoad(seen_at=150.0)
    found = peer.candidate(TRACKED, 2, 210.0)
    assert (found.pending, found.pending_cores) == (1, 4)
