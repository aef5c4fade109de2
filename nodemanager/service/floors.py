"""The nodes that running ensembles ask the manager to keep.

Whoever runs an ensemble repeats its claim every minute. A claim that is not repeated lapses, so that an ensemble
whose process died keeps no nodes for ever, and a manager that restarts hears of all claims again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nodemanager.ensemble.fair_share import Claim, share_nodes
from nodemanager.ensemble.operator import NAME_MAX

LAPSE_S = 180.0


@dataclass(frozen=True, slots=True)
class _Held:
    claim: Claim
    lapses_s: float


@dataclass(slots=True)
class Floors:
    """All claims. Any thread may call its methods.

    ``nodes_max``: the site's limit. ``terms``: weights and limits of the ensembles that the site names; the others
    have a weight of 1.
    """

    monotonic_s: Callable[[], float]
    nodes_max: int
    terms: Mapping[str, Claim] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total(self) -> int:
        """The nodes to keep for all ensembles together."""
        return sum(self.shares().values())

    def shares(self) -> dict[str, int]:
        """The nodes to keep for each ensemble."""
        with self._lock:
            return share_nodes({name: held.claim for name, held in self._held.items()}, self.nodes_max)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``node-manager.floor``: ``why`` not, "" if it is done. Without ``nodes`` it only asks."""
        match request:
            case {"ensemble": str(name), "nodes": int(nodes)} if nodes >= 0 and len(name) <= NAME_MAX:
                return {"why": self.ask(name, nodes)}
            case {"ensemble": str(name)} if "nodes" not in request:
                terms = self.terms.get(name, Claim(0))
                nodes_max = self.nodes_max if terms.nodes_max is None else min(terms.nodes_max, self.nodes_max)
                return {"why": "", "kept": self.shares().get(name, 0), "min": terms.nodes_min, "max": nodes_max}
        return {"why": 'a request has the form {"ensemble": NAME, "nodes": N}'}

    def ask(self, name: str, nodes: int) -> str:
        """Keep ``nodes`` for an ensemble from now on. Returns why not, with nothing changed; "" if it is so."""
        with self._lock:
            claim = replace(self.terms.get(name, Claim(0)), nodes=nodes)
            before = self._held.get(name)
            others = {other: held.claim for other, held in self._held.items() if other != name}
            grows = before is None or nodes > before.claim.nodes
            if grows and (why := self._why_not(name, claim, others)):
                return why
            if nodes:
                self._held[name] = _Held(claim, self.monotonic_s() + LAPSE_S)
            else:
                self._held.pop(name, None)
        return ""

    def _why_not(self, name: str, claim: Claim, others: Mapping[str, Claim]) -> str:
        """Return why the ensemble cannot have so many nodes; "" if it can."""
        if claim.wanted < claim.nodes:
            return f"[Ensemble {name}] nodes_max = {claim.nodes_max}"
        granted = share_nodes({**others, name: claim}, self.nodes_max)[name]
        if granted >= claim.nodes:
            return ""
        if not others:
            return f"nodes_max = {self.nodes_max}"
        kept = ", ".join(
            f"{other} asks for {it.nodes} (weight {it.weight:g})" for other, it in sorted(others.items())
        )
        return (
            f"its share of nodes_max = {self.nodes_max} is {granted}: {kept}, and {name} for {claim.nodes}"
            f" (weight {claim.weight:g})"
        )

    def lapse(self) -> None:
        """Drop the claims that were not repeated in time."""
        with self._lock:
            now_s = self.monotonic_s()
            self._held = {name: held for name, held in self._held.items() if held.lapses_s > now_s}
