"""Choose the peer for a job: of those that it may go to, the cheapest one that starts it within its patience.

The job's user names one peer, or any; the site says whether it may also be a URI that is no peer of the site.

A peer is *suitable* if it can be reached, has the job's queue, has room below ``jobs_max``, and says that the job
fits (``feasibility.check``). Among the suitable peers the cheapest one wins that starts the job within the job's
patience. If none does, the one with the shortest wait wins. An unknown wait counts as the longest.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import urlsplit

from nodemanager.core.elsewhere import peers
from nodemanager.core.elsewhere.peers import UNKNOWN_WAIT_S, cheapest_in_time, format_wait
from nodemanager.core.notation import escape_unprintable
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.delegation.jobs import PeerName

ANY = "any"
TARGET_SHOWN = 200  # characters
SCHEMES = ("local", "ssh", "jobid", "pid", "slurm", "lsf")
_NO_HOST = re.compile(r"[^A-Za-z0-9.-]")

# --- the peers that a job may go to -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer of the site, or a URI that a user gave."""

    name: PeerName
    uri: str
    price_per_core_hour: Decimal = Decimal(0)
    jobs_max: int = 1000
    output_max_bytes: int = 10 << 20
    configured: bool = True


@dataclass(frozen=True, slots=True)
class Targets:
    """The site's peers. ``any_uri``: users may also name a URI that is none of theirs."""

    peers: tuple[Peer, ...]
    any_uri: bool = False

    def candidates(self, target: str) -> tuple[Sequence[Peer], str]:
        """Return the peers for a target, or none and why."""
        if target == ANY:
            return (self.peers, "") if self.peers else ((), "delegate:any needs a [Peer NAME] in the site")
        named = [peer for peer in self.peers if target in {peer.name, peer.uri}]
        if named:
            return named, ""
        if ":" not in target:
            return (), f"there is no [Peer {target}] in the site: it has {self._names()}"
        if not self.any_uri:
            return (), f"{target} is no peer of the site, and [Policy] delegate_to = peers: it has {self._names()}"
        try:
            scheme = urlsplit(target).scheme
        except ValueError as fault:  # brackets without an IPv6 address between them
            return (), f"{escape_unprintable(target[:TARGET_SHOWN])} is no URI: {fault}"
        if scheme not in SCHEMES:
            return (), f"{target}: a URI to delegate to begins with {', '.join(SCHEMES)}"
        return [Peer(name_of_uri(target), target, configured=False)], ""

    def _names(self) -> str:
        return ", ".join(peer.name for peer in self.peers) or "no [Peer NAME]"


def name_of_uri(uri: str) -> PeerName:
    """Make a name, which is also a valid host name, for a peer that is known by its URI only."""
    parts = urlsplit(uri)
    host = _NO_HOST.sub("-", parts.hostname or parts.scheme)
    return PeerName(f"{host}-{zlib.crc32(uri.encode()):08x}")


# --- the choice -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs. ``queue`` is "" for no queue; ``duration_s`` is 0 for no time limit."""

    cores: int
    nodes: int = 1
    gpus: int = 0
    duration_s: float = 0.0
    queue: str = ""
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """How busy a peer is, as it last said at ``seen_at``.

    ``queues`` is None if the peer has no named queues. ``last_start_at``: when its scheduler expects the last
    waiting job with a forecast to start; None if it forecasts nothing.
    """

    seen_at: float
    scheduler: str = ""
    nodes: int = 0
    nodes_up: int = 0
    nodes_free: int = 0
    cores: int = 0
    cores_free: int = 0
    waiting: int = 0
    running: int = 0
    queues: Mapping[str, bool] | None = None  # by name: whether it takes jobs
    last_start_at: float | None = None

    @property
    def wait_s(self) -> float | None:
        """How long a job of one core would wait, as of ``seen_at``; None if the peer forecasts nothing."""
        if self.cores_free > 0 and not self.waiting:
            return 0.0
        return max(0.0, self.last_start_at - self.seen_at) if self.last_start_at is not None else None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One peer, for one job.

    ``misfit``: why the peer says that the job can never run there, "" if it fits, None if it has not answered yet.
    ``refused``: why it refused this very job. ``pending``: jobs sent there that its load does not show yet, and
    ``pending_cores`` their cores.
    """

    name: PeerName
    load: PeerLoad | None = None
    why_unreachable: str = ""
    misfit: str | None = ""
    refused: str = ""
    jobs: int = 0
    jobs_max: int = 1000
    pending: int = 0
    pending_cores: int = 0
    price_per_core_hour: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate with its figures. ``against`` is "" if it is suitable."""

    name: PeerName
    against: str
    never: bool = False  # it will never be suitable for this job
    wait_s: float = UNKNOWN_WAIT_S
    price_per_hour: Decimal = Decimal(0)

    def __str__(self) -> str:
        if self.against:
            return f"{self.name}: {self.against}"
        return f"{self.name}: wait {format_wait(self.wait_s)}, {self.price_per_hour.normalize():f} an hour"


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen peer, or None. ``final``: no peer will ever take the job. The reason names every other option."""

    peer: PeerName | None
    reason: Reason
    options: tuple[Option, ...]
    final: bool = False


def choose(needs: Needs, candidates: Sequence[Candidate], now_at: float) -> Choice:
    """Choose a peer for a job. Equal candidates keep their order, which is the site's."""
    options = tuple(_option(needs, candidate, now_at) for candidate in candidates)
    suitable = [option for option in options if not option.against]
    if not suitable:
        final = all(option.never for option in options)
        code = Code.DELEGATION_REFUSED if final else Code.NO_PEER_READY
        return Choice(None, Reason(code, {"detail": _others(options, None)}), options, final)
    best = cheapest_in_time(suitable, needs.patience_s)
    reason = because(
        Code.PEER_CHOSEN,
        peer=best.name,
        wait=format_wait(best.wait_s),
        price_per_hour=best.price_per_hour,
        others=_others(options, best),
    )
    return Choice(best.name, reason, options)


def expected_wait_s(needs: Needs, load: PeerLoad, pending: int, pending_cores: int, now_at: float) -> float:
    """Return how long the job would wait, as far as the peer's figures say.

    It starts now if nobody waits and its nodes and cores are free. Behind waiting jobs it starts no earlier than
    the last of them is expected to.
    """
    fits = needs.cores <= load.cores_free - pending_cores and needs.nodes <= load.nodes_free
    starts_at = None if pending else load.last_start_at
    return peers.expected_wait_s(fits_now=fits, waiting=load.waiting, starts_at=starts_at, now_at=now_at)


def _option(needs: Needs, candidate: Candidate, now_at: float) -> Option:
    price = candidate.price_per_core_hour * needs.cores
    name, load = candidate.name, candidate.load
    if candidate.refused:
        return Option(name, f"refused: {candidate.refused}", never=True)
    if candidate.misfit:
        return Option(name, candidate.misfit, never=True)
    if candidate.why_unreachable or load is None:
        return Option(name, candidate.why_unreachable or "not asked yet")
    if needs.queue and load.queues is not None and not load.queues.get(needs.queue, False):
        known = needs.queue in load.queues
        against = f"queue {needs.queue} " + ("takes no jobs" if known else "does not exist")
        return Option(name, against, never=not known)
    if candidate.misfit is None:
        return Option(name, "asked whether the job fits")
    if candidate.jobs >= candidate.jobs_max:
        return Option(name, f"has {candidate.jobs} of our jobs, and jobs_max is {candidate.jobs_max}")
    wait_s = expected_wait_s(needs, load, candidate.pending, candidate.pending_cores, now_at)
    return Option(name, "", wait_s=wait_s, price_per_hour=price)


def _others(options: Sequence[Option], best: Option | None) -> str:
    return "; ".join(str(option) for option in options if option is not best) or "none"
