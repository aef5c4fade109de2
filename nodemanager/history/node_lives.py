"""The life of each node: when it was requested, up, joined, first used and gone, and how its boot ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import CloudCallFailed, Fact
from nodemanager.core.nodes import CloudState, LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import ClockReading
from nodemanager.planner import billing
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node

# Why a boot failed for which the image may be to blame, among the outcomes of boots.
BOOT_FAILURES = frozenset({Code.NEVER_JOINED, Code.FAILED_AT_PROVIDER, Code.JOIN_FAILED})
# How a boot that began may end without a join, and without having been given up for another reason.
NOT_CREATED = "not_created"  # no create was sent, so no boot began
FAILED_OUTCOMES = (*sorted(BOOT_FAILURES), "never_appeared", "dead_on_arrival")
JOINED_STATES = (NodeState.IDLE, NodeState.BUSY, NodeState.LOST)


@dataclass(frozen=True, slots=True)
class NodeLife:
    """One node's life. Times are wall-clock; None means not yet, or unknown because an earlier process saw it.

    ``outcome`` of the boot: "" while it is open; "joined"; or why the node never joined: ``create_`` and the kind
    of the failure, the code of the reason it was given up for, "never_appeared", "failed_at_provider" or
    "dead_on_arrival"; or ``NOT_CREATED``.
    """

    launch: LaunchId
    slot: str
    node_type: str
    requested_at: float
    found: bool = False  # an earlier process ordered the node, and this one found it
    up_at: float | None = None
    joined_at: float | None = None
    first_job_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    why: str = ""  # the code of the reason for its end
    cost: float = 0.0
    provider_id: str = ""  # "" if the provider never listed the node, or a version wrote it that did not keep it
    size: str = ""  # the provider's name of it; "" if unknown
    cloud: str = ""  # "" if a version wrote it that did not keep it


class LifeTracker:
    """Keeps the lives of the present nodes, and finds those that change."""

    def __init__(self) -> None:
        self._lives: dict[LaunchId, NodeLife] = {}
        self._failures: dict[LaunchId, str] = {}
        self._nodes: Mapping[LaunchId, Node] = {}

    def update(self, published: Publication, facts: Iterable[Fact]) -> tuple[tuple[NodeLife | None, NodeLife], ...]:
        """Return each changed life as (before, now). Before is None for a new node."""
        for fact in facts:
            if isinstance(fact, CloudCallFailed) and fact.operation == "create" and fact.launch is not None:
                self._failures[fact.launch] = str(fact.kind)
        before, nodes = self._nodes, published.snapshot.nodes
        if before is nodes:
            return ()
        self._nodes = nodes
        clock = ClockReading(published.snapshot.now_s, published.snapshot.wall_at)
        changed = []
        for id_, node in nodes.items():
            if before.get(id_) is node:
                continue
            was = self._lives.get(id_)
            now = _advance_life(was or _new_life(node, published.policy), node, clock, published)
            if now != was:
                self._lives[id_] = now
                changed.append((was, now))
        for id_, node in before.items():
            if id_ not in nodes and (ended := self._lives.pop(id_, None)) is not None:
                changed.append((ended, self._end(ended, node, clock)))
        return tuple(changed)

    def _end(self, life: NodeLife, node: Node, clock: ClockReading) -> NodeLife:
        why = node.stop.retiring.code if node.stop.retiring is not None else ""
        failure = self._failures.pop(life.launch, "")
        outcome = life.outcome or (f"create_{failure}" if failure else why or _boot_outcome(node))
        return replace(life, ended_at=clock.wall_at, outcome=outcome, why=why or Code.GONE)


def _boot_outcome(node: Node) -> str:
    if node.cloud is None and node.create.sent_s is None and not node.create.adopted:
        return NOT_CREATED  # its lease could not be recorded, or was given back: no boot began
    if node.cloud is None:
        return "never_appeared"
    return Code.FAILED_AT_PROVIDER if node.cloud.state is CloudState.FAILED else "dead_on_arrival"


def _new_life(node: Node, policy: Policy) -> NodeLife:
    launch = node.launch
    return NodeLife(
        launch.id,
        launch.slot,
        launch.type_name,
        launch.requested_at,
        found=node.create.adopted,
        size=launch.size,
        cloud=policy.cloud_of(launch),
    )


def _advance_life(life: NodeLife, node: Node, clock: ClockReading, published: Publication) -> NodeLife:
    up = node.cloud is not None and node.cloud.state is CloudState.RUNNING
    joined = node.state in JOINED_STATES
    first_job = node.state is NodeState.BUSY
    tariff = billing.tariff_of(node.launch, published.policy)
    lived_s = billing.age_s(node, clock.now_s)
    cost = float(billing.cost(tariff, lived_s)) if tariff is not None and node.cloud is not None else 0.0
    return replace(
        life,
        up_at=life.up_at or (clock.wall_at if up or joined else None),
        joined_at=life.joined_at or (clock.to_wall(node.since_s) if joined else None),
        first_job_at=life.first_job_at or (clock.to_wall(node.since_s) if first_job else None),
        outcome=life.outcome or ("joined" if joined else ""),
        cost=max(life.cost, cost),
        provider_id=node.cloud.provider_id if node.cloud is not None else life.provider_id,
    )
