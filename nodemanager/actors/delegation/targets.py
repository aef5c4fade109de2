"""The peers that a job may go to, by what its user asked for and what the site allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from nodemanager.core.notation import escape_unprintable
from nodemanager.delegation.jobspec import ANY, name_of_uri
from nodemanager.delegation.peer_port import Peer

TARGET_SHOWN = 200  # characters
SCHEMES = ("local", "ssh", "jobid", "pid", "slurm", "lsf")


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
        return [replace(_ADHOC, name=name_of_uri(target), uri=target)], ""

    def _names(self) -> str:
        return ", ".join(peer.name for peer in self.peers) or "no [Peer NAME]"


_ADHOC = Peer(name_of_uri("local://"), "", configured=False)
