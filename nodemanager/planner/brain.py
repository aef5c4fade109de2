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

from dataclasses import dataclass
from math import inf

from nodemanager.core.facts import Fact, Tick
from nodemanager.core.orders import KeepSpend, KeepSteering, SweepCloud
from nodemanager.planner.asks import Ask, next_ask_s
from nodemanager.planner.commit import commit_actions, commit_asks
from nodemanager.planner.health.instance_check import check_instance
from nodemanager.planner.health.settling import settles_at_s
from nodemanager.planner.observe.hardware import with_promises
from nodemanager.planner.observe.observe import advance_to, observe_all
from nodemanager.planner.plan import Action, Plan, plan
from nodemanager.planner.slot_types import with_slot_types
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node_index import node_index_of, with_node_index
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot
from nodemanager.planner.upkeep.schedules import schedule_changes_at, scheduled_policy
from nodemanager.planner.upkeep.surges import with_demand

# Asks that change something outside. An observer makes none of them.
CHANGING_ASKS = (SweepCloud, KeepSteering, KeepSpend)

AGAIN_MIN_S = 0.001  # a rounding error may leave something to wait for although its time has come


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

    ``acts``: False if nothing that it decides is carried out. ``hears_all``: True in a replay, which reports every
    change and answers every call in time. Then no list is asked for, and no deadline of a call or list counts.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        acts: bool = True,
        hears_all: bool = False,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._site_policy = self._policy = policy
        self._scheduled = -inf, -inf  # from when and until when the schedules' settings in the policy apply
        self._acts = acts
        self._hears_all = hears_all
        self._snapshot = with_node_index(snapshot) if snapshot is not None else Snapshot()
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
        if after.slots.types is not before.slots.types or after.slots.promised is not before.slots.promised:
            self.use_policy(self._site_policy)

    def use_policy(self, policy: Policy) -> None:
        """Decide by this policy from now on, and check the instance against it again.

        The site states the slots' types as they were at the start; the instance knows the present ones.
        """
        snapshot = self._snapshot
        self._site_policy = policy
        self._scheduled = snapshot.wall_at, schedule_changes_at(policy, snapshot.wall_at)
        policy = scheduled_policy(policy, snapshot.wall_at)
        self._policy = with_slot_types(with_promises(policy, snapshot.slots.promised), snapshot.slots.types)
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
        if made.basis is not None and self._policy.upkeep.consolidate:
            known = with_demand(known, made.basis.emptying.demand)
        if self._acts:
            known = commit_actions(known, made, self._policy)
        self._snapshot = known
        self._has_news = False
        self._next_at_s = self._again_at_s(made)
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
        if self.snapshot.news.unsettled_s is not None:
            self._snapshot = replace(self._snapshot, news=replace(self._snapshot.news, unsettled_s=None))

    def _plan(self) -> Plan:
        made = plan(self._snapshot, self._policy)
        if not self._hears_all:
            return made
        return replace(made, asks=tuple(ask for ask in made.asks if isinstance(ask, KeepSpend)))

    def _catch_up(self) -> None:
        if self._tick is not None:
            self._snapshot, self._tick = advance_to(self._snapshot, self._tick), None
            from_at, until_at = self._scheduled
            if self._site_policy.has_schedules and not from_at <= self._snapshot.wall_at < until_at:
                self.use_policy(self._site_policy)

    def _again_at_s(self, made: Plan) -> float:
        """When to decide again if nothing is heard before: the first of all times that something waits for."""
        known, now_s = self._snapshot, self._snapshot.now_s
        schedule_s = now_s + (self._scheduled[1] - known.wall_at) if self._site_policy.has_schedules else inf
        lapses_s = now_s + (known.operator.steering.lapses_at - known.wall_at)
        moments = [made.again_at_s, _settles_s(known, made, self._policy), schedule_s, lapses_s]
        if not self._hears_all:
            moments += [next_ask_s(known, self._policy), known.slots.wish_due_s or inf]
            moments += [node.call.deadline_s for node in node_index_of(known).with_call.values() if node.call]
            moments += _stale_times_s(known, self._policy)
        first_s = min(moments)
        return first_s if first_s > now_s else now_s + AGAIN_MIN_S


def _settles_s(known: Snapshot, made: Plan, policy: Policy) -> float:
    """When the queue will have settled, if the plan bought nothing because it had not."""
    if made.settled or made.stands_still is not None:
        return inf
    latest_s = inf if known.news.unsettled_s is None else known.news.unsettled_s + policy.timing.settle_max_s
    moments = (settles_at_s(known, policy), latest_s)
    return min((at_s for at_s in moments if at_s > known.now_s), default=inf)


def _stale_times_s(known: Snapshot, policy: Policy) -> list[float]:
    """When each source will be too old to decide on."""
    clouds = (account.source for account in known.accounts.values())
    seen = (source.seen_s for source in (known.sources.queue, known.sources.flux, *clouds))
    stale = (at_s + policy.timing.stale_after_s for at_s in seen if at_s is not None)
    return [at_s for at_s in stale if at_s >= known.now_s]
