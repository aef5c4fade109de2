"""The decision loop: facts and times go in, decisions come out.

``Brain`` owns the snapshot. The manager actor, the replay of ``simulate`` and the tests all drive it::

    brain = Brain(policy)
    brain.advance(tick)                  # the time
    brain.take(fact)                     # what happened
    if brain.is_due(now_s):
        decision = brain.decide()        # carry out decision.asks and decision.orders

The same policy, facts and times give the same decisions. Nothing is sent or read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from nodemanager.core.facts import Fact, Tick
from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import KeepSpend, KeepSteering, SweepCloud
from nodemanager.planner.commit import commit_actions, commit_asks
from nodemanager.planner.observe.hardware import with_promises
from nodemanager.planner.observe.instance_check import check_instance
from nodemanager.planner.observe.observe import advance_to, observe_all
from nodemanager.planner.plan import Action, Ask, Plan, plan, settles_at_s
from nodemanager.planner.slot_types import with_slot_types
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot

# Asks that change something outside. An observer makes none of them.
CHANGING_ASKS = (SweepCloud, KeepSteering, KeepSpend)

PLAN_EVERY_S = 1.0
QUIET_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, in this order, and when to decide again."""

    asks: tuple[Ask, ...]
    orders: tuple[Action, ...]  # empty if the brain only observes
    snapshot: Snapshot  # with the asks and orders counted as given
    plan: Plan  # why: the reason of every node and job
    policy: Policy
    next_at_s: float  # decide again then, if no fact arrives before


class Brain:
    """Owns the snapshot and the policy, and makes the decisions.

    ``acts``: False if nothing that it decides is carried out. ``answers``: the kinds of asks that the driver
    carries out; None if it carries out all. A replay leaves most of them out because it reports every change.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        acts: bool = True,
        answers: Collection[type[Ask]] | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._policy = policy
        self._acts = acts
        self._answers = tuple(answers) if answers is not None else None
        self._snapshot = snapshot if snapshot is not None else Snapshot()
        self._tick: Tick | None = None  # the latest, until the snapshot has been advanced to it
        self._has_news = True
        self._next_at_s = 0.0

    @property
    def snapshot(self) -> Snapshot:
        """All that is known now."""
        self._catch_up()
        return self._snapshot

    @property
    def policy(self) -> Policy:
        """The policy in use: the site's, with slots and types as the instance has them."""
        return self._policy

    def advance(self, tick: Tick) -> None:
        """Take the time. A tick that leads to no decision costs nothing."""
        self._tick = tick

    def take(self, *facts: Fact) -> None:
        """Take facts in, in the order in which they arrived."""
        self._catch_up()
        before = self._snapshot
        self._snapshot = after = observe_all(before, facts, self._policy)
        self._has_news = True
        if after.slot_types is not before.slot_types or after.promised is not before.promised:
            self.use_policy(self._policy)

    def use_policy(self, policy: Policy) -> None:
        """Decide by this policy from now on, and check the instance against it again.

        The site states the slots' types as they were at the start; the instance knows the present ones.
        """
        snapshot = self._snapshot
        self._policy = with_slot_types(with_promises(policy, snapshot.promised), snapshot.slot_types)
        self._snapshot = check_instance(snapshot, self._policy)
        self._has_news = True

    def is_due(self, now_s: float) -> bool:
        """Whether a fact has arrived since the last decision, or its ``next_at_s`` has come."""
        return self._has_news or now_s >= self._next_at_s

    def decide(self) -> Decision:
        """Decide what to do now, and count it as done: no order is given twice."""
        self._catch_up()
        made = self._plan()
        known = commit_asks(self._snapshot, made, self._policy)
        if self._acts:
            known = commit_actions(known, made, self._policy)
        self._snapshot = known
        self._has_news = False
        self._next_at_s = next_plan_s(known, made, self._policy)
        return Decision(
            asks=tuple(ask for ask in made.asks if self._acts or not isinstance(ask, CHANGING_ASKS)),
            orders=made.actions if self._acts else (),
            snapshot=known,
            plan=made,
            policy=self._policy,
            next_at_s=self._next_at_s,
        )

    def skip(self) -> None:
        """Leave out a decision of a settled queue that would give no order: news is counted from now on."""
        if self.snapshot.unsettled_s is not None:
            self._snapshot = replace(self._snapshot, unsettled_s=None)

    def _plan(self) -> Plan:
        made = plan(self._snapshot, self._policy)
        if self._answers is None:
            return made
        return replace(made, asks=tuple(ask for ask in made.asks if isinstance(ask, self._answers)))

    def _catch_up(self) -> None:
        if self._tick is not None:
            self._snapshot, self._tick = advance_to(self._snapshot, self._tick), None


# --- when to decide again ------------------------------------------------------------------------------------


def next_plan_s(snapshot: Snapshot, plan: Plan, policy: Policy) -> float:
    """When to plan again after a plan that was just made and committed to the snapshot."""
    now_s = snapshot.now_s
    moments = [*_deadlines_s(snapshot, policy)]
    if _is_quiet(snapshot, plan):
        moments += [now_s + QUIET_EVERY_S, *_idle_deadlines_s(snapshot, plan)]
    else:
        moments.append(now_s + PLAN_EVERY_S)
    return min(moment for moment in moments if moment > now_s)


def _is_quiet(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether nothing is ordered, no job waits, and every node is either simply busy or merely idle."""
    if plan.stands_still is not None or plan.actions or plan.jobs or snapshot.strays or snapshot.doubted_lists:
        return False
    return all(map(_is_merely_idle, node_index_of(snapshot).to_check.values()))


def _is_merely_idle(node: Node) -> bool:
    return node.state is NodeState.IDLE and node.call is None and not node.retry_s and not node.absences


def _idle_deadlines_s(snapshot: Snapshot, plan: Plan) -> Iterator[float]:
    """When each idle node's patience ends, or its paid window closes."""
    node_index = node_index_of(snapshot)
    for id_ in (*node_index.to_check, *node_index.at_rest):
        reason = plan.nodes[id_]
        match reason.code, reason.figures:
            case "idle_not_long", {"idle_s": float(idle_s), "idle_timeout_s": float(timeout_s)}:
                yield snapshot.now_s + timeout_s - idle_s
            case "paid_time_left", {"window_left_s": float(left_s), "stop_lead_s": float(lead_s)}:
                yield snapshot.now_s + left_s - lead_s
            case "next_window_begins", {"goes_in_s": float(goes_in_s)}:
                yield snapshot.now_s + goes_in_s
            case _:
                pass


def _deadlines_s(snapshot: Snapshot, policy: Policy) -> Iterator[float]:
    """When a source must be asked again, an answer is overdue, or the queue has settled."""
    if snapshot.look_due_since_s is not None and snapshot.flux.answer_due_s is None:
        yield snapshot.flux.retry_s
    if snapshot.unsettled_s is not None:
        yield settles_at_s(snapshot, policy)
        yield snapshot.unsettled_s + policy.settle_max_s
    for source, every_s in ((snapshot.flux, policy.probe_s), (snapshot.cloud, policy.relist_s)):
        if source.answer_due_s is not None:
            yield source.answer_due_s
        elif source.seen_s is not None:
            yield source.seen_s + every_s
    for node in node_index_of(snapshot).with_call.values():
        if node.call is not None:
            yield node.call.deadline_s
