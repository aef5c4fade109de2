"""What must hold in every replay, whatever the site: checked after each plan, and as each node ends.

- An idle node leaves within its idle timeout, one billing window and the longest stop, unless a stated reason keeps
  it: it is a spare, a waiting job is placed on it, and the like. It may be kept for the next window once.
- Of one type, at most ``ROUNDS_MAX`` times as many nodes as it has slots boot and end in a row without a job. Each
  try for jobs of several nodes that the provider cannot fill allows one more such round. So does each node that the
  manager gives up while it boots, for its own slot: without it, the other nodes of a job wait in vain.
- While nothing changes, there are at most ``PLANS_PER_HOUR`` plans an hour.

A broken rule is a fault of the planner, never of the site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from nodemanager.core.jobs import ANYWHERE, JobId, QueuePolicy, Shape, Unserved
from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName, Market, NodePlacement, NodeType, OnlyFor, TypeName
from nodemanager.planner import breakers, timings
from nodemanager.planner.plan import Plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.seating import on_different_nodes, pieces_in_theory, pieces_of
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.whatif.cloud.cloud import CloudConditions, ReplayMachine
from nodemanager.whatif.replay.sched_simple import QueuedJob

ROUNDS_MAX = 4
PLANS_PER_HOUR = 240  # a create that the provider refuses is tried every two minutes, with a few plans each time
PLANS_PER_EVENT = 10
SLACK_S = 60.0  # for looks, answers and rounding
# An idle node with one of these reasons has no other reason to stay than that it has not been idle for long.
ONLY_WAITS = frozenset({Code.IDLE_NOT_LONG, Code.IDLE_UNCONFIRMED, Code.PAID_TIME_LEFT, Code.NEXT_WINDOW_BEGINS})


@dataclass(slots=True)
class ReplayInvariants:
    """The rules of one run. ``broken``: each broken rule once for each type, with what was seen first."""

    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    _unused: dict[TypeName, int] = field(default_factory=dict)  # nodes that ended in a row without a job
    _never_up: Counter[TypeName] = field(default_factory=Counter)  # nodes that ended in a row before they were up
    _tries: int = 0  # how often a gang was put off
    _gangs: object = None
    _ended: set[str] = field(default_factory=set)
    _waits_for_next: set[LaunchId] = field(default_factory=set)  # nodes that were kept for the next window
    _free_s: dict[LaunchId, float | None] = field(default_factory=dict)  # since when no stated reason keeps a node

    def check_plan(self, snapshot: Snapshot, plan: Plan, policy: Policy) -> None:
        """Check the nodes after a plan."""
        if snapshot.learned.gangs is not self._gangs:
            self._gangs = snapshot.learned.gangs
            self._tries += bool(snapshot.learned.gangs)
        for node in snapshot.nodes.values():
            if node.state is NodeState.IDLE and node.seen.idle_since_s is not None:
                self._check_idle(node, snapshot, plan, policy)

    def check_ended(self, machines: Iterable[ReplayMachine], policy: Policy) -> None:
        """Check the nodes that have ended."""
        for machine in machines:
            if machine.provider_id in self._ended:
                continue
            self._ended.add(machine.provider_id)
            node_type = policy.types[machine.node_type.name]
            if machine.core_s > 0.0 or machine.busy_from_s is not None:
                self._unused[node_type.name] = self._never_up[node_type.name] = 0
            elif machine.joined_s is not None and machine.died_because == "":
                self._unused[node_type.name] = self._unused.get(node_type.name, 0) + 1
                # The site itself renews such nodes without a job: spares that are too old, and those of a schedule.
                if node_type.max_age_s is None and not policy.has_schedules:
                    self._check_unused(node_type)

            else:
                self._never_up[node_type.name] += 1

    def check_plans(self, plans: int, events: int, lasted_s: float) -> None:
        """Check at the end how often was planned."""
        most = 100 + PLANS_PER_EVENT * events + PLANS_PER_HOUR * lasted_s / 3600.0
        if plans > most:
            self._note("plans", "", f"{plans} plans in {lasted_s:.0f} s with {events} events")

    def _check_idle(self, node: Node, snapshot: Snapshot, plan: Plan, policy: Policy) -> None:
        name = node.launch.type_name
        node_type, reason = policy.types.get(name), plan.nodes.get(node.id)
        if reason is None or reason.code not in ONLY_WAITS:
            self._free_s[node.id] = None
        if reason is not None and reason.code is Code.NEXT_WINDOW_BEGINS:
            self._waits_for_next.add(node.id)
        if node_type is None or reason is None or reason.code not in ONLY_WAITS or node.seen.idle_since_s is None:
            return
        free_s = self._free_s.get(node.id, node.seen.idle_since_s)
        free_s = self._free_s[node.id] = snapshot.now_s if free_s is None else free_s
        idle_s = snapshot.now_s - max(node.seen.idle_since_s, free_s)
        most_s = _idle_s_max(node_type, snapshot, policy)
        if node.id in self._waits_for_next:  # because a stop was found to take longer than was left of its window
            most_s += node_type.billing.window_s
        if idle_s > most_s:
            self._note("idle", name, f"{node.id} is idle for {idle_s:.0f} s, {most_s:.0f} s allowed: {reason}")

    def _check_unused(self, node_type: NodeType) -> None:
        most = (ROUNDS_MAX + self._tries) * len(node_type.slots) + self._never_up[node_type.name]
        if self._unused[node_type.name] > most:
            self._note("unused", node_type.name, f"{most + 1} nodes in a row booted and ended without a job")

    def _note(self, rule: str, name: str, what: str) -> None:
        self.broken.setdefault((rule, name), f"{rule}: {name} {what}")


def _idle_s_max(node_type: NodeType, snapshot: Snapshot, policy: Policy) -> float:
    billing, timing = node_type.billing, policy.timing
    stops_s = snapshot.learned.stops_s.get(node_type.name, ())
    stop_s = max(timings.stop_lead_s(snapshot, node_type.name, policy), *stops_s, 0.0)
    looks_s = timing.probe_s * (policy.rules.idle_confirmations + 1)
    return policy.idle_timeout_s(node_type) + max(billing.window_s, billing.minimum_s) + stop_s + looks_s + SLACK_S


# --- unserved ---------------------------------------------------------------------------------------------
#
# Whether a job that is left unserved could have run: asked of the site and the cloud alone, not of the planner.
#
# The condition is sufficient, so each job that it finds is a fault. Some jobs are left out: those with a
# constraint, and those that fit only with nodes that the site allows at some times, in placement groups, on the
# spot market beyond ``spot_share_max``, or that boot for longer than ``boot_timeout``.


# Reasons that a budget gives. They are true on a site that has one: other jobs may have spent it.
OF_BUDGETS = frozenset(
    {
        Code.BUDGET_SPENT,
        Code.BUDGET_LEFT,
        Code.BUDGET_CHEAPEST_ONLY,
        Code.BEYOND_BUDGET,
        Code.BUDGET_OF_ACCOUNT,
        # These name a limit of the cheapest type. The others may be beyond the budget.
        Code.CLOUD_FULL,
        Code.SPOT_SHARE_MAX,
    }
)
WAITS_FOR_OTHERS = frozenset({Code.BEHIND_A_STUCK_JOB, Code.FITS_ON_A_NODE_THAT_IS_UP})
AT_A_LIMIT = frozenset({Code.NODES_MAX, Code.PRICE_PER_HOUR_MAX, Code.CLOUD_FULL, Code.NO_FREE_SLOT})


def without_true_reason(
    queue: Sequence[QueuedJob],
    reasons: Mapping[JobId, Reason],
    snapshot: Snapshot,
    policy: Policy,
    conditions: CloudConditions,
) -> Iterator[str]:
    """Yield the jobs that could run on an empty fleet, and wait at the end of a replay for no true reason.

    ``queue``: in queue order. A replay ends only after ``STUCK_S`` without a running job or any event of a job.
    """
    stuck_ahead = fits_ahead = gang_ahead = False
    for job in queue:
        why = reasons.get(job.id)
        is_true = why is not None and _is_true(
            why,
            policy,
            stuck_ahead=stuck_ahead,
            fits_ahead=fits_ahead,
            gang_ahead=gang_ahead,
            was_refused=_was_refused(job.shape, snapshot),
        )
        if not is_true and fits_empty_fleet(job.shape, policy, conditions):
            yield f"{job.name} could run, and waits: {why}"
        stuck_ahead = stuck_ahead or (why is not None and why.code not in WAITS_FOR_OTHERS)
        fits_ahead = fits_ahead or (why is not None and why.code is Code.FITS_ON_A_NODE_THAT_IS_UP)
        gang_ahead = gang_ahead or _was_refused(job.shape, snapshot)


def _was_refused(shape: Shape, snapshot: Snapshot) -> bool:
    """Whether the provider has refused a node of such jobs, also if they are planned for a placement group."""
    return shape in snapshot.learned.gangs or replace(shape, one_zone=True) in snapshot.learned.gangs


def _is_true(
    why: Reason, policy: Policy, *, stuck_ahead: bool, fits_ahead: bool, gang_ahead: bool, was_refused: bool
) -> bool:
    """Whether a reason that may keep such a job waiting for ever is true."""
    # Nodes that the site keeps up without a job.
    keeps = policy.limits.nodes_min > 0 or any(it.spares or it.prepaid for it in policy.node_types)
    match why.code:
        case Code.BEHIND_A_STUCK_JOB:
            return stuck_ahead and policy.rules.queue_policy is QueuePolicy.FIFO
        case Code.FITS_ON_A_NODE_THAT_IS_UP:
            # Flux's scheduler here does not pass over the job ahead, as ``skip`` takes for granted.
            return stuck_ahead and policy.rules.unserved is Unserved.SKIP
        case code if gang_ahead and (code in AT_A_LIMIT or code is Code.NODE_COMING):
            # The replay ends during a try of the gang, which takes the room, and no job passes it.
            return policy.rules.queue_policy is QueuePolicy.FIFO and not policy.passes_over(of_user=True)
        case Code.GANG_REFUSED | Code.NODE_COMING:
            # They hold the provider's last places, and do not give way to a gang that the provider has refused.
            # ``NODE_COMING``: it is tried again just now.
            return keeps and (was_refused or why.code is Code.GANG_REFUSED)
        case Code.BREAKER_OPEN:
            # Here a node fails to join only if its boot fails, or takes longer than the site's ``boot_timeout``.
            return why.figures.get("why") in (Code.NEVER_JOINED, breakers.DIED)
        case Code.BLOCKED_CREATE_CAPACITY:
            # Here all clouds share one capacity. A manager cannot know that, so nodes of other clouds stay.
            return keeps and len(policy.cloud_names) > 1
        case code if code in AT_A_LIMIT and fits_ahead:
            # Jobs ahead have their nodes, which stay up, and Flux's scheduler starts none of these jobs.
            return stuck_ahead and policy.rules.unserved is Unserved.SKIP
        case code:
            return code in OF_BUDGETS and bool(policy.budgets)


def fits_empty_fleet(shape: Shape, policy: Policy, conditions: CloudConditions) -> bool:
    """Whether a job fits nodes that may all be bought at once, within all limits and the cloud's true capacity."""
    if shape.constraint != ANYWHERE:
        return False
    if any(pieces_in_theory(shape, it.cores, it.gpus) for it in policy.clustered_types):
        shape = replace(shape, one_zone=True)  # so it is planned, to keep its nodes in one placement group
    boots_s = {name: it.boot_s.quantile(0.0) for name, it in conditions.behaviours.items()}
    joining = [it for it in policy.node_types if boots_s[it.name] <= policy.timing.boot_timeout_s]
    types = [it for it in joining if it.market is not Market.SPOT or policy.rules.spot_share_max >= 1.0]
    unreserved = [it for it in types if shape.gpus_per_slot or not it.is_reserved]
    any_jobs = [it for it in types if shape.gpus_per_slot or it.only_for is not OnlyFor.GPU]
    orders: tuple[Callable[[NodeType], Decimal], ...] = (
        lambda it: it.price_per_hour / max(1, _pieces(shape, it)),
        lambda it: Decimal(-_pieces(shape, it)),
    )
    return any(
        _fits(shape, sorted(some, key=order), policy, conditions)
        for some in (unreserved, any_jobs)
        for order in orders
    )


def _pieces(shape: Shape, node_type: NodeType) -> int:
    pieces = pieces_in_theory(shape, node_type.cores, node_type.gpus)
    return min(1, pieces) if on_different_nodes(shape) else pieces


def _fits(shape: Shape, types: Iterable[NodeType], policy: Policy, conditions: CloudConditions) -> bool:
    """Whether the job fits nodes that are taken in this order of their types."""
    schedules, limits = policy.upkeep.schedules, policy.limits
    fewest = [it.nodes_max for it in schedules if it.nodes_max is not None]
    left = min([limits.nodes_max, *fewest, *([conditions.capacity] if conditions.capacity else [])])
    least = [it.price_per_hour_max for it in schedules if it.price_per_hour_max is not None]
    price_left = min([limits.price_per_hour_max, *least])
    short, taken = pieces_of(shape), 0
    in_cloud: Counter[CloudName] = Counter()
    price_in: dict[CloudName, Decimal] = {}
    for node_type in types:
        pieces, cloud = _pieces(shape, node_type), policy.only_cloud(node_type.cloud)
        rules = policy.clouds.get(cloud)
        quota = conditions.behaviours[node_type.name].nodes_max
        count = min(len(node_type.slots), quota if quota is not None else left)
        anywhere = node_type.placement is NodePlacement.ANYWHERE
        for _ in range(count if pieces and anywhere else 0):
            price = price_in.get(cloud, Decimal(0)) + node_type.price_per_hour
            within = taken < left and sum(price_in.values()) + node_type.price_per_hour <= price_left
            if rules is not None:
                within = within and (rules.nodes_max is None or in_cloud[cloud] < rules.nodes_max)
                within = within and (rules.price_per_hour_max is None or price <= rules.price_per_hour_max)
            if not within:
                break
            taken += 1
            in_cloud[cloud] += 1
            price_in[cloud] = price
            short -= pieces
            if short <= 0:
                return not shape.one_zone or taken == 1
    return False
