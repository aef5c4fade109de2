"""Decide which due nodes take their turn now: which are drained, which are replaced first, and why the others wait.

A node that was drained for its turn keeps it until its lease ends. No state is kept: the replacements under way
are read from the drains, so a restart changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from types import MappingProxyType

from nodemanager.core.drains import drained_by_others
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import LEAVING, USABLE, LaunchId
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import NodeType, SlotName, TypeName
from nodemanager.core.upkeep.rules import Disruption
from nodemanager.core.upkeep.windows import is_open, next_change_at, opens_at
from nodemanager.planner.consolidation import SpareRoom, takes_no_more
from nodemanager.planner.node_health import due_nodes, is_on_its_way_out, next_due_at, why_owed
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot

NAMES_MAX = 10


class Stage(Enum):
    """How far the replacement of a due node is."""

    WAITS = auto()  # for its turn, a window, or jobs that are about to start there
    REPLACED_FIRST = auto()  # it works until a new node is up
    LEAVES = auto()  # it gets no more jobs, and goes when the last one has ended


@dataclass(frozen=True, slots=True)
class DueNode:
    """A node to be replaced: why, how far that is, and what it waits for. ``when_at``: None if it is not known."""

    why: Reason
    stage: Stage
    reason: Reason
    when_at: float | None = None


@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """What upkeep does now. Empty while no node is due.

    ``due``: all due nodes, in their order. ``leaving``: those that get no more work, with the reason. ``to_buy``:
    the nodes to buy first, each with the node it replaces. ``awaited``: how many new nodes of a type are wanted,
    those that boot already included.
    """

    due: Mapping[LaunchId, DueNode] = field(default_factory=lambda: MappingProxyType({}))
    leaving: Mapping[LaunchId, Reason] = field(default_factory=lambda: MappingProxyType({}))
    to_buy: tuple[tuple[NodeType, Reason], ...] = ()
    awaited: Mapping[TypeName, int] = field(default_factory=lambda: MappingProxyType({}))
    again_at_s: float = inf


def plan_upkeep(
    snapshot: Snapshot,
    policy: Policy,
    needed: Callable[[], Mapping[SlotName, tuple[JobId, ...]]],
    can_buy: Callable[[NodeType], bool],
) -> UpkeepPlan:
    """Decide the next step of each due node.

    ``needed``: where waiting jobs are placed. ``can_buy``: whether one more node of a type may be bought now.
    Neither is called while no node is due.
    """
    again_s = snapshot.now_s + (next_due_at(snapshot, policy) - snapshot.wall_at)
    due = {
        id_: why
        for id_, why in due_nodes(snapshot, policy).items()
        if _may_go(snapshot.nodes[id_], snapshot, policy)
    }
    if not due:
        return UpkeepPlan(again_at_s=again_s)
    return _Turns(snapshot, policy, due, needed(), can_buy).take(again_s)


def plan_giving_back(snapshot: Snapshot, policy: Policy) -> UpkeepPlan:
    """Let the nodes of a stack leave that the provider wants back. They are not replaced, and wait for no turn."""
    owed = {
        node.id: why
        for node in snapshot.nodes.values()
        if (why := why_owed(node)) is not None and _may_go(node, snapshot, policy)
    }
    return UpkeepPlan(leaving=owed)


def _may_go(node: Node, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it is up or leaving, and nobody keeps it. Others are replaced once they are back, or released."""
    if snapshot.is_out_of_reach(node, policy):
        return False
    kept = snapshot.steered(node) or (node.rank is not None and drained_by_others(node.rank))
    return node.state in (*USABLE, *LEAVING) and not kept and node.launch.type_name not in policy.observed


class _Turns:
    """Gives the due nodes their turns, the oldest first; those under way keep theirs."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        due: Mapping[LaunchId, Reason],
        needed: Mapping[SlotName, tuple[JobId, ...]],
        can_buy: Callable[[NodeType], bool],
    ) -> None:
        self._snapshot, self._policy, self._needed, self._can_buy = snapshot, policy, needed, can_buy
        nodes = snapshot.nodes
        self._under_way = [id_ for id_ in due if is_on_its_way_out(nodes[id_], snapshot, policy)]
        self._due = due
        counts = node_index_of(snapshot).count_by_state
        self._fleet = sum(counts.get(state, 0) for state in (*USABLE, *LEAVING))
        # Nodes that consolidation empties are out of service too, so they take turns from others.
        emptying = (it.id for it in nodes.values() if takes_no_more(it)) if policy.upkeep.consolidate else ()
        self._emptying = frozenset(emptying).difference(self._under_way)
        out_of_service = (*self._under_way, *self._emptying)
        self._of_type = Counter(nodes[id_].launch.type_name for id_ in out_of_service)
        self._room = SpareRoom(snapshot, policy, needed, frozenset(self._under_way))
        self._to_buy: list[tuple[NodeType, Reason]] = []
        self._awaited: Counter[TypeName] = Counter()
        self._taken = len(out_of_service)

    def take(self, again_s: float) -> UpkeepPlan:
        found: dict[LaunchId, DueNode] = {}
        for id_ in dict.fromkeys((*self._under_way, *self._due)):
            found[id_] = self._turn_of(self._snapshot.nodes[id_], self._due[id_])
        leaving = {id_: it.reason for id_, it in found.items() if it.stage is Stage.LEAVES}
        changes_s = (self._to_monotonic(it.when_at) for it in found.values() if it.when_at is not None)
        windows = [it for rule in self._rules() for it in rule.windows]
        closes_s = self._to_monotonic(next_change_at(windows, self._snapshot.wall_at)) if windows else inf
        return UpkeepPlan(
            found, leaving, tuple(self._to_buy), dict(self._awaited), min((again_s, closes_s, *changes_s))
        )

    def _rules(self) -> tuple[Disruption, ...]:
        upkeep = self._policy.upkeep
        return upkeep.disruption, *upkeep.of_type.values()

    def _to_monotonic(self, at: float) -> float:
        return self._snapshot.now_s + (at - self._snapshot.wall_at)

    def _turn_of(self, node: Node, why: Reason) -> DueNode:
        if node.id in self._under_way:
            return DueNode(why, Stage.LEAVES, why)
        upkeep, name = self._policy.upkeep, node.launch.type_name
        own = upkeep.of_type.get(name)
        windows = (own if own is not None else upkeep.disruption).windows
        wall_at = self._snapshot.wall_at
        if not is_open(windows, wall_at):
            open_at = opens_at(windows, wall_at)
            return DueNode(
                why, Stage.WAITS, because(Code.WAITS_FOR_WINDOW, why=str(why.code), opens_at=open_at), open_at
            )
        counts_already = node.id in self._emptying
        if not counts_already and (turn := self._why_no_turn(own, name, why)) is not None:
            return DueNode(why, Stage.WAITS, turn)
        if (jobs := self._needed.get(node.launch.slot)) is not None:
            names = tuple(map(str, jobs[:NAMES_MAX]))
            return DueNode(why, Stage.WAITS, because(Code.WAITS_FOR_JOBS_TO_START, why=str(why.code), jobs=names))
        if not counts_already:
            self._taken += 1
            self._of_type[name] += 1
        return self._replace(node, why)

    def _why_no_turn(self, own: Disruption | None, name: TypeName, why: Reason) -> Reason | None:
        """Why it has to wait for other nodes; None if it has not."""
        limits = [(self._taken, self._policy.upkeep.disruption.count_of(self._fleet))]
        if own is not None:
            of_type = sum(
                count
                for (type_name, *_), count in node_index_of(self._snapshot).count_by_make.items()
                if type_name == name
            )
            limits.append((self._of_type[name], own.count_of(of_type)))
        for under_way, most in limits:
            if under_way >= most:
                return because(Code.WAITS_FOR_TURN, why=str(why.code), under_way=under_way, disruption_max=most)
        return None

    def _replace(self, node: Node, why: Reason) -> DueNode:
        """Drain the node now if its work fits elsewhere; else first have a new node, if one may be bought."""
        node_type = self._policy.types.get(node.launch.type_name)
        if node_type is None or self._room.take_for(node):
            return DueNode(why, Stage.LEAVES, why)
        first = because(Code.REPLACED_FIRST, why=str(why.code), node_type=node_type.name)
        if not self._room.boots_for(node):
            if not self._can_buy(node_type):
                return DueNode(why, Stage.LEAVES, why)  # the limits allow no node beside it
            self._to_buy.append((node_type, because(Code.REPLACES, node=node.launch.slot, why=str(why.code))))
        self._awaited[node_type.name] += 1
        return DueNode(why, Stage.REPLACED_FIRST, first)
