"""Find nodes that should get no more work although they are up, and raise alarms for an administrator.

An unfit node is drained at once. Running jobs continue; the node leaves when the last one ends. It is not kept for
waiting jobs, which get other nodes instead. An alarm alone changes nothing: the trouble may pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import NamedTuple

from nodemanager.core.drains import drained_by_others, is_drain_by_flux
from nodemanager.core.nodes import CloudState, JoinPhase, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.planner.cost import billing
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

FLAPS = 3  # a node that was away so often within FLAPS_WITHIN_S is unfit
FLAPS_WITHIN_S = 900.0
# How often a housekeeping is killed (first by SIGTERM, then by SIGKILL). If it survives, it hangs in the kernel, or
# more signals will not end it: the node is left to an administrator.
KILLS_MAX = 5


def why_unfit(node: Node, policy: Policy, now_s: float) -> Reason | None:
    """Why a node gets no more work; None if it may get some."""
    if node.is_sound:
        return None
    if node.health.reclaimed is not None:
        return because(Code.RECLAIMED, detail=node.health.reclaimed)
    if node.cloud is not None and node.cloud.impaired:
        return because(Code.IMPAIRED, detail=node.cloud.impaired)
    if (lasts_s := overdue_housekeeping_s(node, policy, now_s)) is not None:
        if survives_kills(node):
            return because(Code.HOUSEKEEPING_SURVIVES, lasts_s=lasts_s, kills=node.health.housekeeping_kills)
        return because(
            Code.HOUSEKEEPING_STUCK, lasts_s=lasts_s, housekeeping_max_s=policy.timing.housekeeping_max_s
        )
    if len(node.health.departures_s) < FLAPS:
        return None
    times = [left_s for left_s in node.health.departures_s if now_s - left_s < FLAPS_WITHIN_S]
    return because(Code.FLAPS, times=len(times), within_s=FLAPS_WITHIN_S) if len(times) >= FLAPS else None


def gets_no_work(node: Node, policy: Policy, now_s: float) -> bool:
    """Whether it is unfit, or has less hardware than declared."""
    return not node.is_sound and (node.health.misfit is not None or why_unfit(node, policy, now_s) is not None)


def overdue_housekeeping_s(node: Node, policy: Policy, now_s: float) -> float | None:
    """How long a housekeeping has run that runs too long, or that we killed for that; None if there is none."""
    if node.health.housekeeping_s is None:
        return None
    lasts_s = now_s - node.health.housekeeping_s
    return lasts_s if lasts_s >= policy.timing.housekeeping_max_s or node.health.housekeeping_kills else None


def survives_kills(node: Node) -> bool:
    """Whether a housekeeping still runs there after the last kill we try."""
    runs = node.rank is not None and node.rank.housekeeping_since_at is not None
    return runs and node.health.housekeeping_kills >= KILLS_MAX


def hung_s(node: Node, now_s: float) -> float | None:
    """How long the node's broker has been connected without answering Flux's overlay; None if it answers."""
    rank = node.rank
    if node.is_sound or rank is None or not (rank.online and rank.torpid) or node.health.torpid_s is None:
        return None
    return now_s - node.health.torpid_s


def health_changes_s(node: Node, policy: Policy, now_s: float) -> float:
    """When the passing of time alone may change the trouble of the node; infinity if it never does.

    A node that Flux shows online, but not to its scheduler, gets ``rejoin_timeout_s`` to be noticed.
    """
    rank = node.rank
    unseen = rank is not None and rank.online and not rank.schedulable and rank.drain_reason is None
    if node.is_sound and not unseen:
        return inf
    moments: list[float] = []
    if unseen:
        moments += [
            node.since_s + policy.timing.rejoin_timeout_s,
            node.seen.rank_seen_s + policy.timing.rejoin_timeout_s,
        ]
    if not node.is_sound:
        if node.health.housekeeping_s is not None:
            moments.append(node.health.housekeeping_s + policy.timing.housekeeping_max_s)
        if node.health.torpid_s is not None:
            moments.append(node.health.torpid_s + policy.timing.rejoin_timeout_s)
        if len(node.health.departures_s) >= FLAPS:
            moments.append(sorted(node.health.departures_s)[-FLAPS] + FLAPS_WITHIN_S)
    return min((moment for moment in moments if moment > now_s), default=inf)


class GivenUp(NamedTuple):
    """Why a node is given up. ``boot_failed``: it never came up, and its image may be the cause."""

    reason: Reason
    boot_failed: bool = False


def why_give_up(node: Node, policy: Policy, now_s: float) -> GivenUp | None:
    """Why a node that runs no job is given up; None while it may still become useful."""
    if node.is_sound and _has_time(node, policy, now_s):
        return None
    cloud = node.cloud
    if node.state is NodeState.BOOTING and cloud is not None and cloud.state is CloudState.FAILED:
        return GivenUp(because(Code.FAILED_AT_PROVIDER, detail=cloud.died_because), boot_failed=True)
    if policy.destroy_on_replay and node.health.replayed:
        return GivenUp(because(Code.TICKET_REPLAYED))
    if node.health.misfit is not None:
        return GivenUp(node.health.misfit)
    if node.state is NodeState.BOOTING and node.health.reclaimed is not None:
        return GivenUp(because(Code.RECLAIMED, detail=node.health.reclaimed))
    hangs_s = hung_s(node, now_s)
    if node.state is NodeState.IDLE and hangs_s is not None and hangs_s >= policy.timing.rejoin_timeout_s:
        return GivenUp(because(Code.HANGS, hangs_s=hangs_s, rejoin_timeout_s=policy.timing.rejoin_timeout_s))
    if node.state is NodeState.BOOTING and node.join_report.phase is JoinPhase.FAILED:
        return GivenUp(because(Code.JOIN_FAILED, detail=node.join_report.detail), boot_failed=True)
    waited_s = now_s - node.create.requested_s
    # After a restart of ours it may look long overdue although its broker was away only briefly.
    known_s = now_s - node.since_s
    if (
        node.state is NodeState.BOOTING
        and waited_s >= policy.timing.boot_timeout_s
        and known_s >= policy.timing.rejoin_timeout_s
    ):
        return GivenUp(_never_joined(node, waited_s, policy), boot_failed=True)
    away_s = now_s - node.since_s
    if node.state is NodeState.LOST and away_s >= policy.timing.rejoin_timeout_s:
        return GivenUp(because(Code.BROKER_LOST, away_s=away_s, rejoin_timeout_s=policy.timing.rejoin_timeout_s))
    return None


def _never_joined(node: Node, waited_s: float, policy: Policy) -> Reason:
    reason = because(Code.NEVER_JOINED, waited_s=waited_s, boot_timeout_s=policy.timing.boot_timeout_s)
    if node.join_report.phase is None:
        return reason
    return reason.with_figures(phase=str(node.join_report.phase), detail=node.join_report.detail)


def _has_time(node: Node, policy: Policy, now_s: float) -> bool:
    """Whether a sound node is not overdue: it is not lost, or still booting within its time and not failed."""
    if node.state is not NodeState.BOOTING:
        return node.state is not NodeState.LOST
    failed = node.cloud is not None and node.cloud.state is CloudState.FAILED
    return (
        not failed
        and node.join_report.phase is not JoinPhase.FAILED
        and now_s - node.create.requested_s < policy.timing.boot_timeout_s
    )


@dataclass(frozen=True, slots=True)
class DrainedNodes:
    """Idle nodes that cost money and take no jobs, because somebody other than the manager drained them."""

    nodes: tuple[Node, ...]
    price_per_hour: Decimal

    @property
    def count(self) -> int:
        return len(self.nodes)


def drained_nodes(snapshot: Snapshot, policy: Policy) -> Mapping[str, DrainedNodes]:
    """The idle nodes that Flux itself ("flux") and that persons ("person") have drained.

    A drained node whose job still runs is not among them: so far its cost is that of the job.
    """
    found: dict[str, list[Node]] = {"flux": [], "person": []}
    for node in node_index_of(snapshot).to_check.values():
        if node.state is NodeState.IDLE and node.rank is not None and drained_by_others(node.rank):
            found["flux" if is_drain_by_flux(node.rank.drain_reason) else "person"].append(node)
    return {by: DrainedNodes(tuple(nodes), price_of(nodes, policy)) for by, nodes in found.items()}


def price_of(nodes: Iterable[Node], policy: Policy) -> Decimal:
    """What nodes cost in an hour."""
    return sum((billing.price_per_hour(node.launch, policy) for node in nodes), Decimal(0))


def alarms(snapshot: Snapshot, policy: Policy) -> Iterator[Reason]:
    """What an administrator should look at, node by node."""
    for node in node_index_of(snapshot).to_check.values():
        if node.is_sound and not node.listing.absences:
            continue
        name = node.launch.slot
        hangs_s = hung_s(node, snapshot.now_s)
        if node.state is NodeState.BUSY and hangs_s is not None:
            yield because(Code.HANGS_AT_WORK, node=name, hangs_s=hangs_s)
        if node.listing.absences >= policy.timing.absences and node.rank is not None and node.rank.online:
            yield because(Code.GONE_AT_PROVIDER_YET_UP, node=name, absences=node.listing.absences)
        if survives_kills(node):
            yield because(Code.HOUSEKEEPING_SURVIVES, node=name, kills=node.health.housekeeping_kills)
        why = why_unfit(node, policy, snapshot.now_s)
        if why is not None and node.state in (NodeState.IDLE, NodeState.BUSY, NodeState.DRAINING):
            yield because(Code.UNFIT, node=name, why=why.code)
