"""The nodes that running ensembles ask the manager to keep.

Whoever runs an ensemble repeats its claim every minute. A claim that is not repeated lapses, so that an ensemble
whose process died keeps no nodes for ever, and a manager that restarts hears of all claims again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import Reason, because
from nodemanager.ensemble.fair_share import Claim, NodeClaim, share_nodes
from nodemanager.ensemble.operator import NAME_MAX
from nodemanager.service.ensemble_costs import DayCosts

LAPSE_S = 180.0
REFUSAL_S = 3600.0  # how long a refusal is shown, unless the ensemble gets nodes or ends before


@dataclass(frozen=True, slots=True)
class _Held:
    claim: Claim
    lapses_s: float


@dataclass(slots=True)
class Floors:
    """All claims. Any thread may call its methods.

    ``nodes_max``: the site's limit. ``terms``: weights and limits of the ensembles that the site names; the others
    have a weight of 1. ``costs``: what the kept nodes have cost today.
    """

    monotonic_s: Callable[[], float]
    nodes_max: int
    terms: Mapping[str, Claim] = field(default_factory=dict)
    costs: DayCosts = field(default_factory=DayCosts)
    _held: dict[str, _Held] = field(default_factory=dict)
    _refused: dict[str, tuple[int, float]] = field(default_factory=dict)  # the wish, and until when it is shown
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total(self) -> int:
        """The nodes to keep for all ensembles together."""
        return sum(self.shares().values())

    def shares(self) -> dict[str, int]:
        """The nodes to keep for each ensemble."""
        with self._lock:
            return self._shares(self._claims())

    def claims(self) -> dict[str, NodeClaim]:
        """What each ensemble asks for and gets, and why; those that the site names too."""
        with self._lock:
            held = self._claims()
            shares = self._shares(held)
            return {
                name: self._node_claim(name, held, shares.get(name, 0))
                for name in sorted({*self.terms, *held, *self._refused})
            }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``node-manager.floor``: ``why`` not, "" if it is done. Without ``nodes`` it only asks."""
        match request:
            case {"ensemble": str(name), "nodes": int(nodes)} if nodes >= 0 and len(name) <= NAME_MAX:
                return {"why": self.ask(name, nodes)}
            case {"ensemble": str(name)} if "nodes" not in request:
                terms = self._terms_of(name)
                nodes_max = self.nodes_max if terms.nodes_max is None else min(terms.nodes_max, self.nodes_max)
                return {"why": "", "kept": self.shares().get(name, 0), "min": terms.nodes_min, "max": nodes_max}
        return {"why": 'a request has the form {"ensemble": NAME, "nodes": N}'}

    def ask(self, name: str, nodes: int) -> str:
        """Keep ``nodes`` for an ensemble from now on. Returns why not, with nothing changed; "" if it is so."""
        with self._lock:
            before = self._held.get(name)
            grows = before is None or nodes > before.claim.nodes
            if grows and (why := self._why_not(name, nodes)) is not None:
                self._refused[name] = nodes, self.monotonic_s() + REFUSAL_S
                return to_sentence(why.code, why.figures)
            if grows or not nodes:
                self._refused.pop(name, None)
            if nodes:
                claim = replace(self._terms_of(name), nodes=nodes)
                self._held[name] = _Held(claim, self.monotonic_s() + LAPSE_S)
            else:
                self._held.pop(name, None)
        return ""

    def lapse(self) -> None:
        """Drop the claims that were not repeated in time."""
        with self._lock:
            now_s = self.monotonic_s()
            self._held = {name: held for name, held in self._held.items() if held.lapses_s > now_s}
            self._refused = {name: it for name, it in self._refused.items() if it[1] > now_s}

    def count_costs(self, now_at: float, price_per_hour: Decimal, nodes: int) -> None:
        """Count what the kept nodes cost. The fleet has ``nodes`` for ``price_per_hour``; some may be missing."""
        shares = self.shares()
        part = min(1.0, nodes / max(1, sum(shares.values())))
        kept = {name: share * part for name, share in shares.items()}
        self.costs.count(now_at, kept, float(price_per_hour) / max(1, nodes))

    # --- under the lock ---

    def _terms_of(self, name: str) -> Claim:
        return self.terms.get(name, Claim(0))

    def _claims(self) -> dict[str, Claim]:
        return {name: held.claim for name, held in self._held.items()}

    def _shares(self, claims: Mapping[str, Claim]) -> dict[str, int]:
        paid = {name: replace(it, nodes=0) if self._is_spent(name) else it for name, it in claims.items()}
        return share_nodes(paid, self.nodes_max)

    def _is_spent(self, name: str) -> bool:
        per_day = self._terms_of(name).per_day
        return per_day is not None and self.costs.today(name) >= per_day

    def _node_claim(self, name: str, held: Mapping[str, Claim], kept: int) -> NodeClaim:
        terms = self._terms_of(name)
        asked = held[name].nodes if name in held else 0
        wanted = max(asked, self._refused.get(name, (0, 0.0))[0])
        why = self._why_not(name, wanted) if wanted else None
        if why is None:
            kept_reason = because(Code.ENSEMBLE_KEEPS, node_count=kept)
            why = kept_reason if asked else because(Code.ENSEMBLE_ASKS_FOR_NOTHING)
        return NodeClaim(asked, wanted, kept, terms, self.costs.today(name), why)

    def _why_not(self, name: str, nodes: int) -> Reason | None:
        """Return why the ensemble cannot have so many nodes; None if it can."""
        terms = self._terms_of(name)
        if nodes and self._is_spent(name):
            budget = terms.per_day or Decimal(0)
            return because(Code.ENSEMBLE_BUDGET_SPENT, spent=self.costs.today(name), budget=budget)
        if terms.nodes_max is not None and nodes > terms.nodes_max:
            return self._above(f"[Ensemble {name}]", terms.nodes_max, nodes)
        others = {other: claim for other, claim in self._claims().items() if other != name}
        shares = self._shares({**others, name: replace(terms, nodes=nodes)})
        if shares[name] >= nodes:
            return None
        rivals = {other: claim for other, claim in sorted(others.items()) if shares[other]}
        if not rivals:
            return self._above("[Limits]", self.nodes_max, nodes)
        return because(
            Code.ENSEMBLE_SHARE,
            wanted=nodes,
            have=shares[name],
            nodes_max=self.nodes_max,
            others=", ".join(
                f"{other} keeps {shares[other]} of {it.nodes} (weight {it.weight:g})"
                for other, it in rivals.items()
            ),
        )

    def _above(self, scope: str, nodes_max: int, nodes: int) -> Reason:
        return because(Code.ENSEMBLE_AT_ITS_MAX, scope=scope, nodes_max=nodes_max, wanted=nodes)
